//! Standing instructions: statements of the user that apply to the whole conversation.
//!
//! Later turns repeat requests and use answers in calls, but do not refer to "I have a severe
//! peanut allergy". So a sentence is scored by how later turns use it. Its words only exclude it, if
//! all are stop words or courtesies.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use serde::Serialize;

use super::transcript::{TranscriptTurn, sentences};
use crate::quote::one_line;
use crate::time::Timestamp;
use crate::turn::Role;
use crate::words::{Token, is_telling, tokens};

/// Maximum bytes of a sentence, and its minimum number of words ("Be brief.").
const SENTENCE_BYTES_MAX: usize = 300;
const WORDS_MIN: usize = 2;
/// Maximum bytes of a user turn with instructions. Longer ones are pasted text or a task.
const TURN_BYTES_MAX: usize = 1_200;
/// Replies shorter than this, in bytes, are acknowledgements.
const SHORT_REPLY_BYTES: usize = 120;
/// Maximum share of symbols in a sentence, in percent. Code and logs have more.
const SYMBOLS_PERCENT_MAX: usize = 6;
/// Minimum share of common words of two equivalent sentences, in percent.
const SAME_PERCENT: usize = 60;
/// Minimum score of an instruction.
///
/// At 0.3, three of five lines of a summary were small talk or requests. At 0.6, instructions in the
/// words of the conversation's subject were lost (`tests/eval/after_cut.py --hard`).
const SCORE_MIN: f32 = 0.5;

/// A sentence of the user that may be a standing instruction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StandingInstruction {
    /// Its turn, or 0 if a model wrote it.
    pub seq: u64,
    /// Time in seconds since 1970, or 0 if unknown.
    pub said_at: i64,
    pub text: String,
    /// Likelihood of being an instruction. Fixed when added, so that old instructions do not decay.
    pub score: f32,
    /// How often the user said it. A repeated sentence ("yes, please") is no instruction.
    pub count: u32,
}

impl StandingInstruction {
    fn rank(&self) -> f32 {
        self.score / self.count.max(1) as f32
    }
}

/// Adds the candidate sentences of `turns`, which leave the window.
///
/// The score of a sentence is the share of its words that occur in no other turn of `turns` and
/// `following`, minus 0.3 for a question, plus 0.3 if the reply is short, without a call and not a
/// question. Takes time linear in the text, except that candidates are compared with each other.
pub(super) fn collect(
    standing: &mut Vec<StandingInstruction>,
    turns: &[TranscriptTurn],
    following: &[TranscriptTurn],
) {
    let all: Vec<&TranscriptTurn> = turns.iter().chain(following).collect();
    // Each word once for each turn that has it.
    let mut occurrences: Vec<u64> = all.iter().flat_map(|turn| words(&turn.text)).collect();
    occurrences.sort_unstable();
    let is_rare = |word: &&u64| {
        let first = occurrences.partition_point(|known| known < *word);
        occurrences.get(first + 1) != Some(*word)
    };
    let earlier = standing.drain(..).map(|one| (words(&one.text), one));
    let mut candidates: Vec<(Vec<u64>, StandingInstruction)> = earlier.collect();
    for (index, turn) in turns.iter().enumerate() {
        let spoken: usize = turn.spoken().map(str::len).sum();
        if turn.role != Role::User || spoken > TURN_BYTES_MAX {
            continue;
        }
        let is_acknowledged = is_acknowledged(&all[index + 1..]);
        for sentence in turn.spoken().flat_map(own_words).flat_map(sentences) {
            if !is_instruction_sized(sentence) || has_many_symbols(sentence) {
                continue;
            }
            let words = words(sentence);
            if words.is_empty() {
                continue;
            }
            let text = one_line(sentence, SENTENCE_BYTES_MAX);
            let mut known = candidates.iter_mut().map(|(_, known)| known);
            if let Some(known) = known.find(|known| known.text == text) {
                (known.seq, known.said_at) = (turn.seq, seconds(turn.said_at));
                known.count += 1;
                continue;
            }
            let rare = words.iter().filter(is_rare).count() as f32 / words.len() as f32;
            let score = rare - if asks(sentence) { 0.3 } else { 0.0 }
                + if is_acknowledged { 0.3 } else { 0.0 };
            let new = StandingInstruction {
                seq: turn.seq,
                said_at: seconds(turn.said_at),
                text,
                score,
                count: 1,
            };
            candidates.retain(|(others, _)| !is_same(&words, others));
            candidates.push((words, new));
        }
    }
    standing.extend(candidates.into_iter().map(|(_, one)| one));
}

/// Whether a user turn has only output, like that of a command, and no words of the user.
pub(super) fn is_output(text: &str) -> bool {
    let is_said = |line: &str| is_instruction_sized(line) && !has_many_symbols(line);
    has_many_symbols(text) && text.contains('\n') && !own_words(text).any(is_said)
}

/// The parts of a text that are the user's own words.
///
/// If there are many symbols, the middle is pasted code or output, and only the first and the last
/// line count.
fn own_words(text: &str) -> impl Iterator<Item = &str> {
    let text = text.trim();
    let lines = if has_many_symbols(text) {
        text.split_once('\n')
    } else {
        None
    };
    match lines {
        None => [Some(text), None],
        Some((first, rest)) => [Some(first), rest.rsplit('\n').next()],
    }
    .into_iter()
    .flatten()
}

