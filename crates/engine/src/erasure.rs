//! Erasure: permanently removes the data of a session or a subject.
//!
//! An erasure is a job that is durable before its first row is deleted. A worker executes it in
//! bounded steps:
//!
//! 1. Find the generations.
//! 2. End the live ones without hooks.
//! 3. Delete their rows and pending deliveries from the journal.
//! 4. Erase data stored elsewhere through [`Eraser`]s and hooks.
//! 5. Clean the pages of the database file.
//!
//! Every step is idempotent, so a job resumes after a crash. A long erasure elsewhere takes several
//! calls. Attempts that ended the process are counted since the last call that returned.
//!
//! Tenants take turns of 250 ms. Within a tenant, the least advanced job continues first, so that
//! its jobs are cleaned together: cleaning scans the whole file.
//!
//! A delivery is read again after it is marked as running and before its content is read. So no
//! hook receives a generation whose rows are deleted. Generations that were delivered before are
//! reported as out of reach.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::{ErasureId, Generation, HookName, TenantId};
use memoird_core::time::Steady;
use memoird_store::{EraseTarget, ErasedRows, Erasure, ErasureScope, ErasureStage, Store};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::eraser::{EraseRequest, ErasedElsewhere, Eraser};
use crate::error::EngineError;
use crate::events::EventKind;
use crate::outbox::Outbox;
use crate::sessions::{SessionRef, Sessions};
use crate::store_handle::StoreHandle;
use crate::tenants::Tenant;
use crate::worker::{WorkError, Worker};

/// Maximum rows per step, which bounds how long commits wait.
const ROWS_MAX: usize = 500;
/// Maximum pages of 4 KiB released to the file system per step.
const PAGES_MAX: usize = 256;
const OPEN_MAX: usize = 64;
/// Maximum open jobs of all tenants. The next one to continue is selected among them.
const OPEN_JOBS_MAX: usize = 4_096;
const CLEANED_MAX: usize = 256;
/// Maximum generations listed in a report for the same reason and, if delivered, the same hook.
const GENERATIONS_LISTED_MAX: usize = 100;
const WAIT: Duration = Duration::from_secs(5);
/// How long other jobs wait for the end of one session to be written.
///
/// It may take longer if large appends to the session are queued before it.
const END_WAIT: Duration = Duration::from_millis(TURN_MS);
/// Pause of a job that waits, for example for a running hook.
const PAUSE_MS: u64 = 50;
/// Length of a tenant's turn, if jobs of other tenants are ready.
const TURN_MS: u64 = 250;
/// Maximum backoff of a job that failed, or whose log has a reader. Starts at [`PAUSE_MS`].
const PAUSE_MS_MAX: u64 = 60_000;

/// Attempts that may end the process before the job waits for [`CRASH_PAUSE_MS`] after a start.
///
/// The wait doubles with each further one.
const CRASHES_MAX: u64 = 2;
const CRASH_PAUSE_MS: u64 = 60_000;
const CRASH_PAUSE_MS_MAX: u64 = 60 * CRASH_PAUSE_MS;

/// Wait reason after [`CRASHES_MAX`].
const WAITS_AFTER_CRASHES: &str = "the daemon ended during its last attempts";
/// Wait reason while [`Erasures::copies`] are in progress.
const WAITS_FOR_COPY: &str = "a backup or another copy of the daemon's files is in progress";
/// Suffix of the wait reason after a failure.
const RETRY_SUFFIX: &str = ": failed and will be retried; see the daemon's log";

/// Handle to erasures. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Erasures {
    shared: Arc<ErasuresInner>,
}

#[derive(Debug)]
struct ErasuresInner {
    sessions: Sessions,
    outbox: Arc<Outbox>,
    store: StoreHandle,
    last_id: Mutex<Option<ErasureId>>,
    jobs_changed: Notify,
    /// Incremented when a job is done, or when another daemon may have finished one.
    done: watch::Sender<u64>,
    copies: TaskTracker,
    /// Wait reasons of open jobs, for operators.
    waits: Mutex<HashMap<ErasureId, String>>,
}

