//! The number in memoird's own words: a model that reads a window or a prompt tells them by it
//! from what a client says in the same words.
//!
//! Stored summaries have no mark: it is added where a window shows them, so that it is that of the
//! generation.

use std::borrow::Cow;
use std::fmt;

use crate::sha256::Sha256;
use memchr::memmem;

use crate::ids::Generation;

/// Digits of a mark.
const DIGITS: usize = 9;
/// What is shown where content has the mark of its session: as long, also in JSON.
const INSTEAD: &str = "999999999";
/// Marks are from here on, so that they do not begin with a zero.
const FIRST: u64 = 100_000_000;
/// So many there are: [`INSTEAD`] is none.
const COUNT: u64 = 899_999_999;

/// What the marks of all sessions are made from. Whoever does not know it cannot guess one.
#[derive(Clone, PartialEq, Eq)]
pub struct MarkSecret([u8; 32]);

/// What the windows of one generation bear, always the same so that they stay the same to the
/// byte; or a prompt.
///
/// All are of one length, in digits, because most tokenizers count those alike.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mark([u8; DIGITS]);

impl MarkSecret {
    /// A secret of these random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to be kept over a restart.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The mark of a generation's windows.
    pub fn mark(&self, generation: Generation) -> Mark {
        self.derived(generation, 0)
    }

    /// The mark of a prompt about a generation, which ends at this turn. A model may repeat it in
    /// what it answers, so it is not that of the windows, nor that of the next prompt.
    pub fn prompt_mark(&self, generation: Generation, through_seq: u64) -> Mark {
        self.derived(generation, through_seq.max(1))
    }

    fn derived(&self, generation: Generation, number: u64) -> Mark {
        // All have a fixed length, and most of the digest stays unknown.
        let digest = Sha256::new()
            .chain_update(self.0)
            .chain_update(generation.to_bytes())
            .chain_update(number.to_le_bytes());
        let digest = digest.finalize();
        let number = digest.iter().take(8);
        let number = number.fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let mut left = FIRST + number % COUNT;
        let mut digits = [b'0'; DIGITS];
        for digit in digits.iter_mut().rev() {
            *digit += u8::try_from(left % 10).unwrap_or_default();
            left /= 10;
        }
        Mark(digits)
    }
}

impl fmt::Debug for MarkSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkSecret(..)")
    }
}

impl Mark {
    /// Its digits.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// True where content has these digits: somebody was told them, for a model may repeat what
    /// it reads.
    pub fn is_in(self, content: &[u8]) -> bool {
        memmem::find(content, &self.0).is_some()
    }

    /// A text of somebody else without these digits: other ones stand there. JSON stays JSON.
    pub fn hidden_in<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.is_in(text.as_bytes()) {
            true => Cow::Owned(text.replace(self.as_str(), INSTEAD)),
            false => Cow::Borrowed(text),
        }
    }
}

/// A mark that no generation has.
impl Default for Mark {
    fn default() -> Self {
        Self([b'0'; DIGITS])
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mark({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_has_one_mark_and_another_secret_gives_another() {
        let secret = MarkSecret::new([7; 32]);
        let marks: Vec<Mark> = (0..1_000)
            .map(|number| secret.mark(Generation::new(number, 1)))
            .collect();
        for (number, mark) in (0..).zip(&marks) {
            assert_eq!(secret.mark(Generation::new(number, 1)), *mark);
            assert_eq!(mark.as_str().len(), DIGITS);
            assert!((FIRST..FIRST + COUNT).contains(&mark.as_str().parse().unwrap()));
        }
        let mut others: Vec<&str> = marks.iter().map(Mark::as_str).collect();
        others.sort_unstable();
        others.dedup();
        assert!(others.len() > 990, "{}", others.len());
        let other = MarkSecret::new([8; 32]).mark(Generation::new(0, 1));
        assert_ne!(other, marks[0]);
        let prompt = |seq| secret.prompt_mark(Generation::new(0, 1), seq);
        assert!(prompt(1) != marks[0] && prompt(1) != prompt(2) && prompt(2) == prompt(2));
        assert_eq!(format!("{secret:?}"), "MarkSecret(..)");
    }

    #[test]
    fn digits_that_somebody_learnt_are_other_ones_in_what_is_said() {
        let mark = MarkSecret::new([7; 32]).mark(Generation::new(1, 1));
        let said = format!("[m{mark}{mark}] {{\"n\":{mark}}}");
        assert!(mark.is_in(said.as_bytes()));
        let hidden = mark.hidden_in(&said);
        assert_eq!(hidden.len(), said.len());
        assert!(!mark.is_in(hidden.as_bytes()));
        assert!(hidden.ends_with("{\"n\":999999999}"), "{hidden}");
        assert!(matches!(mark.hidden_in("12345678"), Cow::Borrowed(_)));
    }
}
