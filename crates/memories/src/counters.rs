//! What an operator wants to see of a tenant's memories.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::requests::RecallMode;
use crate::rules::Outcome;

/// Counts of one tenant's memories since the daemon started.
#[derive(Debug, Default)]
pub(crate) struct MemoryCounters {
    created: AtomicU64,
    reinforced: AtomicU64,
    merged: AtomicU64,
    echoed: AtomicU64,
    redacted: AtomicU64,
    recalls_hybrid: AtomicU64,
    recalls_lexical: AtomicU64,
    recalls_vector: AtomicU64,
    recalls_lost: AtomicU64,
    forgotten: AtomicU64,
    embedding_failed: AtomicU64,
    promoted: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySnapshot {
    /// Facts that became memories.
    pub created: u64,
    /// Facts that were there to the letter.
    pub reinforced: u64,
    /// Facts that a memory took in.
    pub merged: u64,
    /// Facts that were no new ones: a recall had just told them.
    pub echoed: u64,
    /// Secrets that were taken out.
    pub redacted: u64,
    /// Recalls by words and by meaning.
    pub recalls_hybrid: u64,
    /// Recalls by words.
    pub recalls_lexical: u64,
    /// Recalls by meaning.
    pub recalls_vector: u64,
    /// Recalls of which no note could be left.
    pub recalls_lost: u64,
    /// Memories forgotten, older versions included.
    pub forgotten: u64,
    /// Memories whose embedding was given up.
    pub embedding_failed: u64,
    /// Memories that consolidations pinned.
    pub promoted: u64,
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl MemoryCounters {
    pub(crate) fn count_remembered(&self, outcome: Outcome, redacted: usize) {
        let counter = match outcome {
            Outcome::Created => &self.created,
            Outcome::Reinforced => &self.reinforced,
            Outcome::Merged => &self.merged,
            Outcome::Recalled => &self.echoed,
        };
        add(counter, 1);
        self.count_redacted(redacted);
    }

    pub(crate) fn count_redacted(&self, redacted: usize) {
        add(&self.redacted, redacted as u64);
    }

    pub(crate) fn count_recall(&self, mode: RecallMode) {
        let counter = match mode {
            RecallMode::Auto | RecallMode::Lexical => &self.recalls_lexical,
            RecallMode::Hybrid => &self.recalls_hybrid,
            RecallMode::Vector => &self.recalls_vector,
        };
        add(counter, 1);
    }

    pub(crate) fn count_lost_recall(&self) {
        add(&self.recalls_lost, 1);
    }

    pub(crate) fn count_merged(&self, merged: u64) {
        add(&self.merged, merged);
    }

    pub(crate) fn count_forgotten(&self, memories: u64) {
        add(&self.forgotten, memories);
    }

    pub(crate) fn count_embedding_failed(&self, memories: u64) {
        add(&self.embedding_failed, memories);
    }

    pub(crate) fn count_promoted(&self, memories: u64) {
        add(&self.promoted, memories);
    }

    pub(crate) fn snapshot(&self) -> MemorySnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MemorySnapshot {
            created: read(&self.created),
            reinforced: read(&self.reinforced),
            merged: read(&self.merged),
            echoed: read(&self.echoed),
            redacted: read(&self.redacted),
            recalls_hybrid: read(&self.recalls_hybrid),
            recalls_lexical: read(&self.recalls_lexical),
            recalls_vector: read(&self.recalls_vector),
            recalls_lost: read(&self.recalls_lost),
            forgotten: read(&self.forgotten),
            embedding_failed: read(&self.embedding_failed),
            promoted: read(&self.promoted),
        }
    }
}
