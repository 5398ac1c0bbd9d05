//! The index: a SQLite file with an FTS5 table that has stems, not texts. It is derived from the
//! journal, so it is not repaired and not migrated: what does not fit is removed and built anew.
//!
//! One file serves the whole data directory. So there is one cursor, written in the same
//! transaction as what it stands for, and however many tenants speak, a step writes one
//! transaction. A tenant's turns are numbered by themselves and lie together ([`TenantRange`]):
//! a search reads nothing of anybody else, and what others say changes no score.
//!
//! Words are those of `memoird_core::words`; texts are read from the journal, which is asked anyway
//! whether the turn still exists. Filters are words too: role, tool and generation of a turn are
//! beside its stems, behind a character that no text's word has. A session, or a subject, is the
//! list of its generations. For times a small table says between which rows a day lies.
//!
//! Writes wait for no sync of the disk: the cursor is in the same transaction as the turns, so what
//! a crash takes is read again.

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
use crate::locked;
use crate::words::{self, Languages};

/// What a call gives that uses the file.
pub(crate) type Answer<T> = Result<T, IndexError>;

const FILE: SqliteFile = SqliteFile {
    // "mems".
    application_id: 0x6d65_6d73,
    schema_known: SCHEMA_VERSION,
    cache_kib: 2 << 10,
    // 16 MiB: a checkpoint is the only time that the disk is waited for.
    checkpoint_pages: 4_096,
    log_bytes_kept: 16 << 20,
    statements_kept: 32,
};

/// Goes up with every change of the tables: an index of another version is built anew.
const SCHEMA_VERSION: i64 = 3;
const SCHEMA: &str = include_str!("index/schema.sql");

/// A file up to this size is checked whole when it is opened; of a larger one only the header
/// and the schema. In bytes.
const CHECK_BYTES_MAX: u64 = 256 << 20;
/// Connections that are kept open between searches.
const READERS_KEPT: usize = 2;

/// Bits of a turn's number within its tenant; those above are the tenant's.
const TENANT_SHIFT: u32 = 40;

/// Begins a word of the index that no text has: the character is for private use, and none of
/// the letters and digits that words are made of. What follows has letters and digits only.
const MARK: char = '\u{e000}';
/// Of the name of a tool.
const TOOL_BYTES_MAX: usize = 64;

/// The file, open.
#[derive(Debug)]
pub(crate) struct Index {
    path: PathBuf,
    key: Option<DataKey>,
    /// Closed before the writer: only the last connection moves the log into the file.
    readers: Mutex<Vec<Connection>>,
    writer: Mutex<Connection>,
}

/// How far the index has followed the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Followed {
    /// The number of the last turn that was taken in, or passed over; 0: none.
    pub(crate) number: u64,
    /// Which turn that was, to know the journal by; `None` at the beginning.
    pub(crate) turn: Option<(Generation, u64)>,
}

/// The rows of one tenant's turns.
#[derive(Clone, Copy, Debug)]
struct TenantRange {
    /// The tenant's own number.
    tenant: i64,
}

impl TenantRange {
    /// The row of the turn with this number among the tenant's, which begin with 1.
    fn row(self, number: u64) -> i64 {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        (self.tenant << TENANT_SHIFT) | number.min((1 << TENANT_SHIFT) - 1)
    }

    /// The number of the turn in this row.
    fn number(row: i64) -> u64 {
        (row & ((1 << TENANT_SHIFT) - 1)).unsigned_abs()
    }
}

impl Index {
    /// Opens the index at this path. What is there and is no index of this version, or is
    /// damaged, is removed, and an empty one made. True when that was so.
    pub(crate) fn open(path: &Path, key: Option<DataKey>) -> Answer<(Self, bool)> {
        let is_usable = match is_usable(path, key.as_ref()) {
            Ok(is_usable) => is_usable,
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "the index of what was said is damaged; it is built anew");
                false
            }
            Err(error) => return Err(error),
        };
        if !is_usable {
            remove(path)?;
        }
        let mut writer = FILE.writer(path, key.as_ref(), !is_usable)?;
        // What a crash of the machine takes of the log is read from the journal again.
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
        // Otherwise a step leaves a merge of two or three segments alone, where as many have come
        // since it began.
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

    /// Closes the file, and removes it.
    pub(crate) fn discard(self) -> Answer<()> {
        let path = self.path.clone();
        drop(self);
        remove(&path)
    }

    /// How far it has followed the journal.
    pub(crate) fn followed(&self) -> Answer<Followed> {
        self.read(|connection| {
            let sql = "SELECT followed, last_generation, last_seq FROM state";
            let followed = connection.query_row(sql, [], |row| {
                let generation = row.get::<_, Option<[u8; 16]>>(1)?;
                let seq = row.get::<_, Option<i64>>(2)?;
                let turn = generation.zip(seq);
                Ok(Followed {
                    number: row.get::<_, i64>(0)?.unsigned_abs(),
                    turn: turn.map(|(generation, seq)| {
                        (Generation::from_bytes(generation), seq.unsigned_abs())
                    }),
                })
            })?;
            Ok(followed)
        })
    }

    /// Bytes of the file, with its log.
    pub(crate) fn file_bytes(&self) -> u64 {
        size_of(&self.path) + size_of(&beside(&self.path, "-wal"))
    }

    /// Looks at one moment.
    fn read<T>(&self, look: impl FnOnce(&Connection) -> Answer<T>) -> Answer<T> {
        let kept = locked(&self.readers).pop();
        let connection = match kept {
            Some(connection) => connection,
            None => FILE.reader(&self.path, self.key.as_ref())?,
        };
        let view = connection.unchecked_transaction()?;
        let outcome = look(&view);
        drop(view);
        let mut readers = locked(&self.readers);
        if readers.len() < READERS_KEPT {
            readers.push(connection);
        }
        outcome
    }
}

