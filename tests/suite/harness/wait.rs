//! Waiting for conditions instead of fixed times. The only file that reads a clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);
const PAUSE: Duration = Duration::from_millis(5);

/// Calls `poll` until it returns a value.
///
/// # Panics
/// If `poll` still returns `None` after 40 seconds.
pub(crate) async fn eventually<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            match poll().await {
                Some(seen) => return seen,
                None => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    match tokio::time::timeout(PATIENCE, looking).await {
        Ok(seen) => seen,
        Err(_) => panic!("waited {PATIENCE:?} in vain until {what}"),
    }
}

/// Milliseconds since 1970.
#[allow(
    clippy::disallowed_methods,
    reason = "tests ask whether a time that was told has come"
)]
pub(crate) fn wall_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
