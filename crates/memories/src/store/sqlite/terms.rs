//! The word index of a file, with SQLite's FTS5.
//!
//! The table `terms` contains the words of current memories, as split by `core::words`.

use rusqlite::{Connection, params};

use crate::store::row::{limit, range};
use crate::store::sql::{Dialect, StoreResult};
use crate::store::word_index::{
    IndexWords, MATCHES_MAX, TermCount, TermLookup, VERSION, WordIndex,
};

/// Number of segments of one size that are merged into a larger one.
///
/// Background merges keep the number of segments low, because each recall searches every segment. A
/// commit merges only at the maximum that FTS5 allows, because other writes wait for it.
const MERGED: [(&str, i64); 2] = [("usermerge", 2), ("automerge", 16)];

/// Configures merging.
///
/// If other word rules created the index, deletes it and starts to reindex all memories.
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

impl WordIndex for Connection {
    fn add_words(&self, no: i64, words: &IndexWords, _is_new: bool) -> StoreResult<()> {
        let sql = "INSERT INTO terms (rowid, forms) VALUES (?, ?)";
        self.run(sql, params![no, words.words])
    }

    fn remove_words(&self, no: i64, words: &IndexWords) -> StoreResult<()> {
        let sql = "INSERT INTO terms (terms, rowid, forms) VALUES ('delete', ?, ?)";
        self.run(sql, params![no, words.words])
    }

    fn look_up_terms(
        &self,
        sought: &[TermLookup<'_>],
        note: &mut dyn FnMut(usize, &[i64]),
    ) -> StoreResult<Vec<TermCount>> {
        let sql = "SELECT rowid FROM terms WHERE terms MATCH ? AND rowid BETWEEN ? AND ?
                   ORDER BY rowid DESC LIMIT ?";
        let mut statement = self.prepare_cached(sql)?;
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
            looked.push(TermCount {
                found: numbers.len(),
                last: numbers.last().copied().unwrap_or_default(),
            });
            note(index, &numbers);
        }
        Ok(looked)
    }

    fn word_segments(&self) -> StoreResult<u64> {
        let sql = "SELECT count(DISTINCT segid) FROM terms_idx";
        let count: i64 = self.query_row(sql, [], |row| row.get(0))?;
        Ok(count.unsigned_abs())
    }

    fn merge_words(&self, pages: usize) -> StoreResult<bool> {
        let before = self.total_changes();
        let merge = "INSERT INTO terms (terms, rank) VALUES ('merge', ?)";
        self.execute(merge, [limit(pages)])?;
        // FTS5 reports progress by changing at least two rows.
        Ok(self.total_changes() - before >= 2)
    }
}
