//! Circuit breaker, which pauses work that fails repeatedly and then tries it again.
//!
//! Each session has its own, so that a failing session does not stop others.

use serde::{Deserialize, Serialize};

use crate::time::Steady;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Consecutive failures that open it. At least 1.
    pub failures_max: u32,
    /// Time it stays open, in milliseconds. At least 1.
    pub cool_down_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum BreakerState {
    /// Everything is admitted.
    Closed,
    /// Nothing is admitted. The windows of a session with an open breaker are cut.
    Open,
    /// One trial is admitted, and its result decides.
    HalfOpen,
}

/// A circuit breaker (M. Nygard, "Release It!", 2007).
///
/// It cannot stay open forever: a trial that never reports a result counts as failed after the
/// pause, and the next one is admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    /// Consecutive failures.
    failures: u32,
    /// Start of the pause: the last failure, or the start of the trial in progress.
    closed_to_all: Option<Steady>,
    /// Requested length of the pause in milliseconds.
    asked_ms: Option<u64>,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failures_max: 3,
            cool_down_ms: 5 * 60 * 1_000,
        }
    }
}

impl Breaker {
    /// Whether work may be attempted now.
    ///
    /// After the pause of an open breaker, one call returns true and is the trial.
    pub fn admits(&mut self, now: Steady, policy: &BreakerPolicy) -> bool {
        match self.state(now, policy) {
            BreakerState::Closed => true,
            BreakerState::Open => false,
            BreakerState::HalfOpen => {
                self.close_to_all(now, None);
                true
            }
        }
    }

    /// Records a success and closes the breaker.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Records a failure. Too many in a row, or a failed trial, open the breaker.
    pub fn failed(&mut self, now: Steady, policy: &BreakerPolicy) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= policy.failures_max.max(1) {
            self.close_to_all(now, None);
        }
    }

    /// Opens the breaker for at least `asked_ms` milliseconds, even after a single failure.
    pub fn asked_to_wait(&mut self, now: Steady, asked_ms: u64, policy: &BreakerPolicy) {
        if asked_ms > self.pause_ms(now, policy) {
            self.close_to_all(now, Some(asked_ms));
        }
    }

    fn close_to_all(&mut self, now: Steady, asked_ms: Option<u64>) {
        self.closed_to_all = Some(now);
        self.asked_ms = asked_ms;
    }

    pub fn state(&self, now: Steady, policy: &BreakerPolicy) -> BreakerState {
        match (self.closed_to_all, self.pause_ms(now, policy)) {
            (None, _) => BreakerState::Closed,
            (Some(_), 0) => BreakerState::HalfOpen,
            _ => BreakerState::Open,
        }
    }

    /// Time until the next call is admitted, in milliseconds.
    pub fn pause_ms(&self, now: Steady, policy: &BreakerPolicy) -> u64 {
        let since = self.closed_to_all.map(|since| now.since(since));
        let pause_ms = self.asked_ms.unwrap_or(policy.cool_down_ms.max(1));
        since.map_or(0, |passed_ms| pause_ms.saturating_sub(passed_ms))
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BreakerState::{Closed, HalfOpen, Open};

    const POLICY: BreakerPolicy = BreakerPolicy {
        failures_max: 3,
        cool_down_ms: 100,
    };

    fn opened_at(ms: u64) -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..3 {
            assert!(breaker.admits(Steady(ms), &POLICY));
            breaker.failed(Steady(ms), &POLICY);
        }
        breaker
    }

    #[test]
    fn only_consecutive_failures_open_breaker() {
        let mut breaker = Breaker::default();
        for _ in 0..5 {
            breaker.failed(Steady(0), &POLICY);
            breaker.failed(Steady(0), &POLICY);
            assert!(breaker.admits(Steady(0), &POLICY));
            breaker.succeeded();
        }
        let mut breaker = opened_at(7);
        assert_eq!(
            (breaker.failures(), breaker.pause_ms(Steady(8), &POLICY)),
            (3, 99)
        );
        assert!(!breaker.admits(Steady(106), &POLICY));
        // A clock that stops or is set back does not end the pause early.
        assert!(!breaker.admits(Steady(0), &POLICY));
    }

    #[test]
    fn half_open_breaker_admits_one_trial_that_decides() {
        let mut breaker = opened_at(0);
        assert_eq!(breaker.state(Steady(99), &POLICY), Open);
        assert_eq!(breaker.state(Steady(100), &POLICY), HalfOpen);
        assert!(breaker.admits(Steady(100), &POLICY));
        assert!(!breaker.admits(Steady(100), &POLICY), "one trial, not two");
        let mut failed = breaker;
        failed.failed(Steady(150), &POLICY);
        assert_eq!(failed.state(Steady(249), &POLICY), Open);
        assert_eq!(failed.state(Steady(250), &POLICY), HalfOpen);
        breaker.succeeded();
        assert_eq!(
            (breaker.state(Steady(150), &POLICY), breaker.failures()),
            (Closed, 0)
        );
    }

    #[test]
    fn requested_wait_opens_breaker_after_one_failure() {
        let mut breaker = Breaker::default();
        breaker.failed(Steady(0), &POLICY);
        breaker.asked_to_wait(Steady(0), 250, &POLICY);
        assert!(!breaker.admits(Steady(249), &POLICY));
        assert!(breaker.admits(Steady(250), &POLICY));
        // The trial reports no result, so the next one follows after the pause of the policy.
        assert!(!breaker.admits(Steady(349), &POLICY));
        assert!(breaker.admits(Steady(350), &POLICY));
        breaker.succeeded();
        assert!(breaker.admits(Steady(350), &POLICY));
        // A longer remaining pause is not shortened.
        let mut breaker = opened_at(0);
        breaker.asked_to_wait(Steady(0), 20, &POLICY);
        assert!(!breaker.admits(Steady(99), &POLICY));
    }

    #[test]
    fn trial_without_result_is_followed_by_another() {
        let mut breaker = opened_at(0);
        assert!(breaker.admits(Steady(100), &POLICY));
        assert!(!breaker.admits(Steady(199), &POLICY));
        assert!(breaker.admits(Steady(200), &POLICY));
    }

    #[test]
    fn policy_of_zeros_still_opens_and_closes_breaker() {
        let policy = BreakerPolicy {
            failures_max: 0,
            cool_down_ms: 0,
        };
        let mut breaker = Breaker::default();
        assert!(breaker.admits(Steady(0), &policy));
        breaker.failed(Steady(0), &policy);
        assert!(!breaker.admits(Steady(0), &policy));
        assert!(breaker.admits(Steady(1), &policy));
    }
}
