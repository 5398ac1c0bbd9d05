//! Remember: stores a fact as a memory, unless an existing memory already states it.
//!
//! A fact with an external key is never merged. It changes the memory with that key in place, so
//! that the memory keeps its id, and the old version is stored in a separate row as its history.

use std::time::Duration;

use memoird_core::CoreError;
use memoird_core::idempotency::Fingerprint;
use memoird_core::ids::{MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;
use memoird_core::words::deny_alike;
use rusqlite::params;

use super::embedding::Near;
use super::index::Prepared;
use super::reader::MemoryReader;
use super::requests::{Embedding, RememberCommand};
use super::row::{MemoryRow, TEAM, limit, outcome_of, whole};
use super::sql::ColumnType::{Bytes, Whole};
use super::sql::{Insert, Sql, StoreResult};
use super::time::{before, moment, timestamp};
use super::vector_index::Model;
use super::vectors;
use super::writer::MemoryWriter;
use crate::MemoryError;
use crate::requests::RememberOutcome;
use crate::rules::{
    Memory, MemoryLimits, NearDuplicate, Origin, Outcome, Pin, Visibility, wording,
};

/// Time for which a recalled memory that the session repeats is not a new fact.
const ECHO_SPAN: Duration = Duration::from_secs(24 * 60 * 60);
static KEYS: Insert = Insert::new(
    "keys",
    &[
        ("no", Whole),
        ("key", Bytes),
        ("content", Bytes),
        ("memory", Bytes),
        ("outcome", Whole),
        ("at", Whole),
        ("version", Whole),
        ("created", Whole),
    ],
    "",
);
static REMEMBERED: Insert = Insert::new(
    "remembered",
    &[("generation", Bytes), ("session", Bytes), ("seq", Whole)],
    "ON CONFLICT DO NOTHING",
);

/// Condition on the current memory of an owner with an external key.
const OF_KEY: &str = "owner = ? AND external_key = ? AND superseded_by IS NULL";

/// A row of `keys`.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredKey {
    pub(super) key: Fingerprint,
    pub(super) content: Fingerprint,
    /// Id of the memory, or digest of the document's name.
    pub(super) memory: [u8; 16],
    /// 0 for a document.
    pub(super) outcome: u8,
    pub(super) at: Timestamp,
    /// Version and creation time of the document.
    pub(super) document: Option<(u64, Timestamp)>,
}

/// How a memory matches a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alike {
    /// The same text.
    Exact,
    /// The same text except for case, whitespace and final punctuation.
    Spelling,
    /// A similar vector and almost the same words.
    Meaning,
}

