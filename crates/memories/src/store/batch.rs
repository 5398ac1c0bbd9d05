//! State that the jobs of one transaction share.
//!
//! The transaction excludes all other writers of the tenant. So counters are read once, counted in
//! memory, and written at its end. What is known to be missing need not be looked up again.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use memoird_core::ids::Subject;
use memoird_core::time::Timestamp;
use rusqlite::params;

use super::Prepared;
use super::index::{self, Pending};
use super::reader::MemoryReader;
use super::requests::RememberCommand;
use super::row::{LOCAL_BITS, PARTITIONS, find_partition, limit, whole};
use super::sql::{Connection, Row, Sql, StoreResult};
use super::time::{before, moment};
use super::vectors::CLIENTS;
use super::writer::MemoryWriter;
use crate::MemoryError;
use crate::rules::MemoryLimits;

/// Maximum idempotency keys to delete per new one.
///
/// More than one, so that the table shrinks after its limits were lowered.
const KEYS_PRUNED: usize = 4;

/// The next number, before it is read.
const UNKNOWN: i64 = -1;

/// What a fact looks up. All facts of a transaction are looked up at once.
#[derive(Clone, Debug)]
pub struct FactLookup {
    pub(super) subject: Subject,
    pub(super) says: i64,
    pub(super) key: Option<[u8; 16]>,
}

/// Result of a [`FactLookup`].
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundFact {
    pub(super) partition: Option<Partition>,
    /// Whether the subject has a current memory with the same digest.
    pub(super) is_said: bool,
    pub(super) is_key_used: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) no: i64,
    /// The next number in it.
    pub(super) next: i64,
}

/// The row of `state`.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    memories: i64,
    born: i64,
    next_partition: i64,
}

/// Idempotency keys that were written.
#[derive(Clone, Copy, Debug)]
struct Keys {
    written: usize,
    /// Older keys are pruned.
    since: i64,
    count_max: u64,
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) index: Pending,
    /// `state` as of the last flush, and now.
    counts: Option<(Counts, Counts)>,
    /// Partitions by number, with the stored next number.
    numbered: HashMap<i64, (i64, Partition)>,
    partitions: HashMap<Subject, i64>,
    /// Subjects of partitions created by these jobs, in order.
    created: Vec<Subject>,
    /// Subjects without a partition.
    absent: HashSet<Subject>,
    /// Subjects with digests of texts that no current memory of theirs has.
    unsaid: HashSet<(Subject, i64)>,
    unused_keys: HashSet<[u8; 16]>,
    last_key: Option<i64>,
    keys: Option<Keys>,
    /// Whether texts are queued for embedding.
    embeds: Option<bool>,
}

/// A position in a [`Batch`] to roll back to.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchMark {
    index: index::Savepoint,
    counts: Option<(Counts, Counts)>,
    created: usize,
    keys: Option<Keys>,
}

impl FactLookup {
    pub fn new(command: &RememberCommand, prepared: &Prepared) -> Self {
        Self {
            subject: command.memory.subject.clone(),
            says: prepared.says,
            key: command.key.map(|key| key.key),
        }
    }
}

impl Batch {
    /// Caches the result of a lookup.
    pub(super) fn note(&mut self, facts: &[FactLookup], found: &[FoundFact]) {
        for (fact, found) in facts.iter().zip(found) {
            match found.partition {
                Some(partition) => {
                    self.partitions.insert(fact.subject.clone(), partition.no);
                    self.numbered
                        .insert(partition.no, (partition.next, partition));
                }
                None => {
                    self.absent.insert(fact.subject.clone());
                }
            }
            if !found.is_said {
                self.unsaid.insert((fact.subject.clone(), fact.says));
            }
            self.unused_keys
                .extend(fact.key.filter(|_| !found.is_key_used));
        }
    }

    pub(super) fn mark(&self) -> BatchMark {
        BatchMark {
            index: self.index.mark(),
            counts: self.counts,
            created: self.created.len(),
            keys: self.keys,
        }
    }