impl Erasures {
    pub(crate) fn new(sessions: Sessions, outbox: Arc<Outbox>, store: StoreHandle) -> Self {
        let shared = ErasuresInner {
            sessions,
            outbox,
            store,
            last_id: Mutex::default(),
            jobs_changed: Notify::new(),
            done: watch::Sender::default(),
            copies: TaskTracker::new(),
            waits: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Creates the worker that executes the jobs, with all erasers. There must be only one.
    pub(crate) fn worker(
        &self,
        erasers: Vec<Arc<dyn Eraser>>,
        stopping: CancellationToken,
    ) -> impl Worker + use<> {
        ErasureWorker {
            erasures: self.clone(),
            erasers,
            stopping,
            pauses: HashMap::new(),
            attempted: HashSet::new(),
            log_pause: None,
            turn: None,
            has_more: true,
        }
    }

    /// Erases a session or a subject of a tenant.
    ///
    /// Returns the job once it is done, or its state after some seconds.
    ///
    /// # Errors
    /// [`EngineError::ErasuresTooMany`], or an error of the journal. No job is created then.
    pub async fn erase(
        &self,
        tenant: &Arc<Tenant>,
        target: EraseTarget,
    ) -> Result<Erasure, EngineError> {
        let shared = &self.shared;
        shared.wait_for_submitted(tenant, &target).await?;
        let id = self.next_id();
        let erasure = Erasure::new(id, tenant.id.clone(), target);
        let begin = move |store: &dyn Store| {
            let open = store.open_erasures(OPEN_JOBS_MAX)?;
            let own = open.iter().filter(|open| open.tenant == erasure.tenant);
            let has_room = own.count() < OPEN_MAX && open.len() < OPEN_JOBS_MAX;
            if has_room {
                store.save_erasure(&erasure)?;
            }
            Ok(has_room)
        };
        let mut done = shared.done.subscribe();
        if !shared.store.run(None, begin).await? {
            return Err(EngineError::ErasuresTooMany);
        }
        shared.jobs_changed.notify_one();
        let is_done = async {
            loop {
                let erasure = self.get(&tenant.id, id).await?;
                if erasure.stage == ErasureStage::Done || done.changed().await.is_err() {
                    return Ok::<_, EngineError>(erasure);
                }
            }
        };
        match tokio::time::timeout(WAIT, is_done).await {
            Ok(erasure) => erasure,
            Err(_) => self.get(&tenant.id, id).await,
        }
    }

    /// The current state of a tenant's erasure.
    pub async fn get(&self, tenant: &TenantId, id: ErasureId) -> Result<Erasure, EngineError> {
        let found = self
            .shared
            .store
            .run(None, move |store| store.erasure(id))
            .await?
            .filter(|erasure| erasure.tenant == *tenant);
        found.ok_or(EngineError::ErasureNotFound { id })
    }

    /// Human-readable wait reason of an erasure. Empty if it does not wait or none is known here.
    pub fn waits_for(&self, id: ErasureId) -> String {
        let waits = self.shared.waits.lock();
        waits.get(&id).cloned().unwrap_or_default()
    }

    /// Tracks tasks that copy the daemon's files, while they run or their copies exist.
    ///
    /// Copies may contain data that is being erased, so no erasure is done before they are gone.
    pub fn copies(&self) -> &TaskTracker {
        &self.shared.copies
    }

    /// Checks for jobs that another daemon has created or finished.
    pub(crate) fn check_for_jobs(&self) {
        let shared = &self.shared;
        shared.jobs_changed.notify_one();
        shared.done.send_modify(|looks| *looks += 1);
    }

    fn next_id(&self) -> ErasureId {
        let shared = &self.shared;
        let mut last = shared.last_id.lock();
        let at = shared.sessions.now().wall;
        let next = ErasureId::after(*last, at.as_ms(), shared.sessions.random());
        *last = Some(next);
        next
    }
}

struct ErasureWorker {
    erasures: Erasures,
    /// Erasers may hold the engine. Stored only here, so that they are dropped with the worker.
    erasers: Vec<Arc<dyn Eraser>>,
    stopping: CancellationToken,
    pauses: HashMap<ErasureId, Pause>,
    /// Jobs that [`Self::pause_after_crashes`] has already checked.
    attempted: HashSet<ErasureId>,
    /// While a reader holds an old snapshot of the log, no job is cleaned: attempts delay commits.
    log_pause: Option<Pause>,
    /// Tenant with the current turn, and the start of the turn.
    turn: Option<(TenantId, Steady)>,
    has_more: bool,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Steady,
    failures: u32,
}

impl Pause {
    /// The pause after one more failure, twice as long as the previous one.
    fn after(before: Option<Self>, now: Steady) -> Self {
        let failures = before.map_or(0, |pause| pause.failures);
        let pause_ms = (PAUSE_MS << failures.min(16)).min(PAUSE_MS_MAX);
        Self {
            until: Steady(now.0.saturating_add(pause_ms)),
            failures: failures.saturating_add(1),
        }
    }
}

enum JobStep {
    Continue,
    /// The job waits for this reason.
    Wait(&'static str),
    /// The log could not be emptied because a reader holds an old snapshot of it.
    LogHasReader,
}

impl Worker for ErasureWorker {
    fn name(&self) -> &'static str {
        "eraser"
    }

    async fn wait(&mut self) {
        if self.has_more {
            return;
        }
        let now = self.erasures.shared.sessions.now().steady;
        let pauses = self.pauses.values().chain(&self.log_pause);
        let next = pauses.map(|pause| pause.until.since(now)).min();
        let pause = Duration::from_millis(next.unwrap_or(PAUSE_MS_MAX));
        let jobs_changed = self.erasures.shared.jobs_changed.notified();
        let _ = tokio::time::timeout(pause, jobs_changed).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let shared = Arc::clone(&self.erasures.shared);
        let read = |store: &dyn Store| store.open_erasures(OPEN_JOBS_MAX);
        let open = shared.store.run(None, read).await?;
        let is_open = |id: &ErasureId| open.iter().any(|erasure| erasure.id == *id);
        self.pauses.retain(|id, _| is_open(id));
        shared.waits.lock().retain(|id, _| is_open(id));
        self.attempted.retain(is_open);
        let is_cleaned = |erasure: &Erasure| erasure.stage == ErasureStage::Clean;
        if !open.iter().any(is_cleaned) {
            self.log_pause = None;
        }
        let now = shared.sessions.now().steady;
        self.pause_after_crashes(&open, now);
        let may_go_on = |erasure: &&Erasure| {
            let of_log = self.log_pause.as_ref().filter(|_| is_cleaned(erasure));
            let mut pauses = self.pauses.get(&erasure.id).into_iter().chain(of_log);
            pauses.all(|pause| pause.until <= now) && !waits_for_earlier(erasure, &open)
        };
        let ready: Vec<Erasure> = open.iter().filter(may_go_on).cloned().collect();
        let next = self.next(&ready, now).cloned();
        self.has_more = next.is_some();
        let Some(erasure) = next else {
            return Ok(());
        };
        let id = erasure.id;
        let is_joined =
            |job: &Erasure| is_cleaned(&erasure) && is_cleaned(job) && job.id != erasure.id;
        let others = ready.into_iter().filter(is_joined);
        let others: Vec<Erasure> = others.take(CLEANED_MAX - 1).collect();
        let ids: Vec<ErasureId> = others.iter().map(|job| job.id).chain([id]).collect();
        let outcome = tokio::select! {
            outcome = shared.advance(erasure, others, &self.erasers) => outcome,
            // The job resumes at the next start.
            () = self.stopping.cancelled() => return Ok(()),
        };
        if let Err(WorkError(problem)) = &outcome {
            warn!(job = %id, problem, "an erasure step failed and will be retried");
        }
        let now = shared.sessions.now().steady;
        if let Ok(JobStep::LogHasReader) = &outcome {
            self.log_pause = Some(Pause::after(self.log_pause, now));
        }
        for id in ids {
            shared.note_outcome(id, &outcome);
            let before = self.pauses.remove(&id);
            let pause = match &outcome {
                Ok(JobStep::Continue | JobStep::LogHasReader) => continue,
                Ok(JobStep::Wait(_)) => Pause {
                    failures: 0,
                    ..Pause::after(None, now)
                },
                Err(_) => Pause::after(before, now),
            };
            self.pauses.insert(id, pause);
        }
        Ok(())
    }
}

/// Whether a job ready for cleaning must wait for an earlier job with the same target.
fn waits_for_earlier(job: &Erasure, open: &[Erasure]) -> bool {
    let is_waited_for = |other: &Erasure| {
        other.id < job.id
            && other.stage < ErasureStage::Clean
            && other.tenant == job.tenant
            && other.target == job.target
    };
    job.stage == ErasureStage::Clean && job.target.is_some() && open.iter().any(is_waited_for)
}

impl ErasureWorker {
    /// Lets jobs wait whose last attempts ended the process, so that the daemon does not restart
    /// in a loop.
    fn pause_after_crashes(&mut self, open: &[Erasure], now: Steady) {
        for erasure in open {
            let is_new = self.attempted.insert(erasure.id);
            let crashes = erasure.counts.attempts.checked_sub(CRASHES_MAX);
            let Some(more) = crashes.filter(|_| is_new) else {
                continue;
            };
            let pause_ms = (CRASH_PAUSE_MS << more.min(16)).min(CRASH_PAUSE_MS_MAX);
            let pause = Pause {
                until: Steady(now.0.saturating_add(pause_ms)),
                failures: 0,
            };
            warn!(job = %erasure.id, pause_s = pause_ms / 1_000, "{WAITS_AFTER_CRASHES}; it waits");
            self.pauses.insert(erasure.id, pause);
            let what = WAITS_AFTER_CRASHES.to_owned();
            self.erasures.shared.note_wait(erasure.id, what);
        }
    }

    /// Selects the next job: tenants take turns, and the least advanced job of a tenant goes first.
    ///
    /// So a tenant's jobs reach cleaning together.
    fn next<'a>(&mut self, ready: &'a [Erasure], now: Steady) -> Option<&'a Erasure> {
        let turn = self.turn.take();
        let has_turn = |tenant: &TenantId| {
            let turn = turn.as_ref().filter(|(of, _)| of == tenant);
            turn.is_some_and(|(_, since)| now.since(*since) < TURN_MS)
        };
        let is_behind = |tenant: &TenantId| turn.as_ref().is_some_and(|(of, _)| tenant <= of);
        let order = |job: &&Erasure| {
            let tenant = &job.tenant;
            (
                !has_turn(tenant),
                is_behind(tenant),
                tenant.clone(),
                job.stage,
                job.id,
            )
        };
        let next = ready.iter().min_by_key(order)?;
        self.turn = if has_turn(&next.tenant) {
            turn
        } else {
            Some((next.tenant.clone(), now))
        };
        Some(next)
    }
}

