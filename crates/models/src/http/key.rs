//! The API key of a provider, hidden in logs and errors.

use std::fmt;
use std::sync::Arc;

use memoird_core::config::{Environment, Problem, SecretRef};
use reqwest::header::HeaderValue;

use crate::error::ModelError;

/// The API key of a provider. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    key: String,
    bearer: HeaderValue,
    bare: HeaderValue,
}

impl ApiKey {
    /// Parses a key from the content of a file or variable, ignoring surrounding white space.
    ///
    /// # Errors
    /// [`ModelError::ApiKeyInvalid`] if it is empty or not valid in a header.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let key = text.trim();
        if key.is_empty() || !key.is_ascii() {
            return Err(ModelError::ApiKeyInvalid);
        }
        let value = |text: String| {
            let mut value = HeaderValue::try_from(text).map_err(|_| ModelError::ApiKeyInvalid)?;
            value.set_sensitive(true);
            Ok::<_, ModelError>(value)
        };
        Ok(Self {
            key: key.to_owned(),
            bearer: value(format!("Bearer {key}"))?,
            bare: value(key.to_owned())?,
        })
    }

    /// Value for `authorization`.
    pub(crate) fn bearer(&self) -> HeaderValue {
        self.bearer.clone()
    }

    /// Value for the provider's own header.
    pub(crate) fn bare(&self) -> HeaderValue {
        self.bare.clone()
    }

    /// For finding it in a provider's error message.
    pub(crate) fn as_str(&self) -> &str {
        &self.key
    }
}

/// Reads the configured key, if any, and creates a client with it.
///
/// Errors refer to a key of the configuration within `section`.
pub(crate) fn with_key<T>(
    section: &str,
    api_key: &Option<SecretRef>,
    environment: &dyn Environment,
    new: impl FnOnce(Option<ApiKey>) -> Result<T, ModelError>,
) -> Result<Arc<T>, Problem> {
    let unusable = |problem: String| Problem::new("api_key", problem).within(section);
    let text = api_key
        .as_ref()
        .map(|secret| secret.read(environment))
        .transpose()
        .map_err(unusable)?;
    let key = text
        .map(|text| ApiKey::parse(&text))
        .transpose()
        .map_err(|error| unusable(error.to_string()))?;
    let made = new(key).map_err(|error| Problem::new(section, error))?;
    Ok(Arc::new(made))
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(hidden)")
    }
}

/// A test environment: every variable is `sk-hunter2`, and there are no files.
#[cfg(test)]
pub(crate) struct Hunter2;

#[cfg(test)]
impl Environment for Hunter2 {
    fn variable(&self, _: &str) -> Option<std::ffi::OsString> {
        Some("sk-hunter2".into())
    }

    fn file(&self, _: &std::path::Path) -> std::io::Result<String> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_must_be_valid_header_and_is_hidden() {
        let key = ApiKey::parse(" sk-hunter2\n").expect("a key");
        assert_eq!(key.as_str(), "sk-hunter2");
        assert_eq!(key.bearer(), HeaderValue::from_static("Bearer sk-hunter2"));
        assert_eq!(key.bare(), HeaderValue::from_static("sk-hunter2"));
        for bad in ["", " ", "a\nb", "schlüssel"] {
            assert!(
                matches!(ApiKey::parse(bad), Err(ModelError::ApiKeyInvalid)),
                "{bad:?}"
            );
        }
        let shown = format!("{key:?} {:?} {:?}", key.bearer(), key.bare());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
