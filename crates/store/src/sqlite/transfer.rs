//! The journal of a data directory as source or target of a migration.
//!
//! It is read and written through the indexed tables only; the pending table is not used.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, TransactionBehavior};

use super::pending::UnflushedSessions;
use super::prewrite::CONTENT;
use super::row::{count, whole};
use super::tables::SqliteTables;
use super::write::{Writer, save_clock};
use super::{EMPTY_LOG_WAIT, JOURNAL, open, read};
use crate::data_key::FileForm;
use crate::lock::private;
use crate::sqlite_file::{empty_log, unusable};
use crate::transfer::{
    JournalCounters, RowInsert, SourceId, Table, TransferSource, TransferTarget, column_list,
};
use crate::{DataKey, DirLock, SqliteOptions, StoreError, TableBody};

/// File that marks a directory as the target of an unfinished migration.
///
/// Contains the source's fingerprint.
const UNFINISHED_FILE: &str = "migration";

/// A data directory locked by this process.
#[derive(Debug)]
pub struct SqliteTransfer {
    connection: Connection,
    dir: PathBuf,
    _lock: DirLock,
}

/// Rejects a directory that is the target of an unfinished migration.
pub(super) fn check_finished(dir: &Path) -> Result<(), StoreError> {
    if dir.join(UNFINISHED_FILE).exists() {
        Err(StoreError::MigrationUnfinished { place: shown(dir) })
    } else {
        Ok(())
    }
}

fn shown(dir: &Path) -> String {
    dir.display().to_string()
}

impl SqliteTransfer {
    /// Opens a journal as source. Like a daemon, it migrates the schema and flushes the pending
    /// table.
    ///
    /// Nothing else is changed.
    ///
    /// # Errors
    /// As for [`SqliteStore::open`](crate::SqliteStore::open).
    pub fn source(
        dir: &Path,
        key: Option<DataKey>,
    ) -> Result<impl TransferSource + use<>, StoreError> {
        let lock = DirLock::take(dir)?;
        check_finished(dir)?;
        let options = options(key);
        let path = dir.join(JOURNAL);
        let connection = open::writer(&path, options)?;
        let unflushed = Arc::<UnflushedSessions>::default();
        let mut writer = Writer::open(connection, options.pending_changes_max, unflushed)?;
        writer.flush_all()?;
        // Closing the last connection checkpoints the log.
        drop(writer);
        let connection = open::reader(&path, options)?;
        Ok(Self {
            connection,
            dir: dir.to_owned(),
            _lock: lock,
        })
    }

    /// Starts a migration to a directory without a journal, or resumes one from the same source.
    ///
    /// With a key, the target is encrypted.
    ///
    /// # Errors
    /// [`StoreError::TargetNotEmpty`], [`StoreError::OtherMigration`], and as for
    /// [`SqliteStore::open`](crate::SqliteStore::open).
    pub fn target(
        dir: &Path,
        key: Option<DataKey>,
        source: &SourceId,
    ) -> Result<impl TransferTarget + use<>, StoreError> {
        let lock = DirLock::take(dir)?;
        let path = dir.join(JOURNAL);
        let has_journal = FileForm::of(&path)? != FileForm::Empty;
        match (mark(dir)?, has_journal) {
            (None, true) => return Err(StoreError::TargetNotEmpty { place: shown(dir) }),
            (Some(other), true) if other != source.to_string() => {
                return Err(StoreError::OtherMigration { place: shown(dir) });
            }
            (Some(_), true) => {}
            (_, false) => put_mark(dir, source).map_err(|error| unusable(&path, error))?,
        }
        let connection = open::writer(&path, options(key))?;
        // Only the end must be durable. Rows lost in a crash are copied again.
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(Self {
            connection,
            dir: dir.to_owned(),
            _lock: lock,
        })
    }
}

fn options(key: Option<DataKey>) -> SqliteOptions {
    SqliteOptions {
        key,
        ..SqliteOptions::default()
    }
}

