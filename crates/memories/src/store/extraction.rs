//! Extraction cursors and leases of generations.
//!
//! A cursor only advances in the same transaction that stores the extracted facts.

use memoird_core::ids::{Generation, LeaseId, MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;
use rusqlite::params;

use super::reader::MemoryReader;
use super::requests::{ExtractionCursor, Lease};
use super::row::{damaged, limit, outcome_of, whole};
use super::sql::{Row, Sql, StoreResult};
use super::time::{moment, timestamp};
use super::writer::MemoryWriter;
use crate::MemoryError;
use crate::requests::{ExtractionOutcome, RememberOutcome};

const SELECT: &str = "SELECT generation, session, subject, seq, lease, lease_to, lease_until,
    failures, failed_at, not_before FROM cursors LEFT JOIN partitions ON partitions.no = owner";

impl MemoryReader<'_> {
    pub fn cursor(
        &self,
        session: &SessionId,
        generation: Generation,
    ) -> StoreResult<ExtractionCursor> {
        // The cursor of a forgotten subject is retained without the name of the session.
        let sql = format!("{SELECT} WHERE generation = ? AND session IN (?, '')");
        let parameters = params![generation.to_bytes(), session.as_str()];
        let found = self.one(&sql, parameters, read)?;
        Ok(found.unwrap_or_default())
    }

    /// Time before which turns of a subject must not be extracted. `None` for no limit.
    ///
    /// It is later than the limit of a generation if the whole subject was forgotten since.
    pub fn not_before(&self, subject: &Subject) -> StoreResult<Option<Timestamp>> {
        let digest = self.digest(subject.as_str())?;
        let sql = "SELECT at FROM forgotten WHERE subject = ?";
        let at: Option<i64> = self.value(sql, params![digest])?;
        Ok(at.map(timestamp))
    }

    /// Returns a lease that has not expired.
    ///
    /// # Errors
    /// [`MemoryError::LeaseLost`].
    pub fn lease(&self, id: LeaseId, now: Timestamp) -> StoreResult<Lease> {
        let sql = format!("{SELECT} WHERE lease = ?");
        let found = self.one(&sql, params![id.to_bytes()], read)?;
        let lease = found
            .and_then(|cursor| cursor.lease)
            .filter(|lease| now < lease.until);
        lease.ok_or(MemoryError::LeaseLost)
    }

    /// Returns the outcome of an earlier commit with the same content.
    ///
    /// # Errors
    /// [`MemoryError::LeaseLost`] if the content differs, or if memories of that commit were
    /// forgotten.
    pub fn repeated_commit(
        &self,
        lease: LeaseId,
        content: &str,
    ) -> StoreResult<Option<ExtractionOutcome>> {
        let sql = "SELECT content, seq, results FROM extractions WHERE lease = ?";
        let found = self.one(sql, params![lease.to_bytes()], |row| {
            let content: [u8; 16] = row.get(0)?;
            let cursor_seq = row.get::<i64>(1)?.unsigned_abs();
            Ok((content, cursor_seq, row.get::<Vec<u8>>(2)?))
        })?;
        let Some((known, cursor_seq, results)) = found else {
            return Ok(None);
        };
        if known != self.digest(content)? {
            return Err(MemoryError::LeaseLost);
        }
        let (results, _) = results.as_chunks::<RESULT_BYTES>();
        let results = results.iter().map(|result| {
            let id = MemoryId::from_bytes(std::array::from_fn(|index| result[index]));
            let redacted = u32::from_be_bytes(std::array::from_fn(|index| result[17 + index]));
            Ok(RememberOutcome {
                memory: self.get(id)?.ok_or(MemoryError::LeaseLost)?,
                outcome: outcome_of(result[16]),
                is_repetition: true,
                redacted: redacted as usize,
            })
        });
        Ok(Some(ExtractionOutcome {
            cursor_seq,
            results: results.collect::<StoreResult<_>>()?,
        }))
    }

    /// Turns after this one from which the bot itself remembered a fact, in ascending order.
    pub fn remembered_seqs(
        &self,
        session: &SessionId,
        generation: Generation,
        after_seq: u64,
    ) -> StoreResult<Vec<u64>> {
        let sql = "SELECT seq FROM remembered
                   WHERE generation = ? AND session = ? AND seq > ? ORDER BY seq";
        let session = self.digest(session.as_str())?;
        let parameters = params![generation.to_bytes(), session, whole(after_seq)];
        self.all(sql, parameters, |row| Ok(row.get::<i64>(0)?.unsigned_abs()))
    }
}

