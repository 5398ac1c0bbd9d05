//! Sessions in memory: which there are, who was used when, how they come from the journal and
//! how they end.
//!
//! Commands and workers use two methods. [`Sessions::update`] changes a session, and
//! [`Sessions::view`] reads one. Nothing outside this folder knows where a session is, which
//! of its changes wait for the journal, or what has to be repeated when one of them is lost.
//!
//! A session that is not in the table is loaded where other daemons have the same journal;
//! otherwise the table has every session that lives.

mod census;
mod cluster;
mod commit;
mod end;
mod evict;
mod expiry;
mod freshness;
mod idle_list;
mod index;
mod keyed_ids;
mod listing;
mod load;
mod quota;
mod recover;
mod single_flight;
mod slot;
mod start;
mod table;
mod unload;
mod update;
mod use_list;
mod view;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use memoird_core::change::{Change, ChangeSet, EndReason};
use memoird_core::ids::{Generation, SessionId, SessionKey, TenantId};
use memoird_core::mark::{Mark, MarkSecret};
use memoird_core::session::Session;
use memoird_core::time::{Now, Steady};

use crate::blocking::Blocking;
use crate::cluster::Cluster;
use crate::error::EngineError;
use crate::events::{EventKind, EventSignal};
use crate::ids::Ids;
use crate::journal::{Committer, Journal, JournalConfig, Permit, Submitted};
use crate::machine::{self, Machine};
use crate::stats::Stats;
use crate::tenants::{Tenant, Tenants};
use crate::worker::Supervisor;

use census::{Census, ReservedPlace};
use cluster::JournalKeeper;
use commit::{SubmittedChange, Tally};
use end::EndedKeys;
use expiry::Sweeper;
use freshness::FreshnessWorker;
use keyed_ids::{KeyedIds, KeyedIdsReader};
use load::{ReloadQueue, ReloadWorker};
use quota::QuotaCounter;
use slot::{Slot, SlotInner};
use table::Table;
use unload::Unloader;

pub use end::EndedSession;
pub(crate) use end::{EndListener, Ending};
pub use listing::{SessionOrder, SessionPage, SessionPlace, SessionQuery};
pub(crate) use single_flight::{Flight, SingleFlight};
pub(crate) use slot::SessionVersion;
pub(crate) use update::{Decision, Effect, Update, UpdateOptions, WhenAbsent};
pub use view::SessionView;

/// Attempts after which a command gives up. Each lost attempt means that another command on the
/// session succeeded.
const ATTEMPTS_MAX: usize = 64;

/// All sessions of the process. Cheap to clone; every clone is the same sessions.
#[derive(Clone, Debug)]
pub struct Sessions {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    tenants: Arc<Tenants>,
    machine: Arc<dyn Machine>,
    ids: Ids,
    journal: Arc<Journal<SubmittedChange>>,
    /// Where other daemons have the same journal.
    cluster: Option<cluster::ClusterState>,
    table: Table,
    single_flight: SingleFlight<SessionKey>,
    census: Arc<Census>,
    reload_queue: ReloadQueue,
    /// Held while a session above a cap is chosen and ended.
    enforcing_caps: Mutex<()>,
    keyed_ids: KeyedIds,
    /// Whose sessions wait to start, because a cap is reached.
    starters: SingleFlight<TenantId>,
    ended_keys: EndedKeys,
    end_listener: Arc<dyn EndListener>,
    event_signal: Arc<EventSignal>,
    mark_secret: MarkSecret,
}

/// What the sessions are built from.
pub(crate) struct SessionParts {
    pub(crate) tenants: Arc<Tenants>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) journal: Journal<SubmittedChange>,
    pub(crate) end_listener: Arc<dyn EndListener>,
    pub(crate) event_signal: Arc<EventSignal>,
    /// How long idempotency keys count, in milliseconds.
    pub(crate) idempotency_ms: u64,
    /// What the marks of sessions are made from.
    pub(crate) mark_secret: Option<MarkSecret>,
    /// Where other daemons have the same journal.
    pub(crate) cluster: Option<Cluster>,
}

/// Which session: a tenant's, by the bot's own id of it.
#[derive(Clone, Debug)]
pub(crate) struct SessionRef {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) key: SessionKey,
}

/// Changes of one session that are to be written together.
struct Submission {
    set: ChangeSet,
    /// Turns that have left its history with them.
    dropped_turns: u64,
    /// Of an eviction: the place that it frees.
    successor: Option<ReservedPlace>,
}

