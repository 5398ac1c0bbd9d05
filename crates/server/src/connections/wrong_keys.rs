//! Wrong keys, by the address that they come from: a few are answered at once, each further one
//! later than the one before, and those that would be answered too late not at all.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hashlink::LruCache;
use tokio::time::Instant;

/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 4_096;
/// So many wrong keys are answered at once, after a while without any.
const FREE: u32 = 10;
/// From then on one in this time.
const INTERVAL: Duration = Duration::from_millis(500);
/// What would be answered later than this is not answered.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// Who has sent wrong keys lately.
#[derive(Debug)]
pub(crate) struct WrongKeys {
    /// When all that an address has sent is paid for.
    paid_at: Mutex<LruCache<IpAddr, Instant>>,
}

impl Default for WrongKeys {
    fn default() -> Self {
        Self {
            paid_at: Mutex::new(LruCache::new(ADDRESSES_MAX)),
        }
    }
}

impl WrongKeys {
    /// How long the answer to one more has to wait; `None` where there is none.
    pub(crate) fn delay(&self, address: IpAddr) -> Option<Duration> {
        self.delay_at(address, super::now())
    }

    fn delay_at(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let mut paid_at = self.paid_at.lock().unwrap_or_else(PoisonError::into_inner);
        let before = paid_at.get(&address).copied();
        let paid = before.unwrap_or(now).max(now) + INTERVAL;
        let delay = paid.saturating_duration_since(now + INTERVAL * FREE);
        if delay > DELAY_MAX {
            return None;
        }
        paid_at.insert(address, paid);
        Some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_keys_are_answered_later_and_later_and_forgiven_with_time() {
        let wrong_keys = WrongKeys::default();
        let now = crate::connections::now();
        let delay = |last: u8, now| wrong_keys.delay_at(IpAddr::from([10, 0, 0, last]), now);
        let first: Vec<_> = (0..FREE).map(|_| delay(1, now)).collect();
        assert_eq!(first, [Some(Duration::ZERO); FREE as usize]);
        assert_eq!(delay(1, now), Some(INTERVAL));
        assert_eq!(delay(1, now), Some(INTERVAL * 2));
        assert_eq!(delay(2, now), Some(Duration::ZERO));
        let answered: Vec<_> = (0..1_000).filter_map(|_| delay(1, now)).collect();
        assert_eq!(answered.last(), Some(&DELAY_MAX));
        assert_eq!(delay(1, now), None);
        assert_eq!(
            delay(1, now + INTERVAL),
            Some(DELAY_MAX),
            "one in this time"
        );
        assert_eq!(delay(1, now + INTERVAL), None);
        let later = now + DELAY_MAX + INTERVAL * (FREE + 1);
        assert_eq!(delay(1, later), Some(Duration::ZERO));
    }
}
