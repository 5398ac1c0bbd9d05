//! The words of memories in a full-text index of SQLite (FTS5).
//!
//! The table `terms` has the words of current memories as `core::words` cuts them.

use rusqlite::{Connection, params};

use crate::store::index::{IndexWords, Looked, MATCHES_MAX, Sought, VERSION};
use crate::store::row::{limit, range};
use crate::store::sql::Answer;

/// Of how many segments of one size a merge makes a larger one. In the background there are few, because
/// each recall looks into each segment. A commit waits until there are as many as FTS5 allows, so that
/// it merges less while others wait for it.
const MERGED: [(&str, i64); 2] = [("usermerge", 2), ("automerge", 16)];

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

/// Sets how segments are merged, and removes words that were cut by other rules; those of each memory
/// are indexed anew.
pub(super) fn renew(file: &Connection) -> rusqlite::Result<()> {
    for (name, count) in MERGED {
        let is_set = "SELECT 1 FROM terms_config WHERE k = ? AND v = ?";
        if !file.prepare(is_set)?.exists(params![name, count])? {
            let set = "INSERT INTO terms (terms, rank) VALUES (?, ?)";
            file.execute(set, params![name, count])?;
        }
    }
    let is_known = "SELECT 1 FROM meta WHERE name = 'words' AND value = ?";
    if file.prepare(is_known)?.exists([VERSION])? {
        return Ok(());
    }
    file.execute("INSERT INTO terms (terms) VALUES ('delete-all')", [])?;
    file.execute("INSERT OR REPLACE INTO meta VALUES ('words', ?)", [VERSION])?;
    file.execute_batch(
        "DELETE FROM meta WHERE name IN ('words_at', 'words_left');
         INSERT INTO meta SELECT 'words_at', 0 FROM state WHERE memories > 0;
         INSERT INTO meta SELECT 'words_left', memories FROM state WHERE memories > 0;",
    )
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
    let sql = "SELECT rowid FROM terms WHERE terms MATCH ? AND rowid BETWEEN ? AND ?
               ORDER BY rowid DESC LIMIT ?";
    let mut statement = file.prepare_cached(sql)?;
    let mut looked = Vec::with_capacity(sought.len());
    let mut numbers: Vec<i64> = Vec::new();
    for (index, one) in sought.iter().enumerate() {
        let (first, last) = range(one.partition);
        let forms: Vec<String> = one.forms.iter().map(|form| format!("\"{form}\"")).collect();
        numbers.clear();
        let parameters = params![forms.join(" OR "), first, last, limit(MATCHES_MAX)];
        let mut rows = statement.query(parameters)?;
        while let Some(row) = rows.next()? {
            numbers.push(row.get(0)?);
        }
        looked.push(Looked {
            found: numbers.len(),
            last: numbers.last().copied().unwrap_or_default(),
        });
        note(index, &numbers);
    }
    Ok(looked)
}
