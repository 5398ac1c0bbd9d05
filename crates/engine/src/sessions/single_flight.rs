//! One at a time per session, where a call has to wait while it works: a session is started
//! once and loaded once, however many calls want it.

use std::sync::Arc;

use dashmap::DashMap;
use memoird_core::ids::SessionKey;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Who is starting or loading which session.
#[derive(Debug, Default)]
pub(super) struct SingleFlight {
    locks: DashMap<SessionKey, Arc<Mutex<()>>>,
}

/// The right to start or load one session, until it is dropped.
#[derive(Debug)]
pub(super) struct Flight<'a> {
    single_flight: &'a SingleFlight,
    key: SessionKey,
    guard: Option<OwnedMutexGuard<()>>,
}

impl SingleFlight {
    /// Waits until no other call starts or loads this session.
    pub(super) async fn enter(&self, key: &SessionKey) -> Flight<'_> {
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

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.guard = None;
        // The map's own reference is the last one when no call waits.
        self.single_flight
            .locks
            .remove_if(&self.key, |_, lock| Arc::strong_count(lock) == 1);
    }
}
