//! A fast estimate of tokens, in one pass over the bytes.

use std::fmt;

use super::Tokenizer;

/// Counts by classes of characters, about thirty times as fast as a tokenizer.
///
/// # How
/// The cost of a byte depends on its class and the class before it. A word costs for its first
/// letter and for each after the fourth, digits cost in groups of three, punctuation by runs, and
/// other scripts by the character. Base64 and hexadecimal cost much because their letters and
/// digits alternate. See `WEIGHTS`.
///
/// The weights are a least-squares fit to `o200k_base` (relative errors, each kind of text with
/// equal weight): chats, tool results and other JSON, Rust, Python, C, Markdown, prose and
/// translated user interfaces in 18 languages, URLs, tables, UUIDs, base64 and hexadecimal.
///
/// Errors against `o200k_base` without `LEAN`, for totals by kind of text:
///
/// - English and code: -6 % (C, indented JSON) to +6 % (Markdown)
/// - base64, hexadecimal, UUIDs, tables and URLs: -3 to +1 %
/// - others: -13 % (Polish) to +18 % (Russian, Vietnamese)
///
/// Single texts of a few kilobytes are mostly off by less than a quarter. The estimate errs on the
/// high side, to cover open models that tokenize each digit separately: see `LEAN`.
#[derive(Clone)]
pub struct Estimate {
    /// By state and class: row of the next state in the upper bits, cost in the lower bits.
    steps: Box<[u32; STATES * CLASSES_ROW]>,
}

/// Remaining relative error.
const MARGIN: f64 = 0.15;

/// In hundredths of a token, fitted to `o200k_base`.
const WEIGHTS: Weights = Weights {
    word: 80,
    late_letter: 26,
    capital: 28,
    camel: 180,
    digits: 125,
    more_digits: 95,
    marks: 82,
    more_marks: 14,
    space: 8,
    line: 40,
    more_lines: 10,
    scripts: [
        // Latin letters with accents, Greek and Cyrillic, Hebrew and Arabic.
        85, 38, 44, // Indic scripts and Thai, symbols, kana, Han, Hangul and neighbours.
        45, 50, 66, 95, 77, // Full-width forms, emoji.
        80, 200,
    ],
};

/// Costs of characters, in hundredths of a token.
struct Weights {
    /// First letter of a word.
    word: u32,
    /// Each lower-case letter of a word after its fourth letter.
    late_letter: u32,
    /// Each capital of a word after its first letter.
    capital: u32,
    /// A capital after a lower-case letter, as in `toolUse`.
    camel: u32,
    /// First three digits of a number.
    digits: u32,
    /// Each further group of three.
    more_digits: u32,
    /// First character of a run of punctuation.
    marks: u32,
    /// Each further character of it.
    more_marks: u32,
    /// Each space after a space. A single space belongs to the next word.
    space: u32,
    /// First line break or tab.
    line: u32,
    /// Each further one.
    more_lines: u32,
    /// A non-ASCII character, by class from [`LATIN`] to [`EMOJI`].
    scripts: [u32; SCRIPTS],
}

/// Percentage of the weights fitted to `o200k_base`.
const LEAN: ScriptCosts = ScriptCosts {
    words: 110,
    digits: 150,
    marks: 110,
    scripts: 130,
};

struct ScriptCosts {
    words: u32,
    digits: u32,
    marks: u32,
    scripts: u32,
}

// Classes of bytes. The first byte of a character determines its class.
const LOWER: u8 = 0;
const UPPER: u8 = 1;
const DIGIT: u8 = 2;
const MARK: u8 = 3;
const SPACE: u8 = 4;
const LINE: u8 = 5;
/// A continuation byte of a character. Free, and keeps the state.
const TAIL: u8 = 6;
const LATIN: u8 = 7;
const EMOJI: u8 = 16;
const SCRIPTS: usize = 10;
/// A power of two, so that rows are addressed by addition.
const CLASSES_ROW: usize = 32;

