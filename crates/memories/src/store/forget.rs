//! Forget jobs. They are recorded first, and then run until nothing is left.
//!
//! A job covers the memories that existed when it began, and the versions they superseded. A
//! subject that is forgotten as a whole loses its name at once. Without an owner, none of its
//! memories can be found anymore. The job then deletes the rows.

use std::collections::HashSet;

use memoird_core::ids::{Generation, MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;
use rusqlite::params;

use super::reader::MemoryReader;
use super::requests::ForgetProgress;
use super::row::{MemoryRow, has_kind, kind_bits, limit, pack_tags, unpack_tags};
use super::sql::{Row, Sql, StoreResult};
use super::time::moment;
use super::vectors;
use super::writer::{DeletionRow, MemoryWriter};
use crate::MemoryError;
use crate::requests::{ForgetOutcome, ForgetRequest, ForgetSources};

/// Memories to check per memory that a step may delete.
const LOOKED_AT_PER_ROW: usize = 8;
/// Memories to read at once for the check.
const LOOKED_AT_AT_ONCE: usize = 256;
/// Memories that a dry run checks per query.
const COUNTED_AT_ONCE: usize = 1_024;
/// A partition without an owner.
const NOBODY: i64 = -1;

/// Selects the memories of a job, in stored form.
#[derive(Clone, Debug)]
struct Criteria {
    /// Only memories created up to this number.
    born: i64,
    /// All memories of `owner`, and its cursors.
    whole: bool,
    owner: Option<i64>,
    memory: Option<[u8; 16]>,
    kinds: u8,
    tags: Vec<String>,
    after: Option<i64>,
    before: Option<i64>,
    /// The generations are sorted.
    sources: Option<ForgetSources>,
}

struct Job {
    at: i64,
    criteria: Criteria,
    /// Id of the last memory that was checked.
    position: [u8; 16],
    counts: ForgetOutcome,
}

/// Result of checking a range of memories.
#[derive(Default)]
struct Page {
    doomed: Vec<DeletionRow>,
    /// Id of the last memory that was checked.
    position: [u8; 16],
    is_last: bool,
}

impl MemoryReader<'_> {
    /// Counts what a job would delete, for a dry run.
    pub fn forget_count(&self, request: &ForgetRequest) -> StoreResult<ForgetOutcome> {
        let mut counts = ForgetOutcome::default();
        let criteria = self.criteria(request)?;
        let mut seen = HashSet::new();
        let mut position = [0; 16];
        loop {
            let page = self.page(&criteria, position, COUNTED_AT_ONCE, COUNTED_AT_ONCE)?;
            position = page.position;
            let mut left = page.doomed;
            while let Some(doomed) = left.pop() {
                if seen.insert(doomed.no) {
                    left.extend(self.doomed("superseded_by = ?", params![doomed.id.to_bytes()])?);
                    self.weigh(&doomed, &mut counts)?;
                }
            }
            if page.is_last {
                break;
            }
        }
        if criteria.whole {
            let sql = "SELECT count(*) FROM cursors WHERE owner = ?";
            counts.cursors = self.count(sql, params![criteria.owner])?;
        }
        Ok(counts)
    }

    /// Lists unfinished jobs, oldest first. They are resumed after a restart.
    pub fn forget_jobs(&self) -> StoreResult<Vec<MemoryId>> {
        let sql = "SELECT job FROM forget_jobs ORDER BY at, job";
        self.all(sql, &[], |row| Ok(MemoryId::from_bytes(row.get(0)?)))
    }

    fn weigh(&self, doomed: &DeletionRow, counts: &mut ForgetOutcome) -> StoreResult<()> {
        if doomed.is_history {
            counts.superseded += 1;
        } else {
            counts.memories += 1;
        }
        counts.vectors += u64::from(vectors::model_of(self.connection, doomed.no)?.is_some());
        let queued = "SELECT count(*) FROM embeddings_due WHERE no = ?";
        counts.queued_embeddings += self.count(queued, params![doomed.no])?;
        let events = "SELECT count(*) FROM recall_events WHERE memory = ?";
        counts.recall_events += self.count(events, params![doomed.id.to_bytes()])?;
        Ok(())
    }

    fn criteria(&self, request: &ForgetRequest) -> StoreResult<Criteria> {
        self.settle_counts()?;
        let all = Criteria {
            born: self.number("SELECT born FROM state", &[])?,
            whole: false,
            owner: None,
            memory: None,
            kinds: kind_bits(&[]),
            tags: Vec::new(),
            after: None,
            before: None,
            sources: None,
        };
        let owner_of = |subject: &Subject| -> StoreResult<i64> {
            Ok(self.partition(subject)?.unwrap_or(NOBODY))
        };
        Ok(match request {
            ForgetRequest::One(id) => {
                // A damaged memory can be forgotten.
                let sql = "SELECT owner FROM memories
                    CROSS JOIN partitions ON partitions.no = owner WHERE id = ?";
                let owner: Option<i64> = self.value(sql, params![id.to_bytes()])?;
                if owner.is_none() {
                    return Err(MemoryError::NotFound { id: *id });
                }
                Criteria {
                    memory: Some(id.to_bytes()),
                    owner,
                    ..all
                }
            }
            ForgetRequest::Unused(evidence) => {
                let id = evidence.id;
                let found = MemoryRow::by_id(self, id)?;
                let row = found.ok_or(MemoryError::NotFound { id })?;
                if self.evidence_of(&row)? != *evidence {
                    return Err(MemoryError::NotFound { id });
                }
                self.criteria(&ForgetRequest::One(id))?
            }
            ForgetRequest::Subject(subject) => Criteria {
                whole: true,
                owner: Some(owner_of(subject)?),
                ..all
            },
            ForgetRequest::Filter(filter) => Criteria {
                owner: filter.subject.as_ref().map(owner_of).transpose()?,
                kinds: kind_bits(&filter.kinds),
                tags: filter.tags.clone(),
                after: filter.after.map(moment),
                before: filter.before.map(moment),
                ..all
            },
            ForgetRequest::Sources(sources) => {
                let mut sources = sources.clone();
                sources.generations.sort_unstable();
                Criteria {
                    sources: Some(sources),
                    ..all
                }
            }
        })
    }

    /// Checks memories after a position, in order of id.
    ///
    /// Stops after `looked_at_max` memories, or when `found_max` are found.
    fn page(
        &self,
        criteria: &Criteria,
        position: [u8; 16],
        looked_at_max: usize,
        found_max: usize,
    ) -> StoreResult<Page> {
        let mut page = Page {
            position,
            ..Page::default()
        };
        if let Some(id) = criteria.memory {
            page.doomed = self.doomed("id = ?", params![id])?;
            page.is_last = true;
            return Ok(page);
        }
        let owned = if criteria.owner.is_some() {
            "owner = ?3"
        } else {
            "CAST(?3 AS BIGINT) IS NULL"
        };
        let sql = format!(
            "SELECT no, id, born, kind, observed, tags, session, generation FROM memories
             WHERE id > ?1 AND {owned} ORDER BY id LIMIT ?2"
        );
        let parameters = params![position, limit(looked_at_max), criteria.owner];
        let (mut looked_at, mut covered) = (0, Vec::new());
        page.is_last = true;
        self.each(&sql, parameters, LOOKED_AT_AT_ONCE, |row| {
            page.is_last = covered.len() < found_max;
            if page.is_last {
                looked_at += 1;
                page.position = row.get(1)?;
                if criteria.covers(row)? {
                    covered.push(row.get(0)?);
                }
            }
            Ok(page.is_last)
        })?;
        page.is_last &= looked_at < looked_at_max;
        page.doomed = self.doomed_of(&covered)?;
        Ok(page)
    }
}

