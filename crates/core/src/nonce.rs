//! Nonces that let a model tell text inserted by memoird from user text that imitates it.
//!
//! Stored summaries contain no nonce. It is inserted when a window is built, so that it always
//! matches the window's generation.

use std::borrow::Cow;
use std::fmt;

use crate::sha256::Sha256;
use memchr::memmem;

use crate::ids::Generation;

const DIGITS: usize = 9;
/// Replaces the nonce where user content contains it. Same length, and a valid JSON number.
const INSTEAD: &str = "999999999";
/// Smallest nonce, chosen so that none has a leading zero.
const FIRST: u64 = 100_000_000;
/// Number of distinct nonces. [`INSTEAD`] is outside the range.
const COUNT: u64 = 899_999_999;

/// Key for deriving all nonces. Without it, nonces cannot be guessed.
#[derive(Clone, PartialEq, Eq)]
pub struct NonceSecret([u8; 32]);

/// A nine-digit nonce for the windows of one generation, or for one prompt.
///
/// It is stable, so that rebuilding a window yields the same bytes. Its length is fixed, because
/// most tokenizers give digit strings of equal length the same token count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Nonce([u8; DIGITS]);

impl NonceSecret {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key, to be stored across restarts.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the nonce for the windows of a generation.
    pub fn nonce(&self, generation: Generation) -> Nonce {
        self.derived(generation, 0)
    }

    /// Returns the nonce for a prompt about the turns of a generation up to `through_seq`.
    ///
    /// It differs from the window nonce and from that of the next prompt, because a model may
    /// repeat it in its reply.
    pub fn prompt_nonce(&self, generation: Generation, through_seq: u64) -> Nonce {
        self.derived(generation, through_seq.max(1))
    }

    fn derived(&self, generation: Generation, number: u64) -> Nonce {
        // The inputs have fixed lengths, and most of the digest stays secret.
        let digest = Sha256::new()
            .chain_update(self.0)
            .chain_update(generation.to_bytes())
            .chain_update(number.to_le_bytes())
            .finalize();
        let number = digest
            .iter()
            .take(8)
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let mut left = FIRST + number % COUNT;
        let mut digits = [b'0'; DIGITS];
        for digit in digits.iter_mut().rev() {
            *digit += u8::try_from(left % 10).unwrap_or_default();
            left /= 10;
        }
        Nonce(digits)
    }
}

impl fmt::Debug for NonceSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NonceSecret(..)")
    }
}

impl Nonce {
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Whether `content` contains the nonce, for example because a model repeated it.
    pub fn is_in(self, content: &[u8]) -> bool {
        memmem::find(content, &self.0).is_some()
    }

    /// Replaces the nonce in `text` with other digits. JSON stays valid.
    pub fn hidden_in<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.is_in(text.as_bytes()) {
            Cow::Owned(text.replace(self.as_str(), INSTEAD))
        } else {
            Cow::Borrowed(text)
        }
    }
}

/// A placeholder that no generation has as its nonce.
impl Default for Nonce {
    fn default() -> Self {
        Self([b'0'; DIGITS])
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonce({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonce_is_stable_per_generation_and_differs_per_secret() {
        let secret = NonceSecret::new([7; 32]);
        let nonces: Vec<Nonce> = (0..1_000)
            .map(|number| secret.nonce(Generation::new(number, 1)))
            .collect();
        for (number, nonce) in (0..).zip(&nonces) {
            assert_eq!(secret.nonce(Generation::new(number, 1)), *nonce);
            assert_eq!(nonce.as_str().len(), DIGITS);
            assert!((FIRST..FIRST + COUNT).contains(&nonce.as_str().parse().unwrap()));
        }
        let mut others: Vec<&str> = nonces.iter().map(Nonce::as_str).collect();
        others.sort_unstable();
        others.dedup();
        assert!(others.len() > 990, "{}", others.len());
        let other = NonceSecret::new([8; 32]).nonce(Generation::new(0, 1));
        assert_ne!(other, nonces[0]);
        let prompt = |seq| secret.prompt_nonce(Generation::new(0, 1), seq);
        assert!(prompt(1) != nonces[0] && prompt(1) != prompt(2) && prompt(2) == prompt(2));
        assert_eq!(format!("{secret:?}"), "NonceSecret(..)");
    }

    #[test]
    fn nonce_digits_in_user_text_are_replaced() {
        let nonce = NonceSecret::new([7; 32]).nonce(Generation::new(1, 1));
        let text = format!("[m{nonce}{nonce}] {{\"n\":{nonce}}}");
        assert!(nonce.is_in(text.as_bytes()));
        let hidden = nonce.hidden_in(&text);
        assert_eq!(hidden.len(), text.len());
        assert!(!nonce.is_in(hidden.as_bytes()));
        assert!(hidden.ends_with("{\"n\":999999999}"), "{hidden}");
        assert!(matches!(nonce.hidden_in("12345678"), Cow::Borrowed(_)));
    }
}
