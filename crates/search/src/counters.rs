//! Metrics of the index.

use std::sync::atomic::{AtomicU64, Ordering};

use memoird_store::IndexStep;

/// Counters since startup, and the current state of the index.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) indexed: AtomicU64,
    pub(crate) forgotten: AtomicU64,
    pub(crate) rebuilds: AtomicU64,
    pub(crate) behind: AtomicU64,
    pub(crate) file_bytes: AtomicU64,
}

/// A snapshot of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchSnapshot {
    /// Turns indexed since startup.
    pub indexed: u64,
    /// Turns removed since startup because the journal deleted them.
    pub forgotten: u64,
    /// Number of times the index was built from scratch since startup.
    ///
    /// That happens initially, or if its file was lost, damaged or of another version.
    pub rebuilds: u64,
    /// Journal turns not indexed yet, as of the worker's last step.
    pub behind: u64,
    /// Size in bytes of the index file and its log.
    pub file_bytes: u64,
}

impl Counters {
    /// Adds the result of a step.
    pub(crate) fn add(&self, step: &IndexStep) {
        let order = Ordering::Relaxed;
        self.indexed.fetch_add(step.indexed, order);
        self.forgotten.fetch_add(step.removed, order);
        self.rebuilds.fetch_add(u64::from(step.is_new), order);
        self.behind.store(step.behind, order);
        self.file_bytes.store(step.file_bytes, order);
    }

    pub(crate) fn snapshot(&self) -> SearchSnapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SearchSnapshot {
            indexed: load(&self.indexed),
            forgotten: load(&self.forgotten),
            rebuilds: load(&self.rebuilds),
            behind: load(&self.behind),
            file_bytes: load(&self.file_bytes),
        }
    }
}
