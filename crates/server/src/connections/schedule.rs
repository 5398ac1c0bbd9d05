//! Fair scheduling of connection and call tasks across tenants.
//!
//! A task needs a permit to be polled, and permits are few. Ready tasks queue per tenant, and
//! permits go to the queues by weighted start-time fair queueing (Goyal et al., 1996) over the time
//! that polls take. So tenants share the processors by time, however many connections and calls
//! they have and however large these are. Tokio alone polls tasks in the order they were woken, so
//! one flooding tenant would delay all others.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;
use memoird_core::ids::TenantId;
use parking_lot::Mutex;

use super::now;
use super::send_progress::StallTimeout;

/// Permits per core: one task runs while the executor already has the next.
const TASKS_PER_CORE: usize = 2;

/// The ready tasks of each tenant.
#[derive(Debug)]
pub(crate) struct Schedule {
    queues: Mutex<Queues>,
}

/// Index of a tenant's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lane(usize);

/// The tenant of a task. A connection belongs to a tenant from its first valid key on.
#[derive(Debug)]
pub(crate) struct TaskOwner {
    schedule: Arc<Schedule>,
    /// Index of a queue, or [`UNSCHEDULED`].
    lane: AtomicUsize,
}

/// Tasks that bypass the scheduler, because the daemon has a single tenant.
const UNSCHEDULED: usize = usize::MAX;

#[derive(Debug)]
struct Queues {
    free: usize,
    lanes: Vec<Queue>,
    by_tenant: HashMap<TenantId, Lane>,
    /// Queues with waiting tasks, by [`Queue::ended`], the start tag of their next permit.
    by_start_tag: BTreeSet<(u64, usize)>,
    /// Start tag of the most recent permit: the virtual time, in nanoseconds of polls of a queue
    /// of weight 1.
    now: u64,
}

/// Charged for each permit, in addition to the time of the poll.
const PERMIT_COST: Duration = Duration::from_micros(1);

#[derive(Debug)]
struct Queue {
    /// Time granted to this queue for each second granted to a queue of weight 1.
    weight: u32,
    /// Finish tag of its last poll. Raised to the virtual time when it stops being idle.
    ended: u64,
    tasks: VecDeque<Arc<Task>>,
}

#[derive(Debug)]
struct Task {
    owner: Arc<TaskOwner>,
    state: Mutex<TaskState>,
}

#[derive(Debug)]
struct TaskState {
    step: TaskStep,
    /// Wakes the underlying task.
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskStep {
    /// Waiting for I/O or another event.
    Waiting,
    /// Woken, and queued for a permit.
    Ready,
    /// Holds a permit and has not been polled yet.
    Granted,
    /// Being polled.
    Running,
    /// Woken again while being polled.
    RunningAgain,
    /// Completed or dropped.
    Done,
}

/// A future that is polled only with a permit.
pub(crate) struct Scheduled<F: Future> {
    inner: Pin<Box<F>>,
    task: Arc<Task>,
    waker: Waker,
}

/// Runs each call of a connection in its own [`Scheduled`] task.
#[derive(Clone, Debug)]
pub(crate) struct ScheduledExecutor {
    pub(crate) owner: Arc<TaskOwner>,
    /// Maximum time a client may read nothing of a response.
    pub(crate) write_timeout: Duration,
}

impl Lane {
    /// Index from 0, the queue of unauthenticated connections.
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

impl Default for Schedule {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::of(cores * TASKS_PER_CORE)
    }
}

impl Schedule {
    fn of(free: usize) -> Self {
        let queues = Queues {
            free,
            lanes: vec![Queue::default()],
            by_tenant: HashMap::new(),
            by_start_tag: BTreeSet::new(),
            now: 0,
        };
        Self {
            queues: Mutex::new(queues),
        }
    }

    /// The queue of connections without a tenant.
    pub(crate) fn unauthenticated_lane(&self) -> Lane {
        Lane(0)
    }

