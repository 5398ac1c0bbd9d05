//! Queries of a tenant's memories. All queries of one reader see the same snapshot.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use memoird_core::ids::{MemoryId, Subject};
use memoird_core::time::Timestamp;
use memoird_core::words::Languages;
use rusqlite::{ToSql, params};

use super::batch::Batch;
use super::checksum::DamageLog;
use super::row::{BEGINS, CheckedRow, MemoryRow, TEAM, damaged, limit, prefix_bounds};
use super::sql::{Connection, Row, Sql, StoreResult};
use super::time::moment;
use super::vectors;
use crate::MemoryError;
use crate::requests::{ListRequest, MemoryPage, MemoryStats};
use crate::rules::{Memory, MemoryLimits};

/// Maximum memories that a filtered page checks.
const LISTED_MAX: usize = 10_000;
/// Memories per query of a filtered page.
const LISTED_AT_ONCE: usize = 256;

/// A consistent snapshot of a tenant's memories.
#[derive(Clone, Copy, Debug)]
pub struct MemoryReader<'a> {
    pub(super) connection: Connection<'a>,
    /// Rows cached for all jobs of the transaction. `None` outside a job.
    pub(super) batch: Option<&'a RefCell<Batch>>,
    pub(super) damage: &'a DamageLog,
    /// Path of the file, if there is one.
    path: Option<&'a Path>,
}

impl<'a> MemoryReader<'a> {
    pub(super) fn new(
        connection: Connection<'a>,
        batch: Option<&'a RefCell<Batch>>,
        damage: &'a DamageLog,
        path: Option<&'a Path>,
    ) -> Self {
        Self {
            connection,
            batch,
            damage,
            path,
        }
    }

    /// Writes this transaction's pending changes to the word index, and its counters.
    pub(super) fn settle_index(&self) -> StoreResult<()> {
        self.batch.map_or(Ok(()), |batch| {
            let mut batch = batch.borrow_mut();
            batch.index.apply(self.connection)?;
            batch.flush(self.connection)
        })
    }
}

impl Sql for MemoryReader<'_> {
    fn connection(&self) -> Connection<'_> {
        self.connection
    }
}

