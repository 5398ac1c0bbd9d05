//! Where sessions take more memory than they may, the content of idle ones leaves it. Their
//! heads stay, and the journal has the rest: whoever asks for it loads it again.
//!
//! A tenant above its own limit gives it up first, then the one with the most content in memory,
//! longest idle first: nobody's sessions are pushed out by a neighbour's flood.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use memoird_core::time::Steady;

use super::Sessions;
use super::slot::Slot;
use crate::tenants::Tenant;
use crate::worker::{WorkError, Worker};

/// Sessions that are looked at before it is asked again who has the most, and how often that
/// is asked in one step.
const BATCH_SESSIONS: usize = 64;
const BATCHES_MAX: usize = 64;
/// How long to wait when nothing could be unloaded.
const PAUSE: Duration = Duration::from_secs(1);

/// A tenant's loaded sessions by their last use, as it was when they were put there: used
/// again, they keep their place until they come to the front. So a use costs nothing here. One
/// that was idle and is loaded stands behind all others: whoever loaded it is about to use it, and
/// would have to load it again and again.
#[derive(Debug, Default)]
pub(super) struct LoadedQueue {
    inner: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    oldest_first: BTreeMap<QueuePlace, Weak<Slot>>,
    /// How many were ever put there.
    pushed: u64,
}

/// Where a session stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueuePlace {
    last_access: Steady,
    number: u64,
}

impl Queue {
    fn push(&mut self, slot: Weak<Slot>, last_access: Steady) -> QueuePlace {
        self.pushed += 1;
        let place = QueuePlace {
            last_access,
            number: self.pushed,
        };
        self.oldest_first.insert(place, slot);
        place
    }
}

impl LoadedQueue {
    /// Puts a session there that was not loaded.
    pub(super) fn push_loaded(&self, slot: Weak<Slot>, last_access: Steady) -> QueuePlace {
        let mut queue = self.lock();
        let last = queue.oldest_first.last_key_value();
        let behind = last.map_or(last_access, |(last, _)| last.last_access.max(last_access));
        queue.push(slot, behind)
    }

    /// Puts a session there again that was taken out.
    pub(super) fn push(&self, slot: Weak<Slot>, last_access: Steady) -> QueuePlace {
        self.lock().push(slot, last_access)
    }

    /// Takes a session out, if it is still there.
    pub(super) fn remove(&self, place: QueuePlace) {
        self.lock().oldest_first.remove(&place);
    }

    fn pop(&self) -> Option<(Steady, Weak<Slot>)> {
        let (place, slot) = self.lock().oldest_first.pop_first()?;
        Some((place.last_access, slot))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    /// Unloads the longest idle sessions of tenants above their own limit, and of the tenant with
    /// the most content in memory where all together have too much. False when that makes no room.
    fn unload_batch(&self) -> bool {
        let tenants = self.shared.tenants.all();
        let over = tenants.iter().filter(|tenant| !tenant.has_own_room());
        let most = tenants
            .iter()
            .max_by_key(|tenant| tenant.stats.bytes_loaded())
            .filter(|_| !self.shared.tenants.memory().is_roomy());
        let some = over
            .chain(most)
            .fold(false, |some, tenant| self.unload_of(tenant) | some);
        some || self.shared.tenants.have_memory_room()
    }

    fn unload_of(&self, tenant: &Tenant) -> bool {
        let idle = self.shared.census.idle_list(&tenant.id);
        for _ in 0..BATCH_SESSIONS {
            if tenant.memory.is_roomy() && tenant.has_own_room() {
                break;
            }
            let Some((last_access, slot)) = idle.loaded.pop() else {
                return false;
            };
            if let Some(slot) = slot.upgrade() {
                slot.lock()
                    .unload_if_unused_since(&slot.tenant, last_access);
            }
        }
        true
    }
}

/// The worker that unloads.
pub(super) struct Unloader {
    sessions: Sessions,
    /// True when the last step could not make room.
    is_stuck: bool,
}

impl Unloader {
    pub(super) fn new(sessions: Sessions) -> Self {
        Self {
            sessions,
            is_stuck: false,
        }
    }
}

impl Worker for Unloader {
    fn name(&self) -> &'static str {
        "unloader"
    }

    async fn wait(&mut self) {
        if self.is_stuck {
            tokio::time::sleep(PAUSE).await;
        }
        self.sessions.shared.tenants.memory_passed().await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        // What a commit refuses is read again, and is not to be made worse meanwhile.
        if self.sessions.is_journal_failing() {
            self.is_stuck = true;
            return Ok(());
        }
        for _ in 0..BATCHES_MAX {
            self.is_stuck = !self.sessions.unload_batch();
            if self.is_stuck || self.sessions.shared.tenants.have_memory_room() {
                break;
            }
            // Calls come first.
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}
