//! Recall events, and their use by consolidation and expiry.

use memoird_core::ids::MemoryId;
use memoird_core::time::Timestamp;
use rusqlite::params;

use super::reader::MemoryReader;
use super::requests::RecallEvent;
use super::row::{MemoryRow, limit, whole};
use super::sql::{Sql, StoreResult};
use super::time::{DAY, moment, timestamp};
use super::writer::MemoryWriter;
use crate::requests::ForgetOutcome;
use crate::rules::consolidation::Evidence;
use crate::rules::{MemoryLimits, Pin};

/// Maximum old events to delete per new one.
///
/// More than one, so that the table shrinks after its limit was lowered.
const EVENTS_PRUNED: usize = 4;

impl MemoryReader<'_> {
    /// Reads current memories after this id, in order of id, with the evidence of their use.
    pub fn evidence_page(
        &self,
        after: Option<MemoryId>,
        max: usize,
        now: Timestamp,
    ) -> StoreResult<Vec<Evidence>> {
        let after = after.map_or([0; 16], MemoryId::to_bytes);
        let rest = "WHERE id > ? AND superseded_by IS NULL AND (expires IS NULL OR expires > ?)
                    ORDER BY id LIMIT ?";
        let parameters = params![after, moment(now), limit(max)];
        let mut page = Vec::new();
        for found in MemoryRow::all(self, rest, parameters)? {
            page.push(self.evidence_of(&found)?);
        }
        Ok(page)
    }

    /// Collects the evidence of a memory's use.
    pub(super) fn evidence_of(&self, row: &MemoryRow) -> StoreResult<Evidence> {
        let memory = &row.memory;
        let fold = "SELECT count(*), count(DISTINCT query), count(DISTINCT at / ?2), max(at),
                    coalesce(avg(score), 0.0) FROM recall_events WHERE memory = ?1";
        let found = self.one(fold, params![memory.id.to_bytes(), DAY], |found| {
            let count = |column| found.get::<i64>(column).map(i64::unsigned_abs);
            let last = found.get::<Option<i64>>(3)?.map(timestamp);
            Ok(Evidence {
                id: memory.id,
                kind: memory.kind,
                pin: memory.pin,
                pin_changed_at: row.pin_changed.map(timestamp),
                created_at: memory.created_at,
                updated_at: memory.updated_at,
                recalls: count(0)?,
                distinct_queries: count(1)?,
                distinct_days: count(2)?,
                last_recall: last.or(memory.recalled_at),
                mean_score: found.get(4)?,
            })
        })?;
        found.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
    }

    /// Time of the last consolidation.
    pub fn consolidated_at(&self) -> StoreResult<Option<Timestamp>> {
        Ok(self.meta("dream_last_at")?.map(timestamp))
    }
}

impl MemoryWriter<'_> {
    /// Records the event of a recall. Skips memories that were deleted in the meantime.
    pub fn record_recall(&self, event: &RecallEvent, limits: &MemoryLimits) -> StoreResult<()> {
        let session = match &event.session {
            None => None,
            Some(session) => Some(self.digest(session.as_str())?),
        };
        // Incrementing the maximum integer would overflow.
        let count = "UPDATE memories SET
             recalls = recalls + CASE WHEN recalls < 9223372036854775807 THEN 1 ELSE 0 END,
             recalled = CASE WHEN recalled > ?2 THEN recalled ELSE ?2 END
             WHERE id = ?1 AND owner IN (SELECT no FROM partitions)";
        let insert = "INSERT INTO recall_events (no, at, memory, session, query, rank, score)
             SELECT (SELECT coalesce(max(no), 0) + 1 FROM recall_events), ?2, id, ?3, ?4, ?5, ?6
             FROM memories WHERE id = ?1 AND owner IN (SELECT no FROM partitions)";
        let at = moment(event.at);
        for hit in &event.hits {
            let (id, score) = (hit.id.to_bytes(), f64::from(hit.score));
            self.run(count, params![id, at])?;
            let parameters = params![id, at, session, event.query, hit.rank, score];
            self.run(insert, parameters)?;
        }
        let prune = "DELETE FROM recall_events WHERE no IN
                (SELECT no FROM recall_events ORDER BY no LIMIT ?1)
             AND no <= (SELECT max(no) FROM recall_events) - ?2";
        let prune_max = limit(event.hits.len().saturating_mul(EVENTS_PRUNED));
        let parameters = params![prune_max, whole(limits.recall_events)];
        self.run(prune, parameters)
    }

    /// Pins the given memories that are not pinned yet. Returns how many.
    pub fn pin(&self, ids: &[MemoryId], pin: Pin, at: Timestamp) -> StoreResult<usize> {
        let mut pinned = 0;
        for id in ids {
            if let Some(row) = MemoryRow::whole(self, *id)?
                && row.memory.pin.is_none()
                && row.memory.superseded_by.is_none()
            {
                self.set_pin(row, Some(pin), at)?;
                pinned += 1;
            }
        }
        Ok(pinned)
    }

    /// Removes pins set by a consolidation, never those of the bot. Returns how many.
    pub fn unpin(&self, ids: &[MemoryId], at: Timestamp) -> StoreResult<usize> {
        let mut unpinned = 0;
        for id in ids {
            if let Some(row) = MemoryRow::whole(self, *id)?
                && row.memory.pin == Some(Pin::Consolidation)
            {
                self.set_pin(row, None, at)?;
                unpinned += 1;
            }
        }
        Ok(unpinned)
    }

    fn set_pin(&self, mut row: MemoryRow, pin: Option<Pin>, at: Timestamp) -> StoreResult<()> {
        row.memory.pin = pin;
        row.pin_changed = Some(moment(at));
        row.replace(self.connection, row.no)
    }

    pub fn set_consolidated_at(&self, at: Timestamp) -> StoreResult<()> {
        self.set_meta("dream_last_at", moment(at))
    }

    /// Deletes about `max` memories that expired before this time, with their history.
    ///
    /// Returns how many rows were deleted.
    pub fn expire_step(&self, expired_before: Timestamp, max: usize) -> StoreResult<usize> {
        let condition = "expires < ? ORDER BY expires LIMIT ?";
        let parameters = params![moment(expired_before), limit(max)];
        let mut left = max;
        for doomed in self.doomed(condition, parameters)? {
            if !self.erase_chain(&doomed, &mut left, &mut ForgetOutcome::default())? {
                break;
            }
        }
        Ok(max - left)
    }
}
