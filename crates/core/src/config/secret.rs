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

/// Names a variable as problems do: only where it looks like one, because somebody may have
/// written the secret there.
fn shown_variable(name: &str) -> String {
    let is_upper = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    match name.bytes().all(is_upper) {
        true => format!("variable {name}"),
        false => "variable of this name".to_owned(),
    }
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
