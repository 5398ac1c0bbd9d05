//! The worker that keeps the index up to date, in bounded steps.
//!
//! Calls never wait for it. While sessions change, it pauses between steps to leave the CPU to
//! them. It collects changes for a second, or indexes immediately if a search is waiting.

use std::sync::Arc;
use std::time::Duration;

use memoird_engine::{EngineError, Stopwatch, WorkError, Worker};
use memoird_store::{IndexBounds, PurgeStep, SearchIndex, StoreError};
use tracing::info;

use crate::error::SearchError;
use crate::lock;
use crate::search::SearchInner;

const STEP: IndexBounds = IndexBounds {
    turns_max: 1_024,
    bytes_max: 512 << 10,
    stale_max: 64,
};
/// How long changes are collected into one transaction, unless a search is waiting.
const GATHER: Duration = Duration::from_secs(1);
/// Interval between checks for turns that retention has deleted.
const POLL: Duration = Duration::from_secs(60);
/// The same in a cluster, where other daemons write and delete turns.
const POLL_IN_CLUSTER: Duration = Duration::from_millis(500);
/// Delay after which words of turns that retention has deleted are removed from the file.
///
/// Each time, the whole index is rewritten.
const PURGE_EVERY_MS: u64 = 60 * 60 * 1_000;

#[derive(Debug)]
pub(crate) struct Indexer {
    shared: Arc<SearchInner>,
    /// Last journal change known before the journal was read.
    seen: u64,
    /// Pause after the last step.
    rest: Duration,
    has_more: bool,
    /// When words must be removed from the file, on the engine's monotonic clock.
    ///
    /// `None` if there are none to remove.
    purge_due_ms: Option<u64>,
    /// Earliest time of the next removal.
    next_purge_ms: u64,
}

impl Indexer {
    pub(crate) fn new(shared: Arc<SearchInner>) -> Self {
        Self {
            shared,
            seen: 0,
            rest: Duration::ZERO,
            has_more: true,
            purge_due_ms: None,
            next_purge_ms: 0,
        }
    }

    fn now_ms(&self) -> u64 {
        self.shared.engine.machine.now().steady.0
    }

    /// Whether sessions changed since the journal was last read.
    async fn have_sessions_changed(&self) -> bool {
        let change = self.shared.engine.transcripts.written_beyond(self.seen);
        tokio::time::timeout(Duration::ZERO, change).await.is_ok()
    }

    /// Runs one step of indexing or, if nothing is to be indexed, of removing words.
    async fn work(&mut self) -> Result<(), SearchError> {
        let transcripts = &self.shared.engine.transcripts;
        let change = transcripts.written_beyond(self.seen);
        if let Ok(seen) = tokio::time::timeout(Duration::ZERO, change).await {
            self.seen = seen;
        }
        let done = self.run(|index| index.index_step(STEP)).await?;
        if done.is_new {
            info!("building the transcript index from the journal");
        }
        lock(&self.shared.counters).add(&done);
        self.shared.steps.send_modify(|steps| *steps += 1);
        self.has_more = done.has_more;
        let now = self.now_ms();
        if done.is_unclean {
            // After a restart, the words may be those of an updated turn.
            let is_urgent = done.replaced > 0 || self.purge_due_ms.is_none() && done.removed == 0;
            let due = if is_urgent { now } else { now + PURGE_EVERY_MS };
            self.purge_due_ms = Some(self.purge_due_ms.map_or(due, |before| before.min(due)));
        }
        if !self.has_more && self.is_purge_due(now) {
            self.purge().await?;
        }
        Ok(())
    }

    fn is_purge_due(&self, now_ms: u64) -> bool {
        self.purge_due_ms
            .is_some_and(|due| due.max(self.next_purge_ms) <= now_ms)
    }

    /// Runs one step of removing words. The last one delays only the next removal, not indexing.
    async fn purge(&mut self) -> Result<(), SearchError> {
        let watch = Stopwatch::start();
        let purged = self.run(|index| index.purge_step()).await?;
        if purged == PurgeStep::More {
            return Ok(());
        }
        if purged == PurgeStep::Done {
            self.purge_due_ms = None;
        }
        let pause = self.shared.config.rest_after(watch.elapsed());
        let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.next_purge_ms = self.now_ms().saturating_add(pause_ms);
        Ok(())
    }

    async fn run<T: Send + 'static>(
        &self,
        action: impl FnOnce(&dyn SearchIndex) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, SearchError> {
        let outcome = self
            .shared
            .engine
            .transcripts
            .on_index(None, action)
            .await?;
        Ok(outcome?)
    }
}

impl Worker for Indexer {
    fn name(&self) -> &'static str {
        "search-indexer"
    }

    async fn wait(&mut self) {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_zero() && self.have_sessions_changed().await {
            tokio::time::sleep(rest).await;
        }
        let now = self.now_ms();
        if self.has_more || self.is_purge_due(now) {
            return;
        }
        let shared = &self.shared;
        let poll = if shared.engine.cluster().is_some() {
            POLL_IN_CLUSTER
        } else {
            POLL
        };
        let until_purge = self.purge_due_ms.map_or(poll, |due| {
            Duration::from_millis(due.max(self.next_purge_ms).saturating_sub(now))
        });
        tokio::select! {
            _ = shared.engine.transcripts.written_beyond(self.seen) => {
                // Combine many changes into one transaction.
                let _ = tokio::time::timeout(GATHER, shared.wanted.notified()).await;
            }
            () = shared.wanted.notified() => {}
            () = tokio::time::sleep(until_purge.min(poll)) => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let watch = Stopwatch::start();
        let done = self.work().await;
        self.rest = self.shared.config.rest_after(watch.elapsed());
        match done {
            Ok(()) | Err(SearchError::Engine(EngineError::Stopping)) => Ok(()),
            Err(error) => Err(WorkError(format!("{error:?}"))),
        }
    }
}
