//! Batches responses that become ready at about the same time into one write.
//!
//! Each completed call wakes the connection, and tokio polls the most recently woken task first.
//! Every response would then be written on its own, which costs more than most calls do.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};

use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio_util::sync::ReusableBoxFuture;

use super::Connection;

/// A connection that is polled after the tasks that were ready when it was woken.
///
/// With a single open call it is polled at once: no other call could add a response.
pub(super) struct DeferredPoll<F> {
    inner: Pin<Box<F>>,
    connection: Arc<Connection>,
    woken: Arc<DeferredWaker>,
    waker: Waker,
    /// Ready when the other tasks have been polled.
    others: ReusableBoxFuture<'static, ()>,
    /// Whether it is waiting for `others`.
    gives_way: bool,
}

struct DeferredWaker {
    is_woken: AtomicBool,
    task: Mutex<Waker>,
}

impl<F> DeferredPoll<F> {
    pub(super) fn new(inner: F, connection: Arc<Connection>) -> Self {
        let woken = Arc::new(DeferredWaker {
            is_woken: AtomicBool::new(true),
            task: Mutex::new(Waker::noop().clone()),
        });
        Self {
            inner: Box::pin(inner),
            connection,
            waker: Waker::from(Arc::clone(&woken)),
            woken,
            others: ReusableBoxFuture::new(yield_now()),
            gives_way: false,
        }
    }

    /// Returns the inner future, and polls it again after that.
    pub(super) fn inner(self: Pin<&mut Self>) -> Pin<&mut F> {
        let this = self.get_mut();
        this.woken.is_woken.store(true, Ordering::Release);
        this.inner.as_mut()
    }
}

impl<F: Future> Future for DeferredPoll<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        this.woken.task.lock().clone_from(context.waker());
        if !this.woken.is_woken.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        if !this.gives_way && this.connection.calls.load(Ordering::Relaxed) > 1 {
            this.others.set(yield_now());
            this.gives_way = true;
        }
        if this.gives_way {
            ready!(this.others.poll(context));
            this.gives_way = false;
        }
        // Before the poll: it may not see what a concurrent wake-up is for.
        this.woken.is_woken.store(false, Ordering::Release);
        this.inner
            .as_mut()
            .poll(&mut Context::from_waker(&this.waker))
    }
}

impl Wake for DeferredWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            let task = self.task.lock().clone();
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use tokio::task::JoinSet;

    use super::super::{Connections, ConnectionsConfig, Peer};
    use super::*;
    use crate::connections::schedule::Schedule;

    const ANSWERS: usize = 20;

    /// Number of polls until [`ANSWERS`] tasks have woken a connection with this many open calls.
    async fn polls(calls: usize) -> usize {
        let connections = Connections::new(
            1,
            &ConnectionsConfig::default(),
            &Arc::<Schedule>::default(),
        );
        let connection = connections.table.lock().add(&connections, Peer::default());
        connection.calls.store(calls, Ordering::Relaxed);
        let (polls, answers) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let task = Arc::new(Mutex::new(Waker::noop().clone()));
        let serving = {
            let (polls, answers, task) = (polls.clone(), answers.clone(), task.clone());
            poll_fn(move |context| {
                polls.fetch_add(1, Ordering::Relaxed);
                task.lock().clone_from(context.waker());
                match answers.load(Ordering::Relaxed) {
                    ANSWERS => Poll::Ready(()),
                    _ => Poll::Pending,
                }
            })
        };
        let mut served = JoinSet::new();
        served.spawn(DeferredPoll::new(serving, connection));
        while polls.load(Ordering::Relaxed) == 0 {
            yield_now().await;
        }
        // Not awaited: an awaiting task would be woken after the connection.
        let mut answering = JoinSet::new();
        for _ in 0..ANSWERS {
            let (answers, task) = (answers.clone(), task.clone());
            answering.spawn(async move {
                answers.fetch_add(1, Ordering::Relaxed);
                let waker = task.lock().clone();
                waker.wake();
            });
        }
        served.join_all().await;
        polls.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn connection_is_polled_once_for_all_ready_responses() {
        assert_eq!(polls(ANSWERS).await, 2, "the first one, and one for all");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn connection_is_polled_once_even_before_earlier_tasks() {
        // On the worker thread, so that no other task runs in between.
        let on_worker =
            |calls| async move { JoinSet::from_iter([polls(calls)]).join_all().await[0] };
        assert_eq!(on_worker(ANSWERS).await, 2);
        let of_one_call = on_worker(1).await;
        assert!(
            of_one_call > ANSWERS / 2,
            "{of_one_call}: a single call waits for nobody"
        );
    }
}