impl MemoryReader<'_> {
    /// Returns one memory, including superseded and expired ones.
    ///
    /// # Errors
    /// [`MemoryError::MemoryDamaged`].
    pub fn get(&self, id: MemoryId) -> StoreResult<Option<Memory>> {
        Ok(MemoryRow::by_id(self, id)?.map(|row| row.memory))
    }

    /// Lists up to `max` memories in order of id. Damaged ones are left out.
    pub fn list(
        &self,
        request: &ListRequest,
        max: usize,
        now: Timestamp,
    ) -> StoreResult<Vec<Memory>> {
        let rows = self.damage.left_out(self.rows(request, max, now)?);
        Ok(rows.into_iter().map(|row| row.memory).collect())
    }

    fn rows(
        &self,
        request: &ListRequest,
        max: usize,
        now: Timestamp,
    ) -> StoreResult<Vec<CheckedRow>> {
        let owner = match &request.subject {
            None => None,
            Some(subject) => match self.partition(subject)? {
                None => return Ok(Vec::new()),
                owner => owner,
            },
        };
        let after = request.after.map_or([0; 16], MemoryId::to_bytes);
        let (kind, now, max) = (request.kind.map(|kind| kind as u8), moment(now), limit(max));
        let mut parameters: Vec<&dyn ToSql> = vec![&after, &max];
        let mut sql = "WHERE id > ?1".to_owned();
        // Few memories have a given tag, so scan those rather than an index by owner or id.
        let mut plus = "";
        if let Some(tag) = &request.tag {
            plus = self.connection.unindexed();
            parameters.push(tag);
            sql = format!(
                "WHERE memories.no IN (SELECT no FROM tags WHERE tag = ?3) AND {plus}id > ?1"
            );
        }
        if let Some(owner) = &owner {
            parameters.push(owner);
            sql += &format!(" AND {plus}owner = ?{}", parameters.len());
        }
        let (from, behind) = prefix_bounds(&request.subject_prefix);
        if !from.is_empty() {
            parameters.extend([&from as &dyn ToSql, &behind]);
            let last = parameters.len();
            sql += &format!(
                " AND {plus}owner IN (SELECT no FROM partitions
                  WHERE subject >= ?{} AND subject < ?{last})",
                last - 1
            );
        }
        if let Some(kind) = &kind {
            parameters.push(kind);
            sql += &format!(" AND kind = ?{}", parameters.len());
        }
        if !request.include_history {
            parameters.push(&now);
            let now = parameters.len();
            sql += &format!(" AND superseded_by IS NULL AND (expires IS NULL OR expires > ?{now})");
        }
        sql += &format!(" ORDER BY {plus}id LIMIT ?2");
        MemoryRow::all_checked(self, &sql, &parameters)
    }

    /// Lists a page of memories. Damaged ones are left out.
    pub fn page_of(&self, request: &ListRequest, now: Timestamp) -> StoreResult<MemoryPage> {
        let (mut request, mut page) = (request.clone(), MemoryPage::default());
        let at_once = match request.metadata {
            None => request.count.saturating_add(1),
            Some(_) => LISTED_AT_ONCE,
        };
        let mut looked_at = 0;
        loop {
            let found = self.rows(&request, at_once, now)?;
            let is_last = found.len() < at_once;
            let damaged = found.iter().filter_map(|row| row.as_ref().err());
            let last_damaged = damaged.map(|row| row.id).max();
            let whole = self.damage.left_out(found);
            // A whole row is a reliable cursor. The id of a damaged one may be wrong.
            let is_stuck = whole.is_empty() && last_damaged <= request.after;
            if whole.is_empty() {
                request.after = request.after.max(last_damaged);
            }
            for MemoryRow { memory, .. } in whole {
                if page.memories.len() >= request.count || looked_at >= LISTED_MAX {
                    page.next = request.after;
                    return Ok(page);
                }
                looked_at += 1;
                request.after = Some(memory.id);
                let json = memory.metadata.as_deref().unwrap_or_default();
                let filter = request.metadata.as_ref();
                if filter.is_none_or(|filter| filter.takes(json.as_bytes())) {
                    page.memories.push(memory);
                }
            }
            if is_last || is_stuck {
                return Ok(page);
            }
        }
    }

    /// Lists subjects that have current memories, with the number of these.
    ///
    /// Returns up to `max` subjects after `after`.
    pub fn subjects(
        &self,
        prefix: &str,
        after: Option<&Subject>,
        max: usize,
        now: Timestamp,
    ) -> StoreResult<Vec<(Subject, u64)>> {
        let sql = format!(
            "SELECT subject, found FROM (
                 SELECT subject, (SELECT count(*) FROM memories WHERE owner = partitions.no
                     AND superseded_by IS NULL AND (expires IS NULL OR expires > ?)) AS found
                 FROM partitions WHERE no > 0 AND {BEGINS} AND subject > ?) AS counted
             WHERE found > 0 ORDER BY subject LIMIT ?"
        );
        let (from, behind) = prefix_bounds(prefix);
        let after = after.map_or("", Subject::as_str);
        let parameters = params![moment(now), from, behind, after, limit(max)];
        self.all(&sql, parameters, |row| {
            let subject = Subject::parse(row.text(0)?);
            let subject = subject.map_err(|_| damaged(0, "subject"))?;
            Ok((subject, row.get::<i64>(1)?.unsigned_abs()))
        })
    }

    /// Partitions of the subjects with this prefix.
    pub(super) fn prefixed(&self, prefix: &str) -> StoreResult<Vec<i64>> {
        let most = MemoryLimits::PREFIXED;
        let sql = format!("SELECT no FROM partitions WHERE no > 0 AND {BEGINS} LIMIT ?");
        let (from, behind) = prefix_bounds(prefix);
        let parameters = params![from, behind, limit(most + 1)];
        let found = self.all(&sql, parameters, |row| row.get(0))?;
        if found.len() > most {
            Err(MemoryError::SubjectsTooMany { limit: most })
        } else {
            Ok(found)
        }
    }

    /// Reads up to `max` memories for a subject's manifest, its own and those of the team.
    ///
    /// They are ordered: pinned first, then by importance, then newest first. Also returns their
    /// total number.
    pub fn manifest(
        &self,
        subject: &Subject,
        now: Timestamp,
        max: usize,
    ) -> StoreResult<(Vec<Memory>, u64)> {
        let (mut memories, mut total) = (Vec::new(), 0);
        let own = self.partition(subject)?;
        let rest = "WHERE partition = ?1 AND superseded_by IS NULL
             AND (expires IS NULL OR expires > ?2)
             ORDER BY pin IS NULL, importance DESC, id DESC LIMIT ?3";
        let count = "SELECT count(*) FROM memories WHERE partition = ? AND superseded_by IS NULL
             AND (expires IS NULL OR expires > ?)";
        for partition in own.into_iter().chain([TEAM]) {
            let parameters = params![partition, moment(now), limit(max)];
            let found = MemoryRow::all(self, rest, parameters)?;
            memories.extend(found.into_iter().map(|row| row.memory));
            total += self.count(count, params![partition, moment(now)])?;
        }
        memories.sort_by(|one: &Memory, other| {
            let by_importance = other.importance.total_cmp(&one.importance);
            one.pin
                .is_none()
                .cmp(&other.pin.is_none())
                .then(by_importance)
                .then(other.id.cmp(&one.id))
        });
        memories.truncate(max);
        Ok((memories, total))
    }

    /// Counts the memories, and how many have a vector of `model`.
    pub fn stats(&self, model: Option<&str>, now: Timestamp) -> StoreResult<MemoryStats> {
        let count = |sql: &str| self.count(sql, &[]);
        let stored = count("SELECT memories FROM state")?;
        let superseded = count("SELECT count(*) FROM memories WHERE superseded_by IS NOT NULL")?;
        let expired = "SELECT count(*) FROM memories WHERE superseded_by IS NULL AND expires <= ?";
        let expired = self.count(expired, params![moment(now)])?;
        let embedding_model = match model {
            Some(name) => vectors::find_model(self.connection, name)?,
            None => None,
        };
        let (documents, document_bytes) = self.documents_kept()?;
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
        Ok(MemoryStats {
            // The total is stored as a counter, so only memories that are not current are counted
            // by reading them.
            memories: stored.saturating_sub(superseded + expired),
            superseded,
            subjects: count("SELECT count(DISTINCT owner) FROM memories")?,
            recall_events: count("SELECT count(*) FROM recall_events")?,
            embedding_model: model.map(str::to_owned),
            embedded: match embedding_model {
                Some(model) => vectors::count_of(self.connection, model)?,
                None => 0,
            },
            embedding_queued: count("SELECT count(*) FROM embeddings_due WHERE failed = 0")?
                + self.left_to_queue()?,
            words_queued: self.words_left()?,
            reranker: None,
            embedding_failed: count("SELECT count(*) FROM embeddings_due WHERE failed = 1")?,
            documents,
            document_bytes,
            file_bytes: self
                .path
                .map_or(0, |path| size(path) + size(&path.with_extension("db-wal"))),
        })
    }

    /// Number of segments of the word index. 0 for a database, whose index has none.
    pub fn word_segments(&self) -> StoreResult<u64> {
        self.connection.word_segments()
    }

    pub(super) fn meta<T: rusqlite::types::FromSql>(&self, name: &str) -> StoreResult<Option<T>> {
        let sql = "SELECT value FROM meta WHERE name = ?";
        self.value(sql, params![name])
    }

    /// Number of memories ever stored in each partition, and the union of their languages.
    ///
    /// The number starts again with a renewed partition, and is close to the number of current
    /// memories.
    pub(super) fn numbered(
        &self,
        partitions: &[i64],
    ) -> StoreResult<(BTreeMap<i64, u64>, Languages)> {
        let sql = "SELECT no, next - 1, languages FROM partitions WHERE no = ?1";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get::<i64>(1)?, row.get::<i64>(2)?));
        let mut numbered = BTreeMap::new();
        let mut languages = Languages::default();
        for (partition, count, bits) in self.of_numbers(sql, partitions, read)? {
            numbered.insert(partition, count.unsigned_abs());
            languages = languages.with(Languages::from_bits(bits));
        }
        Ok((numbered, languages))
    }
}
