//! Who works next. A call works when it is polled, and waits in between: for its request, for
//! the disk. Only a few calls are polled at a time; of those that could go on, the tenants'
//! are taken in turn. So what a call of one tenant waits for is a few calls of each other
//! tenant, however many calls these have made.
//!
//! The executor alone would take them in the order in which they were woken: behind everything
//! that a flood has woken before.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Calls that may be polled at once for each core: one works, and the next ones are known to
/// the executor before it asks.
const CALLS_PER_CORE: usize = 2;

/// The calls that could go on, by tenant.
#[derive(Debug)]
pub(crate) struct Schedule {
    queues: Mutex<Queues>,
}

/// A tenant's place in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lane(usize);

#[derive(Debug)]
struct Queues {
    /// Calls that may be polled beside those that are.
    free: usize,
    lanes: Vec<Queue>,
    /// Lanes with calls that wait, in the order of their turns.
    in_turn: VecDeque<usize>,
}

/// The calls of one tenant that wait for their turn.
#[derive(Debug)]
struct Queue {
    /// Calls it may have polled in each round.
    weight: u32,
    /// How many of them are left in this round.
    left: u32,
    calls: VecDeque<Arc<Call>>,
}

/// A call in the schedule.
#[derive(Debug)]
struct Call {
    schedule: Arc<Schedule>,
    lane: Lane,
    state: Mutex<CallState>,
}

#[derive(Debug)]
struct CallState {
    step: Step,
    /// Polls the call once more.
    waker: Option<Waker>,
}

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It waits for something else.
    Waiting,
    /// It could go on, and waits for its turn.
    Ready,
    /// It is its turn.
    Granted,
    /// It is polled.
    Running,
    /// It is polled, and could go on after that.
    RunningAgain,
    /// It is done, or nobody wants it any more.
    Done,
}

/// A call that works when it is its turn.
pub(crate) struct Scheduled<F: Future> {
    inner: Pin<Box<F>>,
    call: Arc<Call>,
    waker: Waker,
    has_begun: bool,
}

impl Lane {
    /// Lanes count from 0.
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

impl Default for Schedule {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::of(cores * CALLS_PER_CORE)
    }
}

impl Schedule {
    fn of(free: usize) -> Self {
        let queues = Queues {
            free,
            lanes: vec![Queue::default()],
            in_turn: VecDeque::new(),
        };
        Self {
            queues: Mutex::new(queues),
        }
    }

    /// The lane of calls that are no tenant's.
    pub(crate) fn probes(&self) -> Lane {
        Lane(0)
    }

    /// A lane for one tenant more.
    pub(crate) fn add_lane(&self) -> Lane {
        let mut queues = self.queues();
        queues.lanes.push(Queue::default());
        Lane(queues.lanes.len() - 1)
    }

    /// In each round so many calls of this lane have their turn.
    pub(crate) fn set_weight(&self, lane: Lane, weight: u32) {
        self.queues().lanes[lane.0].weight = weight.max(1);
    }

    /// Takes a turn at once where one is free, and otherwise puts the call into its queue.
    /// True when it is its turn.
    fn take_or_queue(&self, call: &Arc<Call>) -> bool {
        let mut queues = self.queues();
        if queues.free > 0 {
            queues.free -= 1;
            return true;
        }
        let lane = call.lane.0;
        let queue = &mut queues.lanes[lane];
        queue.calls.push_back(Arc::clone(call));
        if queue.calls.len() == 1 {
            queue.left = queue.weight;
            queues.in_turn.push_back(lane);
        }
        false
    }

    /// Gives a turn back: the next call has it.
    fn give_back(&self) {
        loop {
            let next = self.queues().next();
            if next.is_none_or(|next| next.grant()) {
                return;
            }
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            weight: 1,
            left: 1,
            calls: VecDeque::new(),
        }
    }
}

impl Queues {
    /// The call whose turn it is; without one the turn is free.
    fn next(&mut self) -> Option<Arc<Call>> {
        let Some(&lane) = self.in_turn.front() else {
            self.free += 1;
            return None;
        };
        let queue = &mut self.lanes[lane];
        let call = queue.calls.pop_front();
        queue.left = queue.left.saturating_sub(1);
        if queue.calls.is_empty() {
            self.in_turn.pop_front();
        } else if queue.left == 0 {
            queue.left = queue.weight;
            self.in_turn.rotate_left(1);
        }
        call
    }
}

impl Call {
    /// It is its turn. False when nobody wants it any more.
    fn grant(&self) -> bool {
        let mut state = self.state();
        if state.step != Step::Ready {
            return false;
        }
        state.step = Step::Granted;
        let waker = state.waker.clone();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// It could go on.
    fn ready(self: &Arc<Self>) {
        if self.schedule.take_or_queue(self) && !self.grant() {
            self.schedule.give_back();
        }
    }

    fn state(&self) -> MutexGuard<'_, CallState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.state();
        match state.step {
            Step::Waiting => state.step = Step::Ready,
            Step::Running => {
                state.step = Step::RunningAgain;
                return;
            }
            Step::Ready | Step::Granted | Step::RunningAgain | Step::Done => return,
        }
        drop(state);
        self.ready();
    }
}

impl<F: Future> Scheduled<F> {
    /// Works on a call of this lane when it is its turn.
    pub(crate) fn new(schedule: Arc<Schedule>, lane: Lane, inner: F) -> Self {
        let state = CallState {
            step: Step::Ready,
            waker: None,
        };
        let call = Arc::new(Call {
            schedule,
            lane,
            state: Mutex::new(state),
        });
        Self {
            inner: Box::pin(inner),
            waker: Waker::from(Arc::clone(&call)),
            call,
            has_begun: false,
        }
    }

