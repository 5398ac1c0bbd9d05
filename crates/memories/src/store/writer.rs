//! Writes to a tenant's memories, within the transaction of a job.
//!
//! All inserts, changes and deletions of memories go through this module, which keeps every index
//! up to date.

use std::cell::RefCell;
use std::ops::Deref;
use std::path::Path;

use memoird_core::ids::MemoryId;
use memoird_core::sha256::Sha256;
use memoird_core::time::Timestamp;
use rusqlite::{ToSql, params};

use super::batch::Batch;
use super::checksum::DamageLog;
use super::index::Prepared;
use super::places;
use super::reader::MemoryReader;
use super::requests::Embedding;
use super::row::{MemoryRow, content_hash, limit};
use super::sql::ColumnType::{Bytes, Whole};
use super::sql::{Connection, Insert, Parameters, Row, Sql, StoreResult};
use super::time::moment;
use super::vector_index::{FilterColumns, Model};
use super::vectors::{self, CLIENTS};
use crate::requests::ForgetOutcome;
use crate::rules::{Memory, MemoryLimits};

static TAGS: Insert = Insert::new(
    "tags",
    &[("tag", Bytes), ("no", Whole)],
    "ON CONFLICT DO NOTHING",
);
/// Texts to be embedded.
static DUE: Insert = Insert::new(
    "embeddings_due",
    &[
        ("no", Whole),
        ("due", Whole),
        ("tries", Whole),
        ("failed", Whole),
        ("problem", Bytes),
    ],
    "ON CONFLICT DO NOTHING",
);

/// The transaction of a job. Reads see its own writes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryWriter<'a> {
    reader: MemoryReader<'a>,
    pub(super) batch: &'a RefCell<Batch>,
}

/// The columns of a memory that are needed to delete it.
#[derive(Debug)]
pub(super) struct DeletionRow {
    pub(super) no: i64,
    pub(super) id: MemoryId,
    pub(super) is_history: bool,
    content: String,
}

impl<'a> Deref for MemoryWriter<'a> {
    type Target = MemoryReader<'a>;

    fn deref(&self) -> &MemoryReader<'a> {
        &self.reader
    }
}

impl<'a> MemoryWriter<'a> {
    pub(super) fn new(
        connection: Connection<'a>,
        batch: &'a RefCell<Batch>,
        damage: &'a DamageLog,
        path: Option<&'a Path>,
    ) -> Self {
        Self {
            reader: MemoryReader::new(connection, Some(batch), damage, path),
            batch,
        }
    }

    /// Inserts a memory into all indexes, and queues it for embedding from `at` on.
    ///
    /// A memory that is `apart` is never merged with another one.
    pub(super) fn add(
        &self,
        memory: Memory,
        apart: bool,
        prepared: Option<&Prepared>,
        at: Timestamp,
        limits: &MemoryLimits,
    ) -> StoreResult<MemoryRow> {
        let born = self.count_birth(limits)?;
        let owner = self.make_partition(&memory.subject)?;
        let mut row = MemoryRow {
            no: 0,
            owner,
            born,
            revision: 1,
            pin_changed: None,
            apart,
            memory,
        };
        row.no = self.next_no(row.partition())?;
        let text = &row.memory.content;
        let says = prepared.map_or_else(|| content_hash(text), |prepared| prepared.says);
        row.insert(self.connection, says)?;
        self.note_said(&row);
        self.add_tags(&row)?;
        if row.memory.superseded_by.is_none() {
            let words = prepared.map(|prepared| prepared.words.clone());
            self.batch
                .borrow_mut()
                .index
                .add(row.no, &row.memory.content, words);
            self.add_places(&row)?;
            // A new number has no vector.
            if self.embeds()? {
                self.connection
                    .insert(&DUE, params![row.no, moment(at), 0, 0, ""])?;
            }
        }
        Ok(row)
    }

    fn note_said(&self, row: &MemoryRow) {
        let (mut batch, memory) = (self.batch.borrow_mut(), &row.memory);
        batch.note_said(&memory.subject, || content_hash(&memory.content));
    }