    /// Restores an earlier state. The caller rolls back the writes since then.
    pub(super) fn reset(&mut self, mark: BatchMark) {
        self.index.reset(mark.index);
        self.counts = mark.counts;
        // A flush since then was rolled back too.
        for (stored, _) in self.numbered.values_mut() {
            *stored = UNKNOWN;
        }
        for subject in self.created.drain(mark.created..) {
            if let Some(no) = self.partitions.remove(&subject) {
                self.numbered.remove(&no);
            }
        }
        self.keys = mark.keys;
    }

    /// Discards the cached rows of a subject.
    pub(super) fn forget(&mut self, subject: &Subject) {
        if let Some(no) = self.partitions.remove(subject) {
            self.numbered.remove(&no);
        }
    }

    /// Notes that a subject has a current memory with this digest.
    pub(super) fn note_said(&mut self, subject: &Subject, says: impl FnOnce() -> i64) {
        if !self.unsaid.is_empty() {
            self.unsaid.remove(&(subject.clone(), says()));
        }
    }

    /// Whether no current memory of the subject has this digest. `false` if that is unknown.
    pub(super) fn is_unsaid(&self, subject: &Subject, says: i64) -> bool {
        !self.unsaid.is_empty() && self.unsaid.contains(&(subject.clone(), says))
    }

    /// Forgets whether texts are queued for embedding.
    pub(super) fn forget_model(&mut self) {
        self.embeds = None;
    }

    /// Forgets which digests no memory has.
    pub(super) fn forget_unsaid(&mut self) {
        self.unsaid.clear();
    }

    fn counts(&mut self, connection: Connection<'_>) -> StoreResult<&mut Counts> {
        if self.counts.is_none() {
            let sql = "SELECT memories, born, next_partition FROM state";
            let read = |row: &Row<'_>| {
                Ok(Counts {
                    memories: row.get(0)?,
                    born: row.get(1)?,
                    next_partition: row.get(2)?,
                })
            };
            let stored = connection.one(sql, &[], read)?;
            let stored = stored.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
            self.counts = Some((stored, stored));
        }
        let counts = self.counts.as_mut().map(|(_, now)| now);
        counts.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
    }

    /// Writes all index changes, counters and pruned keys.
    pub(super) fn finish(&mut self, connection: Connection<'_>) -> StoreResult<()> {
        self.index.apply(connection)?;
        self.flush(connection)?;
        let Some(keys) = self.keys.take() else {
            return Ok(());
        };
        let prune = "DELETE FROM keys WHERE no IN (SELECT no FROM keys ORDER BY no LIMIT ?1)
                     AND (at < ?2 OR no <= (SELECT max(no) FROM keys) - ?3)";
        let pruned_max = limit(keys.written.saturating_mul(KEYS_PRUNED));
        let parameters = params![pruned_max, keys.since, whole(keys.count_max)];
        connection.run(prune, parameters)
    }

    /// Writes the counters, so that statements can read them.
    pub(super) fn flush(&mut self, connection: Connection<'_>) -> StoreResult<()> {
        if let Some((stored, now)) = &mut self.counts {
            let more = [
                now.memories - stored.memories,
                now.born - stored.born,
                now.next_partition - stored.next_partition,
            ];
            if more != [0; 3] {
                let sql = "UPDATE state SET memories = memories + ?, born = born + ?,
                    next_partition = next_partition + ?";
                connection.run(sql, params![more[0], more[1], more[2]])?;
                *stored = *now;
            }
        }
        let mut moved = Vec::new();
        for (stored, partition) in self.numbered.values_mut() {
            if *stored != partition.next {
                *stored = partition.next;
                moved.push(*partition);
            }
        }
        moved.sort_unstable_by_key(|partition| partition.no);
        connection.set_next(&moved)
    }
}