impl MemoryWriter<'_> {
    /// Starts a forget job.
    ///
    /// Memories created later are not affected. Ends the leases whose commit could restore a
    /// forgotten fact.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`] for a single memory, also if its evidence of use has changed.
    pub fn forget_begin(
        &self,
        job: MemoryId,
        request: &ForgetRequest,
        at: Timestamp,
    ) -> StoreResult<()> {
        self.move_words()?;
        let criteria = self.criteria(request)?;
        if let ForgetRequest::Sources(sources) = request {
            // The turns of these generations no longer exist, so drop their extraction state.
            for generation in &sources.generations {
                for table in ["cursors", "remembered", "extractions"] {
                    let sql = format!("DELETE FROM {table} WHERE generation = ?");
                    self.run(&sql, params![generation.to_bytes()])?;
                }
            }
        } else {
            let leases = "UPDATE cursors SET lease = NULL
                          WHERE lease IS NOT NULL AND (owner = ?1 OR ?1 IS NULL)";
            self.run(leases, params![criteria.owner])?;
            let commits = "DELETE FROM extractions WHERE owner = ?1 OR ?1 IS NULL";
            self.run(commits, params![criteria.owner])?;
        }
        if let ForgetRequest::Subject(subject) = request {
            self.batch.borrow_mut().forget(subject);
            let sql = "DELETE FROM partitions WHERE no = ?";
            self.run(sql, params![criteria.owner])?;
            let sql = "INSERT INTO forgotten (subject, at) VALUES (?, ?)
                       ON CONFLICT (subject) DO UPDATE SET at =
                       CASE WHEN excluded.at > forgotten.at THEN excluded.at ELSE forgotten.at END";
            let digest = self.digest(subject.as_str())?;
            self.run(sql, params![digest, moment(at)])?;
        }
        let sql = "INSERT INTO forget_jobs (job, at, born, whole, owner, memory, kinds, tags,
            after, before, position, counts, session, generations)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let sources = criteria.sources.as_ref();
        let parameters = params![
            job.to_bytes(),
            moment(at),
            criteria.born,
            criteria.whole,
            criteria.owner,
            criteria.memory,
            criteria.kinds,
            pack_tags(&criteria.tags),
            criteria.after,
            criteria.before,
            [0_u8; 16],
            pack(ForgetOutcome::default()),
            sources.and_then(|sources| sources.session.as_ref().map(SessionId::as_str)),
            sources.map(|sources| pack_generations(&sources.generations)),
        ];
        self.run(sql, parameters)
    }

    /// Continues a job by deleting about `rows_max` rows. An unknown job counts as done.
    pub fn forget_step(&self, job: MemoryId, rows_max: usize) -> StoreResult<ForgetProgress> {
        let sql = "SELECT at, born, whole, owner, memory, kinds, tags, after, before, position,
                   counts, session, generations FROM forget_jobs WHERE job = ?";
        let id = job.to_bytes();
        let found = self.one(sql, params![id], Job::read)?;
        let Some(mut job) = found else {
            return Ok(ForgetProgress {
                counts: ForgetOutcome::default(),
                is_done: true,
            });
        };
        let rows_max = rows_max.max(1);
        let looked_at_max = rows_max.saturating_mul(LOOKED_AT_PER_ROW);
        let mut page = self.page(&job.criteria, job.position, looked_at_max, rows_max)?;
        let mut left = rows_max;
        let mut position = job.position;
        for doomed in &page.doomed {
            // It may already have been deleted as part of the history of an earlier one.
            if !self.erase_chain(doomed, &mut left, &mut job.counts)? {
                (page.position, page.is_last) = (position, false);
                break;
            }
            position = doomed.id.to_bytes();
        }
        let mut is_done = page.is_last;
        if job.criteria.whole && page.is_last {
            let cursors_max = left.max(1);
            let wiped = self.wipe_cursors(job.criteria.owner, job.at, cursors_max)?;
            job.counts.cursors += wiped as u64;
            is_done = wiped < cursors_max;
        }
        if is_done {
            let sql = "DELETE FROM forget_jobs WHERE job = ?";
            self.run(sql, params![id])?;
        } else {
            let sql = "UPDATE forget_jobs SET position = ?, counts = ? WHERE job = ?";
            let parameters = params![page.position, pack(job.counts), id];
            self.run(sql, parameters)?;
        }
        Ok(ForgetProgress {
            counts: job.counts,
            is_done,
        })
    }

    /// Clears the cursors of a forgotten subject, but retains their `not_before`.
    fn wipe_cursors(&self, owner: Option<i64>, at: i64, max: usize) -> StoreResult<usize> {
        let sql = "UPDATE cursors SET session = '', owner = NULL, lease = NULL, lease_to = 0,
            lease_until = 0, failures = 0, failed_at = NULL, not_before = ?1
            WHERE generation IN (SELECT generation FROM cursors WHERE owner = ?2 LIMIT ?3)";
        self.change(sql, params![at, owner, limit(max)])
    }
}

