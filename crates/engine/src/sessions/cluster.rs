//! Cluster mode of the session table: memory is a cache, and expiry and caps follow the journal.
//!
//! The leader expires sessions and enforces caps, including for sessions that no daemon has in
//! memory. It counts every second, so a tenant may exceed its cap for that long.
//! Concurrent changes by other daemons are safe: an end is written only on the version it was based
//! on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::ids::{SessionKey, TenantId};
use memoird_core::session::Head;
use memoird_core::time::Steady;
use memoird_store::{LiveQuery, Store};
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::due_time::DueTime;
use super::end::{EndAttempt, EndCondition, EndRequest, EndedSession};
use super::expiry::ENDS_PER_BATCH;
use super::freshness::VersionCheck;
use super::handle::{SessionRef, Sessions};
use super::slot::{Slot, SlotState};
use crate::cluster::Cluster;
use crate::error::EngineError;
use crate::tenants::{NEVER_MS, Tenant};
use crate::worker::{WorkError, Worker};

/// Pause between two counts, of the leader and of other members.
const COUNT_PAUSE: Duration = Duration::from_secs(1);
const COUNT_PAUSE_OF_OTHERS: Duration = Duration::from_secs(5);
/// Idle time after which a session is dropped from memory.
const CACHED_MS: u64 = 10 * 60 * 1_000;
/// Above this number of cached sessions, the longest idle ones are dropped earlier.
const CACHED_MAX: usize = 100_000;
/// Maximum number of sessions dropped from memory per step.
const DROPPED_MAX: usize = 8_192;

/// Session counts and version checks of a cluster member.
#[derive(Debug)]
pub(super) struct ClusterState {
    pub(super) cluster: Cluster,
    pub(super) version_checks: UnboundedSender<VersionCheck>,
    /// Receives the version checks. Taken by their worker.
    pub(super) requested_checks: Mutex<Option<UnboundedReceiver<VersionCheck>>>,
    /// Number of live sessions by tenant, as of the last count.
    counts: Mutex<BTreeMap<TenantId, usize>>,
    /// When the leader enforces the caps next.
    count_due: DueTime,
}

impl ClusterState {
    pub(super) fn new(cluster: Cluster, now: Steady) -> Self {
        let (version_checks, requested_checks) = mpsc::unbounded_channel();
        Self {
            cluster,
            version_checks,
            requested_checks: Mutex::new(Some(requested_checks)),
            counts: Mutex::default(),
            count_due: DueTime::new(now),
        }
    }

    /// Number of a tenant's live sessions in the journal, as of the last count.
    pub(super) fn count(&self, tenant: &TenantId) -> usize {
        self.counts.lock().get(tenant).copied().unwrap_or(0)
    }
}

impl Sessions {
    /// Whether this daemon expires and evicts sessions. Always true without a cluster.
    pub(super) fn leads(&self) -> bool {
        let shared = self.shared.cluster.as_ref();
        shared.is_none_or(|shared| shared.cluster.leads())
    }

    /// Returns once this daemon leads. If it did not before, the task is due at once.
    pub(super) async fn wait_to_lead(&self, task: &DueTime) {
        let waiting = self.shared.cluster.as_ref().filter(|_| !self.leads());
        if let Some(shared) = waiting {
            shared.cluster.clone().lead().await;
            task.set(self.now().steady, Duration::ZERO);
        }
    }

    /// How long expiry, or in a cluster eviction, has been overdue.
    ///
    /// In a cluster, meaningful only while this daemon leads.
    pub fn sweep_overdue(&self) -> Duration {
        let now = self.now().steady;
        let eviction = self.shared.cluster.as_ref().map(|shared| &shared.count_due);
        let expiry = self.shared.sweep_due.overdue(now);
        eviction.map_or(expiry, |eviction| eviction.overdue(now).max(expiry))
    }

    /// Counts the live sessions of all daemons, by tenant.
    async fn count_in_journal(&self) -> Result<BTreeMap<TenantId, usize>, EngineError> {
        let store = self.store()?;
        let rows = store.run(None, <dyn Store>::live_counts).await?;
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let counted: BTreeMap<_, _> = rows
            .into_iter()
            .map(|(tenant, live)| (tenant, count(live)))
            .collect();
        if let Some(shared) = &self.shared.cluster {
            shared.counts.lock().clone_from(&counted);
        }
        Ok(counted)
    }