    /// Returns the queue of a tenant, and adds it for a new tenant.
    pub(crate) fn lane_of(&self, tenant: &TenantId) -> Lane {
        let mut queues = self.queues.lock();
        if let Some(lane) = queues.by_tenant.get(tenant) {
            return *lane;
        }
        let lane = queues.add_lane();
        queues.by_tenant.insert(tenant.clone(), lane);
        lane
    }

    #[cfg(test)]
    pub(crate) fn add_lane(&self) -> Lane {
        self.queues.lock().add_lane()
    }

    /// Sets the share of a queue, relative to those of weight 1.
    pub(crate) fn set_weight(&self, lane: Lane, weight: u32) {
        self.queues.lock().lanes[lane.0].weight = weight.max(1);
    }

    /// Acquires a permit, or queues the task if none is free. Returns whether it was acquired.
    fn take_or_queue(&self, task: &Arc<Task>) -> bool {
        let mut queues = self.queues.lock();
        let lane = task.owner.lane.load(Ordering::Relaxed);
        if queues.free > 0 {
            queues.free -= 1;
            queues.wake(lane);
            queues.grant(lane);
            return true;
        }
        if queues.lanes[lane].tasks.is_empty() {
            let begins = queues.wake(lane);
            queues.by_start_tag.insert((begins, lane));
        }
        queues.lanes[lane].tasks.push_back(Arc::clone(task));
        false
    }

    /// Releases a permit after a poll of this duration, and grants it to the next queued task, if
    /// any.
    fn release(&self, owner: &TaskOwner, polled: Duration) {
        let mut queues = self.queues.lock();
        queues.charge(owner.lane.load(Ordering::Relaxed), polled);
        loop {
            let next = queues.next();
            drop(queues);
            if next.is_none_or(|next| next.grant()) {
                return;
            }
            queues = self.queues.lock();
        }
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            weight: 1,
            ended: 0,
            tasks: VecDeque::new(),
        }
    }
}

impl Queues {
    fn add_lane(&mut self) -> Lane {
        self.lanes.push(Queue::default());
        Lane(self.lanes.len() - 1)
    }

    /// Ends the idle time of a queue, so that credit does not accumulate. Returns its start tag.
    fn wake(&mut self, lane: usize) -> u64 {
        let queue = &mut self.lanes[lane];
        queue.ended = queue.ended.max(self.now);
        queue.ended
    }

    /// Advances the virtual time to the start tag of a permit.
    fn grant(&mut self, lane: usize) {
        self.now = self.now.max(self.lanes[lane].ended);
        self.charge(lane, PERMIT_COST);
    }

    /// Adds the time of a poll to the finish tag of a queue.
    fn charge(&mut self, lane: usize, polled: Duration) {
        let queue = &mut self.lanes[lane];
        let is_waiting = self.by_start_tag.remove(&(queue.ended, lane));
        let nanoseconds = u64::try_from(polled.as_nanos()).unwrap_or(u64::MAX);
        queue.ended = queue
            .ended
            .saturating_add(nanoseconds / u64::from(queue.weight));
        if is_waiting {
            self.by_start_tag.insert((queue.ended, lane));
        }
    }

    /// Dequeues the task for the next permit. Without one, the permit becomes free.
    fn next(&mut self) -> Option<Arc<Task>> {
        let Some(&(begins, lane)) = self.by_start_tag.first() else {
            self.free += 1;
            return None;
        };
        let task = self.lanes[lane].tasks.pop_front();
        if self.lanes[lane].tasks.is_empty() {
            self.by_start_tag.remove(&(begins, lane));
        }
        self.grant(lane);
        task
    }
}

impl TaskOwner {
    /// An owner without a tenant, whose tasks bypass the scheduler.
    pub(crate) fn unscheduled(schedule: Arc<Schedule>) -> Self {
        Self {
            schedule,
            lane: AtomicUsize::new(UNSCHEDULED),
        }
    }

    /// Queues its tasks in this lane.
    pub(crate) fn enter(&self, lane: Lane) {
        self.lane.store(lane.0, Ordering::Relaxed);
    }

