//! Counters and histograms of durable changes, the source of both `GetStats` and `/metrics`.

mod compaction;

use std::sync::atomic::{AtomicU64, Ordering};

use memoird_core::change::EndReason;
use memoird_core::history::Totals;
use memoird_core::ids::{HookName, TenantId};
use memoird_core::window::Window;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::memory_use::MemorySnapshot;

pub(crate) use compaction::CompactionStats;
pub use compaction::{CompactionResult, CompactionSnapshot};

#[derive(Debug)]
pub struct Stats {
    /// Number of journal transactions.
    pub commits: AtomicU64,
    /// Number of change sets in them.
    pub commit_sets: AtomicU64,
    /// Number of change sets that failed to commit. Sets rejected for a stale base are not counted.
    ///
    /// With [`crate::Durability::Interval`], a later attempt writes them.
    pub commit_failures: AtomicU64,
    pub commit_seconds: Histogram,
    /// Duration of a compaction in seconds, from the snapshot to the summarizer's reply.
    pub compaction_seconds: Histogram,
    pub commit_batch: Histogram,
    pub hooks: HookStats,
}

/// Labels of a metric, as name and value.
type Labels<const N: usize> = [(&'static str, String); N];

#[derive(Clone, Debug)]
pub struct HookStats {
    /// Number of attempts by hook and outcome: `done`, `failed` (to be retried) or `dead`.
    pub deliveries: Family<Labels<2>, Counter>,
    /// Duration of an attempt in seconds, by hook.
    pub seconds: Family<Labels<1>, Histogram, fn() -> Histogram>,
}

impl Default for HookStats {
    fn default() -> Self {
        let buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 17));
        Self {
            deliveries: Family::default(),
            seconds: Family::new_with_constructor(buckets),
        }
    }
}

impl HookStats {
    pub(crate) fn count(&self, hook: &HookName, outcome: &'static str) {
        let labels = [("hook", hook.to_string()), ("outcome", outcome.to_owned())];
        self.deliveries.get_or_create(&labels).inc();
    }

    pub(crate) fn time(&self, hook: &HookName, seconds: f64) {
        self.seconds
            .get_or_create(&[("hook", hook.to_string())])
            .observe(seconds);
    }
}

#[derive(Debug, Default)]
pub struct TenantStats {
    turns_live: AtomicU64,
    bytes_live: AtomicU64,
    bytes_loaded: AtomicU64,
    journal_bytes: AtomicU64,
    created: AtomicU64,
    expired: AtomicU64,
    evicted: AtomicU64,
    ended: AtomicU64,
    turns_appended: AtomicU64,
    turns_dropped: AtomicU64,
    pub(crate) windows: Mutex<WindowSnapshot>,
    pub(crate) compaction: CompactionStats,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct WindowSnapshot {
    pub built: u64,
    pub refused: u64,
    /// Tokens of the windows built.
    pub tokens: u64,
    /// Tokens of retained turns that were left out of windows.
    pub tokens_saved: u64,
    /// Tokens in a prefix that was already sent before.
    pub prefix_tokens: u64,
    pub cuts: u64,
    /// Tool results trimmed or replaced by a marker, counted at the cut that did it.
    pub results_trimmed: u64,
}

#[derive(Clone, Debug, Default)]
pub struct StatsSnapshot {
    pub commits: u64,
    pub commit_sets: u64,
    pub commit_failures: u64,
    pub memory: MemorySnapshot,
    /// Ordered by tenant id.
    pub tenants: Vec<TenantSnapshot>,
}

/// Snapshot of a tenant's counters, with its limits.
#[derive(Clone, Debug)]
pub struct TenantSnapshot {
    pub id: TenantId,
    pub sessions_live: u64,
    /// Turns in the histories of live sessions.
    pub turns_live: u64,
    /// Encoded bytes of those turns.
    pub bytes_live: u64,
    pub sessions_created: u64,
    /// Generations that expired.
    pub expired: u64,
    /// Generations evicted because of a cap.
    pub evicted: u64,
    /// Generations ended by their client, including resets.
    pub ended: u64,
    pub turns_appended: u64,
    /// Turns removed from a history to make room.
    pub turns_dropped: u64,
    pub windows: WindowSnapshot,
    pub compaction: CompactionSnapshot,
    /// Session cap. 0 means none.
    pub max_sessions: u64,
    /// Default TTL of sessions in milliseconds.
    pub session_ttl_ms: u64,
    pub max_history_turns: u64,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            commits: AtomicU64::default(),
            commit_sets: AtomicU64::default(),
            commit_failures: AtomicU64::default(),
            compaction_seconds: Histogram::new(exponential_buckets(0.001, 2.5, 14)),
            commit_seconds: Histogram::new(exponential_buckets(0.000_25, 2.0, 14)),
            commit_batch: Histogram::new(exponential_buckets(1.0, 2.0, 12)),
            hooks: HookStats::default(),
        }
    }
}

impl TenantStats {
    /// The `count_*` methods with `before` and `after` record a difference.
    pub(crate) fn count_live(&self, before: Totals, after: Totals) {
        shift(&self.turns_live, before.turns, after.turns);
        shift(&self.bytes_live, before.bytes, after.bytes);
    }

    pub(crate) fn count_loaded(&self, before: u64, after: u64) {
        shift(&self.bytes_loaded, before, after);
    }

    pub(crate) fn bytes_loaded(&self) -> u64 {
        self.bytes_loaded.load(Ordering::Relaxed)
    }

    pub(crate) fn count_journal(&self, before: u64, after: u64) {
        shift(&self.journal_bytes, before, after);
    }

    /// Bytes of turns in the journal. Only appends are counted if there is no limit.
    pub(crate) fn journal_bytes(&self) -> u64 {
        self.journal_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn count_created(&self) {
        self.created.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_appended(&self, turns: u64, dropped: u64) {
        self.turns_appended.fetch_add(turns, Ordering::Relaxed);
        self.turns_dropped.fetch_add(dropped, Ordering::Relaxed);
    }

    pub(crate) fn count_end(&self, reason: EndReason) {
        let counter = match reason {
            EndReason::Expired => &self.expired,
            EndReason::Evicted => &self.evicted,
            EndReason::Ended | EndReason::Reset | EndReason::Shutdown => &self.ended,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a snapshot. The caller fills in the number of live sessions and the limits.
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
            windows: *self.windows.lock(),
            compaction: self.compaction.lock().clone(),
            max_sessions: 0,
            session_ttl_ms: 0,
            max_history_turns: 0,
        }
    }
}

impl WindowSnapshot {
    pub(crate) fn count(&mut self, window: &Window) {
        self.built += 1;
        self.tokens += window.report.blocks.total();
        self.tokens_saved += window.tokens_saved;
        self.prefix_tokens += window.report.stable_prefix_tokens;
        if window.has_new_cut {
            self.cuts += 1;
            self.results_trimmed += window.newly_reduced;
        }
    }
}

/// Adds a difference. Concurrent calls may wrap the sum temporarily, but not the result.
fn shift(sum: &AtomicU64, before: u64, after: u64) {
    sum.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
}