    /// Number of live sessions of all daemons, by tenant. `None` without a cluster.
    pub(crate) async fn counts_of_all(
        &self,
    ) -> Result<Option<BTreeMap<TenantId, usize>>, EngineError> {
        if self.are_shared() {
            self.count_in_journal().await.map(Some)
        } else {
            Ok(None)
        }
    }

    /// Ends every journaled session past its TTL, of one tenant or of all.
    pub(super) async fn sweep_journal(
        &self,
        only: Option<&TenantId>,
    ) -> Result<Vec<EndedSession>, EngineError> {
        let mut ended = Vec::new();
        for id in self.count_in_journal().await?.keys() {
            if only.is_none_or(|only| only == id) {
                let tenant = self.shared.tenants.get_or_insert(id);
                self.sweep_journal_of(&tenant, &mut ended).await?;
            }
        }
        Ok(ended)
    }

    async fn sweep_journal_of(
        &self,
        tenant: &Arc<Tenant>,
        ended: &mut Vec<EndedSession>,
    ) -> Result<(), EngineError> {
        let mut after = None;
        loop {
            let now = self.now().steady;
            let shortest_ms = tenant.policy().shortest_ttl_ms();
            if shortest_ms == NEVER_MS || now.0 < shortest_ms {
                return Ok(());
            }
            let query = LiveQuery {
                until: Steady(now.0 - shortest_ms),
                after: after.take(),
                ..LiveQuery::oldest(&tenant.id, ENDS_PER_BATCH)
            };
            let page = self.live_page(query).await?;
            let is_last = page.len() < ENDS_PER_BATCH;
            after = page
                .last()
                .map(|(key, head)| (head.last_access, key.session.clone()));
            // The page is selected by the shortest TTL. Sessions of other classes may not be
            // expired yet.
            let expired = page
                .into_iter()
                .filter(|(_, head)| head.is_expired(now, tenant.ttl_ms(head)));
            let requested = expired.map(|(key, head)| {
                let request = EndRequest::expired_since(head.last_access);
                (key, head, request)
            });
            ended.extend(self.end_all_of(tenant, requested).await?);
            if is_last {
                return Ok(());
            }
        }
    }

    /// Evicts sessions above the caps, longest idle first.
    async fn enforce_caps_in_journal(
        &self,
        mut counts: BTreeMap<TenantId, usize>,
    ) -> Result<(), EngineError> {
        while let Some((id, surplus)) = self.surplus(&counts) {
            let tenant = self.shared.tenants.get_or_insert(&id);
            let query = LiveQuery::oldest(&id, surplus.min(ENDS_PER_BATCH));
            let page = self.live_page(query).await?;
            let requested = page.into_iter().map(|(key, head)| {
                let request = EndRequest {
                    condition: EndCondition::UnusedSince(head.last_access),
                    ..EndRequest::now(EndReason::Evicted)
                };
                (key, head, request)
            });
            let evicted = self.end_all_of(&tenant, requested).await?.len();
            if evicted == 0 {
                // All were used in the meantime. Leave the rest to the next count.
                break;
            }
            if let Some(count) = counts.get_mut(&id) {
                *count = count.saturating_sub(evicted);
            }
        }
        Ok(())
    }

    /// A tenant above a cap, and how many of its sessions to evict at once.
    fn surplus(&self, counts: &BTreeMap<TenantId, usize>) -> Option<(TenantId, usize)> {
        let over = counts.iter().find_map(|(id, count)| {
            let own_max = self.shared.tenants.get_or_insert(id).policy().max_sessions;
            let is_over = own_max > 0 && *count > own_max;
            is_over.then(|| (id.clone(), count - own_max))
        });
        if over.is_some() {
            return over;
        }
        let max = self.shared.census.max_sessions();
        let total: usize = counts.values().sum();
        if max == 0 || total <= max {
            return None;
        }
        let (id, most) = counts.iter().max_by_key(|(_, count)| **count)?;
        let others = counts.iter().filter(|(other, _)| *other != id);
        let second = others.map(|(_, count)| *count).max().unwrap_or(0);
        // Evict until the tenant is level with the one that has the second most sessions.
        Some((id.clone(), (total - max).min((most - second).max(1))))
    }

