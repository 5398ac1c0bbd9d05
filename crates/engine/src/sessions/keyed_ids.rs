//! Filter for session ids that may have idempotency keys in the journal.
//!
//! An append with a key that starts a session of any other id need not read the journal.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use memoird_core::ids::SessionKey;
use memoird_core::time::Steady;
use memoird_store::Store;
use parking_lot::Mutex;
use tracing::debug;

use super::handle::Sessions;
use crate::worker::{WorkError, Worker};

/// Capacity per period, in ids. A full hash table takes 19 MB.
const IDS_MAX: usize = 7 << 18;

/// Filter without false negatives: an unknown id has no valid keys, a known one may have some.
///
/// Keys expire, so the filter has two sets of ids, for the current and the previous period. A
/// period is as long as a key is valid.
#[derive(Debug)]
pub(super) struct KeyedIds {
    hasher: RandomState,
    period_ms: u64,
    ids: Mutex<Ids>,
}

#[derive(Debug, Default)]
struct Ids {
    /// Start of the current period.
    since: Steady,
    current: IdSet,
    before: IdSet,
    /// Set once all keys in the journal at startup are known.
    is_complete: bool,
}

/// Hashes of session ids. Above its capacity, the set matches every id.
#[derive(Debug, Default)]
struct IdSet {
    hashes: HashSet<u64>,
    is_every_id: bool,
}

impl IdSet {
    fn insert(&mut self, hash: u64) {
        if self.hashes.len() < IDS_MAX {
            self.hashes.insert(hash);
        } else {
            *self = Self {
                hashes: HashSet::new(),
                is_every_id: true,
            };
        }
    }

    fn may_have(&self, hash: u64) -> bool {
        self.is_every_id || self.hashes.contains(&hash)
    }
}

impl KeyedIds {
    pub(super) fn new(period_ms: u64) -> Self {
        Self {
            hasher: RandomState::new(),
            period_ms,
            ids: Mutex::default(),
        }
    }

    /// Adds an id. Must be called when its key is submitted, before any lookup of the key.
    pub(super) fn insert(&self, key: &SessionKey, now: Steady) {
        let hash = self.hasher.hash_one(key);
        let mut ids = self.ids.lock();
        if now.since(ids.since) >= self.period_ms {
            ids.since = now;
            ids.before = std::mem::take(&mut ids.current);
        }
        ids.current.insert(hash);
    }

    /// Marks the filter as complete: all keys in the journal are known.
    pub(super) fn complete(&self) {
        self.ids.lock().is_complete = true;
    }

    pub(super) fn may_have(&self, key: &SessionKey) -> bool {
        let hash = self.hasher.hash_one(key);
        let ids = self.ids.lock();
        !ids.is_complete || ids.current.may_have(hash) || ids.before.may_have(hash)
    }
}

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
        let read = move |store: &dyn Store| store.keyed_sessions(after.as_ref(), IDS_PER_STEP);
        let page = self.sessions.store()?.run(None, read).await?;
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

#[cfg(test)]
mod tests {
    use memoird_core::ids::{SessionId, TenantId};

    use super::*;

    fn key(session: &str) -> SessionKey {
        SessionKey {
            tenant: TenantId::parse("t").unwrap(),
            session: SessionId::parse(session).unwrap(),
        }
    }

    #[test]
    fn keyed_session_id_is_known_until_its_key_expires() {
        let ids = KeyedIds::new(100);
        assert!(ids.may_have(&key("any")), "as long as not all is read");
        ids.complete();
        assert!(!ids.may_have(&key("any")));
        ids.insert(&key("a"), Steady(99));
        ids.insert(&key("b"), Steady(100));
        ids.insert(&key("c"), Steady(198));
        assert!(ids.may_have(&key("a")) && ids.may_have(&key("b")));
        ids.insert(&key("d"), Steady(200));
        assert!(!ids.may_have(&key("a")));
        assert!(ids.may_have(&key("b")) && ids.may_have(&key("c")));
    }

    #[test]
    fn full_id_set_matches_every_id() {
        let mut set = IdSet::default();
        (0..IDS_MAX as u64).for_each(|hash| set.insert(hash));
        assert!(!set.may_have(u64::MAX));
        set.insert(u64::MAX);
        assert!(set.may_have(1) && set.hashes.capacity() == 0);
    }
}
