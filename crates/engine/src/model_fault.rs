//! The error of summarizers, embedders and token counters.

use std::time::Duration;

use memoird_core::breaker::{Breaker, BreakerPolicy};
use memoird_core::time::Steady;
use thiserror::Error;

/// Maximum pause requested by a provider that is honored. Longer ones are cut to this.
const PAUSE_MAX: Duration = Duration::from_secs(60 * 60);

/// Error of a call to a model provider.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{problem}")]
pub struct ModelFault {
    pub kind: FaultKind,
    /// For operators. Contains no secrets and none of the texts sent.
    pub problem: String,
    /// Pause requested by the provider.
    pub after: Option<Duration>,
}

/// Whether and how a retry may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The provider is unavailable, busy or failing. Retry later.
    Later,
    /// The reply is unusable. A retry may return a better one, at full cost.
    Unusable,
    /// The configuration (key, model, address) is wrong. Retries fail until it changes.
    Misconfigured,
    /// The input exceeds the model's limit. A shorter one may succeed.
    TooLong,
    /// The provider rejects this input. Retries fail as well.
    Refused,
}

impl ModelFault {
    pub fn new(kind: FaultKind, problem: impl Into<String>) -> Self {
        Self {
            kind,
            problem: problem.into(),
            after: None,
        }
    }

    /// Records this fault and a requested pause in the provider's circuit breaker.
    ///
    /// A rejected input counts as a success, because it says nothing about other requests.
    pub(crate) fn note(&self, breaker: &mut Breaker, now: Steady, policy: &BreakerPolicy) {
        if self.is_refusal() {
            breaker.succeeded();
        } else {
            breaker.failed(now, policy);
        }
        if let Some(asked) = self.after {
            let asked_ms = u64::try_from(asked.min(PAUSE_MAX).as_millis()).unwrap_or(u64::MAX);
            breaker.asked_to_wait(now, asked_ms, policy);
        }
    }

    /// Whether the provider rejected this particular input.
    pub fn is_refusal(&self) -> bool {
        matches!(self.kind, FaultKind::Refused | FaultKind::TooLong)
    }
}
