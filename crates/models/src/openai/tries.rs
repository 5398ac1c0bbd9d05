//! Trying again, after pauses that grow or that the provider asked for.

use std::time::Duration;

use memoird_engine::EmbedError;
use tokio::time::sleep;

/// The pause after the first failure; each further one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// No pause is longer. Whoever is asked for more hands it to the caller, who has other
/// things to do meanwhile.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Makes at most `tries_max` attempts, as long as another may help.
pub(super) async fn with_tries<T, F>(
    tries_max: u32,
    mut attempt: impl FnMut() -> F,
) -> Result<T, EmbedError>
where
    F: Future<Output = Result<T, EmbedError>>,
{
    let mut pause = PAUSE_FIRST;
    for _ in 1..tries_max {
        match attempt().await {
            Err(EmbedError::Later { after, .. })
                if after.is_none_or(|asked| asked <= PAUSE_MAX) =>
            {
                sleep(after.unwrap_or(pause)).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            outcome => return outcome,
        }
    }
    attempt().await
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::Instant;

    use super::*;

    fn later(after_ms: Option<u64>) -> Result<(), EmbedError> {
        let after = after_ms.map(Duration::from_millis);
        Err(EmbedError::Later { problem: "busy".to_owned(), after })
    }

    /// When the attempts were made, in milliseconds, and what came of them.
    async fn run(
        tries_max: u32,
        script: &[Result<(), EmbedError>],
    ) -> (Vec<u128>, Result<(), EmbedError>) {
        let start = Instant::now();
        let times = RefCell::new(Vec::new());
        let outcome = with_tries(tries_max, || async {
            times.borrow_mut().push(start.elapsed().as_millis());
            script[times.borrow().len() - 1].clone()
        });
        let outcome = outcome.await;
        (times.into_inner(), outcome)
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_a_bound() {
        let script: Vec<_> = (0..8).map(|_| later(None)).collect();
        let (times, outcome) = run(8, &script).await;
        assert_eq!(times, [0, 500, 1_500, 3_500, 7_500, 15_500, 25_500, 35_500]);
        assert_eq!(outcome, later(None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_is_asked_for_is_made_unless_it_is_long() {
        let (times, outcome) = run(3, &[later(Some(7_000)), later(Some(0)), Ok(())]).await;
        assert_eq!((times, outcome), (vec![0, 7_000, 7_000], Ok(())));
        let (times, outcome) = run(3, &[later(None), later(Some(10_001)), Ok(())]).await;
        assert_eq!((times, outcome), (vec![0, 500], later(Some(10_001))));
    }

    #[tokio::test(start_paused = true)]
    async fn what_will_not_help_is_not_tried_again() {
        let refused = Err(EmbedError::Refused { problem: "no".to_owned() });
        assert_eq!(run(3, &[refused.clone(), Ok(())]).await, (vec![0], refused));
        assert_eq!(run(1, &[later(None), Ok(())]).await, (vec![0], later(None)));
    }
}