impl MemoryWriter<'_> {
    /// Leases the turns after the cursor, which determines `after_seq`.
    ///
    /// An expired lease does not count as a failure, because no reply was given.
    ///
    /// # Errors
    /// [`MemoryError::LeaseHeld`].
    pub fn take_lease(&self, lease: Lease, now: Timestamp) -> StoreResult<ExtractionCursor> {
        let (session, generation) = (lease.session.clone(), lease.generation);
        let mut cursor = self.free_cursor(&session, generation, now, lease.until)?;
        if lease.to_seq < cursor.seq {
            // The turns end before the cursor because a crash lost its turn. Extract all of them.
            cursor.seq = 0;
        }
        let subject = lease.subject.clone();
        cursor.lease = Some(Lease {
            after_seq: cursor.seq,
            ..lease
        });
        self.save_cursor(&session, generation, &subject, &cursor, now)?;
        Ok(cursor)
    }

    /// Ends a lease and advances the cursor to its last turn.
    ///
    /// The facts must be remembered in the same job.
    ///
    /// # Errors
    /// [`MemoryError::LeaseLost`].
    pub fn commit_extraction(&self, lease: LeaseId, now: Timestamp) -> StoreResult<Lease> {
        let lease = self.lease(lease, now)?;
        let mut cursor = self.cursor(&lease.session, lease.generation)?;
        cursor.lease = None;
        cursor.seq = cursor.seq.max(lease.to_seq);
        cursor.failures = 0;
        cursor.failed_at = None;
        self.save_cursor(
            &lease.session,
            lease.generation,
            &lease.subject,
            &cursor,
            now,
        )?;
        Ok(lease)
    }

    /// Releases a lease before it expires, and counts a failure.
    ///
    /// Returns the number of failures since the last success. Ignores a lease that is no longer
    /// held.
    pub fn return_lease(
        &self,
        lease: &Lease,
        is_failure: bool,
        now: Timestamp,
    ) -> StoreResult<u32> {
        let mut cursor = self.cursor(&lease.session, lease.generation)?;
        if cursor.lease.as_ref().is_none_or(|held| held.id != lease.id) {
            return Ok(cursor.failures);
        }
        cursor.lease = None;
        if is_failure {
            cursor.failures = cursor.failures.saturating_add(1);
            cursor.failed_at = Some(now);
        }
        self.save_cursor(
            &lease.session,
            lease.generation,
            &lease.subject,
            &cursor,
            now,
        )?;
        Ok(cursor.failures)
    }

    /// Reserves tokens of a day, given in days since 1970.
    ///
    /// Returns `false` without reserving any if that would exceed `max`.
    pub fn spend_tokens(&self, day: i64, tokens: u64, max: u64) -> StoreResult<bool> {
        let spent = self.tokens_spent(day)?.saturating_add(tokens);
        if spent > max {
            return Ok(false);
        }
        self.set_meta(DAY, day)?;
        self.set_meta(SPENT, whole(spent))?;
        Ok(true)
    }

    /// Replaces reserved tokens by the tokens used, which may be more.
    ///
    /// Does nothing once another day has begun.
    pub fn correct_tokens(&self, day: i64, counted: u64, used: u64) -> StoreResult<()> {
        if self.meta::<i64>(DAY)? != Some(day) {
            return Ok(());
        }
        let spent = self.tokens_spent(day)?;
        let spent = spent.saturating_sub(counted).saturating_add(used);
        self.set_meta(SPENT, whole(spent))
    }

    fn tokens_spent(&self, day: i64) -> StoreResult<u64> {
        let is_today = self.meta::<i64>(DAY)? == Some(day);
        let spent = self.meta::<i64>(SPENT)?.filter(|_| is_today);
        Ok(spent.unwrap_or(0).unsigned_abs())
    }

    /// Records the outcomes of a lease's facts, so that its commit can be repeated.
    pub fn keep_commit(
        &self,
        lease: &Lease,
        content: &str,
        outcomes: &[RememberOutcome],
        now: Timestamp,
    ) -> StoreResult<()> {
        let mut results = Vec::with_capacity(outcomes.len() * RESULT_BYTES);
        for done in outcomes {
            results.extend(done.memory.id.to_bytes());
            results.push(done.outcome as u8);
            let redacted = u32::try_from(done.redacted).unwrap_or(u32::MAX);
            results.extend(redacted.to_be_bytes());
        }
        let sql = "INSERT INTO extractions
                   (no, lease, content, generation, owner, seq, results, at)
                   VALUES ((SELECT coalesce(max(no), 0) + 1 FROM extractions), ?, ?, ?, ?, ?, ?, ?)";
        let parameters = params![
            lease.id.to_bytes(),
            self.digest(content)?,
            lease.generation.to_bytes(),
            self.make_partition(&lease.subject)?,
            whole(lease.to_seq),
            results,
            moment(now),
        ];
        self.run(sql, parameters)?;
        let prune = "DELETE FROM extractions WHERE no <= (SELECT max(no) FROM extractions) - ?";
        self.run(prune, params![COMMITS_KEPT])
    }

    /// Advances the cursor past turns that need no extraction. Never moves it back.
    ///
    /// # Errors
    /// [`MemoryError::LeaseHeld`].
    pub fn skip_turns(
        &self,
        session: &SessionId,
        generation: Generation,
        subject: &Subject,
        to_seq: u64,
        now: Timestamp,
    ) -> StoreResult<()> {
        let mut cursor = self.free_cursor(session, generation, now, now)?;
        cursor.seq = cursor.seq.max(to_seq);
        self.save_cursor(session, generation, subject, &cursor, now)
    }

    /// Deletes about `max` cursors not changed since `before`, and as many `remembered` rows.
    ///
    /// The rows are those of generations that started before. Returns how many of both were
    /// deleted.
    pub fn prune_cursors(&self, before: Timestamp, max: usize) -> StoreResult<usize> {
        let cursors = "DELETE FROM cursors WHERE generation IN
            (SELECT generation FROM cursors WHERE touched < ? ORDER BY touched LIMIT ?)";
        let seqs = "DELETE FROM remembered WHERE (generation, session, seq) IN
            (SELECT generation, session, seq FROM remembered WHERE generation < ? LIMIT ?)";
        let parameters = params![moment(before), limit(max)];
        let pruned = self.change(cursors, parameters)?;
        let oldest = Generation::new(before.as_ms(), 0).to_bytes();
        let parameters = params![oldest, limit(max)];
        Ok(pruned + self.change(seqs, parameters)?)
    }

    /// Returns the cursor, unless a lease is active.
    fn free_cursor(
        &self,
        session: &SessionId,
        generation: Generation,
        now: Timestamp,
        until: Timestamp,
    ) -> StoreResult<ExtractionCursor> {
        let mut cursor = self.cursor(session, generation)?;
        let Some(lease) = cursor.lease.take() else {
            return Ok(cursor);
        };
        let left_ms = lease.until.as_ms() - now.as_ms();
        // No lease lasts that long, so the clock was set back. Ignore the lease.
        let asked_ms = (until.as_ms() - now.as_ms()).max(LEASE_MS_MAX);
        if now < lease.until && left_ms <= asked_ms {
            let seconds_left = left_ms.unsigned_abs().div_ceil(1_000);
            return Err(MemoryError::LeaseHeld { seconds_left });
        }
        Ok(cursor)
    }

    fn save_cursor(
        &self,
        session: &SessionId,
        generation: Generation,
        subject: &Subject,
        cursor: &ExtractionCursor,
        now: Timestamp,
    ) -> StoreResult<()> {
        let owner = self.make_partition(subject)?;
        let lease = cursor.lease.as_ref();
        let sql = "INSERT INTO cursors (generation, session, owner, seq, lease,
            lease_to, lease_until, failures, failed_at, not_before, touched)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (generation) DO UPDATE SET session = excluded.session,
            owner = excluded.owner, seq = excluded.seq, lease = excluded.lease,
            lease_to = excluded.lease_to, lease_until = excluded.lease_until,
            failures = excluded.failures, failed_at = excluded.failed_at,
            not_before = excluded.not_before, touched = excluded.touched";
        let parameters = params![
            generation.to_bytes(),
            session.as_str(),
            owner,
            whole(cursor.seq),
            lease.map(|lease| lease.id.to_bytes()),
            lease.map_or(0, |lease| whole(lease.to_seq)),
            lease.map_or(0, |lease| moment(lease.until)),
            cursor.failures,
            cursor.failed_at.map(moment),
            cursor.not_before.map(moment),
            moment(now),
        ];
        self.run(sql, parameters)?;
        // Extraction never reads the notes up to the cursor again.
        let sql = "DELETE FROM remembered WHERE generation = ? AND seq <= ?";
        let parameters = params![generation.to_bytes(), whole(cursor.seq)];
        self.run(sql, parameters)
    }
}

