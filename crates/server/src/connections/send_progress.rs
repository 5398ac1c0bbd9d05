//! Resets calls when their client stops reading the response.
//!
//! HTTP/2 has flow control per call: without window updates nothing of a response is sent, although
//! the connection still accepts bytes. A reset releases what the call holds.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tracing::debug;

tokio::task_local! {
    /// Progress of the call that is being polled.
    static PROGRESS: Arc<SendProgress>;
}

/// How many parts of a response were produced and sent.
#[derive(Debug, Default)]
pub(crate) struct SendProgress {
    given: AtomicU64,
    sent: AtomicU64,
    /// Woken when the next part is sent.
    waiting: Mutex<Option<Waker>>,
}

pin_project! {
    /// A call that ends if its client reads nothing for too long.
    pub(crate) struct StallTimeout<F> {
        #[pin]
        call: F,
        late: StallTimer,
    }
}

struct StallTimer {
    progress: Arc<SendProgress>,
    limit: Duration,
    /// Runs while parts are unsent, with the number sent when it started.
    timer: Option<(u64, Pin<Box<Sleep>>)>,
}

impl SendProgress {
    /// The progress of the current call, or a new one outside of a call's task.
    pub(crate) fn of_this_call() -> Arc<Self> {
        PROGRESS.try_with(Arc::clone).unwrap_or_default()
    }

    pub(crate) fn note_produced(&self) {
        self.given.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a part was sent or dropped.
    pub(crate) fn note_sent(&self) {
        self.sent.fetch_add(1, Ordering::AcqRel);
        let waker = self.waiting.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ready once all parts are sent.
    pub(crate) fn poll_sent(&self, context: &Context<'_>) -> Poll<()> {
        if !self.has_unsent() {
            return Poll::Ready(());
        }
        *self.waiting.lock() = Some(context.waker().clone());
        if self.has_unsent() {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }

    fn has_unsent(&self) -> bool {
        self.sent.load(Ordering::Acquire) < self.given.load(Ordering::Relaxed)
    }
}

impl<F: Future> StallTimeout<F> {
    pub(crate) fn new(call: F, limit: Duration) -> Self {
        let late = StallTimer {
            progress: Arc::default(),
            limit,
            timer: None,
        };
        Self { call, late }
    }
}

impl StallTimer {
    /// Ready when nothing was sent for `limit`.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if !self.progress.has_unsent() {
                self.timer = None;
                return Poll::Pending;
            }
            let sent = self.progress.sent.load(Ordering::Relaxed);
            let begin = || (sent, Box::pin(tokio::time::sleep(self.limit)));
            let (sent_before, timer) = self.timer.get_or_insert_with(begin);
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            if *sent_before == sent {
                return Poll::Ready(());
            }
            self.timer = None;
        }
    }
}

impl<F: Future<Output = ()>> Future for StallTimeout<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let progress = Arc::clone(&this.late.progress);
        let polled = PROGRESS.sync_scope(progress, || this.call.poll(context));
        if polled.is_ready() {
            return polled;
        }
        let late = this.late.poll(context);
        if late.is_ready() {
            debug!("a call was reset: its client does not read the response");
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::connections::now;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A call that produces one part, and another each time one is sent.
    fn call(parts: u64) -> (StallTimeout<impl Future<Output = ()>>, Arc<SendProgress>) {
        let giving = async move {
            let progress = SendProgress::of_this_call();
            for _ in 0..parts {
                progress.note_produced();
                std::future::poll_fn(|context| progress.poll_sent(context)).await;
            }
            pending::<()>().await;
        };
        let call = StallTimeout::new(giving, LIMIT);
        let progress = Arc::clone(&call.late.progress);
        (call, progress)
    }

    #[tokio::test(start_paused = true)]
    async fn call_with_stalled_client_ends_and_other_waits_do_not() {
        let (stalled, _taken) = call(1);
        let begun = now();
        stalled.await;
        assert_eq!(begun.elapsed(), LIMIT);
        let (waits, _taken) = call(0);
        let waited = tokio::time::timeout(LIMIT * 100, waits).await;
        assert!(waited.is_err(), "it has nothing to send");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_keeps_call_alive() {
        let (slow, progress) = call(5);
        let mut slow = Box::pin(slow);
        for _ in 0..4 {
            let waited = tokio::time::timeout(LIMIT * 3 / 4, slow.as_mut()).await;
            assert!(waited.is_err(), "it goes on");
            progress.note_sent();
        }
        let begun = now();
        slow.await;
        assert!((LIMIT..=LIMIT * 2).contains(&begun.elapsed()));
    }
}
