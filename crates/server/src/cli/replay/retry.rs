//! How long a replay waits for a daemon that is away or busy.

use std::time::{Duration, Instant};

use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::cli::exit::is_transport;

const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(2);

/// The patience left for one message.
pub(super) struct Patience {
    retry_for: Duration,
    failing_since: Option<Instant>,
    next_wait: Duration,
}

impl Patience {
    /// So long, from the first failure on.
    pub(super) fn new(retry_for: Duration) -> Self {
        Self {
            retry_for,
            failing_since: None,
            next_wait: WAIT_MIN,
        }
    }

    /// How long to wait before the next try; none when there should be none.
    pub(super) fn wait(&mut self, status: &Status, now: Instant) -> Option<Duration> {
        if !is_worth_a_retry(status) {
            return None;
        }
        let since = *self.failing_since.get_or_insert(now);
        let left = self.retry_for.checked_sub(now.duration_since(since))?;
        if left.is_zero() {
            return None;
        }
        let own = self.next_wait;
        self.next_wait = (own * 2).min(WAIT_MAX);
        let asked = status
            .get_details_retry_info()
            .and_then(|info| info.retry_delay);
        Some(asked.unwrap_or(own).min(left))
    }
}

fn is_worth_a_retry(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::ResourceExhausted)
        || is_transport(status)
        || status.get_details_retry_info().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::clock;
    use tonic_types::ErrorDetails;

    #[test]
    fn waits_grow_until_patience_ends() {
        let mut patience = Patience::new(Duration::from_secs(10));
        let gone = Status::unavailable("gone");
        let start = clock::monotonic();
        let mut now = start;
        let mut waits = Vec::new();
        while let Some(wait) = patience.wait(&gone, now) {
            waits.push(wait.as_millis());
            now += wait;
        }
        assert_eq!(
            waits,
            [50, 100, 200, 400, 800, 1_600, 2_000, 2_000, 2_000, 850]
        );
        assert_eq!(now - start, Duration::from_secs(10));
    }

    #[test]
    fn the_daemon_may_say_how_long() {
        let details = ErrorDetails::with_retry_info(Some(Duration::from_millis(7)));
        let busy = Status::with_error_details(Code::ResourceExhausted, "busy", details);
        let now = clock::monotonic();
        assert_eq!(
            Patience::new(Duration::from_secs(1)).wait(&busy, now),
            Some(Duration::from_millis(7))
        );
        assert_eq!(Patience::new(Duration::ZERO).wait(&busy, now), None);
    }

    #[test]
    fn a_refusal_is_final() {
        let now = clock::monotonic();
        let mut patience = Patience::new(Duration::from_secs(1));
        assert_eq!(patience.wait(&Status::invalid_argument("no"), now), None);
        assert_eq!(patience.wait(&Status::internal("no"), now), None);
        let broken = Status::from_error(Box::new(std::io::Error::other("reset")));
        assert!(patience.wait(&broken, now).is_some());
    }
}