/// What the index has of a tenant.
#[derive(Clone, Copy, Debug)]
struct TenantRow {
    /// The rows of its turns.
    range: TenantRange,
    /// The number of its next turn.
    next: u64,
    /// What its turns are in.
    languages: Languages,
}

/// What the index has of a tenant; `None` when it has nothing.
fn find_tenant(connection: &Connection, tenant: &str) -> Answer<Option<TenantRow>> {
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

/// Removes an index, whether it is there or not. Nobody may have it open.
pub(crate) fn remove(path: &Path) -> Answer<()> {
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

/// The path of what SQLite keeps beside a file.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Bytes of a file; 0 where there is none.
fn size_of(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |meta| meta.len())
}

/// Looks at a file without changing it: true when it is an index of this version and whole.
fn is_usable(path: &Path, key: Option<&DataKey>) -> Answer<bool> {
    let Some(look) = FILE.look(path, key)? else {
        return Ok(false);
    };
    if look.schema.is_none() {
        // Somebody else's: that is not for us to remove.
        let path = path.to_owned();
        return Err(StoreError::NotAJournal { path }.into());
    }
    // While there is a log, the file may lack what the log still holds.
    let is_cut_off = look.is_cut_off && size_of(&beside(path, "-wal")) == 0;
    if look.schema != Some(SCHEMA_VERSION) || is_cut_off {
        return Ok(false);
    }
    let damaged = |error| damaged(path, error);
    let look = look.connection;
    let version = look.query_row("SELECT words_version FROM state", [], |row| row.get(0));
    let version: i64 = version.map_err(damaged)?;
    if version == words::VERSION && size_of(path) <= CHECK_BYTES_MAX {
        let verdict = look.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
        let verdict: String = verdict.map_err(damaged)?;
        if verdict != "ok" {
            let (path, detail) = (path.to_owned(), verdict);
            return Err(StoreError::Corrupt { path, detail }.into());
        }
    }
    Ok(version == words::VERSION)
}

/// Saves how far the journal was followed.
fn save_followed(connection: &Connection, followed: Followed) -> Answer<()> {
    let sql = "UPDATE state SET followed = ?, last_generation = ?, last_seq = ?";
    let generation = followed.turn.map(|(generation, _)| generation.to_bytes());
    let seq = followed.turn.map(|(_, seq)| whole(seq));
    connection
        .prepare_cached(sql)?
        .execute(params![whole(followed.number), generation, seq])?;
    Ok(())
}

/// The word by which all turns of a generation are found.
fn generation_word(generation: i64) -> String {
    format!("{MARK}g{generation}")
}

/// The word by which all turns of a role are found.
fn role_word(role: memoird_core::turn::Role) -> String {
    format!("{MARK}r{}", role.name())
}

/// The word by which all turns about a tool are found: its name in hexadecimal digits, because
/// a name may have any characters. Of a long one it is the beginning.
fn tool_word(tool: &str) -> String {
    let beginning = &tool.as_bytes()[..tool.len().min(TOOL_BYTES_MAX)];
    format!("{MARK}t{}", hex::encode(beginning))
}

/// SQLite's integers have a sign; no count of ours comes near it.
fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_made_once_and_what_is_not_ours_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("search.db");
        let (index, is_new) = Index::open(&path, None).unwrap();
        assert!(is_new);
        assert_eq!(index.followed().unwrap(), Followed::default());
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
    fn a_turns_row_is_of_its_tenant_alone() {
        let (one, next) = (TenantRange { tenant: 1 }, TenantRange { tenant: 2 });
        assert!(one.row(u64::MAX) < next.row(1));
        assert_eq!(TenantRange::number(next.row(17)), 17);
    }

    #[test]
    fn a_tool_of_any_name_is_one_word() {
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
