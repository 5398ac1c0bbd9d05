//! Admission control: limits concurrent calls, and the bytes of their requests and responses.
//!
//! If there are several tenants, none may hold more than remains free, so that a flood by one
//! leaves room for the others.

pub(crate) mod body;
pub(crate) mod schedule;
pub(crate) mod send_progress;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_engine::{MemoryUse, Tenant};
use tokio::sync::Notify;
use tonic::Status;

use crate::wire::status;
use schedule::{Lane, Schedule, TaskOwner};

/// Requests and responses may use 1/`MEMORY_SHARE` of `limits.memory`.
const MEMORY_SHARE: u64 = 4;
/// Maximum time a call waits for room for its response.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(2);

/// Admits calls. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    shared: Arc<AdmissionInner>,
}

#[derive(Debug)]
struct AdmissionInner {
    calls_max: usize,
    memory: Arc<MemoryUse>,
    schedule: Arc<Schedule>,
    counts: Mutex<AdmissionCounts>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct AdmissionCounts {
    calls: usize,
    bytes: u64,
    by_lane: Vec<LaneUsage>,
    lanes: HashMap<TenantId, Lane>,
}

/// Resources held by the calls of one tenant.
#[derive(Clone, Copy, Debug, Default)]
struct LaneUsage {
    calls: usize,
    bytes: u64,
}

/// Permit of a call, held until its response is sent.
#[derive(Debug)]
pub(crate) struct CallPermit {
    shared: Arc<AdmissionInner>,
    lane: Lane,
    /// Whether several tenants share the daemon.
    is_shared: bool,
    /// Bytes of the request and the response.
    bytes: Mutex<u64>,
}

impl Admission {
    /// Limits concurrent calls to `calls_max`, over all tenants.
    pub(crate) fn new(calls_max: usize, memory: Arc<MemoryUse>, schedule: Arc<Schedule>) -> Self {
        let shared = AdmissionInner {
            calls_max,
            memory,
            schedule,
            counts: Mutex::default(),
            freed: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Number of calls that have not sent their complete response.
    pub(crate) fn calls_in_progress(&self) -> usize {
        self.shared.counts().calls
    }

    pub(crate) fn schedule(&self) -> &Arc<Schedule> {
        &self.shared.schedule
    }

    /// Assigns a connection and its calls to the queue of a tenant.
    pub(crate) fn assign_lane(&self, connection: &TaskOwner, tenant: &Tenant) {
        let lane = self.lane(&tenant.id);
        let weight = tenant.policy().weight;
        self.shared.schedule.set_weight(lane, weight);
        connection.enter(lane);
    }

    /// Admits or rejects a call. `is_shared` is whether several tenants may call.
    pub(crate) fn enter(&self, tenant: &Tenant, is_shared: bool) -> Result<CallPermit, Status> {
        let lane = self.lane(&tenant.id);
        self.enter_lane(lane, tenant.policy().calls_in_flight, is_shared)
    }

    fn lane(&self, tenant: &TenantId) -> Lane {
        let mut counts = self.shared.counts();
        if let Some(lane) = counts.lanes.get(tenant) {
            return *lane;
        }
        let lane = self.shared.schedule.add_lane();
        counts.lanes.insert(tenant.clone(), lane);
        lane
    }

    fn enter_lane(
        &self,
        lane: Lane,
        own_max: Option<usize>,
        is_shared: bool,
    ) -> Result<CallPermit, Status> {
        let calls_max = self.shared.calls_max;
        let mut counts = self.shared.counts();
        let (free, own) = (
            calls_max.saturating_sub(counts.calls),
            counts.of(lane).calls,
        );
        let may_have = if is_shared { free.max(1) } else { calls_max };
        if free == 0 || own >= may_have.min(own_max.unwrap_or(usize::MAX)) {
            return Err(status::too_many_calls());
        }
        counts.calls += 1;
        counts.of(lane).calls += 1;
        Ok(CallPermit {
            shared: Arc::clone(&self.shared),
            lane,
            is_shared,
            bytes: Mutex::new(0),
        })
    }
}

impl AdmissionInner {
    fn counts(&self) -> MutexGuard<'_, AdmissionCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maximum bytes for all requests and responses together.
    fn bytes_max(&self) -> u64 {
        match self.memory.limit_bytes() {
            0 => u64::MAX,
            limit => (limit / MEMORY_SHARE).max(1),
        }
    }
}

impl AdmissionCounts {
    fn of(&mut self, lane: Lane) -> &mut LaneUsage {
        let index = lane.index();
        if self.by_lane.len() <= index {
            self.by_lane.resize(index + 1, LaneUsage::default());
        }
        &mut self.by_lane[index]
    }
}

impl CallPermit {
    /// Adds bytes of the request.
    ///
    /// # Errors
    /// If there is no room for them.
    pub(crate) fn add_bytes(&self, more: u64) -> Result<(), Status> {
        if self.try_change(|held| held.saturating_add(more)) {
            Ok(())
        } else {
            Err(self.no_room())
        }
    }

    /// Reserves room for a response of up to `bytes_max` bytes, and waits for it if necessary.
    ///
    /// The actual size replaces the reservation once it is known.
    ///
    /// # Errors
    /// If other calls do not release enough within [`ROOM_WAIT_MAX`].
    pub(crate) async fn reserve_response(&self, bytes_max: u64) -> Result<(), Status> {
        // One response reserves at most a quarter of the pool.
        let wanted = bytes_max.min(self.shared.bytes_max() / MEMORY_SHARE);
        // Fast path without a timer: usually there is room.
        if self.try_change(|held| held.max(wanted)) {
            return Ok(());
        }
        let waiting = async {
            loop {
                let freed = self.shared.freed.notified();
                tokio::pin!(freed);
                freed.as_mut().enable();
                if self.try_change(|held| held.max(wanted)) {
                    return;
                }
                freed.await;
            }
        };
        let waited = tokio::time::timeout(ROOM_WAIT_MAX, waiting);
        waited.await.map_err(|_| self.no_room())
    }

    /// Sets the size of the response, which replaces that of the request.
    pub(crate) fn set_bytes(&self, bytes: u64) {
        let mut held = self.held();
        let mut counts = self.shared.counts();
        self.change(&mut counts, &mut held, bytes);
    }

    fn try_change(&self, change: impl FnOnce(u64) -> u64) -> bool {
        let mut held = self.held();
        let bytes = change(*held);
        let mut counts = self.shared.counts();
        let own = (counts.of(self.lane).bytes - *held).saturating_add(bytes);
        let all = (counts.bytes - *held).saturating_add(bytes);
        let free = self.shared.bytes_max().saturating_sub(all);
        let has_room = if self.is_shared {
            own <= free
        } else {
            free > 0
        };
        // A tenant's only call always proceeds, so that no call is too large to be served.
        let is_taken = bytes <= *held || has_room || own == bytes;
        if is_taken {
            self.change(&mut counts, &mut held, bytes);
        }
        is_taken
    }

    fn change(&self, counts: &mut AdmissionCounts, held: &mut u64, bytes: u64) {
        let before = std::mem::replace(held, bytes);
        counts.bytes = counts.bytes - before + bytes;
        let own = counts.of(self.lane);
        own.bytes = own.bytes - before + bytes;
        self.shared.memory.count_calls(before, bytes);
        if bytes < before {
            self.shared.freed.notify_waiters();
        }
    }

    fn no_room(&self) -> Status {
        let used_bytes = self.shared.counts().bytes;
        status::no_room_for_call(used_bytes, self.shared.bytes_max())
    }

    fn held(&self) -> MutexGuard<'_, u64> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let mut held = self.held();
        let mut counts = self.shared.counts();
        self.change(&mut counts, &mut held, 0);
        counts.calls -= 1;
        counts.of(self.lane).calls -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(calls_max: usize) -> Admission {
        Admission::new(calls_max, Arc::default(), Arc::default())
    }

    fn fill(admission: &Admission, lane: Lane, is_shared: bool) -> Vec<CallPermit> {
        std::iter::from_fn(|| admission.enter_lane(lane, None, is_shared).ok()).collect()
    }

    #[test]
    fn tenant_cannot_take_permits_reserved_for_others() {
        let admission = admission(12);
        let schedule = Arc::clone(&admission.shared.schedule);
        let lanes = [(); 3].map(|()| schedule.add_lane());
        let first = fill(&admission, lanes[0], true);
        assert_eq!(first.len(), 6);
        let second = fill(&admission, lanes[1], true);
        assert_eq!(second.len(), 3);
        assert!(!fill(&admission, lanes[2], true).is_empty());
        assert!(admission.enter_lane(lanes[0], None, true).is_err());
        drop((first, second));
        assert_eq!(admission.calls_in_progress(), 0);
        assert_eq!(
            fill(&admission, lanes[0], false).len(),
            12,
            "alone it has all"
        );
        let own = admission.enter_lane(lanes[0], Some(2), false);
        assert!(own.is_ok());
    }

    #[test]
    fn tenant_call_limit_is_enforced() {
        let admission = admission(12);
        let lane = admission.shared.schedule.add_lane();
        let places: Vec<_> = (0..5)
            .filter_map(|_| admission.enter_lane(lane, Some(2), true).ok())
            .collect();
        assert_eq!(places.len(), 2);
    }
}
