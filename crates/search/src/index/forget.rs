//! Removes turns that the journal has deleted, in bounded steps.

use std::time::Duration;

use memoird_core::ids::Generation;
use memoird_store::sqlite_file::empty_log;
use memoird_store::sqlite_gaps;
use rusqlite::{Connection, TransactionBehavior, params};

use super::{Index, IndexResult, TenantRange, generation_word, whole};
use crate::lock;

/// FTS5 pages written per merge step.
const MERGED_PAGES: i64 = 64;
/// How long emptying the log waits for searches.
const EMPTY_LOG_WAIT: Duration = Duration::from_millis(250);

impl Index {
    /// Runs one step of merging all words into one new segment without those of deleted turns.
    ///
    /// `is_first` starts the merge. Returns false once it is complete, regardless of words added
    /// since it began.
    pub(crate) fn merge_step(&self, is_first: bool) -> IndexResult<bool> {
        let writer = lock(&self.writer);
        let merge = |pages: i64| -> IndexResult<bool> {
            let before = writer.total_changes();
            let sql = "INSERT INTO words (words, rank) VALUES ('merge', ?)";
            writer.prepare_cached(sql)?.execute([pages])?;
            // FTS5 reports progress this way.
            Ok(writer.total_changes() - before >= 2)
        };
        let has_advanced = merge(if is_first {
            -MERGED_PAGES
        } else {
            MERGED_PAGES
        })?;
        if !has_advanced && is_merging(&writer)? {
            // Only one segment was rewritten, and another was added since: merge them.
            merge(-MERGED_PAGES)?;
        }
        is_merging(&writer)
    }

    /// Empties the log and clears unused space in the file.
    ///
    /// Returns false if a reader holds an older snapshot.
    pub(crate) fn clean(&self) -> IndexResult<bool> {
        if !empty_log(&lock(&self.writer), EMPTY_LOG_WAIT)? {
            return Ok(false);
        }
        let key = self.key.as_ref();
        let pages = sqlite_gaps::find(&self.path, key)?;
        Ok(sqlite_gaps::clear(
            &self.path,
            key,
            &pages,
            EMPTY_LOG_WAIT,
            || lock(&self.writer),
        )?)
    }

    /// Returns at most `max` generations after `after`, up to and including `until`, oldest first.
    pub(crate) fn generations(
        &self,
        after: Generation,
        until: Generation,
        max: usize,
    ) -> IndexResult<Vec<Generation>> {
        self.read(|connection| {
            let sql = "SELECT generation FROM generations
                       WHERE generation > ? AND generation <= ? ORDER BY generation LIMIT ?";
            let mut statement = connection.prepare_cached(sql)?;
            let parameters = params![after.to_bytes(), until.to_bytes(), whole(max as u64)];
            let found =
                statement.query_map(parameters, |row| Ok(Generation::from_bytes(row.get(0)?)))?;
            Ok(found.collect::<Result<_, _>>()?)
        })
    }

    /// Removes at most `turns_max` turns of a generation, and the generation once it has none.
    ///
    /// Returns the number removed. Fewer than `turns_max` means that the generation is gone.
    pub(crate) fn forget(&self, generation: Generation, turns_max: usize) -> IndexResult<usize> {
        let mut writer = lock(&self.writer);
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let sql = "SELECT no, tenant FROM generations WHERE generation = ?";
        let mut statement = transaction.prepare_cached(sql)?;
        let mut found = statement.query([generation.to_bytes()])?;
        let Some(row) = found.next()? else {
            return Ok(0);
        };
        let (no, tenant): (i64, i64) = (row.get(0)?, row.get(1)?);
        drop(found);
        drop(statement);
        let sql = "SELECT rowid FROM words WHERE words MATCH ? LIMIT ?";
        let mut statement = transaction.prepare_cached(sql)?;
        let word = format!("\"{}\"", generation_word(no));
        let rows = statement
            .query_map(params![word, whole(turns_max as u64)], |row| row.get(0))?
            .collect::<Result<Vec<i64>, _>>()?;
        drop(statement);
        for table in ["words WHERE rowid", "turns WHERE no"] {
            let mut delete = transaction.prepare_cached(&format!("DELETE FROM {table} = ?"))?;
            for row in &rows {
                delete.execute([row])?;
            }
        }
        if rows.len() < turns_max {
            transaction
                .prepare_cached("DELETE FROM generations WHERE no = ?")?
                .execute([no])?;
            let range = TenantRange { tenant };
            let sql = "DELETE FROM days WHERE tenant = ?1 AND last <
                       (SELECT ifnull(min(no), ?3) FROM turns WHERE no BETWEEN ?2 AND ?3)";
            let parameters = [tenant, range.row(1), range.row(u64::MAX)];
            transaction.prepare_cached(sql)?.execute(parameters)?;
        }
        transaction.commit()?;
        // Each result row is one released page.
        let mut vacuum = writer.prepare_cached("PRAGMA incremental_vacuum(256)")?;
        let mut pages = vacuum.query([])?;
        while pages.next()?.is_some() {}
        Ok(rows.len())
    }
}

/// Whether an FTS5 merge is in progress.
///
/// It is read from FTS5's structure record, which has, per level, the number of segments being
/// merged and the segments themselves.
fn is_merging(connection: &Connection) -> IndexResult<bool> {
    /// Bytes before the numbers: a cookie, and a flag for segments with counts of deleted rows.
    const HEAD_BYTES: usize = 8;
    const NUMBERS_OF_SEGMENT: usize = 8;
    let sql = "SELECT block FROM words_data WHERE id = 10";
    let mut statement = connection.prepare_cached(sql)?;
    let record: Vec<u8> = statement.query_row([], |row| row.get(0))?;
    let mut numbers = Numbers(record.get(HEAD_BYTES..).unwrap_or_default());
    let levels = numbers.next().unwrap_or_default();
    // Skip the totals over all levels.
    numbers.by_ref().take(2).for_each(drop);
    for _ in 0..levels {
        let (merged, segment_count) = (numbers.next(), numbers.next());
        if merged.is_some_and(|merged| merged > 0) {
            return Ok(true);
        }
        let segments = usize::try_from(segment_count.unwrap_or_default()).unwrap_or_default();
        let of_segments = segments.saturating_mul(NUMBERS_OF_SEGMENT);
        numbers.by_ref().take(of_segments).for_each(drop);
    }
    Ok(false)
}

/// Iterates over SQLite varints: seven bits per byte, highest first; a ninth byte has eight.
struct Numbers<'a>(&'a [u8]);

impl Iterator for Numbers<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let mut number = 0;
        for place in 0..9 {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            if place == 8 {
                return Some(number << 8 | u64::from(*byte));
            }
            number = number << 7 | u64::from(byte & 0x7f);
            if *byte < 0x80 {
                break;
            }
        }
        Some(number)
    }
}