impl ErasuresInner {
    fn note_wait(&self, id: ErasureId, what: String) {
        self.waits.lock().insert(id, what);
    }

    fn note_outcome(&self, id: ErasureId, outcome: &Result<JobStep, WorkError>) {
        match outcome {
            Ok(JobStep::Continue) => _ = self.waits.lock().remove(&id),
            Ok(JobStep::Wait(what)) => self.note_wait(id, (*what).to_owned()),
            Ok(JobStep::LogHasReader) => {
                let reader = "a reader holds an older snapshot of the journal";
                self.note_wait(id, reader.to_owned());
            }
            // The log has the details.
            Err(_) => {
                let mut waits = self.waits.lock();
                let what = waits.entry(id).or_insert_with(|| "the journal".to_owned());
                if !what.ends_with(RETRY_SUFFIX) {
                    what.push_str(RETRY_SUFFIX);
                }
            }
        }
    }

    /// Executes one step of a job. In the cleaning stage, the jobs in `others` are cleaned with it.
    async fn advance(
        &self,
        erasure: Erasure,
        mut others: Vec<Erasure>,
        erasers: &[Arc<dyn Eraser>],
    ) -> Result<JobStep, WorkError> {
        Ok(match erasure.stage {
            ErasureStage::Collect => self.collect(erasure).await?,
            ErasureStage::End => self.end(erasure).await?,
            ErasureStage::Rows => self.remove_rows(erasure).await?,
            ErasureStage::Elsewhere => self.erase_elsewhere(erasure, erasers).await?,
            ErasureStage::Clean => {
                others.push(erasure);
                self.clean(others).await?
            }
            ErasureStage::Done => JobStep::Continue,
        })
    }

