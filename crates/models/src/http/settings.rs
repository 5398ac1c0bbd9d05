//! Settings common to all providers: base URL and valid ranges.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::base::shown_base;
use crate::error::ModelError;

/// A configured base URL. Its query, which may contain a token, is never logged or displayed.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct BaseUrl(String);

/// Whether a setting is within its range, its name, and the range.
pub(crate) type Check = (bool, &'static str, &'static str);

const MODEL_BYTES_MAX: usize = 256;
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(600);
const TRIES_MAX: u32 = 10;

impl BaseUrl {
    pub(crate) fn anthropic() -> Self {
        Self("https://api.anthropic.com".to_owned())
    }

    pub(crate) fn jina() -> Self {
        Self("https://api.jina.ai/v1".to_owned())
    }

    pub(crate) fn openai() -> Self {
        Self("https://api.openai.com/v1".to_owned())
    }
}

impl Deref for BaseUrl {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", shown_base(&self.0))
    }
}

/// # Errors
/// [`ModelError::SettingOutOfRange`] for the first invalid setting.
pub(crate) fn check(checks: impl IntoIterator<Item = Check>) -> Result<(), ModelError> {
    match checks.into_iter().find(|(is_good, ..)| !is_good) {
        Some((_, setting, range)) => Err(ModelError::SettingOutOfRange { setting, range }),
        None => Ok(()),
    }
}

pub(crate) fn model(model: &str) -> Check {
    let is_good = (1..=MODEL_BYTES_MAX).contains(&model.len());
    (is_good, "model", "1 to 256 bytes")
}

pub(crate) fn timeout_limit(timeout: Duration) -> Check {
    let is_good = (TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout);
    (is_good, "timeout", "10ms to 10m")
}

pub(crate) fn tries_limit(tries_max: u32) -> Check {
    let is_good = (1..=TRIES_MAX).contains(&tries_max);
    (is_good, "tries_max", "1 to 10")
}
