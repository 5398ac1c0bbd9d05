//! Forgetting: jobs that are recorded durably first, run in steps, and resume after a crash.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::{MemoryId, TenantId};
use memoird_core::time::Timestamp;
use memoird_engine::Tenant;

use super::storage::MemoryStorage;
use crate::error::MemoryError;
use crate::requests::{ForgetOutcome, ForgetRequest};
use crate::store::MemoryReader;
use crate::store::time::{after, before};

/// Rows per step. A step delays the tenant's other writes.
const ROWS_MAX: usize = 500;
/// Attempts to truncate the WAL while the caller waits.
const ERASE_TRIES: u32 = 5;
/// Pause between these attempts.
const ERASE_PAUSE: Duration = Duration::from_millis(20);
/// Age at which a job that another daemon started is assumed to have lost its caller.
const LEFT_AFTER: Duration = Duration::from_secs(600);

/// Forgetting of memories. Clones share their state.
#[derive(Clone, Debug)]
pub struct Forgetting {
    pub(crate) storage: Arc<MemoryStorage>,
}

impl Forgetting {
    /// Deletes memories. With `dry_run`, only counts them.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`] for a single id, or if a write fails. The rest is then deleted
    /// later.
    pub async fn forget(
        &self,
        tenant: &Tenant,
        request: ForgetRequest,
        dry_run: bool,
    ) -> Result<ForgetOutcome, MemoryError> {
        if dry_run {
            let read = move |reader: &MemoryReader<'_>| reader.forget_count(&request);
            return self.storage.read(&tenant.id, read).await;
        }
        let mut outcome = self
            .forget_all(&tenant.id, request, self.storage.now())
            .await?;
        outcome.erased &= self.have_no_copies();
        Ok(outcome)
    }

    /// Whether there are no backups, which would contain copies of the deleted memories.
    pub(super) fn have_no_copies(&self) -> bool {
        self.storage.engine.erasures.copies().is_empty()
    }

    /// Runs a job to completion and reports whether nothing is left on disk.
    ///
    /// For that, the WAL must be empty and no other job may be in progress, since it may have
    /// deleted some of the same rows.
    pub(crate) async fn forget_all(
        &self,
        tenant: &TenantId,
        request: ForgetRequest,
        now: Timestamp,
    ) -> Result<ForgetOutcome, MemoryError> {
        let job = self.storage.next_id(now);
        // If the call is cancelled or a write fails from here on, the maintenance worker continues
        // the job.
        let mut unfinished = Unfinished::new(&self.storage, tenant, Some(job));
        let begun = self
            .storage
            .write(tenant, move |writer| {
                writer.forget_begin(job, &request, now)?;
                writer.forget_step(job, ROWS_MAX)
            })
            .await;
        if begun.as_ref().is_err_and(MemoryError::is_refusal) {
            unfinished.is_done = true;
        }
        let begun = begun?;
        let mut outcome = if begun.is_done {
            begun.counts
        } else {
            self.go_on_forgetting(tenant, job).await?
        };
        let state = self.storage.state(tenant);
        state.counters().forgotten += outcome.memories + outcome.superseded;
        outcome.erased = self.finish_jobs(tenant).await? && self.erased_soon(tenant).await;
        unfinished.is_done = outcome.erased;
        Ok(outcome)
    }

    /// Truncates the WAL, and waits briefly for readers.
    ///
    /// If that fails, the maintenance worker truncates it later. The memories are forgotten in any
    /// case.
    pub(super) async fn erased_soon(&self, tenant: &TenantId) -> bool {
        for again in 0..ERASE_TRIES {
            if again > 0 {
                tokio::time::sleep(ERASE_PAUSE).await;
            }
            match self.storage.truncate_log(tenant).await {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "a log is emptied later"),
            }
        }
        false
    }

    /// Runs the steps of a job until it is done.
    pub(crate) async fn go_on_forgetting(
        &self,
        tenant: &TenantId,
        job: MemoryId,
    ) -> Result<ForgetOutcome, MemoryError> {
        loop {
            let progress = self
                .storage
                .write(tenant, move |writer| writer.forget_step(job, ROWS_MAX))
                .await?;
            if progress.is_done {
                return Ok(progress.counts);
            }
        }
    }

    /// Continues jobs interrupted by a crash or a cancelled call.
    ///
    /// Returns `false` if other jobs are still being run by their callers.
    pub(crate) async fn finish_jobs(&self, tenant: &TenantId) -> Result<bool, MemoryError> {
        let read = |reader: &MemoryReader<'_>| reader.forget_jobs();
        let jobs = self.storage.read(tenant, read).await?;
        let state = self.storage.state(tenant);
        let is_open = |job: &MemoryId, has_caller: &mut bool| *has_caller || jobs.contains(job);
        state.forgetting().retain(is_open);
        let at = |moment: Timestamp| MemoryId::new(moment.as_ms(), 0);
        let young =
            at(before(self.storage.now(), LEFT_AFTER))..at(after(self.storage.now(), LEFT_AFTER));
        let mut are_done = true;
        for job in jobs {
            // Its caller, here or at another daemon, runs it and returns the counts.
            let known = state.forgetting().get(&job).copied();
            if known.unwrap_or(self.storage.are_shared() && young.contains(&job)) {
                are_done = false;
            } else {
                self.go_on_forgetting(tenant, job).await?;
            }
        }
        Ok(are_done)
    }
}

/// Guard of a job that may have started.
///
/// If dropped before the job is done, the maintenance worker continues it.
pub(crate) struct Unfinished<'a> {
    storage: &'a MemoryStorage,
    tenant: &'a TenantId,
    job: Option<MemoryId>,
    pub(super) is_done: bool,
}

impl<'a> Unfinished<'a> {
    pub(super) fn new(
        storage: &'a MemoryStorage,
        tenant: &'a TenantId,
        job: Option<MemoryId>,
    ) -> Self {
        let begun = job.map(|job| (job, true));
        storage.state(tenant).forgetting().extend(begun);
        Self {
            storage,
            tenant,
            job,
            is_done: false,
        }
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let state = self.storage.state(self.tenant);
        if let Some(job) = self.job {
            if self.is_done {
                state.forgetting().remove(&job);
            } else {
                state.forgetting().insert(job, false);
            }
        }
        if !self.is_done {
            state.leave_unfinished();
            self.storage.maintenance.add(self.tenant);
        }
    }
}
