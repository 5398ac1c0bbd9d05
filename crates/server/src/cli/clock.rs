//! The client's only clocks. A command line measures latencies, waits between
//! retries and says how long ago something was: nothing else may ask for the time.

use std::time::{Duration, Instant, SystemTime};

/// For spans: never goes backwards.
#[allow(
    clippy::disallowed_methods,
    reason = "a client has no clock handed to it; this is it"
)]
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

/// For ages of what the daemon dated.
#[allow(
    clippy::disallowed_methods,
    reason = "a client has no clock handed to it; this is it"
)]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// How long ago an instant was.
pub(crate) fn since(start: Instant) -> Duration {
    monotonic().duration_since(start)
}