    /// True when it is its turn; from here on it is polled.
    fn begins(&mut self, context: &Context<'_>) -> bool {
        let mut state = self.call.state();
        match &mut state.waker {
            Some(known) => known.clone_from(context.waker()),
            None => state.waker = Some(context.waker().clone()),
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            drop(state);
            if !self.call.schedule.take_or_queue(&self.call) {
                return false;
            }
            self.call.state().step = Step::Running;
            return true;
        }
        let is_granted = state.step == Step::Granted;
        if is_granted {
            state.step = Step::Running;
        }
        is_granted
    }
}

impl<F: Future> Future for Scheduled<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        if !this.begins(context) {
            return Poll::Pending;
        }
        let polled = this
            .inner
            .as_mut()
            .poll(&mut Context::from_waker(&this.waker));
        let mut state = this.call.state();
        let could_go_on = state.step == Step::RunningAgain;
        state.step = match (&polled, could_go_on) {
            (Poll::Ready(_), _) => Step::Done,
            (Poll::Pending, true) => Step::Ready,
            (Poll::Pending, false) => Step::Waiting,
        };
        drop(state);
        if polled.is_pending() && could_go_on {
            // Behind those of others that wait.
            this.call.ready();
        }
        this.call.schedule.give_back();
        polled
    }
}

impl<F: Future> Drop for Scheduled<F> {
    fn drop(&mut self) {
        let step = std::mem::replace(&mut self.call.state().step, Step::Done);
        // Also where the poll panicked.
        if matches!(step, Step::Granted | Step::Running | Step::RunningAgain) {
            self.call.schedule.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;
    use tokio::task::JoinSet;

    use super::*;

    /// Notes who works, and could always go on.
    async fn work(name: &'static str, times: usize, order: Arc<Mutex<Vec<&'static str>>>) {
        let mut left = times;
        std::future::poll_fn(move |context| {
            order.lock().unwrap().push(name);
            left -= 1;
            context.waker().wake_by_ref();
            if left == 0 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    #[tokio::test]
    async fn tenants_have_their_turns_one_after_the_other() {
        let schedule = Arc::new(Schedule::of(1));
        let (flood, victim) = (schedule.add_lane(), schedule.add_lane());
        let order = Arc::<Mutex<Vec<&str>>>::default();
        let mut calls = JoinSet::new();
        let mut start = |lane, name, times| {
            let work = work(name, times, Arc::clone(&order));
            calls.spawn(Scheduled::new(Arc::clone(&schedule), lane, work));
        };
        (0..100).for_each(|_| start(flood, "flood", 10));
        start(victim, "victim", 5);
        calls.join_all().await;
        let order = order.lock().unwrap();
        assert_eq!(order.len(), 100 * 10 + 5);
        let last = order.iter().rposition(|name| *name == "victim").unwrap();
        assert!(last <= 20, "the victim was done after {last}");
    }

    #[tokio::test]
    async fn a_weight_of_three_has_three_turns() {
        let schedule = Arc::new(Schedule::of(1));
        let (light, heavy) = (schedule.add_lane(), schedule.add_lane());
        schedule.set_weight(heavy, 3);
        let order = Arc::<Mutex<Vec<&str>>>::default();
        let mut calls = JoinSet::new();
        for (lane, name) in [(light, "light"), (heavy, "heavy")] {
            for _ in 0..20 {
                let work = work(name, 20, Arc::clone(&order));
                calls.spawn(Scheduled::new(Arc::clone(&schedule), lane, work));
            }
        }
        calls.join_all().await;
        let order = order.lock().unwrap();
        let some = &order[100..300];
        let light = some.iter().filter(|name| **name == "light").count();
        assert!((45..=55).contains(&light), "{light} of 200");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_call_is_forgotten_and_no_turn_is_lost() {
        let schedule = Arc::new(Schedule::of(3));
        let lanes: Vec<_> = (0..4).map(|_| schedule.add_lane()).collect();
        let (done, gate) = (Arc::<AtomicUsize>::default(), Arc::new(Notify::new()));
        let mut calls = JoinSet::new();
        for number in 0..4_000_usize {
            let (done, gate) = (Arc::clone(&done), Arc::clone(&gate));
            let work = async move {
                for step in 0..20 {
                    match (number + step) % 3 {
                        0 => tokio::task::yield_now().await,
                        1 => drop(tokio::task::spawn_blocking(|| {}).await),
                        _ => {}
                    }
                }
                if number % 7 == 0 {
                    gate.notified().await;
                }
                done.fetch_add(1, Ordering::Relaxed);
            };
            let call = Scheduled::new(Arc::clone(&schedule), lanes[number % 4], work);
            calls.spawn(async move {
                // Callers hang up in the middle.
                match number % 7 {
                    0 => drop(tokio::time::timeout(std::time::Duration::ZERO, call).await),
                    _ => call.await,
                }
            });
        }
        calls.join_all().await;
        assert_eq!(
            done.load(Ordering::Relaxed),
            4_000 - 4_000_usize.div_ceil(7)
        );
        let queues = schedule.queues();
        assert_eq!((queues.free, queues.in_turn.len()), (3, 0));
    }

    #[tokio::test]
    async fn a_call_that_panics_gives_its_turn_back() {
        let schedule = Arc::new(Schedule::of(1));
        let lane = schedule.add_lane();
        let panics = Scheduled::new(Arc::clone(&schedule), lane, async { panic!("a defect") });
        let mut calls = JoinSet::<()>::new();
        calls.spawn(panics);
        assert!(calls.join_next().await.is_some_and(|ended| ended.is_err()));
        Scheduled::new(Arc::clone(&schedule), lane, async {}).await;
        assert_eq!(schedule.queues().free, 1);
    }
}
