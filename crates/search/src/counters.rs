//! Metrics of the index.

use memoird_store::IndexStep;

/// Counters since startup, and the current state of the index.
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

impl SearchSnapshot {
    /// Adds the result of a step.
    pub(crate) fn add(&mut self, step: &IndexStep) {
        self.indexed += step.indexed;
        self.forgotten += step.removed;
        self.rebuilds += u64::from(step.is_new);
        self.behind = step.behind;
        self.file_bytes = step.file_bytes;
    }
}