    /// Writes a changed memory, and updates all indexes.
    pub(super) fn save(&self, was: &MemoryRow, row: &mut MemoryRow) -> StoreResult<()> {
        let (old, new) = (&was.memory, &row.memory);
        let has_other_text = old.content != new.content;
        if was.partition() != row.partition() {
            row.no = self.next_no(row.partition())?;
        }
        if has_other_text {
            row.revision += 1;
        }
        if old.pin != new.pin {
            row.pin_changed = Some(moment(new.updated_at));
        }
        row.replace(self.connection, was.no)?;
        self.note_said(row);
        let is_moved = was.no != row.no;
        if is_moved || old.tags != new.tags {
            self.remove_tags(was.no, &old.tags)?;
            self.add_tags(row)?;
        }
        let (was_current, is_current) = (old.superseded_by.is_none(), new.superseded_by.is_none());
        let is_elsewhere = is_moved || has_other_text || was_current != is_current;
        if was_current && is_elsewhere {
            self.batch.borrow_mut().index.remove(was.no, &old.content);
        }
        if is_current && is_elsewhere {
            self.batch
                .borrow_mut()
                .index
                .add(row.no, &new.content, None);
        }
        if is_moved || was_current != is_current || old.source != new.source {
            places::remove(self.connection, was.no)?;
            if is_current {
                self.add_places(row)?;
            }
        }
        if has_other_text || !is_current {
            self.connection.remove_vector(was.no)?;
            self.dequeue(was.no)?;
        } else {
            if is_moved || FilterColumns::new(old) != FilterColumns::new(new) {
                self.connection
                    .move_vector(was.no, row.no, FilterColumns::new(new))?;
            }
            if is_moved {
                self.dequeue(was.no)?;
            }
        }
        // A memory that moves may leave the range that a backfill has yet to visit.
        if is_current && is_elsewhere {
            self.enqueue(row.no, new.updated_at)
        } else {
            Ok(())
        }
    }

    /// Makes a memory history.
    pub(super) fn supersede(
        &self,
        was: &MemoryRow,
        by: MemoryId,
        at: Timestamp,
    ) -> StoreResult<()> {
        let mut row = was.clone();
        row.memory.superseded_by = Some(by);
        row.memory.updated_at = at;
        self.save(was, &mut row)
    }

    /// Deletes a memory from all tables, and counts the deleted rows.
    pub(super) fn erase(
        &self,
        doomed: &DeletionRow,
        counts: &mut ForgetOutcome,
    ) -> StoreResult<()> {
        let no = doomed.no;
        if doomed.is_history {
            counts.superseded += 1;
        } else {
            counts.memories += 1;
            self.batch.borrow_mut().index.remove(no, &doomed.content);
        }
        places::remove(self.connection, no)?;
        counts.vectors += u64::from(self.connection.remove_vector(no)?);
        counts.queued_embeddings += self.dequeue(no)?;
        let change = |sql: &str, parameter: &dyn ToSql| -> StoreResult<u64> {
            Ok(self.change(sql, params![parameter])? as u64)
        };
        let id = doomed.id.to_bytes();
        counts.recall_events += change("DELETE FROM recall_events WHERE memory = ?", &id)?;
        change("DELETE FROM keys WHERE memory = ?", &id)?;
        let sql = "SELECT tags FROM memories WHERE no = ?";
        let tags: Option<Option<Vec<u8>>> = self.value(sql, params![no])?;
        let tags = tags
            .flatten()
            .and_then(|packed| super::row::unpack_tags(&packed))
            .unwrap_or_default();
        self.remove_tags(no, &tags)?;
        change("DELETE FROM memories WHERE no = ?", &no)?;
        self.count_death()
    }

    /// Deletes a memory after the versions that it superseded.
    ///
    /// Changes at most `left` rows, and subtracts their number from it. Returns `false` if that is
    /// not enough.
    pub(super) fn erase_chain(
        &self,
        doomed: &DeletionRow,
        left: &mut usize,
        counts: &mut ForgetOutcome,
    ) -> StoreResult<bool> {
        // An imported chain may be circular.
        let leads_to = "superseded_by = ? AND id <> ? LIMIT ?";
        let id = doomed.id.to_bytes();
        while *left > 0 {
            let history = self.doomed(leads_to, params![id, id, limit(*left)])?;
            if history.is_empty() {
                if self.is_stored(doomed.no)? {
                    self.erase(doomed, counts)?;
                    *left -= 1;
                }
                return Ok(true);
            }
            for older in history {
                // Attach its predecessors to the memory first, so that they are not lost when it is
                // deleted.
                let next = self.doomed(leads_to, params![older.id.to_bytes(), id, limit(*left)])?;
                for oldest in &next {
                    self.attach(oldest, doomed.id)?;
                }
                *left -= next.len();
                if *left == 0 {
                    return Ok(false);
                }
                self.erase(&older, counts)?;
                *left -= 1;
            }
        }
        Ok(false)
    }