    async fn enter(&self, erasure: Erasure, stage: ErasureStage) -> Result<JobStep, EngineError> {
        debug!(job = %erasure.id, ?stage, "an erasure continues");
        self.save(Erasure { stage, ..erasure }).await?;
        Ok(JobStep::Continue)
    }

    async fn save(&self, erasure: Erasure) -> Result<(), EngineError> {
        let save = move |store: &dyn Store| store.save_erasure(&erasure);
        self.store.run(None, save).await
    }

    /// Waits until everything submitted so far for the target is in the journal.
    async fn wait_for_submitted(
        &self,
        tenant: &Arc<Tenant>,
        target: &EraseTarget,
    ) -> Result<(), EngineError> {
        match target {
            EraseTarget::Session { session, .. } => {
                let session = SessionRef::new(tenant, session);
                self.sessions.wait_session_processed(&session.key).await
            }
            EraseTarget::Subject(_) => self.sessions.wait_processed_of(tenant).await.map(drop),
        }
    }

    async fn scope(&self, erasure: &Erasure) -> Result<ErasureScope, EngineError> {
        let id = erasure.id;
        self.store
            .run(None, move |store| store.erasure_scope(id))
            .await
    }

    /// Finds the generations. Everything submitted before the job began is in the journal by now.
    async fn collect(&self, erasure: Erasure) -> Result<JobStep, EngineError> {
        let id = erasure.id;
        let collect = move |store: &dyn Store| store.collect_erased(id, ROWS_MAX);
        if self.store.run(None, collect).await? {
            self.enter(erasure, ErasureStage::End).await
        } else {
            Ok(JobStep::Continue)
        }
    }

