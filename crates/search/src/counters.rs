//! What is counted of the index.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the start, and how far the index is.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) indexed: AtomicU64,
    pub(crate) forgotten: AtomicU64,
    pub(crate) rebuilds: AtomicU64,
    pub(crate) behind: AtomicU64,
    pub(crate) file_bytes: AtomicU64,
}

/// How the index does at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchSnapshot {
    /// Turns taken in since the start.
    pub indexed: u64,
    /// Turns taken out since the start, because the journal forgot them.
    pub forgotten: u64,
    /// How often the index was begun anew since the start: the first time, and whenever its
    /// file was lost, damaged or of another version.
    pub rebuilds: u64,
    /// Turns of the journal that are not in the index yet, when its worker last looked.
    pub behind: u64,
    /// Bytes of its file, with the log.
    pub file_bytes: u64,
}

impl Counters {
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