    /// Marks a memory that is about to be deleted as superseded by another one.
    fn attach(&self, doomed: &DeletionRow, by: MemoryId) -> StoreResult<()> {
        if let Some(mut row) = MemoryRow::by_no(self, doomed.no)? {
            row.memory.superseded_by = Some(by);
            return row.replace(self.connection, row.no);
        }
        // It has no owner anymore, or is damaged: no call returns it.
        let sql = "UPDATE memories SET superseded_by = ? WHERE no = ?";
        self.run(sql, params![by.to_bytes(), doomed.no])
    }

    /// Queues a text for embedding, unless it already has a vector of the model in use.
    pub(super) fn enqueue(&self, no: i64, at: Timestamp) -> StoreResult<()> {
        if !self.connection.stores_vectors() {
            return Ok(());
        }
        let sql = "INSERT INTO embeddings_due (no, due, tries, failed, problem)
            SELECT ?1, ?2, 0, 0, '' FROM meta
            JOIN models ON models.name = meta.value WHERE meta.name = 'embedding_model'
            AND meta.value <> ?3 AND NOT EXISTS (SELECT 1 FROM vectors WHERE no = ?1 AND model = models.no)
            ON CONFLICT DO NOTHING";
        self.run(sql, params![no, moment(at), CLIENTS])
    }

    /// Stores the vector of a memory, which then needs no embedding.
    pub(super) fn put_vector(
        &self,
        row: &MemoryRow,
        model: Model,
        vector: &Embedding,
    ) -> StoreResult<()> {
        let columns = FilterColumns::new(&row.memory);
        vectors::put(self.connection, row.no, model, columns, vector)?;
        self.dequeue(row.no).map(drop)
    }

    pub(super) fn dequeue(&self, no: i64) -> StoreResult<u64> {
        let sql = "DELETE FROM embeddings_due WHERE no = ?";
        Ok(self.change(sql, params![no])? as u64)
    }

    pub(super) fn set_meta(&self, name: &str, value: impl ToSql) -> StoreResult<()> {
        let sql = "INSERT INTO meta (name, value) VALUES (?, ?)
                   ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        self.run(sql, params![name, self.connection.any(&value)?])
    }

    pub(super) fn remove_meta(&self, name: &str) -> StoreResult<()> {
        self.run("DELETE FROM meta WHERE name = ?", params![name])
    }

    /// Merges segments of the word index if there are many.
    ///
    /// Writes at most about `pages` pages of 512 bytes. Returns `false` if there is nothing left to
    /// merge.
    pub fn merge_words_step(&self, pages: usize) -> StoreResult<bool> {
        self.connection.merge_words(pages)
    }

    fn add_tags(&self, row: &MemoryRow) -> StoreResult<()> {
        for tag in &row.memory.tags {
            self.connection.insert(&TAGS, params![tag, row.no])?;
        }
        Ok(())
    }

    fn remove_tags(&self, no: i64, tags: &[String]) -> StoreResult<()> {
        let sql = "DELETE FROM tags WHERE tag = ? AND no = ?";
        for tag in tags {
            self.run(sql, params![tag, no])?;
        }
        Ok(())
    }

    fn is_stored(&self, no: i64) -> StoreResult<bool> {
        self.has("SELECT 1 FROM memories WHERE no = ?", params![no])
    }
}

/// Reads the columns of [`MemoryReader::doomed`].
fn read_doomed(row: &Row<'_>) -> rusqlite::Result<DeletionRow> {
    Ok(DeletionRow {
        no: row.get(0)?,
        id: MemoryId::from_bytes(row.get(1)?),
        is_history: row.get(2)?,
        // A damaged text must not keep it from being deleted.
        content: String::from_utf8_lossy(row.bytes_of_text(3)?).into_owned(),
    })
}

const DOOMED: &str = "SELECT no, id, superseded_by IS NOT NULL, content FROM memories WHERE";

impl MemoryReader<'_> {
    /// The memories with these numbers, in this order, of any owner.
    pub(super) fn doomed_of(&self, numbers: &[i64]) -> StoreResult<Vec<DeletionRow>> {
        self.of_numbers(&format!("{DOOMED} no = ?1"), numbers, read_doomed)
    }

    /// Memories that match, of any owner, including forgotten owners.
    pub(super) fn doomed(
        &self,
        condition: &str,
        parameters: Parameters<'_>,
    ) -> StoreResult<Vec<DeletionRow>> {
        self.all(&format!("{DOOMED} {condition}"), parameters, read_doomed)
    }

    /// Digest with a salt of this tenant. It allows to look up a name, but not to recover it.
    pub(super) fn digest(&self, name: &str) -> StoreResult<[u8; 16]> {
        let salt = self.connection.salt()?;
        let digest = Sha256::new()
            .chain_update(&salt)
            .chain_update(name)
            .finalize();
        Ok(std::array::from_fn(|index| digest[index]))
    }
}
