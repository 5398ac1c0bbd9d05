//! References to secrets. A configuration never contains one, only the name of a variable or file.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Location of a secret: `{ env: NAME }` or `{ file: PATH }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecretRef {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// A file. Whitespace around its content is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

/// Access to environment variables and secret files.
pub trait Environment {
    fn variable(&self, name: &str) -> Option<OsString>;

    /// Returns the content of a file.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn file(&self, path: &Path) -> io::Result<String>;
}

impl SecretRef {
    /// Reads the secret.
    ///
    /// # Errors
    /// A sentence for the operator if the secret is missing, or not exactly one location is set.
    pub fn read(&self, environment: &dyn Environment) -> Result<String, String> {
        let (text, source) = match (&self.env, &self.file) {
            // The name may be the secret itself, so do not show it.
            (Some(name), None) if !is_variable(name) => {
                return Err("env takes the name of a variable, such as ACME_KEY".to_owned());
            }
            (Some(name), None) => {
                let text = environment
                    .variable(name)
                    .and_then(|text| text.into_string().ok());
                let named = shown_variable(name);
                let none = || format!("the environment has no {named}, or it is no text");
                (text.ok_or_else(none)?, format!("the {named}"))
            }
            (None, Some(path)) => {
                let text = environment.file(path);
                let file = shown_file(path);
                let unreadable = |error| format!("{file} cannot be read: {error}");
                (text.map_err(unreadable)?, file.clone())
            }
            _ => return Err("takes one of env, file".to_owned()),
        };
        match text.trim() {
            "" => Err(format!("{source} is empty")),
            secret => Ok(secret.to_owned()),
        }
    }
}

/// Describes a variable in a problem.
///
/// Shows its name only if it looks like one, because a user may have put the secret itself here.
fn shown_variable(name: &str) -> String {
    if is_spoken(name) {
        format!("variable {name}")
    } else {
        "variable of this name".to_owned()
    }
}

/// Whether the name looks like it was chosen by a person.
///
/// True for several words in capital letters, such as `ACME_KEY_2`, and for one that ends in a word
/// for secrets, such as `APITOKEN`. False for random letters and digits.
fn is_spoken(name: &str) -> bool {
    const WORD_CHARS_MAX: usize = 16;
    const DIGITS_MAX: usize = 3;
    const NAME_CHARS_MAX: usize = 64;
    const SECRETS: [&str; 4] = ["KEY", "TOKEN", "SECRET", "PASSWORD"];
    let is_word = |word: &str| {
        let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
        letters.len() <= WORD_CHARS_MAX
            && word.len() - letters.len() <= DIGITS_MAX
            && letters.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    let names_secret = || {
        let name = name.trim_end_matches(|c: char| c.is_ascii_digit());
        SECRETS.iter().any(|secret| name.ends_with(secret))
    };
    name.len() <= NAME_CHARS_MAX
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.split('_').all(is_word)
        && (name.contains('_') || names_secret())
}

/// Describes a file in a problem. Shows the path only if it contains a directory.
fn shown_file(path: &Path) -> String {
    if path.is_absolute() || path.starts_with(".") || path.starts_with("..") {
        path.display().to_string()
    } else {
        "the file of this name".to_owned()
    }
}

fn is_variable(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && name.bytes().all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_name_that_may_be_a_secret_is_hidden() {
        for name in [
            "ACME_KEY",
            "ACME_KEY_2",
            "OPENAI_API_KEY",
            "MEMOIRD_WEBHOOK_SECRET1",
            "APITOKEN",
            "KEY",
            "S3_SECRET",
        ] {
            assert_eq!(shown_variable(name), format!("variable {name}"));
        }
        for secret in [
            "HUNTER2XYZ",
            "HUNTERXYZ",
            "AKIAIOSFODNN7EXAMPLE",
            "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP",
            "DEADBEEF0123456789ABCDEF",
            "0123456789",
            "GHP_16C7E42F292C6912E7710C838347AE178B4A",
            "SK_LIVE_ABCDEFGHIJKLMNOPQRSTUVWXYZ",
            "KEY_20261123045959",
            "sk_live_key",
            "Acme_Key",
        ] {
            assert_eq!(shown_variable(secret), "variable of this name", "{secret}");
        }
    }
}
