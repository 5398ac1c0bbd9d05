//! The load generator's only access to clocks.

use std::time::{Duration, Instant, SystemTime};

#[allow(clippy::disallowed_methods, reason = "this file owns the clocks")]
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods, reason = "this file owns the clocks")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

pub(crate) fn since(start: Instant) -> Duration {
    monotonic().duration_since(start)
}