/// Reads the fingerprint in the marker file.
fn mark(dir: &Path) -> Result<Option<String>, StoreError> {
    let path = dir.join(UNFINISHED_FILE);
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(Some).map_err(|error| unusable(&path, error)),
    }
}

fn put_mark(dir: &Path, source: &SourceId) -> io::Result<()> {
    let mut options = private::file_options();
    let mut file = options
        .create(true)
        .truncate(true)
        .write(true)
        .open(dir.join(UNFINISHED_FILE))?;
    file.write_all(source.to_string().as_bytes())?;
    file.sync_all()?;
    File::open(dir)?.sync_all()
}

impl TransferSource for SqliteTransfer {
    fn read_tables(&mut self, body: TableBody<'_>) -> Result<(), StoreError> {
        let view = self.connection.transaction()?;
        body(&SqliteTables::new(&view, None))
    }

    fn position(&mut self) -> Result<JournalCounters, StoreError> {
        let number = |sql| self.connection.query_row(sql, [], |row| count(row, 0));
        Ok(JournalCounters {
            clock: read::clock(&self.connection)?,
            last_turn: number(
                "SELECT max(placed, (SELECT ifnull(max(id), 0) FROM turns)) FROM progress",
            )?,
        })
    }
}

impl TransferTarget for SqliteTransfer {
    fn write_tables(&mut self, body: TableBody<'_>) -> Result<(), StoreError> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        body(&SqliteTables::new(&transaction, None))?;
        Ok(transaction.commit()?)
    }

    fn set_position(&mut self, position: &JournalCounters) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        if let Some(clock) = &position.clock {
            save_clock(&transaction, clock)?;
        }
        let sql = "UPDATE progress SET placed = ?";
        transaction.execute(sql, [whole(position.last_turn)])?;
        Ok(transaction.commit()?)
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        let path = self.dir.join(UNFINISHED_FILE);
        // The checkpoint syncs both the log and the file.
        if !empty_log(&self.connection, EMPTY_LOG_WAIT)? {
            return Err(unusable(&path, ErrorKind::ResourceBusy.into()));
        }
        fs::remove_file(&path)
            .and_then(|()| File::open(&self.dir)?.sync_all())
            .map_err(|error| unusable(&path, error))
    }
}

/// Returns the expression for a column that has another name or is stored in another table.
pub(super) fn expression(table: &str, column: &'static str) -> &'static str {
    match (table, column) {
        ("turns", "number") => "id",
        ("turns", "content") => CONTENT,
        ("generations", "newest_seq") => "ifnull(newest_seq, last_seq)",
        ("generations", "compaction") => {
            "(SELECT status FROM compactions AS it WHERE it.generation = generations.generation)"
        }
        ("generations", "options") => {
            "(SELECT options FROM options AS it WHERE it.generation = generations.generation)"
        }
        ("erasures", "position") => "nullif(position, x'')",
        (_, column) => column,
    }
}

/// Returns the statements that insert a row.
pub(super) fn inserts(table: &Table) -> Vec<RowInsert> {
    let mut whole = RowInsert::whole(table);
    match table.name {
        "turns" => {
            let columns = "id, generation, seq, checksum, header, content";
            vec![
                RowInsert::new("turns", columns, table, 0..6),
                RowInsert::new("turn_places", "id, generation, seq", table, 0..3),
            ]
        }
        "generations" => {
            let own = table.columns.len() - 2;
            let columns = column_list(&table.columns[..own]);
            let related = |into: &str, column: &str, at| RowInsert {
                sql: format!(
                    "INSERT INTO {into} (generation, {column})
                     SELECT ?1, ?2 WHERE ?2 IS NOT NULL ON CONFLICT DO NOTHING"
                ),
                columns: vec![0, at],
            };
            vec![
                RowInsert::new("generations", &columns, table, 0..own),
                related("compactions", "status", own),
                related("options", "options", own + 1),
            ]
        }
        "erasures" => {
            // An absent position is stored as an empty blob.
            whole.sql = whole.sql.replace("?7", "ifnull(?7, x'')");
            vec![whole]
        }
        _ => vec![whole],
    }
}
