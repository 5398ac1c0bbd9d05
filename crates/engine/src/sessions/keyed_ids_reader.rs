//! Reads the session ids with idempotency keys from the journal, once.

use memoird_core::ids::SessionKey;
use memoird_store::Store;
use tracing::debug;

use super::handle::Sessions;
use crate::worker::{WorkError, Worker};

/// Number of ids read from the journal per step.
const IDS_PER_STEP: usize = 4_096;

/// Worker that reads the ids with keys from the journal once, at startup.
///
/// Calls do not wait for it. Until it is done, they read the journal.
pub(super) struct KeyedIdsReader {
    sessions: Sessions,
    last: Option<SessionKey>,
    count: usize,
    is_done: bool,
}

impl KeyedIdsReader {
    pub(super) fn new(sessions: Sessions) -> Self {
        Self {
            sessions,
            last: None,
            count: 0,
            is_done: false,
        }
    }
}

impl Worker for KeyedIdsReader {
    fn name(&self) -> &'static str {
        "keyed-ids"
    }

    async fn wait(&mut self) {
        if self.is_done {
            std::future::pending::<()>().await;
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let shared = &self.sessions.shared;
        let after = self.last.clone();
        let read = async {
            let read = move |store: &dyn Store| store.keyed_sessions(after.as_ref(), IDS_PER_STEP);
            shared.store()?.run(None, read).await
        };
        let page = read.await.map_err(|error| WorkError(error.to_string()))?;
        let now = self.sessions.now().steady;
        for key in &page {
            shared.keyed_ids.insert(key, now);
        }
        self.count += page.len();
        self.is_done = page.len() < IDS_PER_STEP;
        if self.is_done {
            shared.keyed_ids.complete();
            debug!(
                sessions = self.count,
                "the index of idempotency keys is complete"
            );
        }
        self.last = page.into_iter().next_back();
        Ok(())
    }
}
