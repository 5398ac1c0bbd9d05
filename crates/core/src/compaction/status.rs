//! The status of a session's compaction, a small part of its metadata that survives a restart.
//!
//! A failure only increments the breaker's count, and windows are cut in the meantime. While the
//! summarizer is known to be down, a failure only counts if a call requested the compaction.

use crate::breaker::BreakerState;
use crate::time::Steady;

use super::CompactionPolicy;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionStatus {
    /// Number of summaries made so far. The next summary gets the next number.
    pub summaries: u32,
    /// Last turn that the summary covers, or 0 without a summary.
    pub through_seq: u64,
    /// Newest turn when the last summary was made or undone, or 0 before the first.
    pub at_seq: u64,
    pub failures: u32,
    /// Time and newest turn when its breaker opened.
    pub opened: Option<(Steady, u64)>,
    /// Error of the last failure, or empty after a success.
    pub last_error: Box<str>,
    /// Whether a compaction is running. Not stored across a restart.
    pub running: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Name in metrics and events.
    pub reason: &'static str,
    /// Details for an operator.
    pub problem: String,
}

const ERROR_BYTES_MAX: usize = 512;

impl CompactionStatus {
    /// State of its breaker, which admits one trial after some turns or some time.
    pub fn breaker(&self, now: Steady, last_seq: u64, policy: &CompactionPolicy) -> BreakerState {
        match self.opened {
            None => BreakerState::Closed,
            Some((since, seq))
                if last_seq >= seq.saturating_add(policy.breaker.open_turns)
                    || now.since(since) >= policy.breaker.open_ms =>
            {
                BreakerState::HalfOpen
            }
            Some(_) => BreakerState::Open,
        }
    }

    /// Records a failure. Too many in a row, or a failed trial, open the breaker.
    pub fn failed(
        &mut self,
        failure: &Failure,
        now: Steady,
        last_seq: u64,
        policy: &CompactionPolicy,
    ) {
        self.failures = self.failures.saturating_add(1);
        let mut text = format!("{}: {}", failure.reason, failure.problem);
        text.truncate(text.floor_char_boundary(ERROR_BYTES_MAX));
        self.last_error = text.into();
        if self.failures >= policy.breaker.failures_max.max(1) {
            self.opened = Some((now, last_seq));
        }
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.opened = None;
        self.last_error = Box::default();
    }
}
