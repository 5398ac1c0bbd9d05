//! The queue of texts to be embedded, and the storage of vectors.
//!
//! The queue is on disk, because an embedder may be slow, unavailable, or replaced by another one.
//!
//! Without an embedder, vectors computed by clients belong to the model [`CLIENTS`], and no text is
//! queued. If an embedder is configured later, it recomputes all vectors.

use std::collections::HashMap;
use std::time::Duration;

use memoird_core::ids::MemoryId;
use memoird_core::time::Timestamp;
use rusqlite::params;

use super::index;
use super::reader::MemoryReader;
use super::requests::{Due, Embedding};
use super::row::{MemoryRow, content_hash, kind_bits, limit, partition_of};
use super::sql::{Sql, StoreResult};
use super::time::{after, moment, timestamp};
use super::vector_index::{Filter, Model, Wanted};
use super::vectors::{self, CLIENTS};
use super::writer::MemoryWriter;
use crate::MemoryError;
use crate::rules::{MemoryKind, wording};

/// Maximum stored bytes of the reason why a text could not be embedded.
const PROBLEM_BYTES_MAX: usize = 512;
/// Due times further ahead than this are wrong: a daemon's clock was ahead when it set them.
const PUT_OFF_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Number of nearest memories that are compared with a text.
const NEAR_MAX: usize = 8;

/// A search for a near-duplicate by vector.
pub(super) struct Near<'a> {
    pub(super) model: Model,
    pub(super) partition: i64,
    pub(super) kind: MemoryKind,
    pub(super) values: &'a [f32],
    pub(super) cosine_min: f32,
    pub(super) now: Timestamp,
}

/// A resumable walk over all memories. It continues in the next transaction.
struct Walk {
    /// Name of its position in `meta`.
    at: &'static str,
    /// Name in `meta` of the approximate number of memories left.
    left: &'static str,
}

const BACKFILL: Walk = Walk {
    at: "backfill_at",
    left: "backfill_left",
};
const REINDEX: Walk = Walk {
    at: "reindex_at",
    left: "reindex_left",
};
/// Walk for the word index ([`index`]).
const WORDS: Walk = Walk {
    at: "words_at",
    left: "words_left",
};
/// Names in `meta` that mark an unfinished walk.
#[cfg(feature = "postgres")]
pub(super) const WALKS: [&str; 3] = [BACKFILL.at, REINDEX.at, WORDS.at];
/// Memories per step of a walk that runs to completion at once.
const ROWS_AT_ONCE: usize = 1_000;