impl MemoryWriter<'_> {
    /// Stores a fact as a new memory, or merges it into one that already states it.
    ///
    /// Only a current memory of the same subject, kind, visibility and polarity can state it
    /// already.
    ///
    /// # Errors
    /// A reused idempotency key, [`MemoryError::Duplicate`], [`MemoryError::NotFound`],
    /// [`MemoryError::Superseded`], [`MemoryError::Full`], [`MemoryError::MemoryDamaged`] if the
    /// fact refers to a damaged memory.
    pub fn remember(
        &self,
        command: &RememberCommand,
        limits: &MemoryLimits,
    ) -> StoreResult<RememberOutcome> {
        let prepared = Prepared::new(&command.memory.content);
        self.remember_prepared(command, &prepared, limits)
    }

    /// Like [`Self::remember`], with a prepared text.
    ///
    /// # Errors
    /// As [`MemoryWriter::remember`].
    pub fn remember_prepared(
        &self,
        command: &RememberCommand,
        prepared: &Prepared,
        limits: &MemoryLimits,
    ) -> StoreResult<RememberOutcome> {
        if let Some(earlier) = self.repeated(command, limits)? {
            return Ok(earlier);
        }
        let (memory, outcome) = self.take_fact(command, prepared, limits)?;
        self.keep_key(command, memory.id, outcome, limits)?;
        self.mark_turns(command)?;
        Ok(RememberOutcome {
            memory,
            outcome,
            is_repetition: false,
            redacted: command.redacted,
        })
    }

    fn take_fact(
        &self,
        command: &RememberCommand,
        prepared: &Prepared,
        limits: &MemoryLimits,
    ) -> StoreResult<(Memory, Outcome)> {
        let (fact, at) = (&command.memory, command.at());
        // All rejections come before the first write.
        let vector = match &command.vector {
            None => None,
            Some(vector) => self
                .model_in_use(&vector.model)?
                .map(|model| (model, vector)),
        };
        if let Some((model, vector)) = vector {
            vectors::check(model, vector)?;
        }
        let is_apart =
            command.near_duplicate == NearDuplicate::Apart || fact.external_key.is_some();
        let replaced = match command.supersedes {
            Some(id) => Some(self.replaceable(id, &fact.subject)?),
            None if is_apart => None,
            None => match self.echo(fact)? {
                Some(memory) => return Ok((memory, Outcome::Recalled)),
                None => None,
            },
        };
        let apart = is_apart || command.near_duplicate == NearDuplicate::Keep;
        let replaced_id = replaced.as_ref().map(|row| row.memory.id);
        let named = match &fact.external_key {
            Some(key) => self.by_key(&fact.subject, key)?,
            None => None,
        };
        let alike = if is_apart {
            None
        } else {
            self.said_already(command, prepared.says, vector, replaced_id)?
        };
        if let (Some((was, how)), NearDuplicate::Refuse) = (&alike, command.near_duplicate)
            && *how != Alike::Exact
        {
            return Err(MemoryError::Duplicate { id: was.memory.id });
        }
        let (row, outcome) = match alike {
            None if let Some(was) = named => {
                let row = self.restate(&was, command, vector, limits)?;
                (row, Outcome::Replaced)
            }
            Some((was, Alike::Exact)) => (self.reinforce(&was, command)?, Outcome::Reinforced),
            Some((was, Alike::Spelling)) => {
                self.keep_spelling(&was.memory, command, limits)?;
                (self.reinforce(&was, command)?, Outcome::Merged)
            }
            Some((was, Alike::Meaning)) => {
                let mut memory = fact.clone();
                take_over(&mut memory, &was.memory);
                let row = self.add_with_vector(memory, apart, vector, prepared, limits)?;
                self.supersede(&was, fact.id, at)?;
                (row, Outcome::Merged)
            }
            None => {
                let row = self.add_with_vector(fact.clone(), apart, vector, prepared, limits)?;
                (row, Outcome::Created)
            }
        };
        if let Some(replaced) = replaced.filter(|replaced| replaced.memory.id != row.memory.id) {
            self.supersede(&replaced, row.memory.id, at)?;
        }
        Ok((row.memory, outcome))
    }

    /// Changes a memory in place to the new fact of its external key.
    ///
    /// The old version becomes history.
    fn restate(
        &self,
        was: &MemoryRow,
        command: &RememberCommand,
        vector: Option<(Model, &Embedding)>,
        limits: &MemoryLimits,
    ) -> StoreResult<MemoryRow> {
        let old = &was.memory;
        if old.content != command.memory.content {
            self.add_history(old, command, limits)?;
        }
        let mut row = was.clone();
        row.apart = true;
        row.memory = Memory {
            id: old.id,
            created_at: old.created_at,
            reinforced: old.reinforced,
            recalls: old.recalls,
            recalled_at: old.recalled_at,
            ..command.memory.clone()
        };
        self.save(was, &mut row)?;
        if let Some((model, vector)) = vector {
            self.put_vector(&row, model, vector)?;
        }
        Ok(row)
    }

    /// Stores the old version of a memory as a superseded row.
    fn add_history(
        &self,
        old: &Memory,
        command: &RememberCommand,
        limits: &MemoryLimits,
    ) -> StoreResult<()> {
        let history = Memory {
            id: command.memory.id,
            superseded_by: Some(old.id),
            ..old.clone()
        };
        self.add(history, true, None, command.at(), limits)
            .map(drop)
    }

    /// Stores the old spelling of a memory as a superseded row.
    ///
    /// Each spelling is stored once, so that alternating spellings do not fill up the tenant's
    /// memories.
    fn keep_spelling(
        &self,
        old: &Memory,
        command: &RememberCommand,
        limits: &MemoryLimits,
    ) -> StoreResult<()> {
        let sql = "SELECT 1 FROM memories WHERE superseded_by = ? AND content = ?";
        if self.has(sql, params![old.id.to_bytes(), old.content])? {
            Ok(())
        } else {
            self.add_history(old, command, limits)
        }
    }

    /// The outcome recorded for the idempotency key, if any.
    fn repeated(
        &self,
        command: &RememberCommand,
        limits: &MemoryLimits,
    ) -> StoreResult<Option<RememberOutcome>> {
        let Some(key) = command.key else {
            return Ok(None);
        };
        if self.is_key_unused(key.key) {
            return Ok(None);
        }
        let sql = "SELECT content, memory, outcome, at FROM keys WHERE key = ?";
        let found = self.one(sql, params![key.key], |row| {
            let id = MemoryId::from_bytes(row.get(1)?);
            Ok((
                row.get::<[u8; 16]>(0)?,
                id,
                outcome_of(row.get(2)?),
                timestamp(row.get(3)?),
            ))
        });
        let Some((content, id, outcome, at)) = found? else {
            return Ok(None);
        };
        if at < before(command.at(), limits.idempotency_span) {
            return Ok(None);
        }
        if content != key.content {
            return Err(MemoryError::Core(CoreError::IdempotencyKeyReused));
        }
        let memory = self.get(id)?;
        Ok(memory.map(|memory| RememberOutcome {
            memory,
            outcome,
            is_repetition: true,
            redacted: command.redacted,
        }))
    }

    /// Records the idempotency key of a command, if it has one.
    fn keep_key(
        &self,
        command: &RememberCommand,
        memory: MemoryId,
        outcome: Outcome,
        limits: &MemoryLimits,
    ) -> StoreResult<()> {
        let Some(key) = command.key else {
            return Ok(());
        };
        let record = StoredKey {
            key: key.key,
            content: key.content,
            memory: memory.to_bytes(),
            outcome: outcome as u8,
            at: command.at(),
            document: None,
        };
        self.store_key(&record, limits)
    }

    /// Stores an idempotency key, and has keys pruned that are too old or too many.
    pub(super) fn store_key(&self, stored: &StoredKey, limits: &MemoryLimits) -> StoreResult<()> {
        if !self.is_key_unused(stored.key) {
            self.run("DELETE FROM keys WHERE key = ?", params![stored.key])?;
        }
        let row = params![
            self.next_key(stored.key, stored.at, limits)?,
            stored.key,
            stored.content,
            stored.memory,
            stored.outcome,
            moment(stored.at),
            stored.document.map(|(version, _)| whole(version)),
            stored.document.map(|(_, created)| moment(created))
        ];
        self.connection.insert(&KEYS, row)
    }

    /// Records the turns from which the bot itself remembered a fact.
    fn mark_turns(&self, command: &RememberCommand) -> StoreResult<()> {
        let (Origin::Bot, Some(source)) = (command.memory.origin, &command.memory.source) else {
            return Ok(());
        };
        let Some(generation) = source.generation else {
            return Ok(());
        };
        let session = self.digest(source.session.as_str())?;
        for seq in source.seqs.iter().copied().chain(command.at_seq) {
            let row = params![generation.to_bytes(), session, whole(seq)];
            self.connection.insert(&REMEMBERED, row)?;
        }
        Ok(())
    }

    /// Returns the memory that is to be superseded.
    fn replaceable(&self, id: MemoryId, subject: &Subject) -> StoreResult<MemoryRow> {
        match MemoryRow::by_id(self, id)? {
            Some(row) if row.memory.subject == *subject => match row.memory.superseded_by {
                None => Ok(row),
                Some(by) => Err(MemoryError::Superseded { id, by }),
            },
            _ => Err(MemoryError::NotFound { id }),
        }
    }

    /// Returns a memory recently shown to this session, if the fact repeats it or a part of it.
    ///
    /// The memory belongs to the fact's subject or to the team.
    fn echo(&self, fact: &Memory) -> StoreResult<Option<Memory>> {
        let Some(source) = &fact.source else {
            return Ok(None);
        };
        let recalled = self.echoes(&source.session, &fact.subject, fact.updated_at)?;
        if recalled.is_empty() {
            return Ok(None);
        }
        for (id, content) in recalled {
            // A part without its negation states the opposite. A memory superseded since does not
            // count.
            let is_echo = content == fact.content
                || wording::is_piece(&fact.content, &content)
                    && deny_alike(&content, &fact.content);
            let is_of_its_kind = |memory: &Memory| {
                memory.is_current(fact.updated_at)
                    && memory.kind == fact.kind
                    && memory.polarity == fact.polarity
            };
            if is_echo
                && let Some(row) = MemoryRow::whole(self, id)?
                && is_of_its_kind(&row.memory)
            {
                return Ok(Some(row.memory));
            }
        }
        Ok(None)
    }

    /// Returns the current memory that states the same as a fact.
    ///
    /// A memory that the fact is to supersede only counts if its text is identical.
    fn said_already(
        &self,
        command: &RememberCommand,
        says: i64,
        vector: Option<(Model, &Embedding)>,
        replaced: Option<MemoryId>,
    ) -> StoreResult<Option<(MemoryRow, Alike)>> {
        let fact = &command.memory;
        let Some(owner) = self.partition(&fact.subject)? else {
            return Ok(None);
        };
        // Do not scan all memories of the owner in order of id.
        let plus = self.connection.unindexed();
        let rest = format!(
            "WHERE owner = ? AND says = ? AND superseded_by IS NULL ORDER BY {plus}id DESC"
        );
        let says_the_same = if self.batch.borrow().is_unsaid(&fact.subject, says) {
            Vec::new()
        } else {
            MemoryRow::all(self, &rest, params![owner, says])?
        };
        let mut alike = None;
        for row in says_the_same {
            if !is_of_one_kind(&row.memory, fact) || row.memory.external_key.is_some() {
                continue;
            }
            if row.memory.content == fact.content {
                return Ok(Some((row, Alike::Exact)));
            }
            let is_alike = wording::same(&row.memory.content, &fact.content);
            if is_alike && alike.is_none() && replaced != Some(row.memory.id) {
                alike = Some((row, Alike::Spelling));
            }
        }
        if command.near_duplicate == NearDuplicate::Keep {
            return Ok(None);
        }
        if alike.is_some() {
            return Ok(alike);
        }
        let Some((model, vector)) = vector else {
            return Ok(None);
        };
        let partition = match fact.visibility {
            Visibility::Private => owner,
            Visibility::Team => TEAM,
        };
        let search = Near {
            model,
            partition,
            kind: fact.kind,
            values: &vector.values,
            cosine_min: command.cosine_min,
            now: command.at(),
        };
        let near = self.near(&search, |row| {
            row.owner == owner
                && replaced != Some(row.memory.id)
                && row.memory.external_key.is_none()
                && is_of_one_kind(&row.memory, fact)
                && wording::is_near(&row.memory.content, &fact.content)
        })?;
        Ok(near.map(|row| (row, Alike::Meaning)))
    }

    fn reinforce(&self, was: &MemoryRow, command: &RememberCommand) -> StoreResult<MemoryRow> {
        let mut row = was.clone();
        row.memory.content.clone_from(&command.memory.content);
        row.memory.reinforced = row.memory.reinforced.saturating_add(1);
        row.memory.updated_at = command.at();
        unite(&mut row.memory, &command.memory);
        if let Some(metadata) = &command.memory.metadata {
            row.memory.metadata = Some(metadata.clone());
        }
        self.save(was, &mut row)?;
        Ok(row)
    }

    /// Stores a memory, with the vector that came with the fact if its model is in use.
    fn add_with_vector(
        &self,
        memory: Memory,
        apart: bool,
        vector: Option<(Model, &Embedding)>,
        prepared: &Prepared,
        limits: &MemoryLimits,
    ) -> StoreResult<MemoryRow> {
        let at = memory.updated_at;
        let row = self.add(memory, apart, Some(prepared), at, limits)?;
        if let Some((model, vector)) = vector {
            self.put_vector(&row, model, vector)?;
        }
        Ok(row)
    }
}

