//! What the user wants, in their own words: the last ones that ask for something, what they said
//! since, and what they asked for first.

use std::collections::HashSet;
use std::sync::LazyLock;

use memoird_core::compaction::ledger::Said;
use memoird_core::compaction::transcript::sentences;
use memoird_core::turn::Role;
use memoird_core::words::is_stop_word;

/// Stand before the lines behind the first one.
const SINCE: &str = "Said since: ";
const BEFORE: &str = "Before: ";
const FIRST: &str = "At first: ";
/// Bytes of each line.
const WANTED_BYTES_MAX: usize = 480;
const SINCE_BYTES_MAX: usize = 160;
const BEFORE_BYTES_MAX: usize = 160;
const FIRST_BYTES_MAX: usize = 240;
/// Words that the assistant had not just said: fewer, and no identifier, say yes or thanks.
const NEW_WORDS_MIN: usize = 4;
const QUESTION_MARKS: &[char] = &['?', '？', '؟'];
/// Letters of such a word.
const LETTERS_MIN: usize = 4;
/// Bytes of what the assistant said that are searched for the words of an answer, all together; and
/// words that are looked for in any case. Who sends a long text back asks for little of it.
const HEARD_BYTES_MAX: usize = 1 << 20;
const LOOKS_MIN: usize = 64;
/// What is said to be polite; other languages' thanks are few new words.
static POLITE: LazyLock<HashSet<&str>> = LazyLock::new(|| POLITE_WORDS.split(' ').collect());
const POLITE_WORDS: &str = "thank thanks thankyou please help appreciate great good perfect much very okay sure \
    stop danke bitte gracias merci obrigado grazie sounds wonderful awesome that's everything needed again";
/// The intent where the user said nothing.
pub(super) const NOT_SAID: &str = "(not said)";

/// What the user wants, from what is known and what was said since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    wanted: String,
    since: String,
    /// What they asked for before that.
    before: String,
    first: String,
}

impl Wants {
    /// Reads what [`Wants::text`] wrote. What a model wrote is all of it what was wanted.
    pub(super) fn read(text: &str) -> Self {
        let mut wants = Self::default();
        for line in text.lines().map(str::trim) {
            if let Some(since) = line.strip_prefix(SINCE) {
                wants.since = since.to_owned();
            } else if let Some(before) = line.strip_prefix(BEFORE) {
                wants.before = before.to_owned();
            } else if let Some(first) = line.strip_prefix(FIRST) {
                wants.first = first.to_owned();
            } else if line != NOT_SAID {
                wants
                    .wanted
                    .push_str(if wants.wanted.is_empty() { "" } else { " " });
                wants.wanted.push_str(line);
            }
        }
        wants
    }

