//! One at a time per session, where a call has to wait while it works: a session is
//! started once and loaded once, however many calls want it.

use std::sync::Arc;

use dashmap::DashMap;
use memoird_core::ids::SessionKey;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Who is starting or loading which session.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    gates: DashMap<SessionKey, Arc<Mutex<()>>>,
}

/// The right to start or load one session, until it is dropped.
#[derive(Debug)]
pub(crate) struct Flight<'a> {
    flights: &'a Flights,
    key: SessionKey,
    gate: Option<OwnedMutexGuard<()>>,
}

impl Flights {
    /// Waits until nobody else starts or loads this session.
    pub(crate) async fn enter(&self, key: &SessionKey) -> Flight<'_> {
        let gate = Arc::clone(&self.gates.entry(key.clone()).or_default());
        // Made before the wait, so that a call that is cancelled in it cleans up as well.
        let mut flight = Flight {
            flights: self,
            key: key.clone(),
            gate: None,
        };
        flight.gate = Some(gate.lock_owned().await);
        flight
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.gate = None;
        // The map's own reference is the last one when nobody waits.
        self.flights
            .gates
            .remove_if(&self.key, |_, gate| Arc::strong_count(gate) == 1);
    }
}
