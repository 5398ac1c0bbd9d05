//! Which provider, which of its models, and within which bounds.

use std::time::Duration;

use memoird_core::config::{AsText, SecretRef, Span};
use serde::{Deserialize, Serialize};

use super::answer::DIMENSIONS_MAX;
use crate::error::ModelError;
use crate::http::{self, BaseUrl};

/// An OpenAI-compatible provider of embeddings. The defaults suit OpenAI: models that read
/// 8,000 tokens, and 300,000 tokens a request.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OpenAiEmbedderConfig {
    /// Such as `https://api.openai.com/v1` or `http://127.0.0.1:11434/v1`; `/embeddings`
    /// is added. At most 1,024 bytes. A token in its query is never shown.
    #[serde(default = "BaseUrl::openai")]
    pub base_url: BaseUrl,
    /// The provider's name of the model, at most 256 bytes.
    pub model: String,
    /// Sent as a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Asks for shorter vectors, 1 to 8,192; not every model makes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<u32>,
    /// Texts of a request, 1 to 2,048.
    #[serde(default = "batch")]
    pub batch: usize,
    /// Bytes of the texts of a request, up to 16 MiB; one text is sent whatever it has.
    #[serde(skip, default = "batch_bytes")]
    pub batch_bytes: usize,
    /// Of a longer text only so many bytes are sent, the prefix included: 256 to 1 MiB.
    /// What the provider refuses nevertheless is sent again shorter.
    #[serde(skip, default = "text_bytes_max")]
    pub text_bytes_max: usize,
    /// For one request, from connecting to the last byte: 10 ms to 10 minutes.
    #[serde(default = "timeout", with = "AsText::<Span>")]
    pub timeout: Duration,
    /// Tries of a request, 1 to 10.
    #[serde(skip, default = "tries")]
    pub tries_max: u32,
    /// Stands before what searches, such as `query: ` for e5. At most 4 KiB.
    #[serde(default)]
    pub query_prefix: String,
    /// Stands before what is to be found, such as `passage: ` for e5. At most 4 KiB.
    #[serde(default)]
    pub memory_prefix: String,
}

/// The least that a text may be cut to.
pub(super) const TEXT_BYTES_LEAST: usize = 256;
const PREFIX_BYTES_MAX: usize = 4 * 1024;
const BATCH_MAX: usize = 2_048;
const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
const TEXT_BYTES_MOST: usize = 1024 * 1024;

fn batch() -> usize {
    64
}

fn batch_bytes() -> usize {
    512 * 1024
}

fn text_bytes_max() -> usize {
    24_000
}

fn timeout() -> Duration {
    Duration::from_secs(10)
}

fn tries() -> u32 {
    3
}

impl OpenAiEmbedderConfig {
    /// # Errors
    /// [`ModelError::SettingOutOfRange`] for the first setting that is.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        let prefix = self.query_prefix.len().max(self.memory_prefix.len());
        let dimensions = self
            .dimensions
            .is_none_or(|n| usize::try_from(n).is_ok_and(|n| (1..=DIMENSIONS_MAX).contains(&n)));
        let text = (TEXT_BYTES_LEAST..=TEXT_BYTES_MOST).contains(&self.text_bytes_max);
        http::check([
            http::model(&self.model),
            (dimensions, "dimensions", "1 to 8192"),
            ((1..=BATCH_MAX).contains(&self.batch), "batch", "1 to 2048"),
            (
                (1..=BATCH_BYTES_MAX).contains(&self.batch_bytes),
                "batch_bytes",
                "1 to 16 MiB",
            ),
            (text, "text_bytes_max", "256 bytes to 1 MiB"),
            http::timeout_limit(self.timeout),
            http::tries_limit(self.tries_max),
            (
                prefix <= PREFIX_BYTES_MAX,
                "query_prefix, memory_prefix",
                "at most 4 KiB",
            ),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_its_range() {
        type Change = fn(&mut OpenAiEmbedderConfig);
        let changes: [(&str, Change); 15] = [
            ("model", |c| c.model.clear()),
            ("model", |c| c.model = "x".repeat(257)),
            ("dimensions", |c| c.dimensions = Some(0)),
            ("dimensions", |c| c.dimensions = Some(8_193)),
            ("batch", |c| c.batch = 0),
            ("batch", |c| c.batch = 2_049),
            ("batch_bytes", |c| c.batch_bytes = 0),
            ("batch_bytes", |c| c.batch_bytes = BATCH_BYTES_MAX + 1),
            ("text_bytes_max", |c| c.text_bytes_max = 255),
            ("text_bytes_max", |c| c.text_bytes_max = TEXT_BYTES_MOST + 1),
            ("timeout", |c| c.timeout = Duration::from_millis(9)),
            ("timeout", |c| c.timeout = Duration::from_secs(601)),
            ("tries_max", |c| c.tries_max = 0),
            ("tries_max", |c| c.tries_max = 11),
            ("query_prefix, memory_prefix", |c| {
                c.memory_prefix = "x".repeat(4_097);
            }),
        ];
        let good = serde_json::json!({"base_url": "http://a.example", "model": "m"});
        let good: OpenAiEmbedderConfig = serde_json::from_value(good).expect("a good one");
        assert!(good.check().is_ok());
        for (name, change) in changes {
            let mut config = good.clone();
            change(&mut config);
            let error = config.check().expect_err(name);
            let is_it =
                matches!(error, ModelError::SettingOutOfRange { setting, .. } if setting == name);
            assert!(is_it, "{name}: {error}");
        }
    }
}