    /// Takes in what was said later.
    pub(super) fn hear(&mut self, said: &[Said<'_>]) {
        let mut heard = "";
        let mut pieces = Vec::new();
        for piece in said {
            match piece.turn.role {
                Role::User => pieces.push((piece.text, heard)),
                _ => heard = piece.text,
            }
        }
        if self.wanted.is_empty()
            && let Some((text, _)) = pieces.first()
        {
            self.wanted = beginning(text, WANTED_BYTES_MAX);
            pieces.remove(0);
        }
        let asked = pieces.iter().enumerate();
        let mut asked = asked.filter(|(_, (text, heard))| asks(text, heard)).rev();
        let last = asked.next().map(|(at, _)| at);
        if let Some(last) = last {
            let known = std::mem::take(&mut self.wanted);
            let before = asked
                .next()
                .map(|(_, (text, _))| beginning(text, BEFORE_BYTES_MAX));
            if self.first.is_empty() && says_much(&known) {
                self.first = shortened(&known, FIRST_BYTES_MAX);
            }
            self.before = before.unwrap_or_else(|| shortened(&known, BEFORE_BYTES_MAX));
            if self.first.starts_with(&self.before) {
                self.before.clear();
            }
            self.wanted = beginning(pieces[last].0, WANTED_BYTES_MAX);
            self.since.clear();
        }
        let since = last.map_or(0, |last| last + 1);
        if let Some((text, _)) = pieces[since..].last() {
            self.since = beginning(text, SINCE_BYTES_MAX);
            if self.wanted.starts_with(&self.since) {
                self.since.clear();
            }
        }
    }

    /// The lines, the newest wish first.
    pub(super) fn text(&self) -> String {
        let mut text = self.wanted.clone();
        for (title, line) in [
            (SINCE, &self.since),
            (BEFORE, &self.before),
            (FIRST, &self.first),
        ] {
            if !line.is_empty() {
                text.push_str(&format!("\n{title}{line}"));
            }
        }
        text
    }

    /// True of a yes, or thanks.
    fn has_little_since(&self) -> bool {
        !self.since.is_empty() && !says_much(&self.since)
    }

    /// The same in less: without what came first, without a yes, without what came before, without
    /// what was said since, then half.
    pub(super) fn shorten(&mut self) {
        if !self.first.is_empty() {
            self.first.clear();
        } else if self.has_little_since() {
            self.since.clear();
        } else if !self.before.is_empty() {
            self.before.clear();
        } else if !self.since.is_empty() {
            self.since.clear();
        } else {
            let end = self.wanted.floor_char_boundary(self.wanted.len() / 2);
            self.wanted.truncate(end);
        }
    }
}

/// True of what asks for something new: a question about what the assistant did not just say, some
/// words that it did not, or an identifier.
fn asks(text: &str, heard: &str) -> bool {
    let is_asked = heard.contains(QUESTION_MARKS);
    let heard = heard.to_lowercase();
    let mut looks = (HEARD_BYTES_MAX / heard.len().max(1)).max(LOOKS_MIN);
    let mut letters = 0;
    let mut new = 0;
    for sentence in sentences(text) {
        let before = new;
        for word in words(sentence) {
            let is_identifier = word.len() >= 4 && word.bytes().any(|byte| byte.is_ascii_digit());
            let is_telling = is_telling(&word);
            if !word.is_ascii() {
                letters += word.chars().count();
            }
            if (is_identifier || is_telling) && looks > 0 {
                looks -= 1;
                let is_new = !heard.contains(&word);
                // A number alone may answer what was asked.
                let is_id = is_identifier && (!is_asked || word.contains(char::is_alphabetic));
                if is_id && is_new {
                    return true;
                }
                new += usize::from(is_telling && is_new);
            }
            // Scripts without blanks between words.
            if new >= NEW_WORDS_MIN || letters >= 5 * NEW_WORDS_MIN {
                return true;
            }
        }
        if new > before && sentence.ends_with(QUESTION_MARKS) {
            return true;
        }
    }
    false
}

/// True of a text with some words that tell something.
fn says_much(text: &str) -> bool {
    let letters = text.chars().filter(|c| !c.is_ascii() && c.is_alphabetic());
    let words = text
        .split_whitespace()
        .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()));
    let words = words.filter(|word| word.chars().all(char::is_alphabetic));
    words
        .filter(|word| is_telling(&word.to_lowercase()))
        .count()
        >= NEW_WORDS_MIN
        || letters.count() >= 5 * NEW_WORDS_MIN
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '_');
    words.map(str::to_lowercase)
}

fn is_telling(word: &str) -> bool {
    word.chars().count() >= LETTERS_MIN && !is_polite(word)
}

fn shortened(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}

/// True of a word that says nothing of what somebody wants.
pub(super) fn is_polite(word: &str) -> bool {
    POLITE.contains(word) || is_stop_word(word)
}

/// The first sentences of a text, each once, in one line.
fn beginning(text: &str, bytes_max: usize) -> String {
    let mut line = String::new();
    let mut said = HashSet::new();
    for sentence in sentences(text).filter(|sentence| said.insert(*sentence)) {
        let end = sentence.floor_char_boundary(bytes_max.min(sentence.len()));
        if !line.is_empty() && line.len() + end >= bytes_max {
            break;
        }
        line.push_str(if line.is_empty() { "" } else { " " });
        line.push_str(&sentence[..end]);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_the_assistant_asks_for_nothing_however_long_it_is() {
        let heard = format!("{}abcd efgh ijkl mnop", "x".repeat(1 << 20));
        let repeated = "abcd efgh ijkl mnop ".repeat(50_000);
        assert!(!asks(&repeated, &heard));
        assert!(asks("abcd, then bake four large apple pies", &heard));
        assert!(asks("abcd for ORD-4711", &heard));
        assert!(!asks("yes, thank you, abcd", &heard));
        assert!(asks("thanks. is there parking?", &heard));
        assert!(!asks("thanks. abcd?", &heard));
        assert!(asks("ORD-4711", "Which order do I look at."));
        assert!(!asks("yes, 1000, please", "Shall I pay 1,000?"));
        assert!(asks("pay 1000, please", "It is open."));
        assert!(asks(
            "no, then ship both pieces towards Krakow",
            "Shall I pay 1,000?"
        ));
    }
}
