//! Per-key mutual exclusion across awaits, in order of arrival.
//!
//! Ensures that a session is started or loaded once, no matter how many calls request it.

use std::hash::Hash;
use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::{Mutex, OwnedMutexGuard};

#[derive(Debug)]
pub(crate) struct SingleFlight<K: Eq + Hash> {
    locks: DashMap<K, Arc<Mutex<()>>>,
}

/// Exclusive access to a key until dropped.
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
    /// Whether any call holds this key or waits for it.
    pub(crate) fn is_busy(&self, key: &K) -> bool {
        self.locks.contains_key(key)
    }

    /// Waits for exclusive access to a key.
    pub(crate) async fn enter(&self, key: &K) -> Flight<'_, K> {
        let lock = Arc::clone(&self.locks.entry(key.clone()).or_default());
        // Created before the wait, so that a cancelled call cleans up as well.
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
        // Only the map's own reference is left if no call waits.
        self.single_flight
            .locks
            .remove_if(&self.key, |_, lock| Arc::strong_count(lock) == 1);
    }
}