impl MemoryReader<'_> {
    /// Name of the model in use. `None` without one.
    pub fn embedding_model(&self) -> StoreResult<Option<String>> {
        self.meta("embedding_model")
    }

    /// Approximate number of memories still to be queued for embedding.
    pub(super) fn left_to_queue(&self) -> StoreResult<u64> {
        if self.embedding_model()?.is_none() {
            return Ok(0);
        }
        let left = |walk: &Walk| self.meta::<i64>(walk.left);
        let left = left(&BACKFILL)?.max(left(&REINDEX)?);
        Ok(left.unwrap_or(0).unsigned_abs())
    }

    /// Approximate number of memories whose words are not reindexed yet.
    pub(super) fn words_left(&self) -> StoreResult<u64> {
        let left = |walk: &Walk| self.meta::<i64>(walk.left);
        let left = left(&WORDS)?.max(left(&REINDEX)?);
        Ok(left.unwrap_or(0).unsigned_abs())
    }

    /// Texts due to be embedded by this model, longest waiting first.
    ///
    /// If none is due, returns texts that are due later than any valid retry. Returns none if the
    /// model is not in use. Damaged texts are left out.
    pub fn embeddings_due(&self, model: &str, now: Timestamp, max: usize) -> StoreResult<Vec<Due>> {
        if self.model_in_use(model)?.is_none() {
            return Ok(Vec::new());
        }
        let sql = "SELECT memories.no, tries
            FROM embeddings_due CROSS JOIN memories ON memories.no = embeddings_due.no
            WHERE failed = 0 AND due > ? AND due <= ? AND owner IN (SELECT no FROM partitions)
            ORDER BY due, embeddings_due.no LIMIT ?";
        let within = |from: i64, to: i64| {
            let parameters = params![from, to, limit(max)];
            let tries = self.all(sql, parameters, |row| {
                Ok((row.get::<i64>(0)?, row.get::<u32>(1)?))
            })?;
            let numbers: Vec<i64> = tries.iter().map(|(no, _)| *no).collect();
            let tries: HashMap<i64, u32> = tries.into_iter().collect();
            let due = MemoryRow::of_numbers(self, &numbers)?.into_iter();
            let due = due.map(|row| Due {
                id: row.memory.id,
                tries: tries.get(&row.no).copied().unwrap_or_default(),
                revision: row.revision,
                content: row.memory.content,
            });
            Ok::<Vec<Due>, MemoryError>(due.collect())
        };
        let due = within(i64::MIN, moment(now))?;
        if !due.is_empty() {
            return Ok(due);
        }
        // A clock that was ahead set their due time, or they were imported with it.
        within(moment(after(now, PUT_OFF_MAX)), i64::MAX)
    }

    /// Earliest due time after `now`.
    pub fn embeddings_next_due(&self, now: Timestamp) -> StoreResult<Option<Timestamp>> {
        let sql = "SELECT min(due) FROM embeddings_due WHERE failed = 0 AND due > ?";
        let due: Option<Option<i64>> = self.value(sql, params![moment(now)])?;
        Ok(due.flatten().map(timestamp))
    }

    /// Text and vector of any memory that this model embedded.
    ///
    /// `None` if there is none, or another model is in use.
    pub(crate) fn any_embedded(&self, model: &str) -> StoreResult<Option<(String, Vec<f32>)>> {
        let Some(model) = self.model_in_use(model)? else {
            return Ok(None);
        };
        let sql = "SELECT no FROM vectors WHERE model = ? LIMIT 1";
        let no: Option<i64> = if self.connection.stores_vectors() {
            self.value(sql, params![model.no])?
        } else {
            None
        };
        let Some(row) = no
            .map(|no| MemoryRow::by_no(self, no))
            .transpose()?
            .flatten()
        else {
            return Ok(None);
        };
        let vector = self.connection.vectors_of(&[row.no])?.remove(&row.no);
        Ok(vector.map(|(_, values)| (row.memory.content, values)))
    }

    /// Finds the nearest near-duplicate of a memory by its vector and its words.
    ///
    /// It must be current and have the same subject, kind, visibility and polarity, and almost the
    /// same words. `None` if there is none, or if `id` is not current, was stored with `Apart`, or
    /// has no vector.
    pub fn near_by_cosine(
        &self,
        id: MemoryId,
        cosine_min: f32,
        now: Timestamp,
    ) -> StoreResult<Option<MemoryId>> {
        let row = MemoryRow::whole(self, id)?;
        let is_free = |row: &MemoryRow| row.memory.is_current(now) && !row.apart;
        let Some(row) = row.filter(is_free) else {
            return Ok(None);
        };
        let Some(name) = self.embedding_model()? else {
            return Ok(None);
        };
        let Some(model) = vectors::find_model(self.connection, &name)? else {
            return Ok(None);
        };
        let vector = self.connection.vectors_of(&[row.no])?.remove(&row.no);
        let Some((_, values)) = vector.filter(|(made_by, _)| *made_by == model.no) else {
            return Ok(None);
        };
        let search = Near {
            model,
            partition: partition_of(row.no),
            kind: row.memory.kind,
            values: &values,
            cosine_min,
            now,
        };
        let near = self.near(&search, |other| {
            other.no != row.no
                && !other.apart
                && other.owner == row.owner
                && other.memory.polarity == row.memory.polarity
                && wording::is_near(&other.memory.content, &row.memory.content)
        })?;
        Ok(near.map(|row| row.memory.id))
    }

    /// Returns the nearest accepted memory that is near enough.
    pub(super) fn near(
        &self,
        search: &Near<'_>,
        accepts: impl Fn(&MemoryRow) -> bool,
    ) -> StoreResult<Option<MemoryRow>> {
        let filter = Filter {
            kinds: kind_bits(&[search.kind]),
            observed_after: None,
            observed_before: None,
            now: moment(search.now),
            among: None,
        };
        let near = self.connection.nearest(
            search.model,
            &[search.partition],
            &filter,
            search.values,
            Wanted::new(NEAR_MAX),
        )?;
        for (no, cosine) in near {
            if cosine >= f64::from(search.cosine_min) {
                let row = MemoryRow::by_no(self, no)?;
                if let Some(row) = row.filter(|row| accepts(row)) {
                    return Ok(Some(row));
                }
            }
        }
        Ok(None)
    }

    /// Returns the model of this name, if it is in use.
    pub(super) fn model_in_use(&self, name: &str) -> StoreResult<Option<Model>> {
        let sql = "SELECT models.no, dimension FROM meta
                   CROSS JOIN models ON models.name = meta.value
                   WHERE meta.name = 'embedding_model' AND models.name = ?";
        self.one(sql, params![name], vectors::read_model)
    }
}

