//! The only clocks of the load generator.

use std::time::{Duration, Instant, SystemTime};

/// For spans: never goes backwards.
#[allow(clippy::disallowed_methods, reason = "this file owns the clocks")]
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

/// The time of day.
#[allow(clippy::disallowed_methods, reason = "this file owns the clocks")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// How long ago an instant was.
pub(crate) fn since(start: Instant) -> Duration {
    monotonic().duration_since(start)
}
