//! Idempotency keys, which make repeated commands take effect once.
//!
//! Keys belong to the session id, so that a repeated append does not start a new generation after
//! the session ended, and a repeated end does not end a newer one.

use std::collections::{BTreeMap, VecDeque};

use crate::sha256::Sha256;

use crate::error::CoreError;
use crate::ids::Generation;
use crate::limits::Limits;
use crate::time::Steady;

/// Digest of an idempotency key or of a command's content.
pub type Fingerprint = [u8; 16];

/// Hashes texts with their lengths: the first 16 bytes of a SHA-256.
pub fn fingerprint<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> Fingerprint {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    let digest = hasher.finalize();
    std::array::from_fn(|index| digest[index])
}

/// An idempotency key with the digest of the command's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub key: Fingerprint,
    pub content: Fingerprint,
}

/// Result of a command, stored so that a repetition gets the same response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// Digest of the command's content.
    pub content: Fingerprint,
    pub generation: Generation,
    pub first_seq: u64,
    pub last_seq: u64,
    pub dropped_turns: u64,
    pub at: Steady,
    /// Whether a rewind removed one of its turns.
    pub rewound: bool,
}

impl KeyRecord {
    /// Whether the command appended a turn after `seq`.
    pub fn has_turn_after(&self, seq: u64) -> bool {
        self.first_seq <= self.last_seq && self.last_seq > seq
    }
}

/// Idempotency keys of one session, newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    records: BTreeMap<Fingerprint, KeyRecord>,
    order: VecDeque<(Steady, Fingerprint)>,
    /// Set if there may be keys that are not here.
    is_partial: bool,
    /// Of partial keys, one that is not among the records because it is unused.
    unused: Option<Fingerprint>,
}

impl Keys {
    pub fn restore(records: impl IntoIterator<Item = (Fingerprint, KeyRecord)>) -> Self {
        let mut keys = Self::default();
        for (key, record) in records {
            keys.insert(key, record);
        }
        keys
    }

    /// Reduces them to the result of looking up `key`, if any. Other keys are unknown then.
    #[must_use]
    pub fn into_lookup(mut self, key: Option<Fingerprint>) -> Self {
        let found = key.and_then(|key| self.records.remove_entry(&key));
        Self {
            is_partial: true,
            unused: key.filter(|_| found.is_none()),
            ..Self::restore(found)
        }
    }

    /// Adds the keys that are missing here, as newer ones.
    pub fn merge(&mut self, newer: Self) {
        for (key, record) in newer.records {
            if !self.records.contains_key(&key) {
                self.insert(key, record);
            }
        }
    }

    /// Whether it is known if this key was used.
    pub fn covers(&self, key: &Fingerprint) -> bool {
        !self.is_partial || self.unused.as_ref() == Some(key) || self.records.contains_key(key)
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the record of a used key, or `None` for a new one.
    ///
    /// # Errors
    /// [`CoreError::IdempotencyKeyReused`] if the key was used with different content,
    /// [`CoreError::IdempotencyKeyRewound`] if its turns were rewound.
    pub fn find(
        &self,
        key: IdempotencyKey,
        limits: &Limits,
        now: Steady,
    ) -> Result<Option<KeyRecord>, CoreError> {
        match self.records.get(&key.key) {
            Some(record) if now.since(record.at) >= limits.idempotency_ms => Ok(None),
            Some(record) if record.content != key.content => Err(CoreError::IdempotencyKeyReused),
            Some(record) if record.rewound => Err(CoreError::IdempotencyKeyRewound),
            found => Ok(found.copied()),
        }
    }

    /// Stores a key and evicts expired and excess ones.
    pub fn remember(&mut self, key: Fingerprint, record: KeyRecord, limits: &Limits) {
        let now = record.at;
        self.insert(key, record);
        while let Some(&(at, oldest)) = self.order.front() {
            let expired = now.since(at) >= limits.idempotency_ms;
            if !expired && self.order.len() <= limits.idempotency_keys {
                break;
            }
            self.order.pop_front();
            // A key that was used again has a later entry in the order.
            let record = self.records.get(&oldest);
            if record.is_some_and(|record| record.at == at) {
                self.records.remove(&oldest);
            }
        }
    }

    /// Records that the turns of a generation after `after_seq` were rewound.
    pub fn rewind(&mut self, generation: Generation, after_seq: u64) {
        for record in self.records.values_mut() {
            record.rewound |= record.generation == generation && record.has_turn_after(after_seq);
        }
    }

    fn insert(&mut self, key: Fingerprint, record: KeyRecord) {
        self.records.insert(key, record);
        self.order.push_back((record.at, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(content: u8, at: u64) -> KeyRecord {
        KeyRecord {
            content: [content; 16],
            generation: Generation::new(1, 1),
            first_seq: 1,
            last_seq: 2,
            dropped_turns: 0,
            at: Steady(at),
            rewound: false,
        }
    }

    #[test]
    fn key_is_forgotten_by_age_or_count() {
        let limits = Limits {
            idempotency_keys: 2,
            idempotency_ms: 100,
            ..Limits::default()
        };
        let find = |keys: &Keys, key: u8, now: u64| {
            let key = IdempotencyKey {
                key: [key; 16],
                content: [key; 16],
            };
            keys.find(key, &limits, Steady(now)).unwrap().is_some()
        };
        let mut keys = Keys::default();
        for key in 1..=3 {
            keys.remember([key; 16], record(key, u64::from(key)), &limits);
        }
        assert!(!find(&keys, 1, 4), "only the newest two are kept");
        assert!(find(&keys, 2, 4) && find(&keys, 3, 4));
        assert!(!find(&keys, 3, 103), "it has expired");
        assert!(find(&keys, 3, 0), "a clock set back expires no key");
    }

    #[test]
    fn lookup_covers_only_its_key_until_all_are_merged() {
        let all = Keys::restore((1..=3).map(|key| ([key; 16], record(key, u64::from(key)))));
        assert!(all.covers(&[9; 16]), "it is known to be unused");
        let found = all.clone().into_lookup(Some([2; 16]));
        assert!(found.covers(&[2; 16]) && found.len() == 1);
        assert!(!found.covers(&[1; 16]) && !found.covers(&[9; 16]));
        let mut unused = all.clone().into_lookup(Some([9; 16]));
        assert!(unused.covers(&[9; 16]) && unused.is_empty());
        assert!(!all.clone().into_lookup(None).covers(&[1; 16]));
        // A key that was used since is covered, and not lost once all others are read.
        unused.remember([9; 16], record(9, 9), &Limits::default());
        assert!(unused.covers(&[9; 16]));
        let mut read = all;
        read.merge(unused);
        assert!(read.covers(&[7; 16]) && read.len() == 4);
    }

    #[test]
    fn key_with_other_content_is_refused() {
        let limits = Limits::default();
        let mut keys = Keys::default();
        keys.remember([1; 16], record(1, 1), &limits);
        let other = IdempotencyKey {
            key: [1; 16],
            content: [2; 16],
        };
        assert_eq!(
            keys.find(other, &limits, Steady(2)),
            Err(CoreError::IdempotencyKeyReused)
        );
    }
}
