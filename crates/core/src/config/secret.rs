//! Where secrets are. A configuration never holds one, it names a variable or a file.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where a secret is: `{ env: NAME }` or `{ file: PATH }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecretRef {
    /// A variable of the environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// A file; white space around its content does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

/// The environment of the process, and the files that hold secrets.
pub trait Environment {
    /// A variable of the environment.
    fn variable(&self, name: &str) -> Option<OsString>;

    /// The content of a file.
    ///
    /// # Errors
    /// When it cannot be read.
    fn file(&self, path: &Path) -> io::Result<String>;
}

impl SecretRef {
    /// The secret.
    ///
    /// # Errors
    /// A sentence for the operator when there is none, or when not exactly one place is named.
    pub fn read(&self, environment: &dyn Environment) -> Result<String, String> {
        let (text, source) = match (&self.env, &self.file) {
            // It may be the secret itself, and is not shown.
            (Some(name), None) if !is_variable(name) => {
                return Err("env takes the name of a variable, such as ACME_KEY".to_owned());
            }
            (Some(name), None) => {
                let text = environment.variable(name);
                let text = text.and_then(|text| text.into_string().ok());
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

/// Names a variable as problems do: only where a person seems to have named it, because somebody
/// may have written the secret there, and some of those are in capital letters.
fn shown_variable(name: &str) -> String {
    match is_spoken(name) {
        true => format!("variable {name}"),
        false => "variable of this name".to_owned(),
    }
}

/// True for several words in capital letters, such as `ACME_KEY_2`, or a single one that says that
/// it names a secret, such as `APITOKEN`. Random letters and digits are neither.
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

/// The same for a file: only where it says in which directory.
fn shown_file(path: &Path) -> String {
    match path.is_absolute() || path.starts_with(".") || path.starts_with("..") {
        true => path.display().to_string(),
        false => "the file of this name".to_owned(),
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
    fn a_name_is_shown_and_what_may_be_a_secret_is_not() {
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