    /// A copy that does not follow later changes of this owner.
    fn snapshot(&self) -> Self {
        Self {
            schedule: Arc::clone(&self.schedule),
            lane: AtomicUsize::new(self.lane.load(Ordering::Relaxed)),
        }
    }

    /// Whether its tasks bypass the scheduler.
    pub(crate) fn is_unscheduled(&self) -> bool {
        self.lane.load(Ordering::Relaxed) == UNSCHEDULED
    }
}

impl<F> Executor<F> for ScheduledExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        let tokio = TokioExecutor::new();
        let call = StallTimeout::new(call, self.write_timeout);
        if self.owner.is_unscheduled() {
            return tokio.execute(call);
        }
        // A snapshot, because the next call on the connection may belong to another tenant.
        let owner = Arc::new(self.owner.snapshot());
        tokio.execute(Scheduled::new(owner, call));
    }
}

impl Task {
    /// Passes a permit to the task. Returns false if the task is no longer queued.
    fn grant(&self) -> bool {
        let mut state = self.state.lock();
        if state.step != TaskStep::Ready {
            return false;
        }
        state.step = TaskStep::Granted;
        let waker = state.waker.clone();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Queues the woken task, or grants it a free permit.
    fn ready(self: &Arc<Self>) {
        let schedule = &self.owner.schedule;
        if schedule.take_or_queue(self) && !self.grant() {
            schedule.release(&self.owner, Duration::ZERO);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.state.lock();
        match state.step {
            TaskStep::Waiting => state.step = TaskStep::Ready,
            TaskStep::Running => {
                state.step = TaskStep::RunningAgain;
                return;
            }
            TaskStep::Ready | TaskStep::Granted | TaskStep::RunningAgain | TaskStep::Done => return,
        }
        drop(state);
        self.ready();
    }
}

impl<F: Future> Scheduled<F> {
    pub(crate) fn new(owner: Arc<TaskOwner>, inner: F) -> Self {
        let state = TaskState {
            step: TaskStep::Waiting,
            waker: None,
        };
        let task = Arc::new(Task {
            owner,
            state: Mutex::new(state),
        });
        Self {
            inner: Box::pin(inner),
            waker: Waker::from(Arc::clone(&task)),
            task,
        }
    }

    pub(crate) fn inner(&mut self) -> Pin<&mut F> {
        self.inner.as_mut()
    }

    /// Starts a poll if the task holds a permit or acquires one. Returns whether it does.
    fn acquire_permit(&mut self, context: &Context<'_>) -> bool {
        let mut state = self.task.state.lock();
        match &mut state.waker {
            Some(known) => known.clone_from(context.waker()),
            None => state.waker = Some(context.waker().clone()),
        }
        match state.step {
            TaskStep::Granted => {
                state.step = TaskStep::Running;
                return true;
            }
            // First poll, or the enclosing task was woken by another future.
            TaskStep::Waiting => state.step = TaskStep::Ready,
            TaskStep::Ready | TaskStep::Running | TaskStep::RunningAgain | TaskStep::Done => {
                return false;
            }
        }
        drop(state);
        let is_its_turn = self.task.owner.schedule.take_or_queue(&self.task);
        if is_its_turn {
            self.task.state.lock().step = TaskStep::Running;
        }
        is_its_turn
    }
}

impl<F: Future> Future for Scheduled<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        if this.task.owner.is_unscheduled() {
            return this.inner.as_mut().poll(context);
        }
        if !this.acquire_permit(context) {
            return Poll::Pending;
        }
        let started = now();
        let polled = this
            .inner
            .as_mut()
            .poll(&mut Context::from_waker(&this.waker));
        let duration = now() - started;
        let mut state = this.task.state.lock();
        let could_go_on = state.step == TaskStep::RunningAgain;
        state.step = match (&polled, could_go_on) {
            (Poll::Ready(_), _) => TaskStep::Done,
            (Poll::Pending, true) => TaskStep::Ready,
            (Poll::Pending, false) => TaskStep::Waiting,
        };
        drop(state);
        if polled.is_pending() && could_go_on {
            // Queue it after the tasks that already wait.
            this.task.ready();
        }
        let owner = &this.task.owner;
        owner.schedule.release(owner, duration);
        polled
    }
}

