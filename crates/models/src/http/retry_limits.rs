//! Retries, after growing pauses or those requested by the provider.

use std::time::Duration;

use memoird_engine::{FaultKind, ModelFault};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Limits of retries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryLimits {
    /// Maximum number of attempts. At least 1.
    pub(crate) max: u32,
    pub(crate) limit: TimeLimit,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeLimit {
    /// Timeout of each attempt. A long pause requested by the provider ends the attempts.
    ///
    /// The caller has other work in the meantime.
    Each(Duration),
    /// Timeout of all attempts and pauses together. A pause that would exceed it ends the attempts.
    All(Duration),
}

/// Pause after the first failure. It doubles with each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// Longest pause, unless the provider requests a longer one that ends before the limit.
const PAUSE_MAX: Duration = Duration::from_secs(10);

impl RetryLimits {
    /// Attempts with a common time limit.
    pub(crate) fn within(max: u32, limit: Duration) -> Self {
        let limit = TimeLimit::All(limit);
        Self { max, limit }
    }

    /// Makes attempts as long as another one is allowed and may succeed.
    ///
    /// # Errors
    /// The fault of the last attempt.
    pub(crate) async fn make<T, F>(self, mut attempt: impl FnMut() -> F) -> Result<T, ModelFault>
    where
        F: Future<Output = Result<T, ModelFault>>,
    {
        match self.limit {
            TimeLimit::Each(limit) => {
                let attempt = || {
                    let made = timeout(limit, attempt());
                    async move { made.await.unwrap_or_else(|_| Err(timed_out(limit))) }
                };
                self.repeat(None, attempt).await
            }
            TimeLimit::All(limit) => {
                let end = sleep(limit).deadline();
                let made = timeout_at(end, self.repeat(Some(end), attempt)).await;
                made.unwrap_or_else(|_| Err(timed_out(limit)))
            }
        }
    }

    async fn repeat<T, F>(
        self,
        end: Option<Instant>,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, ModelFault>
    where
        F: Future<Output = Result<T, ModelFault>>,
    {
        let mut pause = PAUSE_FIRST;
        for _ in 1..self.max {
            let fault = match attempt().await {
                Err(fault) if fault.kind == FaultKind::Later => fault,
                outcome => return outcome,
            };
            let asked = fault.after;
            let wait = sleep(asked.unwrap_or(pause));
            let fits = match end {
                Some(end) => wait.deadline() < end,
                None => asked.is_none_or(|asked| asked <= PAUSE_MAX),
            };
            if !fits {
                return Err(fault);
            }
            wait.await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        attempt().await
    }
}

fn timed_out(limit: Duration) -> ModelFault {
    ModelFault::new(FaultKind::Later, format!("no answer within {limit:?}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]

    use std::cell::RefCell;

    use super::*;

    type Outcome = Result<(), ModelFault>;

    fn later(after_ms: Option<u64>) -> Outcome {
        let after = after_ms.map(Duration::from_millis);
        Err(ModelFault {
            after,
            ..ModelFault::new(FaultKind::Later, "busy")
        })
    }

    fn each(max: u32) -> RetryLimits {
        RetryLimits {
            max,
            limit: TimeLimit::Each(Duration::from_secs(60)),
        }
    }

    fn all(max: u32, limit_ms: u64) -> RetryLimits {
        RetryLimits {
            max,
            limit: TimeLimit::All(Duration::from_millis(limit_ms)),
        }
    }

    /// Times of the attempts in milliseconds, and the final outcome.
    async fn run(retry_limits: RetryLimits, script: &[Outcome]) -> (Vec<u128>, Outcome) {
        let start = Instant::now();
        let times = RefCell::new(Vec::new());
        let outcome = retry_limits
            .make(|| async {
                times.borrow_mut().push(start.elapsed().as_millis());
                script[times.borrow().len() - 1].clone()
            })
            .await;
        (times.into_inner(), outcome)
    }

    #[tokio::test(start_paused = true)]
    async fn retry_pauses_double_up_to_maximum() {
        let script: Vec<_> = (0..8).map(|_| later(None)).collect();
        for retry_limits in [each(8), all(8, 60_000)] {
            let (times, outcome) = run(retry_limits, &script).await;
            assert_eq!(times, [0, 500, 1_500, 3_500, 7_500, 15_500, 25_500, 35_500]);
            assert_eq!(outcome, later(None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requested_pause_is_used_unless_too_long() {
        let (times, outcome) = run(each(3), &[later(Some(7_000)), later(Some(0)), Ok(())]).await;
        assert_eq!((times, outcome), (vec![0, 7_000, 7_000], Ok(())));
        let (times, outcome) = run(each(3), &[later(None), later(Some(10_001)), Ok(())]).await;
        assert_eq!((times, outcome), (vec![0, 500], later(Some(10_001))));
    }

    #[tokio::test(start_paused = true)]
    async fn pause_is_made_if_it_ends_before_common_limit() {
        let script = [later(Some(50_000)), later(Some(10_000)), Ok(())];
        let (times, outcome) = run(all(3, 60_000), &script).await;
        assert_eq!((times, outcome), (vec![0, 50_000], later(Some(10_000))));
        let (times, outcome) = run(all(3, 60_001), &script).await;
        assert_eq!((times, outcome), (vec![0, 50_000, 60_000], Ok(())));
        let (times, outcome) = run(all(3, 1_000), &[later(None), later(None), Ok(())]).await;
        assert_eq!((times, outcome), (vec![0, 500], later(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_attempt_times_out() {
        for (retry_limits, problem, waited_ms) in [
            (all(3, 900), "no answer within 900ms", 900),
            (each(2), "no answer within 60s", 120_500),
        ] {
            let start = Instant::now();
            let outcome: Outcome = retry_limits.make(std::future::pending).await;
            let late = ModelFault::new(FaultKind::Later, problem);
            assert_eq!(
                (outcome, start.elapsed().as_millis()),
                (Err(late), waited_ms)
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_faults_are_not_retried() {
        for kind in [
            FaultKind::Refused,
            FaultKind::Unusable,
            FaultKind::TooLong,
            FaultKind::Misconfigured,
        ] {
            let fault = ModelFault::new(kind, "no");
            let (times, outcome) = run(each(3), &[Err(fault.clone()), Ok(())]).await;
            assert_eq!((times, outcome), (vec![0], Err(fault)));
        }
        assert_eq!(
            run(each(1), &[later(None), Ok(())]).await,
            (vec![0], later(None))
        );
    }
}
