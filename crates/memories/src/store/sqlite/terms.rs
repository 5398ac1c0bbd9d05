//! The words of memories in a full-text index of SQLite (FTS5).
//!
//! The table `terms` has the words of current memories as `core::words` cuts them. Before it
//! there was `words`, which SQLite cut: of a file from that time a walk moves memory by memory,
//! in the order of their numbers. Up to where it stands they are in `terms`, behind it in
//! `words`; that table goes with the last of them.

use memoird_core::words::ranking::Term;
use rusqlite::{Connection, OptionalExtension, Statement, ToSql, params};

use crate::MemoryError;
use crate::store::index::{IndexWords, Looked, MATCHES_MAX, Sought};
use crate::store::row::{limit, range};
use crate::store::sql::Answer;

/// Of so many segments of one size a merge makes a larger one.
const MERGED_MIN: i64 = 2;

const REMOVE_OLD: &str = "INSERT INTO words (words, rowid, content) VALUES ('delete', ?, ?)";
const ADD_OLD: &str = "INSERT INTO words (rowid, content) VALUES (?, ?)";

/// Adds the words of a memory that the index does not have.
pub(in crate::store) fn add(file: &Connection, no: i64, words: &IndexWords) -> Answer<()> {
    let sql = "INSERT INTO terms (rowid, forms) VALUES (?, ?)";
    file.prepare_cached(sql)?
        .execute(params![no, words.words])?;
    Ok(())
}

/// Removes the words of a memory.
pub(in crate::store) fn remove(file: &Connection, no: i64, words: &IndexWords) -> Answer<()> {
    let sql = "INSERT INTO terms (terms, rowid, forms) VALUES ('delete', ?, ?)";
    file.prepare_cached(sql)?
        .execute(params![no, words.words])?;
    Ok(())
}

/// Adds the text of a memory that was not moved yet.
pub(in crate::store) fn add_old(file: &Connection, no: i64, text: &str) -> Answer<()> {
    file.prepare_cached(ADD_OLD)?.execute(params![no, text])?;
    Ok(())
}

/// Removes it.
pub(in crate::store) fn remove_old(file: &Connection, no: i64, text: &str) -> Answer<()> {
    file.prepare_cached(REMOVE_OLD)?
        .execute(params![no, text])?;
    Ok(())
}

/// Up to which memory the words were moved; `None`: all are.
pub(in crate::store) fn moving_at(file: &Connection) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT value FROM meta WHERE name = 'words_at'";
    let mut statement = file.prepare_cached(sql)?;
    statement.query_row([], |row| row.get(0)).optional()
}

/// Removes the table that words were moved from.
pub(in crate::store) fn end_moving(file: &Connection) -> rusqlite::Result<()> {
    file.execute_batch(
        "DROP TABLE IF EXISTS words; DROP VIEW IF EXISTS current_words;
         DELETE FROM meta WHERE name IN ('words_at', 'words_left')",
    )
}

/// In a file without memories there is nothing to move.
pub(super) fn end_moving_if_empty(file: &Connection) -> rusqlite::Result<()> {
    let sql = "SELECT memories FROM state";
    let memories: i64 = file.query_row(sql, [], |row| row.get(0))?;
    match memories {
        0 => end_moving(file),
        _ => Ok(()),
    }
}

/// Of how many segments the index consists.
pub(in crate::store) fn segments(file: &Connection) -> Answer<u64> {
    let sql = "SELECT count(DISTINCT segid) FROM terms_idx";
    let count: i64 = file.query_row(sql, [], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// Merges segments, and writes at most about so many pages of 512 bytes. False where there is
/// nothing more to merge.
pub(in crate::store) fn merge_step(file: &Connection, pages: usize) -> Answer<bool> {
    let wanted = "SELECT 1 FROM terms_config WHERE k = 'usermerge' AND v = ?";
    if !file.prepare_cached(wanted)?.exists([MERGED_MIN])? {
        let set = "INSERT INTO terms (terms, rank) VALUES ('usermerge', ?)";
        file.execute(set, [MERGED_MIN])?;
    }
    let before = file.total_changes();
    let merge = "INSERT INTO terms (terms, rank) VALUES ('merge', ?)";
    file.execute(merge, [limit(pages)])?;
    // So FTS5 says that it has done something.
    Ok(file.total_changes() - before >= 2)
}

/// Looks each term up in each partition, the newest memories first.
pub(in crate::store) fn look_up(
    file: &Connection,
    sought: &[Sought<'_>],
    mut note: impl FnMut(usize, &[i64]),
) -> Answer<Vec<Looked>> {
    let moving_at = moving_at(file)?;
    let mut looked = Vec::with_capacity(sought.len());
    let mut numbers = Vec::new();
    for (index, one) in sought.iter().enumerate() {
        numbers.clear();
        looked.push(matches(file, one.term, one.partition, moving_at, |no| {
            numbers.push(no);
        })?);
        note(index, &numbers);
    }
    Ok(looked)
}

fn matches(
    file: &Connection,
    term: &Term,
    partition: i64,
    moving_at: Option<i64>,
    mut note: impl FnMut(i64),
) -> Result<Looked, MemoryError> {
    let (first, last) = range(partition);
    let forms: Vec<String> = term
        .forms()
        .iter()
        .map(|form| format!("\"{form}\""))
        .collect();
    let sql = "SELECT rowid FROM terms WHERE terms MATCH ? AND rowid BETWEEN ? AND ?
               ORDER BY rowid DESC LIMIT ?";
    let sought = params![forms.join(" OR "), first, last, limit(MATCHES_MAX)];
    let moved = look(&mut *file.prepare_cached(sql)?, sought, &mut note)?;
    let Some(at) = moving_at else {
        return Ok(moved);
    };
    let sql = "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ?
               ORDER BY rowid DESC LIMIT ?";
    let word = format!("\"{}\"", term.word);
    let sought = params![word, first.max(at + 1), last, limit(MATCHES_MAX)];
    match look(&mut *file.prepare_cached(sql)?, sought, note) {
        Ok(old) => Ok(Looked {
            found: old.found + moved.found,
            // Those that were moved are the older ones.
            last: if moved.found > 0 {
                moved.last
            } else {
                old.last
            },
        }),
        // SQLite cuts the word in a place that we do not know of.
        Err(error) if is_cut(&error) => Ok(moved),
        Err(error) => Err(error.into()),
    }
}

/// Reads the numbers of the memories that were found.
fn look(
    statement: &mut Statement<'_>,
    sought: &[&dyn ToSql],
    mut note: impl FnMut(i64),
) -> rusqlite::Result<Looked> {
    let mut rows = statement.query(sought)?;
    let mut looked = Looked::default();
    while let Some(row) = rows.next()? {
        looked.last = row.get(0)?;
        note(looked.last);
        looked.found += 1;
    }
    Ok(looked)
}

/// True where a word is several to the index, which it has no places of.
fn is_cut(error: &rusqlite::Error) -> bool {
    let rusqlite::Error::SqliteFailure(_, Some(problem)) = error else {
        return false;
    };
    problem.starts_with("fts5: phrase queries are not supported")
}
