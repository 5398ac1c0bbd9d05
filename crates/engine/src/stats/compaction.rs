//! Counters of a tenant's compactions.

use std::sync::atomic::{AtomicU64, Ordering};

use memoird_core::compaction::Trigger;

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

#[derive(Debug, Default)]
pub(crate) struct CompactionStats {
    outcomes: [[AtomicU64; CompactionResult::ALL.len()]; Trigger::ALL.len()],
    tokens_before: AtomicU64,
    tokens_after: AtomicU64,
    pub(crate) breakers_opened: AtomicU64,
    breakers_open: AtomicU64,
    pub(crate) undone: AtomicU64,
}

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

impl CompactionStats {
    pub(crate) fn count(&self, trigger: Trigger, outcome: CompactionResult) {
        let row = Trigger::ALL.iter().position(|known| *known == trigger);
        let column = CompactionResult::ALL
            .iter()
            .position(|known| *known == outcome);
        if let (Some(row), Some(column)) = (row, column) {
            self.outcomes[row][column].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_summary(&self, tokens_before: u64, tokens_after: u64) {
        let add = |counter: &AtomicU64, more| counter.fetch_add(more, Ordering::Relaxed);
        add(&self.tokens_before, tokens_before);
        add(&self.tokens_after, tokens_after);
    }

    /// Records a change of a session's breaker, including when the session is loaded or unloaded.
    pub(crate) fn count_open(&self, was_open: bool, is_open: bool) {
        match (was_open, is_open) {
            (false, true) => self.breakers_open.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.breakers_open.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    pub(crate) fn snapshot(&self) -> CompactionSnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut outcomes = Vec::with_capacity(Trigger::ALL.len() * CompactionResult::ALL.len());
        for (trigger, row) in Trigger::ALL.into_iter().zip(&self.outcomes) {
            let counts = CompactionResult::ALL.into_iter().zip(row);
            outcomes.extend(counts.map(|(outcome, count)| (trigger, outcome, read(count))));
        }
        CompactionSnapshot {
            outcomes,
            tokens_before: read(&self.tokens_before),
            tokens_after: read(&self.tokens_after),
            breakers_opened: read(&self.breakers_opened),
            breakers_open: read(&self.breakers_open),
            undone: read(&self.undone),
        }
    }
}
