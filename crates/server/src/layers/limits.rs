//! Limits of a tenant: rates of calls and bytes, concurrent calls, and the bytes of their requests
//! and responses.
//!
//! If there are several tenants, none may hold more than remains free, so that a flood by one
//! leaves room for the others.

pub(crate) mod rates;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memoird_engine::MemoryUse;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::connections::schedule::{Lane, Schedule};
use crate::keyring::Caller;
use crate::rpc::Call;
use crate::wire::refusal::Refusal;
use crate::wire::status;
use rates::{Rates, RequestMeter};

/// Requests and responses may use 1/`MEMORY_SHARE` of `limits.memory`.
const MEMORY_SHARE: u64 = 4;
/// Maximum time a call waits for room for its response.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(2);

/// Admits calls. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct TenantLimits {
    shared: Arc<TenantLimitsInner>,
}

#[derive(Debug)]
struct TenantLimitsInner {
    calls_max: usize,
    memory: Arc<MemoryUse>,
    schedule: Arc<Schedule>,
    rates: Rates,
    counts: Mutex<CallCounts>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct CallCounts {
    calls: usize,
    bytes: u64,
    by_lane: Vec<LaneUsage>,
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
    shared: Arc<TenantLimitsInner>,
    lane: Lane,
    /// Whether several tenants share the daemon.
    is_shared: bool,
    /// Bytes of the request and the response.
    bytes: Mutex<u64>,
    meter: Mutex<RequestMeter>,
    /// Maximum size of the reply in bytes.
    reply_bytes_max: AtomicU64,
}

impl TenantLimits {
    /// Limits concurrent calls to `calls_max`, over all tenants.
    pub(crate) fn new(
        calls_max: usize,
        memory: Arc<MemoryUse>,
        schedule: Arc<Schedule>,
        rates: Rates,
    ) -> Self {
        let shared = TenantLimitsInner {
            calls_max,
            memory,
            schedule,
            rates,
            counts: Mutex::default(),
            freed: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Number of calls without a sent response. A stream counts until its response begins.
    pub(crate) fn calls_in_progress(&self) -> usize {
        self.shared.counts.lock().calls
    }

    /// Admits or rejects a call.
    ///
    /// # Errors
    /// If the tenant exceeds its call rate, or too many calls are in progress.
    pub(super) fn admit(&self, caller: &Caller, call: Call) -> Result<CallPermit, Refusal> {
        let (tenant, shared) = (&caller.tenant, &self.shared);
        let meter = if call.is_admin() {
            shared.rates.enter_operator(call.request_size())
        } else {
            shared.rates.enter(tenant, call.request_size())?
        };
        let lane = shared.schedule.lane_of(&tenant.id);
        let own_max = tenant.policy().calls_in_flight;
        self.enter(lane, own_max, caller.is_one_of_several, meter)
    }

    fn enter(
        &self,
        lane: Lane,
        own_max: Option<usize>,
        is_shared: bool,
        meter: RequestMeter,
    ) -> Result<CallPermit, Refusal> {
        let calls_max = self.shared.calls_max;
        let mut counts = self.shared.counts.lock();
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
            meter: Mutex::new(meter),
            reply_bytes_max: AtomicU64::new(0),
        })
    }
}

impl TenantLimitsInner {
    /// Maximum bytes for all requests and responses together.
    fn bytes_max(&self) -> u64 {
        match self.memory.limit_bytes() {
            0 => u64::MAX,
            limit => (limit / MEMORY_SHARE).max(1),
        }
    }
}

impl CallCounts {
    fn of(&mut self, lane: Lane) -> &mut LaneUsage {
        let index = lane.index();
        if self.by_lane.len() <= index {
            self.by_lane.resize(index + 1, LaneUsage::default());
        }
        &mut self.by_lane[index]
    }
}

impl CallPermit {
    /// Takes the size of a request that its head announces.
    ///
    /// # Errors
    /// If it exceeds the size limit, or the tenant its byte rate.
    pub(super) fn announce(&self, bytes: u64) -> Result<(), Refusal> {
        self.meter.lock().announce(bytes)
    }

