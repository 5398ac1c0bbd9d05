//! The error of summarizers, embedders and token counters.

use std::time::Duration;

use memoird_core::breaker::{Breaker, BreakerPolicy};
use memoird_core::time::Steady;
use thiserror::Error;

/// How long a provider is left alone that asked for it: a longer pause is tried after this one.
const PAUSE_MAX: Duration = Duration::from_secs(60 * 60);

/// Why a model, or its provider, gave no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{problem}")]
pub struct ModelFault {
    /// Whether another attempt helps.
    pub kind: FaultKind,
    /// For an operator: without secrets, and without any of the texts that were sent.
    pub problem: String,
    /// The pause that the provider asked for, where trying again may help.
    pub after: Option<Duration>,
}

/// Whether another attempt helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The provider is not there, is busy, or failed: trying again later may help.
    Later,
    /// The answer cannot be used. The next one may be better, but costs as much.
    Unusable,
    /// The configuration is wrong (key, model, address): it will not help before it changes.
    Misconfigured,
    /// The model does not take as much as was sent: less may help.
    TooLong,
    /// The provider refuses what was sent, and would again.
    Refused,
}

impl ModelFault {
    /// A fault without a pause.
    pub fn new(kind: FaultKind, problem: impl Into<String>) -> Self {
        Self {
            kind,
            problem: problem.into(),
            after: None,
        }
    }

    /// Notes in the breaker of its provider that a call failed so. What one request is refused for
    /// says nothing of the others, and who asked for a pause gets it.
    pub(crate) fn note(&self, breaker: &mut Breaker, now: Steady, policy: &BreakerPolicy) {
        match self.is_refusal() {
            true => breaker.succeeded(),
            false => breaker.failed(now, policy),
        }
        if let Some(asked) = self.after {
            let asked_ms = u64::try_from(asked.min(PAUSE_MAX).as_millis()).unwrap_or(u64::MAX);
            breaker.asked_to_wait(now, asked_ms, policy);
        }
    }

    /// True when the provider does not take what was sent.
    pub fn is_refusal(&self) -> bool {
        matches!(self.kind, FaultKind::Refused | FaultKind::TooLong)
    }
}