// States, named after the previous byte.
const OTHER: usize = 0;
const AFTER_SPACE: usize = 1;
const AFTER_LINE: usize = 2;
const AFTER_MARK: usize = 3;
/// One to three digits of a group.
const AFTER_DIGIT: usize = 4;
/// One to [`LETTERS`] or more letters of a word, the last one lower case.
const AFTER_LOWER: usize = 7;
/// The same with a capital as the last letter.
const AFTER_UPPER: usize = AFTER_LOWER + LETTERS;
const LETTERS: usize = 5;
const STATES: usize = AFTER_UPPER + LETTERS;

const COST_BITS: u32 = 16;
const COST_MASK: u32 = (1 << COST_BITS) - 1;

static CLASSES: [u8; 256] = classes();

impl Default for Estimate {
    fn default() -> Self {
        Self::leaning(&LEAN)
    }
}

impl Estimate {
    fn leaning(lean: &ScriptCosts) -> Self {
        let weights = WEIGHTS.leaning(lean);
        let mut steps = Box::new([0; STATES * CLASSES_ROW]);
        for state in 0..STATES {
            for class in 0..=EMOJI {
                let (next, cost) = weights.step(state, class);
                let row = u32::try_from(next * CLASSES_ROW).unwrap_or_default();
                steps[state * CLASSES_ROW + usize::from(class)] = row << COST_BITS | cost;
            }
        }
        Self { steps }
    }
}

impl Tokenizer for Estimate {
    fn count(&self, text: &str) -> usize {
        let mut row = 0;
        let mut hundredths = 0_u64;
        for byte in text.bytes() {
            let class = CLASSES[usize::from(byte)];
            let step = self.steps[row + usize::from(class)];
            hundredths += u64::from(step & COST_MASK);
            row = (step >> COST_BITS) as usize;
        }
        usize::try_from(hundredths.div_ceil(100)).unwrap_or(usize::MAX)
    }

    fn margin(&self) -> f64 {
        MARGIN
    }
}

impl fmt::Debug for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Estimate").finish_non_exhaustive()
    }
}

impl Weights {
    fn leaning(&self, lean: &ScriptCosts) -> Self {
        let words = |weight: u32| weight * lean.words / 100;
        let digits = |weight: u32| weight * lean.digits / 100;
        let marks = |weight: u32| weight * lean.marks / 100;
        Self {
            word: words(self.word),
            late_letter: words(self.late_letter),
            capital: words(self.capital),
            camel: words(self.camel),
            digits: digits(self.digits),
            more_digits: digits(self.more_digits),
            marks: marks(self.marks),
            more_marks: marks(self.more_marks),
            space: marks(self.space),
            line: marks(self.line),
            more_lines: marks(self.more_lines),
            scripts: self.scripts.map(|weight| weight * lean.scripts / 100),
        }
    }

    /// Returns the state after a byte of `class`, and the cost of the byte.
    fn step(&self, state: usize, class: u8) -> (usize, u32) {
        let after_lower = (AFTER_LOWER..AFTER_UPPER).contains(&state);
        let letters = match state {
            AFTER_UPPER.. => state - AFTER_UPPER + 1,
            AFTER_LOWER.. => state - AFTER_LOWER + 1,
            _ => 0,
        };
        // Index of the state with one letter more.
        let longer = letters.min(LETTERS - 1);
        match class {
            TAIL => (state, 0),
            LOWER if letters == 0 => (AFTER_LOWER, self.word),
            LOWER if letters < 4 => (AFTER_LOWER + longer, 0),
            LOWER => (AFTER_LOWER + longer, self.late_letter),
            UPPER if letters == 0 => (AFTER_UPPER, self.word),
            UPPER if after_lower => (AFTER_UPPER, self.camel),
            UPPER => (AFTER_UPPER + longer, self.capital),
            DIGIT => match state {
                4 | 5 => (state + 1, 0),
                6 => (AFTER_DIGIT, self.more_digits),
                _ => (AFTER_DIGIT, self.digits),
            },
            MARK if state == AFTER_MARK => (AFTER_MARK, self.more_marks),
            MARK => (AFTER_MARK, self.marks),
            SPACE if state == AFTER_SPACE => (AFTER_SPACE, self.space),
            SPACE => (AFTER_SPACE, 0),
            LINE if state == AFTER_LINE => (AFTER_LINE, self.more_lines),
            LINE => (AFTER_LINE, self.line),
            // A letter with an accent is part of its word.
            LATIN => (AFTER_LOWER + longer, self.scripts[0]),
            script => (
                OTHER,
                self.scripts[usize::from(script - LATIN).min(SCRIPTS - 1)],
            ),
        }
    }
}

