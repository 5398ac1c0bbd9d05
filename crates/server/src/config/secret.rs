//! Secrets stand in the environment or in files, never in the configuration itself. The
//! one file that reads the environment for it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::auth::{KeyDigest, digest};

/// Where a secret is.
#[derive(Debug)]
pub(super) enum Secret<'a> {
    /// In this variable of the environment.
    Env(&'a str),
    /// In this file, up to white space at its end.
    File(&'a Path),
}

/// Where a secret is, as it stands in the file.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SecretShape {
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<PathBuf>,
}

impl SecretShape {
    /// The secret, or why there is none.
    pub(super) fn read(&self) -> Result<String, String> {
        match (&self.env, &self.file) {
            (Some(name), None) => Secret::Env(name).read(),
            (None, Some(path)) => Secret::File(path).read(),
            _ => Err("takes one of env, file".to_owned()),
        }
    }
}

impl Secret<'_> {
    /// The secret, or why there is none.
    pub(super) fn read(&self) -> Result<String, String> {
        let (text, is_empty) = match self {
            Self::Env(name) => {
                let text = environment(name).and_then(|value| value.into_string().ok());
                let none = || format!("the environment has no variable {name}, or it is no text");
                (
                    text.ok_or_else(none)?,
                    format!("the variable {name} is empty"),
                )
            }
            Self::File(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
                (text, format!("{} is empty", path.display()))
            }
        };
        match text.trim() {
            "" => Err(is_empty),
            secret => Ok(secret.to_owned()),
        }
    }
}

/// A variable of the environment.
#[allow(clippy::disallowed_methods)]
pub(super) fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The digest of a key.
pub(super) fn digest_of_text(key: &str) -> KeyDigest {
    digest(key.as_bytes())
}

/// The digest of a key of which only that is known, in hexadecimal digits.
pub(super) fn digest_of_hex(hex: &str) -> Result<KeyDigest, String> {
    let digits: Option<Vec<u8>> = hex
        .chars()
        .map(|digit| {
            digit
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        })
        .collect();
    let digits = digits
        .filter(|digits| digits.len() == 64)
        .unwrap_or_default();
    let bytes: Vec<u8> = digits
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect();
    bytes
        .try_into()
        .map_err(|_| "sha256 takes 64 hexadecimal digits".to_owned())
}