    async fn end(&self, mut erasure: Erasure) -> Result<JobStep, EngineError> {
        let tenant = self.sessions.tenants().get_or_insert(&erasure.tenant);
        if self.sessions.have_journal() {
            let scope = self.scope(&erasure).await?;
            for (generation, session) in &scope.generations {
                let session = SessionRef::new(&tenant, session);
                let ended = async {
                    self.sessions
                        .end_without_hooks(&session, *generation)
                        .await?;
                    self.sessions.wait_session_processed(&session.key).await
                };
                // After a timeout, submitted ends are still written.
                match tokio::time::timeout(END_WAIT, ended).await {
                    Ok(ended) => ended?,
                    Err(_) => return Ok(JobStep::Wait("the end of its sessions is being written")),
                }
            }
        } else if let Some(target) = erasure.target.clone() {
            for (session, head) in self.sessions.live_heads(&tenant) {
                let is_meant = match &target {
                    EraseTarget::Session {
                        session: meant,
                        generation,
                    } => session == *meant && generation.is_none_or(|of| of == head.generation),
                    EraseTarget::Subject(subject) => head.subject.as_ref() == Some(subject),
                };
                let session = SessionRef::new(&tenant, &session);
                if is_meant
                    && self
                        .sessions
                        .end_without_hooks(&session, head.generation)
                        .await?
                {
                    erasure.counts.turns += head.totals.turns;
                    self.publish(&session, head.generation);
                }
            }
            if let EraseTarget::Session { session, .. } = &target {
                let session = SessionRef::new(&tenant, session);
                erasure.counts.keys += self.sessions.forget_ended_keys(&session);
            }
        }
        self.enter(erasure, ErasureStage::Rows).await
    }

