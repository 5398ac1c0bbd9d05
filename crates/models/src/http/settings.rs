//! The ranges of the settings that all providers have.

use std::time::Duration;

use crate::error::ModelError;

/// Whether a setting is within its range, its name, and the range.
pub(crate) type Check = (bool, &'static str, &'static str);

const MODEL_BYTES_MAX: usize = 256;
const TIMEOUT_LEAST: Duration = Duration::from_millis(10);
const TIMEOUT_MOST: Duration = Duration::from_secs(600);
const TRIES_MOST: u32 = 10;

/// # Errors
/// [`ModelError::SettingOutOfRange`] for the first setting that is.
pub(crate) fn check(checks: impl IntoIterator<Item = Check>) -> Result<(), ModelError> {
    match checks.into_iter().find(|(is_good, ..)| !is_good) {
        Some((_, setting, range)) => Err(ModelError::SettingOutOfRange { setting, range }),
        None => Ok(()),
    }
}

pub(crate) fn model(model: &str) -> Check {
    (
        (1..=MODEL_BYTES_MAX).contains(&model.len()),
        "model",
        "1 to 256 bytes",
    )
}

pub(crate) fn timeout_limit(timeout: Duration) -> Check {
    (
        (TIMEOUT_LEAST..=TIMEOUT_MOST).contains(&timeout),
        "timeout",
        "10ms to 10m",
    )
}

pub(crate) fn tries_limit(tries_max: u32) -> Check {
    (
        (1..=TRIES_MOST).contains(&tries_max),
        "tries_max",
        "1 to 10",
    )
}
