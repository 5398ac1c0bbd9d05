//! Appends that may be said twice and are done once.
//!
//! Keys belong to the session id, not to a generation: a bot that repeats an append
//! after the session ended must not start another life with it.

use std::collections::{BTreeMap, VecDeque};

use crate::sha256::Sha256;

use crate::error::CoreError;
use crate::ids::Generation;
use crate::limits::Limits;
use crate::time::Steady;

/// A digest: of a key, or of the content it stands for.
pub type Fingerprint = [u8; 16];

/// The digest of some texts, each with its length, so that their borders count: the first 16
/// bytes of a SHA-256.
pub fn fingerprint<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> Fingerprint {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    let digest = hasher.finalize();
    std::array::from_fn(|index| digest[index])
}

/// The idempotency key of a command, and the digest of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Digest of the key.
    pub key: Fingerprint,
    /// Digest of the append's content.
    pub content: Fingerprint,
}

/// What an append did, kept so that its repetition gets the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// Digest of the append's content.
    pub content: Fingerprint,
    /// The generation that took it.
    pub generation: Generation,
    /// Its first turn.
    pub first_seq: u64,
    /// Its last turn.
    pub last_seq: u64,
    /// Turns that left to make room.
    pub dropped_turns: u64,
    /// When it was done.
    pub at: Steady,
    /// True once a rewind took one of its turns away.
    pub rewound: bool,
}

impl KeyRecord {
    /// True when it took a turn after this one.
    pub fn has_turn_after(&self, seq: u64) -> bool {
        self.first_seq <= self.last_seq && self.last_seq > seq
    }
}

/// The keys of one session, newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    records: BTreeMap<Fingerprint, KeyRecord>,
    order: VecDeque<(Steady, Fingerprint)>,
}

impl Keys {
    /// The keys that a store remembers, oldest first.
    pub fn restore(records: impl IntoIterator<Item = (Fingerprint, KeyRecord)>) -> Self {
        let mut keys = Self::default();
        for (key, record) in records {
            keys.insert(key, record);
        }
        keys
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The record of a key that was used before; `None` for a new one.
    ///
    /// # Errors
    /// [`CoreError::IdempotencyKeyReused`] when it stood for other content,
    /// [`CoreError::IdempotencyKeyRewound`] when its turns are not there any more.
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

    /// Remembers a key and forgets those that are too old or too many.
    pub fn remember(&mut self, key: Fingerprint, record: KeyRecord, limits: &Limits) {
        let now = record.at;
        self.insert(key, record);
        while let Some(&(at, oldest)) = self.order.front() {
            let expired = now.since(at) >= limits.idempotency_ms;
            if !expired && self.order.len() <= limits.idempotency_keys {
                break;
            }
            self.order.pop_front();
            // A key that was used anew has a younger place in the order.
            let record = self.records.get(&oldest);
            if record.is_some_and(|record| record.at == at) {
                self.records.remove(&oldest);
            }
        }
    }

    /// Notes that the turns of a generation after this one were rewound.
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
    fn a_key_is_known_for_its_time_and_among_the_newest() {
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
        assert!(!find(&keys, 1, 4), "the newest two are kept");
        assert!(find(&keys, 2, 4) && find(&keys, 3, 4));
        assert!(!find(&keys, 3, 103), "its time is over");
        assert!(find(&keys, 3, 0), "a clock that went back does not forget");
    }

    #[test]
    fn a_key_for_other_content_is_refused() {
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