    /// Deletes rows from the journal, and waits for attempts of hooks that are running for them.
    async fn remove_rows(&self, erasure: Erasure) -> Result<JobStep, EngineError> {
        let id = erasure.id;
        let erase = move |store: &dyn Store| store.erase_rows(id, ROWS_MAX);
        match self.store.run(None, erase).await? {
            ErasedRows::More => return Ok(JobStep::Continue),
            // The end was not written, and the session was restored.
            ErasedRows::Live => return self.enter(erasure, ErasureStage::End).await,
            ErasedRows::AllGone => {}
        }
        let scope = self.scope(&erasure).await?;
        let names = scope.generations.iter().map(|(name, _)| *name);
        if self.outbox.are_running(names) {
            return Ok(JobStep::Wait("a hook is processing one of the sessions"));
        }
        let tenant = self.sessions.tenants().get_or_insert(&erasure.tenant);
        for (generation, session) in &scope.generations {
            self.publish(&SessionRef::new(&tenant, session), *generation);
        }
        // The store added to the counts.
        let counted = self.store.run(None, move |store| store.erasure(id));
        let erasure = counted.await?.unwrap_or(erasure);
        self.enter(erasure, ErasureStage::Elsewhere).await
    }

    /// Notifies watchers. The event contains only ids.
    fn publish(&self, session: &SessionRef, generation: Generation) {
        self.sessions
            .publish(session, generation, EventKind::Erased);
    }

    /// Erases data outside the journal, and counts attempts that end the process.
    async fn erase_elsewhere(
        &self,
        mut erasure: Erasure,
        erasers: &[Arc<dyn Eraser>],
    ) -> Result<JobStep, WorkError> {
        erasure.counts.attempts += 1;
        self.save(erasure.clone()).await?;
        let reached = self.reach_elsewhere(&mut erasure, erasers).await;
        erasure.counts.attempts = 0;
        self.save(erasure.clone()).await?;
        if reached? {
            Ok(self.enter(erasure, ErasureStage::Clean).await?)
        } else {
            Ok(JobStep::Continue)
        }
    }

    /// Calls the erasers and the hooks. Returns false if one of them has to take another step.
    ///
    /// The result of each is saved immediately, because the next one may fail.
    async fn reach_elsewhere(
        &self,
        erasure: &mut Erasure,
        erasers: &[Arc<dyn Eraser>],
    ) -> Result<bool, WorkError> {
        let scope = self.scope(erasure).await?;
        let Some(target) = erasure.target.clone() else {
            return Ok(true);
        };
        let request = EraseRequest {
            tenant: erasure.tenant.clone(),
            target,
            generations: scope.generations.into(),
        };
        for eraser in erasers {
            self.note_wait(erasure.id, format!("erasing {}", eraser.name()));
            let erased = eraser
                .erase(request.clone())
                .await
                .map_err(|problem| WorkError(format!("{}: {problem}", eraser.name())))?;
            let has_more = erased.has_more;
            self.note(erasure, erased).await?;
            if has_more {
                return Ok(false);
            }
        }
        let config = self.outbox.config();
        let mut reached = BTreeSet::new();
        for hook in &config.hooks {
            let name = &hook.subscription.hook;
            let Some(erasing) = hook.hook.erase(request.clone()) else {
                continue;
            };
            self.note_wait(erasure.id, format!("erasing the output of hook {name}"));
            let mut erased = erasing
                .await
                .map_err(|problem| WorkError(format!("hook {name}: {problem}")))?;
            for line in &mut erased.outside {
                *line = format!("hook {name}: {line}");
            }
            reached.insert(name.clone());
            let has_more = erased.has_more;
            self.note(erasure, erased).await?;
            if has_more {
                return Ok(false);
            }
        }
        let mut delivered: BTreeMap<HookName, BTreeSet<Generation>> = BTreeMap::new();
        for (generation, hook) in scope.delivered {
            if !reached.contains(&hook) {
                delivered.entry(hook).or_default().insert(generation);
            }
        }
        let delivered = delivered.iter().flat_map(|(hook, generations)| {
            generation_lines(&format!("hook {hook} received"), generations, "")
        });
        let copies = generation_lines("not erased:", &scope.copies, ", a copy");
        let problem = ", with turns from before its subject was changed";
        let formerly_owned = generation_lines("not erased:", &scope.formerly_owned, problem);
        let outside = delivered.chain(copies).chain(formerly_owned);
        let erased = ErasedElsewhere {
            outside: outside.collect(),
            ..ErasedElsewhere::default()
        };
        self.note(erasure, erased).await?;
        Ok(true)
    }