/// Lease duration beyond which an active lease is attributed to a clock that was set back.
const LEASE_MS_MAX: i64 = 60 * 60 * 1_000;

/// Name in `meta` of the current day of the token budget.
const DAY: &str = "extraction_day";
/// Name in `meta` of the number of tokens used on that day.
const SPENT: &str = "extraction_tokens";
/// Number of commits that can be repeated.
const COMMITS_KEPT: i64 = 1_024;
/// Bytes per result: the memory's id, its outcome, and the number of redacted secrets.
const RESULT_BYTES: usize = 21;

fn read(row: &Row<'_>) -> rusqlite::Result<ExtractionCursor> {
    let seq = row.get::<i64>(3)?.unsigned_abs();
    let lease: Option<[u8; 16]> = row.get(4)?;
    let subject: Option<String> = row.get(2)?;
    // The subject was forgotten, which ends the lease.
    let lease = match (lease, subject) {
        (Some(lease), Some(subject)) => Some(Lease {
            id: LeaseId::from_bytes(lease),
            session: SessionId::parse(row.text(1)?).map_err(|_| damaged(1, "session"))?,
            generation: Generation::from_bytes(row.get(0)?),
            subject: Subject::parse(&subject).map_err(|_| damaged(2, "subject"))?,
            after_seq: seq,
            to_seq: row.get::<i64>(5)?.unsigned_abs(),
            until: timestamp(row.get(6)?),
        }),
        _ => None,
    };
    let at = |column| row.get::<Option<i64>>(column).map(|at| at.map(timestamp));
    Ok(ExtractionCursor {
        seq,
        lease,
        failures: row.get(7)?,
        failed_at: at(8)?,
        not_before: at(9)?,
    })
}
