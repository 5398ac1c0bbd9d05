//! Delays responses to wrong keys, per client address or, on a Unix socket, per user.
//!
//! The first few are immediate. Each further one is delayed more, up to a maximum, beyond which
//! there is no response.

use std::net::IpAddr;
use std::time::Duration;

use hashlink::LruCache;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Peer;

/// Maximum number of tracked clients.
const CLIENTS_MAX: usize = 4_096;
/// Wrong keys without a delay, after a period without any.
const FREE: u32 = 10;
/// Interval that allows one more wrong key.
const INTERVAL: Duration = Duration::from_millis(500);
/// Maximum delay. Beyond it there is no response.
const DELAY_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct WrongKeys {
    /// When the wrong keys of each client are covered by the allowed rate.
    paid_at: Mutex<LruCache<Client, Instant>>,
}

/// IP address, and user of a Unix socket. One of them is set.
type Client = (Option<IpAddr>, Option<u32>);

impl Default for WrongKeys {
    fn default() -> Self {
        Self {
            paid_at: Mutex::new(LruCache::new(CLIENTS_MAX)),
        }
    }
}

impl WrongKeys {
    /// Counts a wrong key and returns the delay of its response, if it gets one.
    pub(crate) fn delay(&self, peer: Peer) -> Option<Duration> {
        self.delay_at((peer.address, peer.uid), super::now())
    }

    fn delay_at(&self, client: Client, now: Instant) -> Option<Duration> {
        let mut paid_at = self.paid_at.lock();
        let before = paid_at.get(&client).copied();
        let paid = before.unwrap_or(now).max(now) + INTERVAL;
        let delay = paid.saturating_duration_since(now + INTERVAL * FREE);
        if delay > DELAY_MAX {
            return None;
        }
        paid_at.insert(client, paid);
        Some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_keys_are_delayed_increasingly_and_recover() {
        let wrong_keys = WrongKeys::default();
        let now = crate::connections::now();
        let delay = |last: u8, now| {
            let client = (Some(IpAddr::from([10, 0, 0, last])), None);
            wrong_keys.delay_at(client, now)
        };
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
        let of_user = |uid| wrong_keys.delay_at((None, Some(uid)), now);
        let first: Vec<_> = (0..=FREE).map(|_| of_user(7)).collect();
        assert_eq!(first.last(), Some(&Some(INTERVAL)));
        assert_eq!(of_user(8), Some(Duration::ZERO));
    }
}
