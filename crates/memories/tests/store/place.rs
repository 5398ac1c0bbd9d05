//! A memory file for a test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use memoird_memories::store::{FilesOptions, MemoryStore, check_tenant_file};
use memoird_memories::{FileError, MemoryError};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::kit::index_words;

/// Whether the file could not be used for this reason, as opposed to a rejected request.
pub(crate) fn failed_with<T>(
    answer: &Result<T, MemoryError>,
    is_cause: impl Fn(&FileError) -> bool,
) -> bool {
    matches!(answer, Err(MemoryError::Failed { cause }) if is_cause(cause))
}

pub(crate) struct Place {
    pub(crate) dir: TempDir,
    options: FilesOptions,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with(&FilesOptions::default())
    }

    pub(crate) fn with(options: &FilesOptions) -> Self {
        Self {
            dir: TempDir::new().unwrap(),
            options: options.clone(),
        }
    }

    pub(crate) fn open(&self) -> MemoryStore {
        MemoryStore::open(self.dir.path(), &self.options).unwrap()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("acme.db")
    }

    pub(crate) fn peek(&self, sql: &str) -> i64 {
        let connection = Connection::open(self.path()).unwrap();
        connection.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// Damages that a verification finds.
    pub(crate) fn damages(&self) -> Vec<String> {
        let key = self.options.key.as_ref();
        check_tenant_file(&self.path(), key).unwrap().damages
    }

    /// Changes rows as damage would.
    pub(crate) fn damage(&self, sql: &str) {
        let connection = Connection::open(self.path()).unwrap();
        connection.execute_batch(sql).unwrap();
    }

    #[allow(
        clippy::unnecessary_wraps,
        reason = "elsewhere memories are in no files"
    )]
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        Some(bytes(self.dir.path()))
    }

    /// Checks the indexes that only SQLite has.
    pub(crate) fn check(&self) {
        let connection = Connection::open(self.path()).unwrap();
        check_words(&connection);
        // A block entry has 22 bytes, and one for the eight dimensions used in tests.
        let stray = "SELECT (SELECT ifnull(sum(length(block)), 0) FROM vector_blocks) / 23
                     - (SELECT count(*) FROM vectors)";
        assert_eq!(self.peek(stray), 0);
        let verdict: String = connection
            .query_row("PRAGMA quick_check", [], |row| row.get(0))
            .unwrap();
        assert_eq!(verdict, "ok");
    }
}

/// All bytes of the files in a directory.
pub(crate) fn bytes(dir: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        bytes.extend(std::fs::read(entry.unwrap().path()).unwrap());
    }
    bytes
}

/// Checks that the index contains exactly the words of current memories.
fn check_words(connection: &Connection) {
    let check = "INSERT INTO terms (terms, rank) VALUES ('integrity-check', 0)";
    connection.execute(check, []).unwrap();
    let rows = |sql: &str| -> BTreeSet<(i64, String)> {
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.unwrap().map(Result::unwrap).collect()
    };
    let vocabulary = "CREATE VIRTUAL TABLE temp.found USING fts5vocab(main, terms, instance)";
    connection.execute_batch(vocabulary).unwrap();
    let found = rows("SELECT doc, term FROM temp.found");
    let current = rows("SELECT no, content FROM memories WHERE superseded_by IS NULL");
    let mut expected = BTreeSet::new();
    for (no, content) in current {
        expected.extend(index_words(&content).into_iter().map(|word| (no, word)));
    }
    assert_eq!(found, expected);
}
