//! Secrets stand in the environment or in files, never in the configuration itself. The
//! one file that reads the environment.

use std::path::PathBuf;

use crate::auth::{KeyDigest, digest};

/// Where a key is.
#[derive(Debug)]
pub(super) enum Secret<'a> {
    /// In this variable of the environment.
    Env(&'a str),
    /// In this file, up to white space at its end.
    File(&'a PathBuf),
    /// Nowhere: only its SHA-256 is known, in hexadecimal digits.
    Sha256(&'a str),
}

impl Secret<'_> {
    /// The digest of the key, or why there is none.
    pub(super) fn digest(&self) -> Result<KeyDigest, String> {
        match self {
            Self::Env(name) => {
                let key = environment(name).ok_or_else(|| {
                    format!("the environment has no variable {name}, or it is no text")
                })?;
                of_text(&key).ok_or_else(|| format!("the variable {name} is empty"))
            }
            Self::File(path) => {
                let key = std::fs::read_to_string(path)
                    .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
                of_text(&key).ok_or_else(|| format!("{} is empty", path.display()))
            }
            Self::Sha256(hex) => {
                of_hex(hex).ok_or_else(|| "sha256 takes 64 hexadecimal digits".to_owned())
            }
        }
    }
}

#[allow(clippy::disallowed_methods)]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn of_text(key: &str) -> Option<KeyDigest> {
    let key = key.trim();
    (!key.is_empty()).then(|| digest(key.as_bytes()))
}

fn of_hex(hex: &str) -> Option<KeyDigest> {
    let digits: Vec<u8> = hex
        .chars()
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    (digits.len() == 64).then(|| bytes.try_into().ok()).flatten()
}
