//! What an operator wants to see: counts, and how long commits take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memoird_core::change::{Change, ChangeSet, EndReason, Totals};
use memoird_core::ids::TenantId;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::cell::SessionCell;

/// Counts of the whole process.
#[derive(Debug)]
pub struct Stats {
    /// Journal transactions.
    pub commits: AtomicU64,
    /// Change sets in them.
    pub commit_sets: AtomicU64,
    /// Change sets that were not written.
    pub commit_failures: AtomicU64,
    /// How long a transaction takes.
    pub commit_seconds: Histogram,
    /// Change sets of a transaction.
    pub commit_batch: Histogram,
}

/// Counts of one tenant.
#[derive(Debug, Default)]
pub struct TenantStats {
    turns_live: AtomicU64,
    bytes_live: AtomicU64,
    created: AtomicU64,
    expired: AtomicU64,
    evicted: AtomicU64,
    ended: AtomicU64,
    turns_appended: AtomicU64,
    turns_dropped: AtomicU64,
}

/// What a change set adds to the counts, once it is true.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    created: u64,
    ended: Option<EndReason>,
    turns_appended: u64,
    turns_dropped: u64,
}

/// Counts of the whole process at one moment.
#[derive(Clone, Debug, Default)]
pub struct StatsSnapshot {
    /// Journal transactions.
    pub commits: u64,
    /// Change sets in them.
    pub commit_sets: u64,
    /// Change sets that were not written.
    pub commit_failures: u64,
    /// By tenant, ordered by id.
    pub tenants: Vec<TenantSnapshot>,
}

/// Counts of one tenant at one moment, with the limits that apply to it.
#[derive(Clone, Debug)]
pub struct TenantSnapshot {
    /// Which tenant.
    pub id: TenantId,
    /// Sessions alive.
    pub sessions_live: u64,
    /// Turns in their histories.
    pub turns_live: u64,
    /// Encoded bytes of those turns.
    pub bytes_live: u64,
    /// Generations started.
    pub sessions_created: u64,
    /// Generations ended by their TTL.
    pub expired: u64,
    /// Generations ended by a cap.
    pub evicted: u64,
    /// Generations ended by their bot, resets included.
    pub ended: u64,
    /// Turns appended.
    pub turns_appended: u64,
    /// Turns that left a history to make room.
    pub turns_dropped: u64,
    /// Sessions it may have; 0: no cap.
    pub max_sessions: u64,
    /// How long its sessions live untouched, in milliseconds.
    pub session_ttl_ms: u64,
    /// Turns its histories keep.
    pub max_history_turns: u64,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            commits: AtomicU64::default(),
            commit_sets: AtomicU64::default(),
            commit_failures: AtomicU64::default(),
            commit_seconds: Histogram::new(exponential_buckets(0.000_25, 2.0, 14)),
            commit_batch: Histogram::new(exponential_buckets(1.0, 2.0, 12)),
        }
    }
}

impl TenantStats {
    /// A history that amounted to `before` amounts to `after`.
    pub(crate) fn count_live(&self, before: Totals, after: Totals) {
        shift(&self.turns_live, before.turns, after.turns);
        shift(&self.bytes_live, before.bytes, after.bytes);
    }

    fn count_end(&self, reason: EndReason) {
        let counter = match reason {
            EndReason::Expired => &self.expired,
            EndReason::Evicted => &self.evicted,
            EndReason::Ended | EndReason::Reset | EndReason::Shutdown => &self.ended,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts; what a tenant's policy and capacity say is put to them by the caller.
    pub(crate) fn snapshot(&self, id: TenantId) -> TenantSnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TenantSnapshot {
            id,
            sessions_live: 0,
            turns_live: read(&self.turns_live),
            bytes_live: read(&self.bytes_live),
            sessions_created: read(&self.created),
            expired: read(&self.expired),
            evicted: read(&self.evicted),
            ended: read(&self.ended),
            turns_appended: read(&self.turns_appended),
            turns_dropped: read(&self.turns_dropped),
            max_sessions: 0,
            session_ttl_ms: 0,
            max_history_turns: 0,
        }
    }
}

impl Tally {
    /// Of a set after which so many turns have left the history.
    pub(crate) fn of(set: &ChangeSet, turns_dropped: u64) -> Self {
        let mut tally = Self { turns_dropped, ..Self::default() };
        for change in &set.changes {
            match change {
                Change::Begin { .. } => tally.created += 1,
                Change::Append(appended) => tally.turns_appended += appended.turns.len() as u64,
                Change::End { reason, .. } => tally.ended = Some(*reason),
                Change::PatchState { .. } | Change::Touch { .. } => {}
            }
        }
        tally
    }

    /// True when a generation ends.
    pub(crate) fn has_end(self) -> bool {
        self.ended.is_some()
    }

    /// Counts it for the tenant of the first session, which goes on, and of the last one,
    /// which ends.
    pub(crate) fn count_for(self, cells: &[Arc<SessionCell>]) {
        if let Some(cell) = cells.first() {
            let stats = &cell.tenant.stats;
            stats.created.fetch_add(self.created, Ordering::Relaxed);
            stats.turns_appended.fetch_add(self.turns_appended, Ordering::Relaxed);
            stats.turns_dropped.fetch_add(self.turns_dropped, Ordering::Relaxed);
        }
        if let (Some(cell), Some(reason)) = (cells.last(), self.ended) {
            cell.tenant.stats.count_end(reason);
        }
    }
}

/// Sums wrap for a moment when two calls cross; the result is the same.
fn shift(sum: &AtomicU64, before: u64, after: u64) {
    sum.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
}
