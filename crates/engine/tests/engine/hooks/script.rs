//! A hook that follows a script and records its calls.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memoird_engine::{Hook, HookCall, HookError, HookFuture, Retry, SessionContent};
use tokio::time::sleep;

/// Behavior of the hook for one batch of calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum HookStep {
    /// Every call succeeds.
    #[default]
    Ok,
    /// Every call fails with a retryable error.
    Later,
    /// Every call fails and requests a retry after this delay.
    After(Duration),
    /// Every call fails permanently.
    Never,
    /// Never returns.
    Hang,
    /// Succeeds after this delay.
    Slow(Duration),
    /// Panics before the first await.
    PanicAtOnce,
    /// Panics after an await.
    PanicLater,
    /// This number of calls succeed. No outcome is returned for the others.
    Fewer(usize),
    /// Returns more outcomes than there were calls.
    More,
}

#[derive(Debug)]
pub(crate) struct ScriptedHook {
    batch_max: usize,
    script: Mutex<VecDeque<HookStep>>,
    /// Used once the script is exhausted.
    then: Mutex<HookStep>,
    batches: Mutex<Vec<Vec<HookCall>>>,
    under_way: Arc<AtomicUsize>,
    most: AtomicUsize,
}

/// Decrements the counter when the call ends in any way.
struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ScriptedHook {
    /// Follows the script, and then always succeeds.
    pub(crate) fn new(script: impl IntoIterator<Item = HookStep>) -> Arc<Self> {
        Self::batched(1, script)
    }

    pub(crate) fn batched(
        batch_max: usize,
        script: impl IntoIterator<Item = HookStep>,
    ) -> Arc<Self> {
        Arc::new(Self {
            batch_max,
            script: Mutex::new(script.into_iter().collect()),
            then: Mutex::default(),
            batches: Mutex::default(),
            under_way: Arc::default(),
            most: AtomicUsize::new(0),
        })
    }

    /// Always does the same.
    pub(crate) fn always(step: HookStep) -> Arc<Self> {
        let hook = Self::new([]);
        hook.will_now(step);
        hook
    }

    pub(crate) fn will_now(&self, step: HookStep) {
        *self.then.lock().unwrap() = step;
    }

    pub(crate) fn batches(&self) -> Vec<Vec<HookCall>> {
        self.batches.lock().unwrap().clone()
    }

    pub(crate) fn calls(&self) -> Vec<HookCall> {
        self.batches().concat()
    }

    pub(crate) fn count(&self) -> usize {
        self.calls().len()
    }

    /// The content of each call.
    pub(crate) fn seen(&self) -> Vec<Arc<SessionContent>> {
        self.calls().into_iter().map(|call| call.content).collect()
    }

    /// Returns the content of the single call, and panics if there were more.
    pub(crate) fn only(&self) -> Arc<SessionContent> {
        let mut seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }

    /// Call times in milliseconds of the wall clock.
    pub(crate) fn times_ms(&self) -> Vec<i64> {
        self.calls().iter().map(|call| call.at.as_ms()).collect()
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }

    /// The peak number of concurrent calls.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    fn next(&self) -> HookStep {
        let scripted = self.script.lock().unwrap().pop_front();
        scripted.unwrap_or(*self.then.lock().unwrap())
    }
}

impl Hook for ScriptedHook {
    fn batch_max(&self) -> usize {
        self.batch_max
    }

    fn batch_wait(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn deliver(&self, calls: Vec<HookCall>) -> HookFuture<'_> {
        let (step, count) = (self.next(), calls.len());
        self.batches.lock().unwrap().push(calls);
        let under_way = UnderWay(Arc::clone(&self.under_way));
        let now = under_way.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        if matches!(step, HookStep::PanicAtOnce) {
            panic_quietly();
        }
        Box::pin(async move {
            let _under_way = under_way;
            let failed = |retry| {
                vec![
                    Err(HookError {
                        problem: "no".into(),
                        retry
                    });
                    count
                ]
            };
            match step {
                HookStep::Ok => vec![Ok(()); count],
                HookStep::Later => failed(Retry::Later),
                HookStep::After(pause) => failed(Retry::After(pause)),
                HookStep::Never => failed(Retry::Never),
                HookStep::Fewer(answers) => vec![Ok(()); answers],
                HookStep::More => vec![Ok(()); count + 3],
                HookStep::Hang => std::future::pending().await,
                HookStep::Slow(time) => {
                    sleep(time).await;
                    vec![Ok(()); count]
                }
                HookStep::PanicAtOnce | HookStep::PanicLater => {
                    sleep(Duration::from_millis(1)).await;
                    panic_quietly()
                }
            }
        })
    }
}

/// Panics without printing a message or a backtrace.
fn panic_quietly() -> ! {
    std::panic::resume_unwind(Box::new("as the script says"))
}
