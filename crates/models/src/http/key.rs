//! The API key of a provider, hidden in logs and errors.

use std::fmt;

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
    /// A key as it stands in a file or a variable; white space around it does not count.
    ///
    /// # Errors
    /// [`ModelError::ApiKeyInvalid`] when it is empty or no header can hold it.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let key = text.trim();
        if key.is_empty() || !key.is_ascii() {
            return Err(ModelError::ApiKeyInvalid);
        }
        let value = |text: String| {
            let value = HeaderValue::try_from(text);
            let mut value = value.map_err(|_| ModelError::ApiKeyInvalid)?;
            value.set_sensitive(true);
            Ok::<_, ModelError>(value)
        };
        Ok(Self {
            key: key.to_owned(),
            bearer: value(format!("Bearer {key}"))?,
            bare: value(key.to_owned())?,
        })
    }

    /// For `authorization`.
    pub(crate) fn bearer(&self) -> HeaderValue {
        self.bearer.clone()
    }

    /// For a header of the provider's own.
    pub(crate) fn bare(&self) -> HeaderValue {
        self.bare.clone()
    }

    /// For finding it in a provider's error.
    pub(crate) fn as_str(&self) -> &str {
        &self.key
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_what_a_header_can_hold_and_is_never_shown() {
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