    /// Counts data of the request.
    ///
    /// # Errors
    /// If the request exceeds its size limit, the tenant its byte rate, or there is no room.
    pub(super) fn add_request(&self, data: &[u8]) -> Result<(), Refusal> {
        let mut meter = self.meter.lock();
        meter.add(data)?;
        drop(meter);
        self.add_bytes(data.len() as u64)
    }

    /// Allows a reply of this size in bytes.
    pub(crate) fn allow_reply(&self, bytes: u64) {
        self.reply_bytes_max.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(super) fn reply_bytes_max(&self) -> u64 {
        self.reply_bytes_max.load(Ordering::Relaxed)
    }

    /// Adds bytes of the request or response.
    ///
    /// # Errors
    /// If there is no room for them.
    pub(crate) fn add_bytes(&self, more: u64) -> Result<(), Refusal> {
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
    pub(crate) async fn reserve_response(&self, bytes_max: u64) -> Result<(), Refusal> {
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
        let mut held = self.bytes.lock();
        let mut counts = self.shared.counts.lock();
        self.change(&mut counts, &mut held, bytes);
    }

    fn try_change(&self, change: impl FnOnce(u64) -> u64) -> bool {
        let mut held = self.bytes.lock();
        let bytes = change(*held);
        let mut counts = self.shared.counts.lock();
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

    fn change(&self, counts: &mut CallCounts, held: &mut u64, bytes: u64) {
        let before = std::mem::replace(held, bytes);
        counts.bytes = counts.bytes - before + bytes;
        let own = counts.of(self.lane);
        own.bytes = own.bytes - before + bytes;
        self.shared.memory.count_calls(before, bytes);
        if bytes < before {
            self.shared.freed.notify_waiters();
        }
    }

    fn no_room(&self) -> Refusal {
        let used_bytes = self.shared.counts.lock().bytes;
        status::no_room_for_call(used_bytes, self.shared.bytes_max())
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let mut held = self.bytes.lock();
        let mut counts = self.shared.counts.lock();
        self.change(&mut counts, &mut held, 0);
        counts.calls -= 1;
        counts.of(self.lane).calls -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::RequestSize;

    fn limits(calls_max: usize) -> TenantLimits {
        TenantLimits::new(
            calls_max,
            Arc::default(),
            Arc::default(),
            Rates::new(1 << 20),
        )
    }

    fn enter(
        limits: &TenantLimits,
        lane: Lane,
        own_max: Option<usize>,
        is_shared: bool,
    ) -> Option<CallPermit> {
        let meter = limits.shared.rates.enter_operator(RequestSize::Small);
        limits.enter(lane, own_max, is_shared, meter).ok()
    }

    fn fill(limits: &TenantLimits, lane: Lane, is_shared: bool) -> Vec<CallPermit> {
        std::iter::from_fn(|| enter(limits, lane, None, is_shared)).collect()
    }

    #[test]
    fn tenant_cannot_take_permits_reserved_for_others() {
        let limits = limits(12);
        let schedule = Arc::clone(&limits.shared.schedule);
        let lanes = [(); 3].map(|()| schedule.add_lane());
        let first = fill(&limits, lanes[0], true);
        assert_eq!(first.len(), 6);
        let second = fill(&limits, lanes[1], true);
        assert_eq!(second.len(), 3);
        assert!(!fill(&limits, lanes[2], true).is_empty());
        assert!(enter(&limits, lanes[0], None, true).is_none());
        drop((first, second));
        assert_eq!(limits.calls_in_progress(), 0);
        assert_eq!(fill(&limits, lanes[0], false).len(), 12, "alone it has all");
        assert!(enter(&limits, lanes[0], Some(2), false).is_some());
    }

    #[test]
    fn tenant_call_limit_is_enforced() {
        let limits = limits(12);
        let lane = limits.shared.schedule.add_lane();
        let permits: Vec<_> = (0..5)
            .filter_map(|_| enter(&limits, lane, Some(2), true))
            .collect();
        assert_eq!(permits.len(), 2);
    }
}