/// Whether two sentences share most of their words, as returned by [`words`].
pub(super) fn is_same(one: &[u64], other: &[u64]) -> bool {
    let most = one.len().max(other.len());
    let least = one.len().min(other.len());
    let is_enough = |shared: usize| shared * 100 >= most * SAME_PERCENT;
    if most == 0 || !is_enough(least) {
        return false;
    }
    let mut rest = other.iter().peekable();
    let is_shared = |word: &&u64| {
        while rest.next_if(|other| other < word).is_some() {}
        rest.peek() == Some(word)
    };
    is_enough(one.iter().filter(is_shared).count())
}

/// The best instructions that fit in `bytes_max` bytes, in order of time.
pub(super) fn best(standing: &[StandingInstruction], bytes_max: usize) -> Vec<StandingInstruction> {
    let mut ranked: Vec<&StandingInstruction> = standing.iter().collect();
    ranked.retain(|one| one.rank() >= SCORE_MIN);
    ranked.sort_by(|a, b| b.rank().total_cmp(&a.rank()).then(b.seq.cmp(&a.seq)));
    let mut left = bytes_max;
    let mut best: Vec<StandingInstruction> = Vec::new();
    for one in ranked {
        let bytes = one.text.len() + LINE_OVERHEAD;
        if bytes <= left {
            left -= bytes;
            best.push(one.clone());
        }
    }
    best.sort_by_key(|one| one.seq);
    best
}

/// Bytes of a line in addition to its text: the dash, the date and the line break.
pub(super) const LINE_OVERHEAD: usize = 16;

/// Hashes of the distinct words of a text, sorted, without words of one or two letters.
///
/// For Chinese and Japanese these are pairs of characters.
pub(super) fn words(text: &str) -> Vec<u64> {
    let long = tokens(text).filter(|token| !token.is_part && token.word.len() > 2);
    let hash = |token: Token<'_>| {
        let mut hasher = DefaultHasher::new();
        token.folded().hash(&mut hasher);
        hasher.finish()
    };
    let mut words: Vec<u64> = long.map(hash).collect();
    words.sort_unstable();
    words.dedup();
    words
}

pub(super) fn seconds(at: Option<Timestamp>) -> i64 {
    at.map_or(0, Timestamp::seconds)
}

/// Whether the next assistant turn is short, asks no question and has no call.
fn is_acknowledged(later: &[&TranscriptTurn]) -> bool {
    let reply = later.iter().find(|turn| turn.role == Role::Assistant);
    reply.is_some_and(|reply| {
        reply.calls.is_empty() && reply.text.len() < SHORT_REPLY_BYTES && !asks(&reply.text)
    })
}

/// True unless a sentence is too long, too short, or has only stop words and courtesies.
fn is_instruction_sized(sentence: &str) -> bool {
    if sentence.len() > SENTENCE_BYTES_MAX {
        return false;
    }
    let words: Vec<_> = tokens(sentence).filter(|token| !token.is_part).collect();
    words.len() >= WORDS_MIN && words.iter().any(|token| is_telling(&token.folded()))
}

fn asks(text: &str) -> bool {
    text.contains(['?', '？', '؟'])
}

fn has_many_symbols(text: &str) -> bool {
    let is_symbol = |c: &char| !c.is_alphanumeric() && !c.is_whitespace() && !is_punctuation(*c);
    let symbols = text.chars().filter(is_symbol).count();
    symbols * 100 > text.chars().count() * SYMBOLS_PERCENT_MAX
}

/// Whether prose normally contains the character as punctuation or sign.
fn is_punctuation(c: char) -> bool {
    // Combining marks and signs of other scripts are part of writing.
    !c.is_ascii() || ".,!?'\"-:;()$%&".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(text: &str, reply: &str) -> Vec<String> {
        let turns = [
            TranscriptTurn::new(1, Role::User, text),
            TranscriptTurn::new(2, Role::Assistant, reply),
        ];
        let mut standing = Vec::new();
        collect(&mut standing, &turns, &[]);
        let best = best(&standing, 1_000);
        best.into_iter().map(|one| one.text).collect()
    }

    #[test]
    fn short_instructions_are_kept() {
        for text in [
            "Be brief.",
            "I am vegan.",
            "Je suis sourd.",
            "敬語で話して。",
        ] {
            assert_eq!(collected(text, "Sure."), [text]);
        }
    }

    #[test]
    fn pasted_output_yields_no_instructions() {
        let code = "[File: /a.py]\n{'a': [x]}\nValueError: bad value in the middle\nbash-$";
        let text = format!("Never use tabs here.\n{code}\nReply in French.");
        let own = ["Never use tabs here.", "Reply in French."];
        assert_eq!(collected(&text, "Sure."), own);
        let prose = "It rained all day.\n".repeat(40);
        assert!(is_output(code) && ![&text, "f(x)", &prose].into_iter().any(is_output));
    }

    #[test]
    fn courtesies_and_short_answers_are_not_instructions() {
        for text in [
            "That would be great, thank you!",
            "Yes, please.",
            "Merci bien.",
        ] {
            assert_eq!(collected(text, "You're welcome."), [""; 0], "{text}");
        }
    }
}