    pub(super) async fn live_page(
        &self,
        query: LiveQuery,
    ) -> Result<Vec<(SessionKey, Head)>, EngineError> {
        let tenant = query.tenant.clone();
        let store = self.store()?;
        store
            .run(Some(&tenant), move |store| store.live_page(&query))
            .await
    }

    /// Ends journaled sessions whose condition holds. Returns those that have ended durably.
    async fn end_all_of(
        &self,
        tenant: &Arc<Tenant>,
        requested: impl Iterator<Item = (SessionKey, Head, EndRequest<'static>)>,
    ) -> Result<Vec<EndedSession>, EngineError> {
        let mut submitted = Vec::new();
        for (key, head, request) in requested {
            let session = SessionRef::new(tenant, &key.session);
            let slot = self.cached(&session, head).await;
            let permit = self.shared.journal.permit(0).await?;
            match self.end_slot(&slot, request, permit) {
                EndAttempt::Ended(ended) => submitted.push(ended),
                // The session is reloaded. The next sweep checks it again.
                EndAttempt::NeedsLoad | EndAttempt::NotEnded => {}
            }
        }
        let mut ended = Vec::with_capacity(submitted.len());
        for end in submitted {
            match end.submitted.written().await {
                Ok(()) => ended.push(end.ended),
                // Another daemon used or ended it.
                Err(EngineError::SessionReloaded) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ended)
    }

    /// Returns the slot of a journaled session, and creates it from this head if needed.
    async fn cached(&self, session: &SessionRef, head: Head) -> Arc<Slot> {
        let _flight = self.shared.single_flight.enter(&session.key).await;
        match self.shared.table.get(&session.key) {
            Some(slot) => slot,
            None => self.insert_known(session, SlotState::OnDisk(Box::new(head))),
        }
    }

    /// Drops sessions from memory that are idle for long or exceed the maximum number.
    ///
    /// Sessions with unwritten changes stay.
    fn drop_idle_from_memory(&self) {
        let now = self.now().steady;
        let mut left = DROPPED_MAX;
        for tenant in self.shared.tenants.all() {
            let orders = self.shared.table.orders(&tenant.id);
            while left > 0
                && let Some(oldest) = orders.oldest()
            {
                let is_unused = now.since(oldest.used.at) >= CACHED_MS;
                let is_surplus = self.shared.census.total() > CACHED_MAX;
                if !(is_unused || is_surplus) || !self.drop_from_memory(&oldest.slot) {
                    break;
                }
                left -= 1;
            }
        }
    }

    /// Drops a session from memory unless it has unwritten changes. Returns whether it did.
    ///
    /// Tasks that hold the slot find it stale and no longer in the table.
    fn drop_from_memory(&self, slot: &Arc<Slot>) -> bool {
        let mut inner = slot.lock();
        if !self.shared.journal.is_processed(inner.ticket) {
            return false;
        }
        if inner.unlist(slot) {
            self.shared.census.release(&slot.tenant.id);
        }
        inner.discard(&slot.tenant);
        self.shared.table.remove(slot);
        true
    }
}

/// Worker that counts sessions, drops idle ones from memory and, on the leader, evicts.
pub(super) struct ClusterSessionsWorker {
    sessions: Sessions,
}

impl ClusterSessionsWorker {
    pub(super) fn new(sessions: Sessions) -> Self {
        Self { sessions }
    }
}

impl Worker for ClusterSessionsWorker {
    fn name(&self) -> &'static str {
        "journal_keeper"
    }

    async fn wait(&mut self) {
        let Some(shared) = &self.sessions.shared.cluster else {
            return std::future::pending().await;
        };
        if shared.cluster.leads() {
            tokio::time::sleep(COUNT_PAUSE).await;
        } else {
            // A new leader starts without a pause.
            let leads = self.sessions.wait_to_lead(&shared.count_due);
            let _ = tokio::time::timeout(COUNT_PAUSE_OF_OTHERS, leads).await;
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        self.sessions.drop_idle_from_memory();
        let counts = self.sessions.count_in_journal().await?;
        if self.sessions.leads() {
            self.sessions.enforce_caps_in_journal(counts).await?;
        }
        if let Some(shared) = &self.sessions.shared.cluster {
            let now = self.sessions.now().steady;
            shared.count_due.set(now, COUNT_PAUSE);
        }
        Ok(())
    }
}
