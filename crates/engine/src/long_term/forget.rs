//! Forgetting: written down first, then done in steps, and gone on with after a crash.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::{MemoryId, TenantId};
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
        let job = MemoryId::new(now.as_ms(), self.shared.machine.random());
        self.write_memories(tenant, move |writer| {
            writer.forget_begin(job, &filter, now)?;
            Ok(((), Touch::Nothing))
        })
        .await?;
        // Should the caller leave, or the disk refuse, the keeper goes on.
        let mut unfinished = Unfinished { engine: self, tenant: &tenant.id, is_done: false };
        let counts = self.go_on_forgetting(tenant, job).await?;
        let mut erased = self.erase(tenant).await?;
        for _ in 1..ERASE_TRIES {
            if erased {
                break;
            }
            tokio::time::sleep(ERASE_PAUSE).await;
            erased = self.erase(tenant).await?;
        }
        unfinished.is_done = erased;
        drop(unfinished);
        tenant.stats.memories.count_forgotten(counts.memories + counts.superseded);
        Ok(outcome(counts, erased))
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
        for job in self.read_memories(tenant, |reader| reader.forget_jobs()).await? {
            self.go_on_forgetting(tenant, job.id).await?;
        }
        self.erase(tenant).await
    }
}

/// Something that is to be forgotten and not yet is: left to the keeper when it is dropped.
struct Unfinished<'a> {
    engine: &'a Engine,
    tenant: &'a TenantId,
    is_done: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            let long_term = &self.engine.shared.long_term;
            long_term.lane(self.tenant).leave_unfinished();
            long_term.wake_keeper(self.tenant);
        }
    }
}

fn filter_of(ask: ForgetAsk) -> ForgetFilter {
    match ask {
        ForgetAsk::One(id) => ForgetFilter::One { id, subject: None },
        ForgetAsk::Subject(subject) => ForgetFilter::Subject(subject),
        ForgetAsk::Filter(MemoryFilter { subject, kinds, tags, after, before }) => {
            ForgetFilter::Matching {
                subject,
                kinds,
                tags,
                observed_after: after,
                observed_before: before,
            }
        }
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
