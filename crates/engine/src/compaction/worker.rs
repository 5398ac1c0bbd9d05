//! The worker that runs compactions concurrently, each in a task.
//!
//! Aborting a task at any point changes nothing.

use tokio::task::{JoinError, JoinSet};
use tracing::error;

use super::Compaction;
use crate::worker::{WorkError, Worker};

pub(crate) struct CompactionWorker {
    compaction: Compaction,
    tasks: JoinSet<()>,
}

impl CompactionWorker {
    pub(crate) fn new(compaction: Compaction) -> Self {
        Self {
            compaction,
            tasks: JoinSet::new(),
        }
    }
}

fn log_panic(result: Result<(), JoinError>) {
    if let Err(failure) = result
        && failure.is_panic()
    {
        error!(%failure, "a compaction panicked; its session is unchanged");
    }
}

impl Worker for CompactionWorker {
    fn name(&self) -> &'static str {
        "compactor"
    }

    async fn wait(&mut self) {
        tokio::select! {
            biased;
            Some(result) = self.tasks.join_next() => log_panic(result),
            () = self.compaction.queue().arrived() => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        while let Some(result) = self.tasks.try_join_next() {
            log_panic(result);
        }
        let config = self.compaction.config();
        while self.tasks.len() < config.concurrency {
            let taken = self.compaction.queue().take(config.tenant_concurrency);
            let Some((request, running)) = taken else {
                break;
            };
            let compaction = self.compaction.clone();
            self.tasks.spawn(compaction.run(request, running));
        }
        Ok(())
    }

    /// Aborts running compactions and closes the queue. Waiting callers get an error.
    ///
    /// Nothing was committed. Sessions request a compaction again on their next use.
    async fn finish(&mut self) {
        self.compaction.queue().close();
        self.tasks.shutdown().await;
    }
}
