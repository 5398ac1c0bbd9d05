//! The full-text index: a SQLite file with an FTS5 table of stems, without the texts.
//!
//! It is derived from the journal, so it is never repaired or migrated. A file that does not fit is
//! removed and rebuilt.
//!
//! One file serves the whole data directory. So there is a single cursor, written in the same
//! transaction as the turns it covers, and one transaction per step for all tenants. Each tenant's
//! turns have their own numbering and a contiguous range of rows ([`TenantRange`]): a search reads
//! no rows of other tenants, and their turns do not influence its scores.
//!
//! Words are split and stemmed by `memoird_core::words`. Texts are read from the journal, which
//! must be asked anyway whether a turn still exists. Filters are words too: role, tools and
//! generation of a turn are indexed next to its stems, with a prefix that no word of a text has. A
//! session or a subject is the list of its generations. For times, a small table maps each day to a
//! range of rows.
//!
//! Writes are not synced to disk. The cursor is in the same transaction as the turns, so turns lost
//! in a crash are read again.

mod add;
mod change;
mod find;
mod forget;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use memoird_core::hex;
use memoird_core::ids::Generation;
use memoird_store::sqlite_file::{SqliteFile, damaged};
use memoird_store::{DataKey, StoreError};
use rusqlite::{Connection, OptionalExtension, params};

pub(crate) use add::NewTurn;
pub(crate) use find::{Candidate, Filter, Matches};

use crate::error::IndexError;
use crate::lock;
use crate::words::{self, Languages};

/// Result of a call that uses the index file.
pub(crate) type IndexResult<T> = Result<T, IndexError>;

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

/// Incremented with every change of the tables. An index of another version is rebuilt.
const SCHEMA_VERSION: i64 = 3;
const SCHEMA: &str = include_str!("index/schema.sql");

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

/// Prefix of index words for filters, which no word of a text can have.
///
/// It is a private-use character, while words consist of letters and digits. Only letters and
/// digits follow it.
const MARK: char = '\u{e000}';
/// Maximum bytes of a tool name in a filter word.
const TOOL_BYTES_MAX: usize = 64;

/// The open index file.
#[derive(Debug)]
pub(crate) struct Index {
    path: PathBuf,
    key: Option<DataKey>,
    /// Dropped before the writer: only the last connection checkpoints the log on close.
    readers: Mutex<Vec<Connection>>,
    writer: Mutex<Connection>,
}

/// Cursor of the index in the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalCursor {
    /// Number of the last turn indexed or skipped. 0 if none.
    pub(crate) number: u64,
    /// That turn, to recognize the journal. `None` at the beginning.
    pub(crate) turn: Option<(Generation, u64)>,
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
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        (self.tenant << TENANT_SHIFT) | number.min((1 << TENANT_SHIFT) - 1)
    }

    /// Returns the number of the turn in this row.
    fn number(row: i64) -> u64 {
        (row & ((1 << TENANT_SHIFT) - 1)).unsigned_abs()
    }
}