impl Submission {
    fn new(changes: Vec<Change>) -> Self {
        Self {
            set: ChangeSet { changes },
            dropped_turns: 0,
            successor: None,
        }
    }
}

impl SessionRef {
    pub(crate) fn new(tenant: &Arc<Tenant>, session: &SessionId) -> Self {
        let key = SessionKey {
            tenant: tenant.id.clone(),
            session: session.clone(),
        };
        Self {
            tenant: Arc::clone(tenant),
            key,
        }
    }

    fn not_found(&self) -> EngineError {
        EngineError::SessionNotFound {
            session: self.key.session.clone(),
        }
    }
}

impl Sessions {
    pub(crate) fn new(parts: SessionParts, max_sessions: usize) -> Self {
        let mark_secret = parts.mark_secret;
        let mark_secret = mark_secret.unwrap_or_else(|| machine::new_mark_secret(&*parts.machine));
        let shared = Shared {
            mark_secret,
            tenants: parts.tenants,
            machine: parts.machine,
            ids: Ids::default(),
            cluster: parts.cluster.map(cluster::ClusterState::new),
            journal: Arc::new(parts.journal),
            table: Table::default(),
            single_flight: SingleFlight::default(),
            census: Arc::new(Census::new(max_sessions)),
            reload_queue: ReloadQueue::default(),
            enforcing_caps: Mutex::default(),
            keyed_ids: KeyedIds::new(parts.idempotency_ms),
            starters: SingleFlight::default(),
            ended_keys: EndedKeys::default(),
            end_listener: parts.end_listener,
            event_signal: parts.event_signal,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// What the tags bear in a prompt about the turns of a generation up to this one.
    pub fn prompt_mark(&self, generation: Generation, through_seq: u64) -> Mark {
        let secret = &self.shared.mark_secret;
        secret.prompt_mark(generation, through_seq)
    }

    /// Starts the workers that write, reload and sweep.
    pub(crate) fn start_workers(
        &self,
        supervisor: &Supervisor,
        stats: &Arc<Stats>,
        blocking: Blocking,
    ) {
        let shared = &self.shared;
        if shared.journal.is_on() {
            let committer = Committer::new(
                Arc::clone(&shared.journal),
                self.clone(),
                Arc::clone(&shared.machine),
                Arc::clone(stats),
            );
            match blocking {
                Blocking::Threads => supervisor.run_on_thread(committer),
                _ => supervisor.run(committer),
            }
            supervisor.run(Unloader::new(self.clone()));
            supervisor.run(QuotaCounter::new(self.clone()));
        }
        supervisor.run(ReloadWorker::new(self.clone()));
        if shared.cluster.is_some() {
            supervisor.run(FreshnessWorker::new(self.clone()));
            supervisor.run(JournalKeeper::new(self.clone()));
            return;
        }
        // Other daemons would give ids keys that this one does not know.
        if shared.journal.is_on() {
            supervisor.run(KeyedIdsReader::new(self.clone()));
        }
        supervisor.run(Sweeper::new(self.clone()));
    }

    /// Applies another configuration, after the tenants did. Histories of the tenants whose
    /// limits were lowered are shortened.
    pub(crate) fn reconfigure(
        &self,
        max_sessions: usize,
        journal: &JournalConfig,
        shortened: &[Arc<Tenant>],
    ) {
        let shared = &self.shared;
        shared.census.set_max_sessions(max_sessions);
        shared.journal.reconfigure(journal);
        shared.census.policies_changed.notify_waiters();
        for tenant in shortened {
            self.shorten_histories(tenant);
        }
    }

    /// Drops what lowered limits no longer keep, of sessions that are loaded; of others when
    /// they are loaded. The journal learns of it with the next append.
    fn shorten_histories(&self, tenant: &Tenant) {
        let policy = tenant.policy();
        for slot in self.shared.census.idle_list(&tenant.id).slots() {
            let mut inner = slot.lock();
            if let Some(session) = inner.session_mut() {
                let before = session.head().totals;
                session.trim(&policy.limits);
                tenant.stats.count_live(before, session.head().totals);
                inner.count_content(tenant);
            }
        }
    }

    /// The tenants that sessions are of.
    pub(crate) fn tenants(&self) -> &Tenants {
        &self.shared.tenants
    }

    /// How many sessions of a tenant live; in a cluster, how many did some seconds ago.
    pub(crate) fn count(&self, tenant: &TenantId) -> usize {
        match &self.shared.cluster {
            Some(cluster) => cluster.count(tenant),
            None => self.shared.census.count(tenant),
        }
    }

    /// True where sessions are kept in a journal.
    pub(crate) fn have_journal(&self) -> bool {
        self.shared.journal.is_on()
    }

    /// True while the last commit failed.
    pub(crate) fn is_journal_failing(&self) -> bool {
        self.shared.journal.is_failing()
    }

    /// Why the last commit failed; `None` where it did not.
    pub(crate) fn journal_failure(&self) -> Option<EngineError> {
        self.shared.journal.last_failure()
    }

    /// Waits until every change that was submitted so far is written or refused.
    ///
    /// # Errors
    /// When they cannot be written now, and are tried again later.
    pub(crate) async fn wait_all_processed(&self) -> Result<(), EngineError> {
        self.shared.journal.wait_all_processed().await
    }

    /// Waits until every change of a tenant that was submitted so far is written or refused; gives
    /// the number of the batch that has the last of them.
    ///
    /// # Errors
    /// As [`Self::wait_all_processed`].
    pub(crate) async fn wait_processed_of(&self, tenant: &Tenant) -> Result<u64, EngineError> {
        let last = tenant.last_ticket.load(Ordering::Relaxed);
        let journal = &self.shared.journal;
        journal.wait_processed_of(&tenant.id, last).await?;
        Ok(tenant.last_batch.load(Ordering::Relaxed))
    }

    /// Wakes those who watch events.
    pub(crate) fn notify_watchers(&self) {
        self.shared.event_signal.notify();
    }

    /// Publishes an event of a session.
    pub(crate) fn publish(&self, session: &SessionRef, generation: Generation, kind: EventKind) {
        let at = self.now().wall;
        let events = &session.tenant.events;
        events.push(at, &session.key.session, generation, kind);
        self.shared.event_signal.notify();
    }

    pub(crate) fn now(&self) -> Now {
        self.shared.machine.now()
    }

    /// The age up to which idempotency keys count.
    fn keys_since(&self, tenant: &Tenant) -> Steady {
        let limit_ms = tenant.policy().limits.idempotency_ms;
        Steady(self.now().steady.0.saturating_sub(limit_ms))
    }

    /// Begins a session, or its next life.
    fn begin(&self, key: &SessionKey, now: Now) -> (Session, Change) {
        let generation = self.new_generation(now);
        let (mut fresh, begin) = Session::begin(key, generation, now);
        fresh.set_mark(self.shared.mark_secret.mark(generation));
        (fresh, begin)
    }

    fn new_generation(&self, now: Now) -> Generation {
        let shared = &self.shared;
        shared.ids.generation(&*shared.machine, now.wall)
    }

    /// Submits changes of one session, under its lock.
    fn submit(
        &self,
        slot: &Arc<Slot>,
        inner: &mut SlotInner,
        permit: Permit,
        submission: Submission,
    ) -> Submitted {
        let Submission {
            set,
            dropped_turns,
            successor,
        } = submission;
        let shared = &self.shared;
        let mut tally = Tally::of(&set, dropped_turns);
        if !shared.journal.is_on() {
            tally.publish(slot, self.now().wall);
            shared.event_signal.notify();
        } else if set.changes.iter().any(Change::has_idempotency_key) {
            shared.keyed_ids.insert(&slot.key, self.now().steady);
        }
        let change = SubmittedChange {
            slot: Arc::clone(slot),
            epoch: inner.epoch,
            tally,
            owes_hooks: set.changes.iter().any(Change::owes),
            successor,
        };
        let submitted = shared.journal.submit(permit, set, change);
        inner.ticket = submitted.ticket;
        let last = &slot.tenant.last_ticket;
        last.fetch_max(submitted.ticket, Ordering::Relaxed);
        submitted
    }

    /// Ends every session, because the daemon stops and keeps no journal.
    pub(crate) async fn end_all(&self, reason: EndReason) -> Result<(), EngineError> {
        for tenant in self.shared.tenants.all() {
            let idle = self.shared.census.idle_list(&tenant.id);
            while let Some(oldest) = idle.oldest() {
                let permit = self.shared.journal.permit(0).await?;
                let request = end::EndRequest::now(reason);
                let ended = self.end_slot(&oldest.slot, request, permit);
                if let end::EndAttempt::NeedsLoad = ended {
                    self.load(&oldest.slot).await?;
                }
            }
        }
        Ok(())
    }
}
