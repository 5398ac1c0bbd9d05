//! The search index: a SQLite file with an FTS5 table of stems, without the texts.
//!
//! It is a file of its own, because a thread that is descheduled during a step would block every
//! commit if the step held the lock of the journal.
//!
//! The index is derived from the journal, so it is never repaired or migrated: a file that does not
//! fit is overwritten, removed and built again. `state.indexed` is the number of the last turn in
//! it. Before a commit, retention or an erasure changes or deletes turns, it marks their rows as
//! stale ([`IndexLock::mark_stale`]) and holds the lock of the index until the journal has
//! committed. A step reads stale turns again.
//!
//! Each tenant's turns have their own numbering and a contiguous range of rows ([`TenantRange`]): a
//! search reads no rows of other tenants, and their turns do not influence its scores.
//!
//! Words are split and stemmed by `memoird_core::words`. Texts are read from the journal, which
//! must be asked anyway whether a turn still exists. Filters are words too: role, tools and
//! generation of a turn are indexed next to its stems, with a prefix that no word of a text has. A
//! session or a subject is the list of its generations. For times, a small table maps each day to a
//! range of rows.
//!
//! Steps are not synced to disk. Turns lost in a crash are read again. Stale marks are synced.

mod add;
mod find;
mod purge;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use memoird_core::ids::TenantId;
use memoird_core::words::{self, Languages};
use rusqlite::{Connection, ErrorCode, OptionalExtension};

use super::SqliteStore;
use super::row::whole;
use crate::conversion::wipe;
use crate::search::MARK;
use crate::sqlite_file::{SqliteFile, damaged, unusable};
use crate::sqlite_gaps::GapFile;
use crate::{
    DataKey, IndexBounds, IndexStep, PurgeStep, SearchFilter, SearchIndex, SearchMatches,
    StoreError, lock,
};

const FILE: SqliteFile = SqliteFile {
    // "mems" in ASCII.
    application_id: 0x6d65_6d73,
    schema_known: SCHEMA_VERSION,
    cache_kib: 2 << 10,
    // 16 MiB. Only checkpoints wait for the disk.
    checkpoint_pages: 4_096,
    log_bytes_kept: 16 << 20,
    statements_cached: 32,
};

/// Incremented with every change of the tables. An index of another version is built again.
const SCHEMA_VERSION: i64 = 4;
const SCHEMA: &str = include_str!("schema.sql");

/// Maximum size in bytes of a file that is checked whole on open.
///
/// Of a larger file, only header and schema are checked.
const CHECK_BYTES_MAX: u64 = 256 << 20;
/// Read connections kept open between searches.
const READERS_KEPT: usize = 2;

/// Bits of a row number that hold the turn's number within its tenant.
///
/// The higher bits are the tenant.
const TENANT_SHIFT: u32 = 40;

/// Returns the path of the index of a data directory.
///
/// It may be deleted while no daemon runs.
pub fn index_file(dir: &Path) -> PathBuf {
    dir.join("search.db")
}

/// The index file of a journal.
#[derive(Debug)]
pub(super) struct SearchFile {
    path: PathBuf,
    key: Option<DataKey>,
    /// Dropped before the writer: only the last connection checkpoints the log on close.
    readers: Mutex<Readers>,
    writer: Mutex<IndexWriter>,
    /// Declared after the connections, which it must outlive.
    gaps: GapFile,
    /// Set by a search that finds the file damaged.
    is_damaged: AtomicBool,
}

#[derive(Debug, Default)]
struct Readers {
    /// Whether the file was checked, so that it may be read.
    is_open: bool,
    /// Number of files removed before this one. Their connections are not reused.
    epoch: u64,
    idle: Vec<Connection>,
}

#[derive(Debug, Default)]
struct IndexWriter {
    connection: Option<Connection>,
    /// Whether the index is known to belong to this journal.
    is_of_journal: bool,
    /// Last stale row that was read again. The next step goes on after it.
    last_stale: i64,
}

/// Exclusive write access to the index. Must be taken before the lock of the journal's writer.
pub(super) struct IndexLock<'a> {
    file: &'a SearchFile,
    writer: MutexGuard<'a, IndexWriter>,
}

/// The rows of one tenant's turns.
#[derive(Clone, Copy, Debug)]
struct TenantRange {
    /// Number of the tenant.
    tenant: i64,
}

impl TenantRange {
    /// Returns the row of a turn by its number within the tenant, from 1.
    fn row(self, number: u64) -> i64 {
        (self.tenant << TENANT_SHIFT) | whole(number).min((1 << TENANT_SHIFT) - 1)
    }

    /// Returns the number of the turn in this row.
    fn number(row: i64) -> u64 {
        (row & ((1 << TENANT_SHIFT) - 1)).unsigned_abs()
    }
}

