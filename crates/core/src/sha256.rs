//! SHA-256, computed by ring, which TLS needs already.

use std::fmt;

use ring::digest::{Context, SHA256};

/// The SHA-256 of what is added to it, one piece after the other.
#[derive(Clone)]
pub struct Sha256(Context);

impl Sha256 {
    /// Of nothing so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// The hash of these bytes alone.
    pub fn digest(bytes: impl AsRef<[u8]>) -> [u8; 32] {
        Self::new().chain_update(bytes).finalize()
    }

    /// Adds these bytes.
    pub fn update(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.update(bytes.as_ref());
    }

    /// The same with these bytes added.
    #[must_use]
    pub fn chain_update(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.update(bytes);
        self
    }

    /// The hash of all that was added.
    pub fn finalize(self) -> [u8; 32] {
        let mut hash = [0; 32];
        hash.copy_from_slice(self.0.finish().as_ref());
        hash
    }
}

impl Default for Sha256 {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sha256")
    }
}
