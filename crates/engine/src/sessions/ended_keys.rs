//! Idempotency keys of ended sessions, without a journal.

use hashlink::LinkedHashMap;
use memoird_core::idempotency::Keys;
use memoird_core::ids::SessionKey;
use parking_lot::Mutex;

/// Idempotency keys of ended sessions, retained in memory if there is no journal.
///
/// Holds up to [`ENDED_KEYS_MAX`] keys, of the sessions that ended last.
#[derive(Debug, Default)]
pub(super) struct EndedKeys {
    inner: Mutex<EndedKeysInner>,
}

#[derive(Debug, Default)]
struct EndedKeysInner {
    sessions: LinkedHashMap<SessionKey, Keys>,
    count: usize,
}

const ENDED_KEYS_MAX: usize = 100_000;

impl EndedKeys {
    pub(super) fn insert(&self, key: &SessionKey, keys: Keys) {
        if keys.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        inner.count += keys.len();
        if let Some(before) = inner.sessions.insert(key.clone(), keys) {
            inner.count -= before.len();
        }
        while inner.count > ENDED_KEYS_MAX {
            let Some((_, oldest)) = inner.sessions.pop_front() else {
                break;
            };
            inner.count -= oldest.len();
        }
    }

    pub(super) fn remove(&self, key: &SessionKey) -> u64 {
        let mut inner = self.inner.lock();
        let removed = inner.sessions.remove(key).map_or(0, |keys| keys.len());
        inner.count -= removed;
        removed as u64
    }

    pub(super) fn get(&self, key: &SessionKey) -> Keys {
        self.inner
            .lock()
            .sessions
            .get(key)
            .cloned()
            .unwrap_or_default()
    }
}
