//! Counters of a tenant's compactions.

use memoird_core::compaction::Trigger;
use parking_lot::{Mutex, MutexGuard};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompactionResult {
    Made,
    /// The summarizer failed or timed out.
    Failed,
    /// The summary failed validation.
    Rejected,
    /// The session changed in the meantime, so nothing was written.
    Discarded,
    Nothing,
}

#[derive(Debug)]
pub(crate) struct CompactionStats(Mutex<CompactionSnapshot>);

#[derive(Clone, Debug, Default)]
pub struct CompactionSnapshot {
    pub outcomes: Vec<(Trigger, CompactionResult, u64)>,
    /// Estimated tokens of summarized turns and previous summaries.
    pub tokens_before: u64,
    pub tokens_after: u64,
    /// Number of times a session's circuit breaker opened.
    pub breakers_opened: u64,
    /// Live sessions whose circuit breaker is open or half open.
    pub breakers_open: u64,
    pub undone: u64,
}

impl CompactionResult {
    pub const ALL: [Self; 5] = [
        Self::Made,
        Self::Failed,
        Self::Rejected,
        Self::Discarded,
        Self::Nothing,
    ];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::Discarded => "discarded",
            Self::Nothing => "nothing",
        }
    }
}

impl Default for CompactionStats {
    fn default() -> Self {
        let of = |trigger| CompactionResult::ALL.map(|outcome| (trigger, outcome, 0));
        Self(Mutex::new(CompactionSnapshot {
            outcomes: Trigger::ALL.into_iter().flat_map(of).collect(),
            ..CompactionSnapshot::default()
        }))
    }
}

impl CompactionStats {
    pub(crate) fn lock(&self) -> MutexGuard<'_, CompactionSnapshot> {
        self.0.lock()
    }

    pub(crate) fn count(&self, trigger: Trigger, outcome: CompactionResult) {
        for (known, result, count) in &mut self.lock().outcomes {
            *count += u64::from(*known == trigger && *result == outcome);
        }
    }

    /// Records a change of a session's breaker, including when the session is loaded or unloaded.
    pub(crate) fn count_open(&self, was_open: bool, is_open: bool) {
        if was_open != is_open {
            let mut counts = self.lock();
            counts.breakers_open += u64::from(is_open);
            counts.breakers_open -= u64::from(was_open);
        }
    }
}
