//! Forgetting: written down first, then done in steps, and gone on with after a crash.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::{MemoryId, TenantId};
use memoird_core::time::Timestamp;
use memoird_store::long_term::{ForgetCounts, ForgetFilter, MemoryReader};

use super::lane::Touch;
use super::{ForgetAsk, ForgetOutcome, MemoryFilter};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::tenant::Tenant;

/// Rows of one step: other writes of the tenant wait no longer than that takes.
const ROWS_MAX: usize = 500;
/// How often, and with which pause, the log is tried to be emptied while the caller waits.
const ERASE_TRIES: u32 = 5;
const ERASE_PAUSE: Duration = Duration::from_millis(20);

impl Engine {
    /// Removes memories; with `dry_run` only counts them.
    ///
    /// # Errors
    /// [`memoird_core::CoreError::MemoryNotFound`] of one id, a disk that cannot be written:
    /// then what is left is removed later.
    pub async fn forget(
        &self,
        tenant: &Arc<Tenant>,
        ask: ForgetAsk,
        dry_run: bool,
    ) -> Result<ForgetOutcome, EngineError> {
        let filter = filter_of(ask);
        let now = self.shared.machine.now().wall;
        if dry_run {
            let read = move |reader: &MemoryReader<'_>| reader.forget_count(&filter);
            let counts = self.read_memories(tenant, read).await?;
            return Ok(outcome(counts, false));
        }
        let (counts, erased) = self.forget_all(tenant, filter, now).await?;
        Ok(outcome(counts, erased))
    }

    /// Does a job from its beginning to its end; says whether the log is empty as well.
    pub(super) async fn forget_all(
        &self,
        tenant: &Tenant,
        filter: ForgetFilter,
        now: Timestamp,
    ) -> Result<(ForgetCounts, bool), EngineError> {
        let job = self.shared.ids.memory(&*self.shared.machine, now);
        // Should the caller leave, from here on, or the disk refuse, the keeper goes on.
        let mut unfinished = Unfinished::new(self, &tenant.id, Some(job));
        let begun = self
            .write_memories(tenant, move |writer| {
                writer.forget_begin(job, &filter, now)?;
                // A subject's name is gone with this already.
                Ok(((), Touch::All))
            })
            .await;
        if let Err(EngineError::Core(_)) = begun {
            unfinished.is_done = true;
        }
        begun?;
        let counts = self.go_on_forgetting(tenant, job).await?;
        tenant
            .stats
            .memories
            .count_forgotten(counts.memories + counts.superseded);
        let erased = self.erased_soon(tenant).await;
        unfinished.is_done = erased;
        Ok((counts, erased))
    }

    /// Empties the log, and waits a little for who reads. What cannot be done now the keeper
    /// does: forgotten it is all the same.
    async fn erased_soon(&self, tenant: &Tenant) -> bool {
        for again in 0..ERASE_TRIES {
            if again > 0 {
                tokio::time::sleep(ERASE_PAUSE).await;
            }
            match self.erase(tenant).await {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "a log is emptied later"),
            }
        }
        false
    }

    /// Goes on with a job until nothing is left of it.
    pub(super) async fn go_on_forgetting(
        &self,
        tenant: &Tenant,
        job: MemoryId,
    ) -> Result<ForgetCounts, EngineError> {
        loop {
            let progress = self
                .write_memories(tenant, move |writer| {
                    Ok((writer.forget_step(job, ROWS_MAX)?, Touch::All))
                })
                .await?;
            if progress.is_done {
                return Ok(progress.counts);
            }
        }
    }

    /// Empties the log, where forgotten text may still stand. False while somebody reads.
    pub(super) async fn erase(&self, tenant: &Tenant) -> Result<bool, EngineError> {
        let long_term = &self.shared.long_term;
        let (store, id) = (Arc::clone(long_term.store()?), tenant.id.clone());
        let truncate = move || store.tenant(&id)?.truncate_log();
        let done = long_term.blocking.run(truncate).await?;
        done.map_err(|error| EngineError::of_memories(&error))
    }

    /// Goes on with what a crash, or a caller who left, has left. False when the log still
    /// has to be emptied.
    pub(super) async fn finish_forgetting(&self, tenant: &Tenant) -> Result<bool, EngineError> {
        #[expect(
            clippy::redundant_closure_for_method_calls,
            reason = "it is of one lifetime"
        )]
        let jobs = self
            .read_memories(tenant, |reader| reader.forget_jobs())
            .await?;
        for job in jobs {
            // Whoever does it wants to know what went.
            let is_anothers = self
                .shared
                .long_term
                .lane(&tenant.id)
                .forgetting()
                .contains(&job.id);
            if !is_anothers {
                self.go_on_forgetting(tenant, job.id).await?;
            }
        }
        self.erase(tenant).await
    }
}

/// Something that has begun on the disk, or may have: left to the keeper when it is dropped.
pub(super) struct Unfinished<'a> {
    engine: &'a Engine,
    tenant: &'a TenantId,
    job: Option<MemoryId>,
    pub(super) is_done: bool,
}

impl<'a> Unfinished<'a> {
    pub(super) fn new(engine: &'a Engine, tenant: &'a TenantId, job: Option<MemoryId>) -> Self {
        engine
            .shared
            .long_term
            .lane(tenant)
            .forgetting()
            .extend(job);
        Self {
            engine,
            tenant,
            job,
            is_done: false,
        }
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let long_term = &self.engine.shared.long_term;
        let lane = long_term.lane(self.tenant);
        if let Some(job) = self.job {
            lane.forgetting().remove(&job);
        }
        if !self.is_done {
            lane.leave_unfinished();
            long_term.wake_keeper(self.tenant);
        }
    }
}

fn filter_of(ask: ForgetAsk) -> ForgetFilter {
    match ask {
        ForgetAsk::One(id) => ForgetFilter::One { id, subject: None },
        ForgetAsk::Subject(subject) => ForgetFilter::Subject(subject),
        ForgetAsk::Filter(MemoryFilter {
            subject,
            kinds,
            tags,
            after,
            before,
        }) => ForgetFilter::Matching {
            subject,
            kinds,
            tags,
            observed_after: after,
            observed_before: before,
        },
    }
}

fn outcome(counts: ForgetCounts, erased: bool) -> ForgetOutcome {
    ForgetOutcome {
        memories: counts.memories,
        superseded: counts.superseded,
        vectors: counts.vectors,
        recall_events: counts.recall_events,
        queued_embeddings: counts.queued_embeddings,
        cursors: counts.cursors,
        erased,
    }
}