impl SearchFile {
    pub(super) fn new(dir: &Path, key: Option<DataKey>) -> Self {
        let path = index_file(dir);
        Self {
            gaps: GapFile::new(&path),
            path,
            key,
            readers: Mutex::default(),
            writer: Mutex::default(),
            is_damaged: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self) -> IndexLock<'_> {
        IndexLock {
            file: self,
            writer: lock(&self.writer),
        }
    }

    /// Runs a read on one snapshot. `None` while the index has not been opened.
    fn read<T>(
        &self,
        action: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let (idle, epoch) = {
            let mut readers = lock(&self.readers);
            if !readers.is_open {
                return Ok(None);
            }
            (readers.idle.pop(), readers.epoch)
        };
        let connection = match idle {
            Some(connection) => connection,
            None => FILE.reader(&self.path, self.key.as_ref())?,
        };
        let view = connection.unchecked_transaction()?;
        let outcome = action(&view);
        drop(view);
        let mut readers = lock(&self.readers);
        if readers.epoch == epoch && readers.idle.len() < READERS_KEPT {
            readers.idle.push(connection);
        }
        let has_damage = outcome.as_ref().is_err_and(is_damage) && readers.epoch == epoch;
        self.is_damaged.fetch_or(has_damage, Ordering::AcqRel);
        outcome.map(Some)
    }

    /// Size in bytes of the file and its log.
    fn bytes(&self) -> u64 {
        size_of(&self.path) + size_of(&self.path.with_extension("db-wal"))
    }

    /// Checks, without changing the file, that it is an intact index of this version.
    fn is_usable(&self) -> Result<bool, StoreError> {
        let path = &self.path;
        let Some(existing) = FILE.inspect(path, self.key.as_ref())? else {
            return Ok(false);
        };
        if existing.schema.is_none() {
            // Do not remove a file of another program.
            let path = path.clone();
            return Err(StoreError::NotAJournal { path });
        }
        if existing.schema != Some(SCHEMA_VERSION) {
            return Ok(false);
        }
        let text = |sql| {
            let connection = &existing.connection;
            let value = connection.query_row(sql, [], |row| row.get::<_, String>(0));
            value.map_err(|error| damaged(path, error))
        };
        let is_current =
            text("SELECT CAST(words_version AS TEXT) FROM state")? == words::VERSION.to_string();
        let is_checked = is_current && size_of(path) <= CHECK_BYTES_MAX;
        Ok(is_current && (!is_checked || text("PRAGMA quick_check(1)")? == "ok"))
    }
}

impl IndexLock<'_> {
    /// Opens the index if there is one that can be used. Any other is removed.
    fn existing(&mut self) -> Result<Option<&mut Connection>, StoreError> {
        if self.file.is_damaged.load(Ordering::Acquire) {
            self.discard()?;
        }
        if self.writer.connection.is_none() {
            if !self.file.path.exists() {
                return Ok(None);
            }
            match self.file.is_usable() {
                Ok(true) => self.open(false)?,
                Err(error) if !is_damage(&error) => return Err(error),
                Ok(false) | Err(_) => {
                    self.discard()?;
                    return Ok(None);
                }
            }
        }
        Ok(self.writer.connection.as_mut())
    }

    fn open(&mut self, is_new: bool) -> Result<(), StoreError> {
        let mut connection = FILE.writer(&self.file.path, self.file.key.as_ref(), is_new)?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.pragma_update(None, "secure_delete", "ON")?;
        if is_new {
            let transaction = connection.transaction()?;
            transaction.execute_batch(SCHEMA)?;
            let state = "INSERT INTO state (id, words_version) VALUES (1, ?)";
            transaction.execute(state, [words::VERSION])?;
            transaction.pragma_update(None, "application_id", FILE.application_id)?;
            transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
            transaction.commit()?;
        }
        // With the default minimum of four, a step would not continue a merge of two or three
        // segments once as many were added since: FTS5 would pick those, and find too few.
        let merge_of_two = "INSERT INTO words (words, rank) VALUES ('usermerge', 2)";
        connection.execute(merge_of_two, [])?;
        self.writer.connection = Some(connection);
        lock(&self.file.readers).is_open = true;
        Ok(())
    }

    /// Closes the index, overwrites it and removes it.
    fn discard(&mut self) -> Result<(), StoreError> {
        *self.writer = IndexWriter::default();
        let mut readers = lock(&self.file.readers);
        readers.is_open = false;
        readers.epoch += 1;
        readers.idle.clear();
        drop(readers);
        self.file.is_damaged.store(false, Ordering::Release);
        let path = &self.file.path;
        let removed = match std::fs::remove_file(path.with_extension("db-shm")) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => wipe(&path.with_extension("db-wal")).and_then(|()| wipe(path)),
        };
        removed.map_err(|error| unusable(path, error))
    }

    /// Marks turns that a transaction of the journal is about to change or delete.
    ///
    /// The lock must be held until that transaction has ended. If the marks cannot be written, the
    /// index is removed instead.
    pub(super) fn mark_stale(&mut self, turns: &[i64]) -> Result<(), StoreError> {
        if turns.is_empty() {
            return Ok(());
        }
        let connection = match self.existing() {
            Err(StoreError::NotAJournal { .. }) | Ok(None) => return Ok(()),
            existing => existing?,
        };
        match connection.map(|connection| mark_stale(connection, turns)) {
            Some(Err(_)) => self.discard(),
            _ => Ok(()),
        }
    }
}