impl Criteria {
    /// Whether a row matches. Reads the columns selected by [`MemoryReader::page`].
    fn covers(&self, row: &Row<'_>) -> rusqlite::Result<bool> {
        let (born, kind, observed): (i64, u8, i64) = (row.get(2)?, row.get(3)?, row.get(4)?);
        let is_in_time = self.after.is_none_or(|after| observed >= after)
            && self.before.is_none_or(|before| observed < before);
        if born > self.born || !has_kind(self.kinds, kind) || !is_in_time {
            return Ok(false);
        }
        if let Some(sources) = &self.sources {
            // That of a damaged row may be no text.
            let session = row.text_or_null(6).unwrap_or_default();
            let generation: Option<[u8; 16]> = row.get(7)?;
            let generation = generation.map(Generation::from_bytes);
            let is_meant = sources.session.as_ref().map(SessionId::as_str) == session;
            let is_covered = (is_meant && session.is_some())
                || generation.is_some_and(|name| sources.generations.binary_search(&name).is_ok());
            return Ok(is_covered);
        }
        if self.tags.is_empty() {
            return Ok(true);
        }
        let packed = row.bytes_or_null(5)?;
        let tags = packed.and_then(unpack_tags).unwrap_or_default();
        Ok(self.tags.iter().all(|tag| tags.contains(tag)))
    }
}