impl MemoryReader<'_> {
    /// Returns the current memory of a subject with this external key, even if it has expired.
    ///
    /// # Errors
    /// [`MemoryError::MemoryDamaged`].
    pub fn named(&self, subject: &Subject, key: &str) -> StoreResult<Option<Memory>> {
        Ok(self.by_key(subject, key)?.map(|row| row.memory))
    }

    fn by_key(&self, subject: &Subject, key: &str) -> StoreResult<Option<MemoryRow>> {
        let Some(owner) = self.partition(subject)? else {
            return Ok(None);
        };
        MemoryRow::find(self, &format!("WHERE {OF_KEY}"), params![owner, key])
    }

    /// Id of the current memory of a subject with this external key, even if it is damaged.
    pub(super) fn holder(&self, subject: &Subject, key: &str) -> StoreResult<Option<MemoryId>> {
        let Some(owner) = self.partition(subject)? else {
            return Ok(None);
        };
        let sql = format!("SELECT id FROM memories WHERE {OF_KEY}");
        let id: Option<[u8; 16]> = self.value(&sql, params![owner, key])?;
        Ok(id.map(MemoryId::from_bytes))
    }

    /// Memories that a session recalled in the last 24 hours, newest first.
    ///
    /// Only those of the subject and of the team.
    pub fn echoes(
        &self,
        session: &SessionId,
        subject: &Subject,
        now: Timestamp,
    ) -> StoreResult<Vec<(MemoryId, String)>> {
        // Read more hits than memories, because the same memory is often recalled repeatedly.
        let sql = "SELECT id, content FROM memories JOIN (
                SELECT memory, max(no) AS told FROM (
                    SELECT memory, no FROM recall_events WHERE session = ?1 AND at >= ?2
                    ORDER BY no DESC LIMIT 4 * ?3
                ) AS recent GROUP BY memory ORDER BY told DESC LIMIT ?3
            ) AS told ON memories.id = told.memory
            WHERE owner IN (SELECT no FROM partitions) AND (owner = ?4 OR partition = ?5)
            ORDER BY told DESC";
        let session = self.digest(session.as_str())?;
        let since = moment(before(now, ECHO_SPAN));
        let owner = self.partition(subject)?.unwrap_or(TEAM);
        let parameters = params![session, since, limit(MemoryLimits::ECHOES), owner, TEAM];
        let found = self.all(sql, parameters, |row| {
            let id = MemoryId::from_bytes(row.get(0)?);
            // A damaged text is compared with nothing.
            Ok((id, row.get(1).unwrap_or_default()))
        })?;
        Ok(found)
    }
}