impl<F: Future> Drop for Scheduled<F> {
    fn drop(&mut self) {
        let step = std::mem::replace(&mut self.task.state.lock().step, TaskStep::Done);
        // Also runs if `poll` panicked, so the permit is not leaked.
        if matches!(
            step,
            TaskStep::Granted | TaskStep::Running | TaskStep::RunningAgain
        ) {
            let owner = &self.task.owner;
            owner.schedule.release(owner, Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;
    use tokio::task::JoinSet;

    use super::*;

    fn by_start_tag<F: Future>(schedule: &Arc<Schedule>, lane: Lane, work: F) -> Scheduled<F> {
        let owner = TaskOwner::unscheduled(Arc::clone(schedule));
        owner.enter(lane);
        Scheduled::new(Arc::new(owner), work)
    }

    /// Records each step in `order`. Always ready to continue.
    async fn work(name: &'static str, times: usize, order: Arc<Mutex<Vec<&'static str>>>) {
        let mut left = times;
        std::future::poll_fn(move |context| {
            order.lock().push(name);
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

    #[tokio::test(start_paused = true)]
    async fn tenants_are_scheduled_round_robin() {
        let schedule = Arc::new(Schedule::of(1));
        let (flood, victim) = (schedule.add_lane(), schedule.add_lane());
        let order = Arc::<Mutex<Vec<&str>>>::default();
        let mut calls = JoinSet::new();
        let mut start = |lane, name, times| {
            let work = work(name, times, Arc::clone(&order));
            calls.spawn(by_start_tag(&schedule, lane, work));
        };
        (0..100).for_each(|_| start(flood, "flood", 10));
        start(victim, "victim", 5);
        calls.join_all().await;
        let order = order.lock();
        assert_eq!(order.len(), 100 * 10 + 5);
        let last = order.iter().rposition(|name| *name == "victim").unwrap();
        assert!(last <= 20, "the victim was done after {last}");
    }

    /// Two queues without free permits, each with this many ready tasks.
    fn waiting(schedule: &Arc<Schedule>, counts: [usize; 2]) -> [Arc<Task>; 2] {
        counts.map(|count| {
            let owner = TaskOwner::unscheduled(Arc::clone(schedule));
            owner.enter(schedule.add_lane());
            let state = TaskState {
                step: TaskStep::Ready,
                waker: None,
            };
            let task = Arc::new(Task {
                owner: Arc::new(owner),
                state: Mutex::new(state),
            });
            (0..count).for_each(|_| assert!(!schedule.take_or_queue(&task)));
            task
        })
    }

    #[test]
    fn idle_tenant_is_next_and_accumulates_no_credit() {
        let schedule = Arc::new(Schedule::of(0));
        let [flood, victim] = waiting(&schedule, [10, 0]);
        let is_next = |task| Arc::ptr_eq(&schedule.queues.lock().next().expect("a task"), task);
        (0..5).for_each(|_| assert!(is_next(&flood)));
        (0..3).for_each(|_| assert!(!schedule.take_or_queue(&victim)));
        let order: Vec<_> = (0..6).map(|_| is_next(&victim)).collect();
        assert_eq!(order, [true, false, true, false, true, false]);
    }

    #[test]
    fn tenants_get_equal_times_not_equal_numbers_of_polls() {
        let schedule = Arc::new(Schedule::of(0));
        let [flood, _victim] = waiting(&schedule, [10, 100]);
        let mut order = Vec::new();
        while order.len() < 60 {
            let task = schedule.queues.lock().next().expect("a task");
            let is_flood = Arc::ptr_eq(&task, &flood);
            order.push(is_flood);
            let polled = Duration::from_micros(if is_flood { 2_000 } else { 100 });
            let lane = task.owner.lane.load(Ordering::Relaxed);
            schedule.queues.lock().charge(lane, polled);
        }
        let of_flood = order.iter().filter(|is_flood| **is_flood).count();
        assert_eq!(of_flood, 3, "one in twenty: {order:?}");
    }

    #[test]
    fn tenant_that_was_alone_owes_nothing() {
        let schedule = Arc::new(Schedule::of(1));
        let [flood, victim] = waiting(&schedule, [0, 0]);
        for _ in 0..1_000 {
            assert!(schedule.take_or_queue(&flood), "a free permit");
            schedule.release(&flood.owner, Duration::from_millis(1));
        }
        assert!(schedule.take_or_queue(&flood), "a free permit");
        (0..20).for_each(|_| assert!(!schedule.take_or_queue(&flood)));
        (0..20).for_each(|_| assert!(!schedule.take_or_queue(&victim)));
        let mut polls_of_victim = 0;
        for _ in 0..10 {
            let task = schedule.queues.lock().next().expect("a task");
            polls_of_victim += usize::from(Arc::ptr_eq(&task, &victim));
            let lane = task.owner.lane.load(Ordering::Relaxed);
            schedule
                .queues
                .lock()
                .charge(lane, Duration::from_millis(1));
        }
        assert!(
            (5..=7).contains(&polls_of_victim),
            "{polls_of_victim} of 10"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn weight_three_gets_three_permits() {
        let schedule = Arc::new(Schedule::of(1));
        let (light, heavy) = (schedule.add_lane(), schedule.add_lane());
        schedule.set_weight(heavy, 3);
        let order = Arc::<Mutex<Vec<&str>>>::default();
        let mut calls = JoinSet::new();
        for (lane, name) in [(light, "light"), (heavy, "heavy")] {
            for _ in 0..20 {
                let work = work(name, 20, Arc::clone(&order));
                calls.spawn(by_start_tag(&schedule, lane, work));
            }
        }
        calls.join_all().await;
        let order = order.lock();
        let some = &order[100..300];
        let light = some.iter().filter(|name| **name == "light").count();
        assert!((45..=55).contains(&light), "{light} of 200");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn random_tasks_all_complete_and_permits_return() {
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
            let call = by_start_tag(&schedule, lanes[number % 4], work);
            calls.spawn(async move {
                // Drop some of the calls midway.
                match number % 7 {
                    0 => drop(tokio::time::timeout(Duration::ZERO, call).await),
                    _ => call.await,
                }
            });
        }
        calls.join_all().await;
        assert_eq!(
            done.load(Ordering::Relaxed),
            4_000 - 4_000_usize.div_ceil(7)
        );
        let queues = schedule.queues.lock();
        assert_eq!((queues.free, queues.by_start_tag.len()), (3, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn connection_is_scheduled_after_first_valid_key() {
        let schedule = Arc::new(Schedule::of(1));
        let lane = schedule.add_lane();
        let owner = Arc::new(TaskOwner::unscheduled(Arc::clone(&schedule)));
        let order = Arc::<Mutex<Vec<&str>>>::default();
        let known = {
            let (owner, order) = (Arc::clone(&owner), Arc::clone(&order));
            let schedule = Arc::clone(&schedule);
            async move {
                tokio::task::yield_now().await;
                assert!(owner.is_unscheduled());
                assert_eq!(schedule.queues.lock().free, 1, "it has waited for no turn");
                owner.enter(lane);
                work("connection", 3, order).await;
                assert_eq!(schedule.queues.lock().free, 0, "it is its turn");
            }
        };
        Scheduled::new(owner, known).await;
        assert_eq!(order.lock().len(), 3);
        assert_eq!(schedule.queues.lock().free, 1);
    }

    #[tokio::test]
    async fn panicking_call_releases_its_permit() {
        let schedule = Arc::new(Schedule::of(1));
        let lane = schedule.add_lane();
        let panics = by_start_tag(&schedule, lane, async { panic!("a defect") });
        let mut calls = JoinSet::<()>::new();
        calls.spawn(panics);
        assert!(calls.join_next().await.is_some_and(|ended| ended.is_err()));
        by_start_tag(&schedule, lane, async {}).await;
        assert_eq!(schedule.queues.lock().free, 1);
    }
}