    async fn note(
        &self,
        erasure: &mut Erasure,
        erased: ErasedElsewhere,
    ) -> Result<(), EngineError> {
        erasure.counts.memories += erased.memories;
        erasure.counts.commits += erased.commits;
        let mut known: HashSet<String> = erasure.outside.iter().cloned().collect();
        let outside = erased.outside.into_iter();
        let new = outside.filter(|line| known.insert(line.clone()));
        erasure.outside.extend(new);
        self.save(erasure.clone()).await
    }

    /// Deletes the jobs' names and cleans the database file of deleted data.
    ///
    /// All jobs are cleaned at once, because cleaning scans the whole file.
    async fn clean(&self, jobs: Vec<Erasure>) -> Result<JobStep, EngineError> {
        let mut are_nameless = true;
        for job in jobs.iter().filter(|job| job.target.is_some()) {
            let id = job.id;
            let forget = move |store: &dyn Store| store.forget_erasure_names(id, ROWS_MAX);
            are_nameless &= self.store.run(None, forget).await?;
        }
        // Finish the names of all jobs first: several jobs may contain the same ones.
        if !are_nameless {
            return Ok(JobStep::Continue);
        }
        // Otherwise, cleaning would have to be repeated once the copies are gone.
        if !self.copies.is_empty() {
            return Ok(JobStep::Wait(WAITS_FOR_COPY));
        }
        let clean = |store: &dyn Store| store.clean_pages(PAGES_MAX);
        let unclean = self.store.run(None, clean).await?;
        if unclean.pages {
            return Ok(JobStep::Continue);
        }
        if unclean.log {
            return Ok(JobStep::LogHasReader);
        }
        // A copy that began in the meantime may contain pages that were not yet clean.
        if !self.copies.is_empty() {
            return Ok(JobStep::Wait(WAITS_FOR_COPY));
        }
        for job in jobs {
            let (id, tenant, counts) = (job.id, job.tenant.clone(), job.counts);
            self.enter(job, ErasureStage::Done).await?;
            info!(job = %id, %tenant, ?counts, "an erasure is done");
            self.done.send_modify(|done| *done += 1);
        }
        Ok(JobStep::Continue)
    }
}

/// Report lines for generations that are out of reach, one each up to a maximum.
fn generation_lines<'a>(
    before: &str,
    generations: impl IntoIterator<Item = &'a Generation, IntoIter: ExactSizeIterator>,
    after: &str,
) -> Vec<String> {
    let mut generations = generations.into_iter();
    let mut lines: Vec<String> = generations
        .by_ref()
        .take(GENERATIONS_LISTED_MAX)
        .map(|generation| format!("{before} generation {generation}{after}"))
        .collect();
    if generations.len() > 0 {
        let more = generations.len();
        lines.push(format!("{before} {more} more generations{after}"));
    }
    lines
}