impl MemoryWriter<'_> {
    /// Sets the model in use, or none. Vectors of other models become unused.
    ///
    /// Returns whether the model changed. If so, [`Self::backfill`] has work.
    pub fn set_embedding_model(&self, model: Option<&str>) -> StoreResult<bool> {
        let in_use = self.embedding_model()?;
        if in_use.as_deref() == model || model.is_none() && in_use.as_deref() == Some(CLIENTS) {
            return Ok(false);
        }
        self.batch.borrow_mut().forget_model();
        match model {
            None => self.remove_meta("embedding_model")?,
            Some(name) => {
                vectors::make_model(self.connection, name)?;
                self.set_meta("embedding_model", name)?;
            }
        }
        self.retry_failed()?;
        self.begin(&BACKFILL)?;
        Ok(true)
    }

    /// Switches to vectors computed by clients, for a daemon without an embedder.
    pub fn use_clients_vectors(&self) -> StoreResult<()> {
        if self.embedding_model()?.as_deref() == Some(CLIENTS) {
            return Ok(());
        }
        self.batch.borrow_mut().forget_model();
        vectors::make_model(self.connection, CLIENTS)?;
        self.set_meta("embedding_model", CLIENTS)
    }

    /// Queues memories without a vector of the model in use, and deletes vectors of other models.
    ///
    /// Checks `max` memories and returns the approximate number left; 0 when done. Without a model
    /// in use, vectors are left unchanged.
    pub fn backfill(&self, max: usize, at: Timestamp) -> StoreResult<u64> {
        let Some(name) = self.embedding_model()? else {
            self.end(&BACKFILL)?;
            return Ok(0);
        };
        let model = vectors::make_model(self.connection, &name)?;
        self.walk(&BACKFILL, max, |row| {
            if row.memory.superseded_by.is_none() {
                let made_by = vectors::model_of(self.connection, row.no)?;
                if made_by.is_some_and(|made_by| made_by != model.no) {
                    self.connection.remove_vector(row.no)?;
                }
                self.enqueue(row.no, at)?;
            }
            Ok(())
        })
    }

    /// Starts to rebuild all indexes with [`Self::reindex_step`]. Failed texts are retried.
    pub fn reindex_begin(&self) -> StoreResult<()> {
        self.retry_failed()?;
        self.begin(&REINDEX)
    }

    /// Reindexes the words of `max` memories after the word rules have changed.
    ///
    /// Returns the approximate number left; 0 when done.
    pub fn words_step(&self, max: usize) -> StoreResult<u64> {
        if self.meta::<i64>(WORDS.at)?.is_none() {
            return Ok(0);
        }
        // The walk's position decides which pending changes are written, so write them before it
        // moves.
        self.settle_index()?;
        self.walk(&WORDS, max, |row| match row.memory.superseded_by {
            None => self.index_words(row),
            Some(_) => Ok(()),
        })
    }

    /// Indexes the words of a memory missing in the index, and its positions in the conversation.
    fn index_words(&self, row: &MemoryRow) -> StoreResult<()> {
        self.add_places(row)?;
        let content = &row.memory.content;
        self.batch.borrow_mut().forget_unsaid();
        let update = "UPDATE memories SET says = ?2 WHERE no = ?1 AND says <> ?2";
        self.run(update, params![row.no, content_hash(content)])?;
        index::add(self.connection, row.no, content)
    }

    /// Runs the walk to completion, so that the text to be forgotten is in a single index.
    pub(super) fn move_words(&self) -> StoreResult<()> {
        while self.words_step(ROWS_AT_ONCE)? > 0 {}
        Ok(())
    }

    /// Rebuilds the indexes of `max` memories.
    ///
    /// Reindexes their words, recomputes their content hashes and queues them for embedding. Their
    /// old vectors are used until then. Returns the approximate number left; 0 when done.
    pub fn reindex_step(&self, max: usize, at: Timestamp) -> StoreResult<u64> {
        let queue = "INSERT INTO embeddings_due (no, due, tries, failed, problem)
            SELECT ?1, ?2, 0, 0, '' WHERE EXISTS
                (SELECT 1 FROM meta WHERE name = 'embedding_model' AND value <> ?3)
            ON CONFLICT DO NOTHING";
        self.move_words()?;
        self.walk(&REINDEX, max, |row| {
            if row.memory.superseded_by.is_none() {
                index::remove(self.connection, row.no, &row.memory.content)?;
                self.index_words(row)?;
                self.run(queue, params![row.no, moment(at), CLIENTS])?;
            }
            Ok(())
        })
    }

    /// Stores a vector.
    ///
    /// Returns `false` without storing it if the text or the model in use has changed.
    ///
    /// # Errors
    /// [`MemoryError::DimensionMismatch`], or [`MemoryError::Invalid`] for a vector without a
    /// cosine.
    pub fn embedded(&self, id: MemoryId, revision: i64, vector: &Embedding) -> StoreResult<bool> {
        let Some(model) = self.model_in_use(&vector.model)? else {
            return Ok(false);
        };
        let row = MemoryRow::whole(self, id)?;
        let fits = |row: &MemoryRow| row.revision == revision && row.memory.superseded_by.is_none();
        let Some(row) = row.filter(fits) else {
            return Ok(false);
        };
        self.put_vector(&row, model, vector)?;
        Ok(true)
    }

    /// Claims the texts of [`MemoryReader::embeddings_due`] for one of several daemons.
    ///
    /// They are due again at `until`.
    pub fn claim_embeddings(
        &self,
        model: &str,
        now: Timestamp,
        max: usize,
        until: Timestamp,
    ) -> StoreResult<Vec<Due>> {
        let due = self.embeddings_due(model, now, max)?;
        let sql =
            "UPDATE embeddings_due SET due = ? WHERE no = (SELECT no FROM memories WHERE id = ?)";
        for text in &due {
            self.run(sql, params![moment(until), text.id.to_bytes()])?;
        }
        Ok(due)
    }

    /// Records that a text could not be embedded. It is due again at `due`, or given up.
    ///
    /// Does nothing if the text has changed since.
    pub fn embed_failed(
        &self,
        id: MemoryId,
        revision: i64,
        problem: &str,
        due: Timestamp,
        give_up: bool,
    ) -> StoreResult<()> {
        let sql = "UPDATE embeddings_due SET tries = tries + 1, due = ?, failed = ?, problem = ?
            WHERE no = (SELECT no FROM memories WHERE id = ? AND revision = ?)";
        let problem = &problem[..problem.floor_char_boundary(PROBLEM_BYTES_MAX)];
        let parameters = params![moment(due), give_up, problem, id.to_bytes(), revision];
        self.run(sql, parameters)
    }

    fn retry_failed(&self) -> StoreResult<()> {
        let sql = "UPDATE embeddings_due SET failed = 0, tries = 0, due = 0 WHERE failed = 1";
        self.run(sql, &[])
    }

    fn begin(&self, walk: &Walk) -> StoreResult<()> {
        self.settle_counts()?;
        let sql = "SELECT memories FROM state";
        let count: i64 = self.number(sql, &[])?;
        self.set_meta(walk.at, 0)?;
        self.set_meta(walk.left, count)
    }

    fn end(&self, walk: &Walk) -> StoreResult<()> {
        self.remove_meta(walk.at)?;
        self.remove_meta(walk.left)
    }

    /// Visits the next `max` memories of a walk. Returns the approximate number left.
    fn walk(
        &self,
        walk: &Walk,
        max: usize,
        mut visit: impl FnMut(&MemoryRow) -> StoreResult<()>,
    ) -> StoreResult<u64> {
        let Some(at) = self.meta::<i64>(walk.at)? else {
            return Ok(0);
        };
        let left: i64 = self.meta(walk.left)?.unwrap_or(0);
        let max = max.max(1);
        let rest = "WHERE memories.no > ? ORDER BY memories.no LIMIT ?";
        let rows = MemoryRow::all_checked(self, rest, params![at, limit(max)])?;
        let is_last = rows.len() < max;
        let last = rows.iter().map(|row| match row {
            Ok(row) => row.no,
            Err(damaged) => damaged.no,
        });
        let last = last.max().filter(|last| *last > at);
        for row in &self.damage.left_out(rows) {
            visit(row)?;
        }
        match last {
            Some(last) if !is_last => {
                let left = (left - limit(max)).max(1);
                self.set_meta(walk.at, last)?;
                self.set_meta(walk.left, left)?;
                Ok(left.unsigned_abs())
            }
            _ => {
                self.end(walk)?;
                Ok(0)
            }
        }
    }
}
