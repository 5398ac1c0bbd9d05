//! The session table: sessions are loaded, started, evicted, expired and ended here.
//!
//! Commands and workers use two methods: [`Sessions::update`] changes a session, and
//! [`Sessions::view`] reads one. Nothing outside this module knows where a session is stored, which
//! of its changes are not yet written, or what to repeat when a write is lost.
//!
//! Without a cluster, the table contains every live session. In a cluster, a session that is
//! missing in the table is loaded from the journal.

mod census;
mod cluster;
mod commit;
mod due_time;
mod end;
mod ended_keys;
mod evict;
mod expiry;
mod freshness;
mod handle;
mod keyed_ids;
mod listing;
mod load;
mod orders;
mod quota;
mod recover;
mod slot;
mod start;
mod table;
mod unload;
mod update;
mod view;

use std::sync::Arc;

use memoird_core::change::EndReason;

use crate::blocking::Blocking;
use crate::error::EngineError;
use crate::journal::{Committer, JournalConfig};
use crate::stats::Stats;
use crate::tenants::Tenant;
use crate::worker::Supervisor;

use cluster::ClusterSessionsWorker;
use expiry::Sweeper;
use freshness::FreshnessWorker;
use keyed_ids::KeyedIdsReader;
use load::ReloadWorker;
use quota::QuotaCounter;
use unload::Unloader;

pub use end::{EndCommand, EndOutcome, EndedSession};
pub use handle::Sessions;
pub(crate) use handle::{SessionParts, SessionRef};
pub use listing::{
    LivePosition, PartPosition, SessionListPosition, SessionOrder, SessionPage, SessionQuery,
    SessionState,
};
pub(crate) use slot::SessionVersion;
pub(crate) use update::{Decision, Effect, Update, UpdateOptions};
pub use view::SessionView;

impl Sessions {
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
        if let Some(failed) = shared.failed_receiver.lock().take() {
            supervisor.run(ReloadWorker::new(self.clone(), failed));
        }
        if let Some(cluster) = &shared.cluster {
            if let Some(requested) = cluster.requested_checks.lock().take() {
                supervisor.run(FreshnessWorker::new(self.clone(), requested));
            }
            supervisor.run(ClusterSessionsWorker::new(self.clone()));
        } else if shared.journal.is_on() {
            // In a cluster, other daemons also record idempotency keys, so an index of keys would
            // be incomplete.
            supervisor.run(KeyedIdsReader::new(self.clone()));
        }
        supervisor.run(Sweeper::new(self.clone()));
    }

    /// Applies a configuration, after the tenants have applied it.
    ///
    /// Trims the histories of the tenants in `shortened`, whose limits were lowered.
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

    /// Trims loaded histories to lowered limits. Others are trimmed when they are loaded.
    ///
    /// The journal records the trimming with the next append.
    fn shorten_histories(&self, tenant: &Tenant) {
        let policy = tenant.policy();
        for slot in self.shared.table.orders(&tenant.id).slots() {
            let mut inner = slot.lock();
            if let Some(session) = inner.session_mut() {
                let before = session.head().totals;
                session.trim(&policy.limits);
                tenant.stats.count_live(before, session.head().totals);
                inner.count_content(tenant);
            }
        }
    }

    /// Ends every session at shutdown. Used only without a journal.
    pub(crate) async fn end_all(&self, reason: EndReason) -> Result<(), EngineError> {
        for tenant in self.shared.tenants.all() {
            let orders = self.shared.table.orders(&tenant.id);
            while let Some(oldest) = orders.oldest() {
                let permit = self.shared.journal.permit(0).await?;
                let request = end::EndRequest::now(reason);
                let ended = self.end_slot(&oldest.slot, request, permit);
                if let end::EndAttempt::NeedsLoad = ended {
                    self.load(&oldest.slot, None).await?;
                }
            }
        }
        Ok(())
    }
}
