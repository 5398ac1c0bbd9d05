//! One at a time for each key, where a call has to wait while it works: a session is started
//! once and loaded once, however many calls want it. Calls have their turns in their order.

use std::hash::Hash;
use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// For which keys somebody works.
#[derive(Debug)]
pub(crate) struct SingleFlight<K: Eq + Hash> {
    locks: DashMap<K, Arc<Mutex<()>>>,
}

/// The right to be the only one that works for a key, until it is dropped.
#[derive(Debug)]
pub(crate) struct Flight<'a, K: Eq + Hash> {
    single_flight: &'a SingleFlight<K>,
    key: K,
    guard: Option<OwnedMutexGuard<()>>,
}

impl<K: Eq + Hash> Default for SingleFlight<K> {
    fn default() -> Self {
        Self {
            locks: DashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> SingleFlight<K> {
    /// True when somebody works for this key, or waits to.
    pub(crate) fn is_busy(&self, key: &K) -> bool {
        self.locks.contains_key(key)
    }

    /// Waits until no other call works for this key.
    pub(crate) async fn enter(&self, key: &K) -> Flight<'_, K> {
        let lock = Arc::clone(&self.locks.entry(key.clone()).or_default());
        // Made before the wait, so that a call that is cancelled in it cleans up as well.
        let mut flight = Flight {
            single_flight: self,
            key: key.clone(),
            guard: None,
        };
        flight.guard = Some(lock.lock_owned().await);
        flight
    }
}

impl<K: Eq + Hash> Drop for Flight<'_, K> {
    fn drop(&mut self) {
        self.guard = None;
        // The map's own reference is the last one when no call waits.
        self.single_flight
            .locks
            .remove_if(&self.key, |_, lock| Arc::strong_count(lock) == 1);
    }
}