impl Job {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            at: row.get(0)?,
            criteria: Criteria {
                born: row.get(1)?,
                whole: row.get(2)?,
                owner: row.get(3)?,
                memory: row.get(4)?,
                kinds: row.get(5)?,
                tags: unpack_tags(row.bytes(6)?).unwrap_or_default(),
                after: row.get(7)?,
                before: row.get(8)?,
                sources: match row.bytes_or_null(12)? {
                    None => None,
                    Some(generations) => Some(ForgetSources {
                        session: read_session(row, 11)?,
                        generations: unpack_generations(generations),
                    }),
                },
            },
            position: row.get(9)?,
            counts: unpack(row.bytes(10)?),
        })
    }
}

fn read_session(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<SessionId>> {
    let session = row.text_or_null(column)?;
    Ok(session.and_then(|session| SessionId::parse(session).ok()))
}

fn pack_generations(generations: &[Generation]) -> Vec<u8> {
    let names = generations.iter();
    names.flat_map(|name| name.to_bytes()).collect()
}

fn unpack_generations(bytes: &[u8]) -> Vec<Generation> {
    let names = bytes.as_chunks::<16>().0.iter();
    names.map(|name| Generation::from_bytes(*name)).collect()
}

/// The counts in their stored order.
fn stored(counts: &mut ForgetOutcome) -> [&mut u64; 6] {
    [
        &mut counts.memories,
        &mut counts.superseded,
        &mut counts.vectors,
        &mut counts.recall_events,
        &mut counts.queued_embeddings,
        &mut counts.cursors,
    ]
}

fn pack(mut counts: ForgetOutcome) -> Vec<u8> {
    let stored = stored(&mut counts).into_iter();
    stored.flat_map(|count| count.to_le_bytes()).collect()
}

fn unpack(bytes: &[u8]) -> ForgetOutcome {
    let mut counts = ForgetOutcome::default();
    for (count, bytes) in stored(&mut counts)
        .into_iter()
        .zip(bytes.as_chunks::<8>().0)
    {
        *count = u64::from_le_bytes(*bytes);
    }
    counts
}
