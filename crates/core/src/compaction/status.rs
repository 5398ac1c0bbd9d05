//! The status of a session's compaction: a small part of its head that survives a restart.
//!
//! A failure changes nothing else: the breaker counts it, and windows are cut meanwhile. What fails
//! because the summarizer is known to be down counts only where a call asked for the summary.

use crate::breaker::BreakerState;
use crate::time::Steady;

use super::CompactionPolicy;

/// The status of a session's compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionStatus {
    /// Summaries that were made so far; the next one's number is one more.
    pub summaries: u32,
    /// The last turn that the summary stands for; 0 where there is none.
    pub through_seq: u64,
    /// The newest turn when the last one was made or undone; 0 before the first.
    pub at_seq: u64,
    /// Failures since the last success.
    pub failures: u32,
    /// Since when, and since which turn, its breaker is open.
    pub opened: Option<(Steady, u64)>,
    /// Why the last one failed; empty when none did since the last success.
    pub last_error: Box<str>,
    /// True while one is being made. Not kept across a restart.
    pub running: bool,
}

/// Why a compaction failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name in metrics and events.
    pub reason: &'static str,
    /// For an operator.
    pub problem: String,
}

/// Bytes of `last_error`.
const ERROR_BYTES_MAX: usize = 512;

impl CompactionStatus {
    /// What its breaker lets through: after some turns or some time one trial.
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

    /// Notes a failure; the one that is one too many opens the breaker, and so does a trial.
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

    /// Notes a success.
    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.opened = None;
        self.last_error = Box::default();
    }
}