const fn classes() -> [u8; 256] {
    let mut classes = [MARK; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte {
            0x61..=0x7a => LOWER,
            0x41..=0x5a => UPPER,
            0x30..=0x39 => DIGIT,
            0x20 => SPACE,
            0x09 | 0x0a | 0x0d => LINE,
            0x00..=0x7f => MARK,
            0x80..=0xbf => TAIL,
            0xc0..=0xcb => LATIN,
            0xcc..=0xd5 => LATIN + 1,
            0xd6..=0xdf => LATIN + 2,
            0xe0..=0xe1 => LATIN + 3,
            0xe2 => LATIN + 4,
            0xe3 => LATIN + 5,
            0xe4..=0xe9 => LATIN + 6,
            0xea..=0xed => LATIN + 7,
            0xee..=0xef => LATIN + 8,
            _ => EMOJI,
        };
        byte += 1;
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::super::OpenAiTokenizer::O200k;
    use super::*;

    const PROSE: &str = "When the harbour master returned in the evening, nobody had touched the \
        letters on her desk. She read them twice, folded the last one carefully, and asked the \
        captain whether his ship could leave before the storm reached the coast. He looked at \
        the sky, then at the tide table, and said that it would be close but possible.";
    const JSON: &str = r#"{"reservation_id":"8JX2WO","user_id":"amelia_davis_8890","origin":"PHX",
        "destination":"SEA","flights":[{"flight_number":"HAT137","date":"2024-05-24","price":174},
        {"flight_number":"HAT022","date":"2024-05-28","price":151}],"insurance":"no"}"#;
    const CODE: &str = "fn newest(turns: &[Turn], limit: usize) -> Vec<&Turn> {\n    let skipped = \
        turns.len().saturating_sub(limit);\n    turns.iter().skip(skipped).collect()\n}\n";
    const CHINESE: &str = "今天下午我们在图书馆见面，然后一起去看新开的展览。";

    fn plain() -> Estimate {
        let lean = ScriptCosts {
            words: 100,
            digits: 100,
            marks: 100,
            scripts: 100,
        };
        Estimate::leaning(&lean)
    }

    fn ratio(estimate: &Estimate, text: &str) -> f64 {
        estimate.count(text) as f64 / O200k.count(text) as f64
    }

    #[test]
    fn unbiased_estimate_is_near_o200k() {
        for text in [PROSE, JSON, CODE, CHINESE] {
            let ratio = ratio(&plain(), text);
            assert!((0.75..=1.4).contains(&ratio), "{ratio:.2}: {text}");
        }
    }

    #[test]
    fn default_estimate_errs_high() {
        for text in [PROSE, JSON, CODE, CHINESE] {
            assert!(
                Estimate::default().count(text) >= plain().count(text),
                "{text}"
            );
        }
    }

    #[test]
    fn base64_is_estimated_near_o200k() {
        let base64 = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLv";
        let ratio = ratio(&plain(), base64);
        assert!((0.7..=1.4).contains(&ratio), "{ratio:.2}");
    }

    #[test]
    fn repetitive_text_is_not_underestimated() {
        for text in [
            "a", " ", "\n", "!", "7", "A", "é", "я", "中", "🙂", "\u{0}", "\t ",
        ] {
            let long = text.repeat(100_000);
            assert!(plain().count(&long) * 40 >= O200k.count(&long), "{text:?}");
            assert!(plain().count(&long) >= 1_000, "{text:?}");
        }
        assert_eq!(plain().count(""), 0);
        assert_eq!(plain().count("a"), 1);
    }
}
