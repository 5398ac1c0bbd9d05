//! By what a text is found again that says the same.

use memoird_core::words::normalised;
use sha2::{Digest, Sha256};

/// A digest of the normalised text; of a text without any word, of what it is.
pub(super) fn content_hash(text: &str) -> i64 {
    let normal = normalised(text);
    let words = if normal.is_empty() { text } else { &normal };
    let digest: [u8; 32] = Sha256::digest(words.as_bytes()).into();
    i64::from_le_bytes(std::array::from_fn(|place| digest[place]))
}
