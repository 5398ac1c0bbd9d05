//! Generates almost valid inputs: a corpus file with a few edits.
//!
//! Most edits apply to whole tokens (a bracket with its content, a quoted string, a word), so that
//! the result is mostly still in the language of the corpus.

use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Maximum number of edits per input.
const EDITS_MAX: usize = 6;
/// Maximum bytes of an input. Longer ones, after repetitions, are truncated.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// Boundary values that parsers tend to mishandle.
const BOUNDARIES: [&str; 24] = [
    "",
    " ",
    "\n",
    "\0",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "0",
    "-1",
    "1e999",
    "-0.0",
    "255",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "null",
    "true",
    "{}",
    "[]",
    "\u{202e}",
    "\u{1F468}\u{200D}\u{1F469}",
    "\u{FEFF}",
];

/// One edit. Positions are fractions of the input, so that they stay valid when it shrinks.
#[derive(Clone, Debug)]
enum Edit {
    Flip {
        at: Index,
        with: u8,
    },
    Remove {
        at: Index,
    },
    Repeat {
        at: Index,
        times: u8,
    },
    /// Replaces a token by one from any file of the corpus.
    Replace {
        at: Index,
        file: Index,
        from: Index,
    },
    Insert {
        at: Index,
        file: Index,
        from: Index,
    },
    Word {
        at: Index,
        word: Index,
        is_instead: bool,
    },
    CutOff {
        at: Index,
    },
}

/// A strategy for edited corpus files. Shrinks to fewer edits.
pub(crate) fn inputs(corpus: &[Vec<u8>], words: &[&str]) -> impl Strategy<Value = Vec<u8>> {
    let corpus = corpus.to_vec();
    let words = words.iter().chain(&BOUNDARIES);
    let words: Vec<String> = words.map(|word| (*word).to_owned()).collect();
    let place = any::<Index>;
    let edit = prop_oneof![
        2 => (place(), any::<u8>()).prop_map(|(at, with)| Edit::Flip { at, with }),
        3 => place().prop_map(|at| Edit::Remove { at }),
        2 => (place(), 1..4_u8).prop_map(|(at, times)| Edit::Repeat { at, times }),
        6 => (place(), place(), place())
            .prop_map(|(at, file, from)| Edit::Replace { at, file, from }),
        4 => (place(), place(), place())
            .prop_map(|(at, file, from)| Edit::Insert { at, file, from }),
        6 => (place(), place(), any::<bool>())
            .prop_map(|(at, word, is_instead)| Edit::Word { at, word, is_instead }),
        1 => place().prop_map(|at| Edit::CutOff { at }),
    ];
    (place(), vec(edit, 1..=EDITS_MAX)).prop_map(move |(file, edits)| {
        let mut input = file.get(&corpus).clone();
        for edit in &edits {
            edit.apply(&mut input, &corpus, &words);
            input.truncate(INPUT_BYTES_MAX);
        }
        input
    })
}

impl Edit {
    fn apply(&self, input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[String]) {
        match self {
            Self::Flip { at, with } => {
                if !input.is_empty() {
                    let at = at.index(input.len());
                    input[at] = *with;
                }
            }
            Self::Remove { at } => drop(input.drain(piece(input, at))),
            Self::Repeat { at, times } => {
                let place = piece(input, at);
                let again = input[place.clone()].repeat(usize::from(*times));
                insert(input, place.end, &again);
            }
            Self::Replace { at, file, from } => {
                let other = file.get(corpus);
                let new = other[piece(other, from)].to_vec();
                input.splice(piece(input, at), new);
            }
            Self::Insert { at, file, from } => {
                let other = file.get(corpus);
                let start = piece(input, at).start;
                insert(input, start, &other[piece(other, from)]);
            }
            Self::Word {
                at,
                word,
                is_instead,
            } => {
                let place = piece(input, at);
                let end = if *is_instead { place.end } else { place.start };
                input.splice(place.start..end, word.get(words).bytes());
            }
            Self::CutOff { at } => input.truncate(at.index(input.len() + 1)),
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}

/// The token that starts at a position.
fn piece(input: &[u8], at: &Index) -> Range<usize> {
    let start = at.index(input.len() + 1);
    let Some(first) = input.get(start) else {
        return start..start;
    };
    let length = match first {
        b'{' => bracket(&input[start..], b'{', b'}'),
        b'[' => bracket(&input[start..], b'[', b']'),
        b'"' => quoted(&input[start..]),
        byte if is_of_word(*byte) => {
            let rest = input[start..].iter();
            rest.take_while(|byte| is_of_word(**byte)).count()
        }
        _ => 1,
    };
    start..start + length
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Length up to the closing bracket, or of the whole input if there is none.
fn bracket(input: &[u8], open: u8, close: u8) -> usize {
    let mut depth = 0_usize;
    let end = input.iter().position(|byte| {
        depth += usize::from(*byte == open);
        depth -= usize::from(*byte == close);
        depth == 0
    });
    end.map_or(input.len(), |end| end + 1)
}

/// Length up to the closing quote, or of the whole input if there is none.
fn quoted(input: &[u8]) -> usize {
    let mut is_escaped = false;
    let end = input.iter().skip(1).position(|byte| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    });
    end.map_or(input.len(), |end| end + 2)
}
