//! Removes the words of changed and deleted turns from the file, in bounded steps.
//!
//! FTS5 removes the words of a row from a contentless table only when it merges their segment. So
//! all segments are merged, and then the log and the unused space of pages are cleared.

use std::time::Duration;

use rusqlite::Connection;

use super::{SearchFile, SqliteStore, add};
use crate::sqlite_file::empty_log;
use crate::{IndexBounds, PurgeStep, StoreError};

/// FTS5 pages written per step.
const MERGED_PAGES: i64 = 64;
/// Maximum number of free pages released to the file system per step.
const RELEASED_PAGES: usize = 256;
/// How long emptying the log waits for searches.
const EMPTY_LOG_WAIT: Duration = Duration::from_millis(250);
/// Limits of a step that reads stale turns again.
const STALE: IndexBounds = IndexBounds {
    turns_max: 1,
    bytes_max: 1,
    stale_max: 256,
};

pub(super) fn step(store: &SqliteStore) -> Result<PurgeStep, StoreError> {
    let mut index = store.search.lock();
    let Some(connection) = index.existing()? else {
        return Ok(PurgeStep::Done);
    };
    let has_stale = "SELECT 1 FROM turns WHERE is_stale";
    if connection.prepare_cached(has_stale)?.exists([])? {
        add::step(store, &mut index, STALE)?;
        return Ok(PurgeStep::More);
    }
    let sql = "SELECT unclean FROM state";
    let unclean: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    if unclean == 0 {
        return Ok(PurgeStep::Done);
    }
    let is_merged = merge(connection)?;
    if !is_merged || crate::sqlite::prune::release_pages(connection, RELEASED_PAGES)? {
        return Ok(PurgeStep::More);
    }
    drop(index);
    if !clear(&store.search)? {
        return Ok(PurgeStep::Blocked);
    }
    let mut index = store.search.lock();
    if let Some(connection) = index.existing()? {
        // More words may have been removed in the meantime.
        let sql = "UPDATE state SET unclean = 0 WHERE unclean = ?";
        connection.execute(sql, [unclean])?;
    }
    Ok(PurgeStep::Done)
}

/// Empties the log and clears unused space in the file.
///
/// Returns false if a reader holds an older snapshot.
fn clear(file: &SearchFile) -> Result<bool, StoreError> {
    let is_empty = match file.lock().existing()? {
        Some(connection) => empty_log(connection, EMPTY_LOG_WAIT)?,
        None => return Ok(true),
    };
    if !is_empty {
        return Ok(false);
    }
    let key = file.key.as_ref();
    let pages = file.gaps.find(key)?;
    match file.lock().existing()? {
        Some(connection) => file
            .gaps
            .clear(key, &pages, EMPTY_LOG_WAIT, || &*connection),
        None => Ok(true),
    }
}

/// Runs one step of merging all segments. Returns whether none has words of deleted rows.
fn merge(connection: &Connection) -> Result<bool, StoreError> {
    let merge = |pages: i64| -> Result<bool, StoreError> {
        let before = connection.total_changes();
        let sql = "INSERT INTO words (words, rank) VALUES ('merge', ?)";
        connection.prepare_cached(sql)?.execute([pages])?;
        // FTS5 reports progress this way.
        Ok(connection.total_changes() - before >= 2)
    };
    let segments = Segments::read(connection)?;
    if segments.have_deleted {
        // A negative number begins a merge of all segments.
        let has_advanced = merge(if segments.are_merging {
            MERGED_PAGES
        } else {
            -MERGED_PAGES
        })?;
        if !has_advanced && segments.are_merging {
            // Only one segment was rewritten, and another was added since: merge them.
            merge(-MERGED_PAGES)?;
        }
    }
    Ok(!Segments::read(connection)?.have_deleted)
}

/// State of the segments, from FTS5's structure record.
///
/// The record has, per level, the number of segments being merged and the segments themselves.
#[derive(Default)]
struct Segments {
    are_merging: bool,
    /// Whether a segment has pages that list deleted rows.
    have_deleted: bool,
}

impl Segments {
    fn read(connection: &Connection) -> Result<Self, StoreError> {
        /// Bytes before the numbers: a cookie, and a flag for segments with deleted rows.
        const HEAD_BYTES: usize = 8;
        const NUMBERS_OF_SEGMENT: usize = 8;
        /// Position of the number of pages that list deleted rows.
        const DELETED_PAGES: usize = 5;
        let sql = "SELECT block FROM words_data WHERE id = 10";
        let mut statement = connection.prepare_cached(sql)?;
        let record: Vec<u8> = statement.query_row([], |row| row.get(0))?;
        let mut numbers = Numbers(record.get(HEAD_BYTES..).unwrap_or_default());
        let levels = numbers.next().unwrap_or_default();
        // Skip the totals over all levels.
        numbers.by_ref().take(2).for_each(drop);
        let mut segments = Self::default();
        for _ in 0..levels {
            segments.are_merging |= numbers.next().is_some_and(|merged| merged > 0);
            for _ in 0..numbers.next().unwrap_or_default() {
                let mut segment = numbers.by_ref().take(NUMBERS_OF_SEGMENT);
                segments.have_deleted |= segment.nth(DELETED_PAGES).is_some_and(|pages| pages > 0);
                segment.for_each(drop);
            }
        }
        Ok(segments)
    }
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