impl MemoryReader<'_> {
    /// Returns the partition of a subject, if it has one.
    pub(super) fn partition(&self, subject: &Subject) -> StoreResult<Option<i64>> {
        if let Some(batch) = self.batch {
            let batch = batch.borrow();
            let known = batch.partitions.get(subject).copied();
            if known.is_some() || batch.absent.contains(subject) {
                return Ok(known);
            }
        }
        find_partition(self.connection, subject)
    }

    /// Writes this transaction's counters, so that statements can read them.
    pub(super) fn settle_counts(&self) -> StoreResult<()> {
        self.batch
            .map_or(Ok(()), |batch| batch.borrow_mut().flush(self.connection))
    }
}

impl MemoryWriter<'_> {
    /// Returns the partition of a subject, creating it if needed.
    pub(super) fn make_partition(&self, subject: &Subject) -> StoreResult<i64> {
        if let Some(partition) = self.partition(subject)? {
            return Ok(partition);
        }
        let mut batch = self.batch.borrow_mut();
        let counts = batch.counts(self.connection)?;
        let no = counts.next_partition;
        counts.next_partition += 1;
        let created = Partition { no, next: 1 };
        batch.created.push(subject.clone());
        batch.absent.remove(subject);
        batch.partitions.insert(subject.clone(), no);
        batch.numbered.insert(no, (created.next, created));
        drop(batch);
        let row = params![no, subject.as_str(), created.next];
        self.connection.insert(&PARTITIONS, row)?;
        Ok(no)
    }

    /// Allocates a number in this partition that was never used.
    pub(super) fn next_no(&self, partition: i64) -> StoreResult<i64> {
        let mut batch = self.batch.borrow_mut();
        let (_, numbered) = match batch.numbered.entry(partition) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let sql = "SELECT next FROM partitions WHERE no = ?";
                let next = self.number(sql, params![partition])?;
                let no = partition;
                unknown.insert((next, Partition { no, next }))
            }
        };
        let local = numbered.next;
        numbered.next += 1;
        Ok((partition << LOCAL_BITS) | local)
    }

    /// Counts a memory that is about to be inserted. Returns its `born`.
    ///
    /// # Errors
    /// [`MemoryError::Full`].
    pub(super) fn count_birth(&self, limits: &MemoryLimits) -> StoreResult<i64> {
        let mut batch = self.batch.borrow_mut();
        let counts = batch.counts(self.connection)?;
        if counts.memories >= whole(limits.memories) {
            return Err(MemoryError::Full {
                limit: limits.memories,
            });
        }
        counts.memories += 1;
        counts.born += 1;
        Ok(counts.born)
    }

    /// Whether a model is in use for which texts are queued.
    pub(super) fn embeds(&self) -> StoreResult<bool> {
        if let Some(embeds) = self.batch.borrow().embeds {
            return Ok(embeds);
        }
        let embeds = self.connection.stores_vectors()
            && self
                .embedding_model()?
                .is_some_and(|model| model != CLIENTS);
        self.batch.borrow_mut().embeds = Some(embeds);
        Ok(embeds)
    }

    /// Counts a deleted memory.
    pub(super) fn count_death(&self) -> StoreResult<()> {
        let mut batch = self.batch.borrow_mut();
        batch.counts(self.connection)?.memories -= 1;
        Ok(())
    }

    /// Whether this idempotency key is not stored. `false` if that is unknown.
    pub(super) fn is_key_unused(&self, key: [u8; 16]) -> bool {
        self.batch.borrow().unused_keys.contains(&key)
    }

    /// Allocates the number of an idempotency key, and has old keys pruned.
    pub(super) fn next_key(
        &self,
        key: [u8; 16],
        at: Timestamp,
        limits: &MemoryLimits,
    ) -> StoreResult<i64> {
        let mut batch = self.batch.borrow_mut();
        let last = match batch.last_key {
            Some(last) => last,
            None => self.number("SELECT coalesce(max(no), 0) FROM keys", &[])?,
        };
        batch.unused_keys.remove(&key);
        batch.last_key = Some(last + 1);
        batch.keys = Some(Keys {
            written: batch.keys.map_or(0, |keys| keys.written) + 1,
            since: moment(before(at, limits.idempotency_span)),
            count_max: limits.idempotency_keys,
        });
        Ok(last + 1)
    }
}