fn mark_stale(connection: &mut Connection, turns: &[i64]) -> Result<(), StoreError> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    let transaction = connection.transaction()?;
    let sql = "UPDATE turns SET is_stale = 1 WHERE number = ?";
    let mut statement = transaction.prepare_cached(sql)?;
    for turn in turns {
        statement.execute([turn])?;
    }
    drop(statement);
    transaction.commit()?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(())
}

impl SearchIndex for SqliteStore {
    fn index_step(&self, bounds: IndexBounds) -> Result<IndexStep, StoreError> {
        let mut index = self.search.lock();
        let outcome = add::step(self, &mut index, bounds);
        if outcome.as_ref().is_err_and(is_damage) {
            index.discard()?;
        }
        outcome
    }

    fn purge_step(&self) -> Result<PurgeStep, StoreError> {
        purge::step(self)
    }

    fn remove_index(&self) -> Result<(), StoreError> {
        self.search.lock().discard()
    }

    fn has_indexed(&self, tenant: &TenantId, number: u64) -> Result<bool, StoreError> {
        let has_indexed = self.search.read(|connection| {
            let sql = "SELECT indexed >= ?1 AND NOT EXISTS
                           (SELECT 1 FROM turns, tenants WHERE name = ?2 AND is_stale
                            AND turns.no BETWEEN tenants.no << ?3 AND (tenants.no + 1 << ?3) - 1)
                       FROM state";
            let mut statement = connection.prepare_cached(sql)?;
            let parameters = (whole(number), tenant.as_str(), TENANT_SHIFT);
            Ok(statement.query_row(parameters, |row| row.get(0))?)
        });
        let is_damaged = self.search.is_damaged.load(Ordering::Acquire);
        Ok(has_indexed?.unwrap_or(false) && !is_damaged)
    }

    fn find(
        &self,
        filter: &SearchFilter,
        query: &str,
        max: usize,
    ) -> Result<Option<SearchMatches>, StoreError> {
        self.search
            .read(|connection| find::find(connection, filter, query, max))
    }
}

/// Whether the file is damaged and must be built again.
fn is_damage(error: &StoreError) -> bool {
    match error {
        StoreError::Corrupt { .. } | StoreError::TooNew { .. } => true,
        StoreError::Sqlite { source } => matches!(
            source.sqlite_error_code(),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        ),
        _ => false,
    }
}

/// State of a tenant in the index.
#[derive(Clone, Copy, Debug)]
struct TenantRow {
    range: TenantRange,
    /// Number of its next turn.
    next: u64,
    /// Languages of its turns.
    languages: Languages,
}

/// Returns the state of a tenant. `None` if it has no turns.
fn find_tenant(connection: &Connection, tenant: &str) -> Result<Option<TenantRow>, StoreError> {
    let sql = "SELECT no, next, languages FROM tenants WHERE name = ?";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row([tenant], |row| {
        let range = TenantRange {
            tenant: row.get(0)?,
        };
        Ok(TenantRow {
            range,
            next: row.get::<_, i64>(1)?.unsigned_abs(),
            languages: Languages::from_bits(row.get(2)?),
        })
    });
    Ok(found.optional()?)
}

/// Size of a file in bytes. 0 if it is missing.
fn size_of(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |meta| meta.len())
}

/// Index word of all turns of a generation.
fn generation_word(generation: i64) -> String {
    format!("{MARK}g{generation}")
}

/// Quotes a word for FTS5. Words contain no quotation marks.
fn quoted(word: &str) -> String {
    format!("\"{word}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_created_once_and_foreign_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = SearchFile::new(dir.path(), None);
        let mut index = file.lock();
        assert!(index.existing().unwrap().is_none());
        index.open(true).unwrap();
        assert!(file.is_usable().unwrap());
        index.writer.connection = None;
        assert!(index.existing().unwrap().is_some());
        index.discard().unwrap();
        assert!(!file.path.exists());
        let foreign = Connection::open(&file.path).unwrap();
        foreign.execute_batch("CREATE TABLE a (b)").unwrap();
        drop(foreign);
        let error = index.existing().unwrap_err();
        assert!(!is_damage(&error) && file.path.exists(), "{error}");
        index.mark_stale(&[1]).unwrap();
        assert!(file.path.exists());
    }

    #[test]
    fn row_range_is_exclusive_to_tenant() {
        let (one, next) = (TenantRange { tenant: 1 }, TenantRange { tenant: 2 });
        assert!(one.row(u64::MAX) < next.row(1));
        assert_eq!(TenantRange::number(next.row(17)), 17);
    }
}