impl Index {
    /// Opens the index. Returns true if it is new.
    ///
    /// A file that is damaged, or is an index of another version, is removed and replaced by an
    /// empty one.
    pub(crate) fn open(path: &Path, key: Option<DataKey>) -> IndexResult<(Self, bool)> {
        let is_usable = match is_usable(path, key.as_ref()) {
            Ok(is_usable) => is_usable,
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "the transcript index is damaged and is rebuilt");
                false
            }
            Err(error) => return Err(error),
        };
        if !is_usable {
            remove(path)?;
        }
        let mut writer = FILE.writer(path, key.as_ref(), !is_usable)?;
        // Commits lost in a crash of the machine are read from the journal again.
        writer.pragma_update(None, "synchronous", "NORMAL")?;
        writer.pragma_update(None, "secure_delete", "ON")?;
        if !is_usable {
            let transaction = writer.transaction()?;
            transaction.execute_batch(SCHEMA)?;
            let state = "INSERT INTO state (id, words_version, followed) VALUES (1, ?, 0)";
            transaction.execute(state, [words::VERSION])?;
            transaction.pragma_update(None, "application_id", FILE.application_id)?;
            transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
            transaction.commit()?;
        }
        // With the default minimum of four, a step would not continue a merge of two or three
        // segments once as many were added since: FTS5 would pick those, and find too few.
        let merge_of_two = "INSERT INTO words (words, rank) VALUES ('usermerge', 2)";
        writer.execute(merge_of_two, [])?;
        let index = Self {
            path: path.to_owned(),
            key,
            readers: Mutex::default(),
            writer: Mutex::new(writer),
        };
        Ok((index, !is_usable))
    }

    /// Closes and removes the file.
    pub(crate) fn discard(self) -> IndexResult<()> {
        let path = self.path.clone();
        drop(self);
        remove(&path)
    }

    /// Returns how far the index has followed the journal.
    pub(crate) fn followed(&self) -> IndexResult<JournalCursor> {
        self.read(|connection| {
            let sql = "SELECT followed, last_generation, last_seq FROM state";
            let followed = connection.query_row(sql, [], |row| {
                let generation = row.get::<_, Option<[u8; 16]>>(1)?;
                let seq = row.get::<_, Option<i64>>(2)?;
                let turn = generation.zip(seq);
                Ok(JournalCursor {
                    number: row.get::<_, i64>(0)?.unsigned_abs(),
                    turn: turn.map(|(generation, seq)| {
                        (Generation::from_bytes(generation), seq.unsigned_abs())
                    }),
                })
            })?;
            Ok(followed)
        })
    }

    /// Size in bytes of the file and its log.
    pub(crate) fn file_bytes(&self) -> u64 {
        size_of(&self.path) + size_of(&beside(&self.path, "-wal"))
    }

    /// Runs a read on one snapshot.
    fn read<T>(&self, look: impl FnOnce(&Connection) -> IndexResult<T>) -> IndexResult<T> {
        let kept = lock(&self.readers).pop();
        let connection = match kept {
            Some(connection) => connection,
            None => FILE.reader(&self.path, self.key.as_ref())?,
        };
        let view = connection.unchecked_transaction()?;
        let outcome = look(&view);
        drop(view);
        let mut readers = lock(&self.readers);
        if readers.len() < READERS_KEPT {
            readers.push(connection);
        }
        outcome
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
fn find_tenant(connection: &Connection, tenant: &str) -> IndexResult<Option<TenantRow>> {
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

/// Removes an index if it exists. No connection may have it open.
pub(crate) fn remove(path: &Path) -> IndexResult<()> {
    for part in ["", "-wal", "-shm"] {
        match std::fs::remove_file(beside(path, part)) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                let dir = path.parent().unwrap_or(path).to_owned();
                return Err(StoreError::DirUnusable { dir, source }.into());
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the path of a file that SQLite keeps next to the database.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Size of a file in bytes. 0 if it is missing.
fn size_of(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |meta| meta.len())
}

/// Checks, without changing the file, that it is an intact index of this version.
fn is_usable(path: &Path, key: Option<&DataKey>) -> IndexResult<bool> {
    let Some(existing) = FILE.inspect(path, key)? else {
        return Ok(false);
    };
    if existing.schema.is_none() {
        // Do not remove a file of another program.
        let path = path.to_owned();
        return Err(StoreError::NotAJournal { path }.into());
    }
    // With a log, the file may legitimately lack pages that are still in the log.
    let is_cut_off = existing.is_cut_off && size_of(&beside(path, "-wal")) == 0;
    if existing.schema != Some(SCHEMA_VERSION) || is_cut_off {
        return Ok(false);
    }
    let damaged = |error| damaged(path, error);
    let connection = existing.connection;
    let version: i64 = connection
        .query_row("SELECT words_version FROM state", [], |row| row.get(0))
        .map_err(damaged)?;
    if version == words::VERSION && size_of(path) <= CHECK_BYTES_MAX {
        let verdict: String = connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(damaged)?;
        if verdict != "ok" {
            let (path, detail) = (path.to_owned(), verdict);
            return Err(StoreError::Corrupt { path, detail }.into());
        }
    }
    Ok(version == words::VERSION)
}

/// Saves how far the journal was followed.
fn save_followed(connection: &Connection, followed: JournalCursor) -> IndexResult<()> {
    let sql = "UPDATE state SET followed = ?, last_generation = ?, last_seq = ?";
    let generation = followed.turn.map(|(generation, _)| generation.to_bytes());
    let seq = followed.turn.map(|(_, seq)| whole(seq));
    connection
        .prepare_cached(sql)?
        .execute(params![whole(followed.number), generation, seq])?;
    Ok(())
}

/// Index word of all turns of a generation.
fn generation_word(generation: i64) -> String {
    format!("{MARK}g{generation}")
}

/// Index word of all turns of a role.
fn role_word(role: memoird_core::turn::Role) -> String {
    format!("{MARK}r{}", role.name())
}

/// Index word of all turns that involve a tool.
///
/// The name is in hexadecimal digits because it may have any characters. Long names are truncated.
fn tool_word(tool: &str) -> String {
    let beginning = &tool.as_bytes()[..tool.len().min(TOOL_BYTES_MAX)];
    format!("{MARK}t{}", hex::encode(beginning))
}

/// Converts a count to SQLite's signed integers. No real count reaches the maximum.
fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_created_once_and_foreign_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("search.db");
        let (index, is_new) = Index::open(&path, None).unwrap();
        assert!(is_new);
        assert_eq!(index.followed().unwrap(), JournalCursor::default());
        drop(index);
        assert!(is_usable(&path, None).unwrap());
        let (index, is_new) = Index::open(&path, None).unwrap();
        assert!(!is_new);
        index.discard().unwrap();
        assert!(!path.exists());
        let foreign = Connection::open(&path).unwrap();
        foreign.execute_batch("CREATE TABLE a (b)").unwrap();
        drop(foreign);
        let error = Index::open(&path, None).unwrap_err();
        assert!(!error.is_damage() && path.exists(), "{error}");
    }

    #[test]
    fn row_range_is_exclusive_to_tenant() {
        let (one, next) = (TenantRange { tenant: 1 }, TenantRange { tenant: 2 });
        assert!(one.row(u64::MAX) < next.row(1));
        assert_eq!(TenantRange::number(next.row(17)), 17);
    }

    #[test]
    fn tool_word_is_one_word_for_any_name() {
        let word = tool_word("a \"b\" OR ü");
        assert!(
            word.strip_prefix(MARK)
                .unwrap()
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric())
        );
        assert_ne!(tool_word("ab"), tool_word("aB"));
    }
}