/// Whether a memory's properties agree with a fact's, so that their texts may be compared.
fn is_of_one_kind(memory: &Memory, fact: &Memory) -> bool {
    memory.is_current(fact.updated_at)
        && memory.kind == fact.kind
        && memory.visibility == fact.visibility
        && memory.polarity == fact.polarity
}

/// Merges an older memory that states the same into its replacement.
pub(super) fn take_over(newer: &mut Memory, older: &Memory) {
    let older_says = older.reinforced.saturating_add(1);
    newer.reinforced = newer.reinforced.saturating_add(older_says);
    newer.metadata = newer.metadata.take().or_else(|| older.metadata.clone());
    unite(newer, older);
}

/// Merges tags, importance, times and pin of two memories that state the same.
fn unite(memory: &mut Memory, other: &Memory) {
    for tag in &other.tags {
        if memory.tags.len() < MemoryLimits::TAGS && !memory.tags.contains(tag) {
            memory.tags.push(tag.clone());
        }
    }
    memory.tags.sort_unstable();
    memory.importance = memory.importance.max(other.importance);
    memory.observed_at = memory.observed_at.max(other.observed_at);
    memory.expires_at = match (memory.expires_at, other.expires_at) {
        (Some(one), Some(other)) => Some(one.max(other)),
        _ => None,
    };
    memory.pin = match (memory.pin, other.pin) {
        (Some(Pin::Bot), _) | (_, Some(Pin::Bot)) => Some(Pin::Bot),
        (one, other) => one.or(other),
    };
}
