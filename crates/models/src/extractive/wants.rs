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
const FIRST: &str = "At first: ";
/// Bytes of each line.
const WANTED_BYTES_MAX: usize = 480;
const SINCE_BYTES_MAX: usize = 160;
const FIRST_BYTES_MAX: usize = 240;
/// Words that the assistant had not just said: fewer, and no identifier, say yes or thanks.
const NEW_WORDS_MIN: usize = 4;
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
    first: String,
}

impl Wants {
    /// Reads what [`Wants::text`] wrote. What a model wrote is all of it what was wanted.
    pub(super) fn read(text: &str) -> Self {
        let mut wants = Self::default();
        for line in text.lines().map(str::trim) {
            if let Some(since) = line.strip_prefix(SINCE) {
                wants.since = since.to_owned();
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
        let last = pieces.iter().rposition(|(text, heard)| asks(text, heard));
        if let Some(last) = last {
            if self.first.is_empty() {
                self.first = std::mem::take(&mut self.wanted);
                self.first
                    .truncate(self.first.floor_char_boundary(FIRST_BYTES_MAX));
            }
            self.wanted = beginning(pieces[last].0, WANTED_BYTES_MAX);
            self.since.clear();
        }
        let since = last.map_or(0, |last| last + 1);
        if let Some((text, _)) = pieces[since..].last() {
            self.since = beginning(text, SINCE_BYTES_MAX);
        }
    }

    /// The lines, the newest wish first.
    pub(super) fn text(&self) -> String {
        let mut text = self.wanted.clone();
        for (title, line) in [(SINCE, &self.since), (FIRST, &self.first)] {
            if !line.is_empty() {
                text.push_str(&format!("\n{title}{line}"));
            }
        }
        text
    }

    /// The same in less: without what came first, then without what was said since, then half.
    pub(super) fn shorten(&mut self) {
        if !self.first.is_empty() {
            self.first.clear();
        } else if !self.since.is_empty() {
            self.since.clear();
        } else {
            let end = self.wanted.floor_char_boundary(self.wanted.len() / 2);
            self.wanted.truncate(end);
        }
    }
}

/// True of what asks for something new: an identifier or some words that the assistant did not
/// just say.
fn asks(text: &str, heard: &str) -> bool {
    let heard = heard.to_lowercase();
    let mut looks = (HEARD_BYTES_MAX / heard.len().max(1)).max(LOOKS_MIN);
    let mut letters = 0;
    let mut new = 0;
    for word in text
        .to_lowercase()
        .split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '_')
    {
        let is_identifier = word.len() >= 4 && word.bytes().any(|byte| byte.is_ascii_digit());
        let is_telling = word.chars().count() >= LETTERS_MIN && !is_polite(word);
        if !word.is_ascii() {
            letters += word.chars().count();
        }
        if (is_identifier || is_telling) && looks > 0 {
            looks -= 1;
            let is_new = !heard.contains(word);
            if is_identifier && is_new {
                return true;
            }
            new += usize::from(is_telling && is_new);
        }
        // Scripts without blanks between words.
        if new >= NEW_WORDS_MIN || letters >= 5 * NEW_WORDS_MIN {
            return true;
        }
    }
    false
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
    }
}
