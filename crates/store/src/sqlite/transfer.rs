//! The journal of a data directory as source or target of a migration.
//!
//! It is read and written through the indexed tables only; the pending table is not used.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memoird_core::ids::Generation;
use rusqlite::types::{ToSqlOutput, Value as SqlValue, ValueRef};
use rusqlite::{Connection, OptionalExtension, ToSql, TransactionBehavior, params_from_iter};

use super::pending::UnflushedSessions;
use super::prewrite::CONTENT;
use super::row::{count, whole};
use super::write::{Writer, save_clock};
use super::{EMPTY_LOG_WAIT, JOURNAL, open, read};
use crate::checksum::{TurnKey, protect};
use crate::data_key::FileForm;
use crate::lock::private;
use crate::sqlite_file::{empty_log, unusable};
use crate::transfer::{
    Column, ColumnKind, JournalCounters, PageBounds, Row, SourceId, Table, TransferSource,
    TransferTarget, Value, column_list,
};
use crate::{DataKey, DirLock, SqliteOptions, StoreError};

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

/// A statement that inserts a row or part of it, and the indices of the columns it takes.
struct InsertStatement {
    sql: String,
    values: Vec<usize>,
}

/// Binds a value with the type of its column.
struct TypedValue<'a>(ColumnKind, &'a Value);

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
    fn position(&mut self) -> Result<JournalCounters, StoreError> {
        let number = |sql| self.connection.query_row(sql, [], |row| count(row, 0));
        Ok(JournalCounters {
            clock: read::clock(&self.connection)?,
            last_turn: number(
                "SELECT max(placed, (SELECT ifnull(max(id), 0) FROM turns)) FROM progress",
            )?,
        })
    }

    fn rows(&mut self, table: &Table) -> Result<u64, StoreError> {
        let sql = match table.name {
            "turns" => "SELECT ifnull(sum(last_seq), 0) FROM generations".to_owned(),
            name => format!("SELECT count(*) FROM {name}"),
        };
        Ok(self.connection.query_row(&sql, [], |row| count(row, 0))?)
    }

    fn read(
        &mut self,
        table: &Table,
        after: Option<&Row>,
        bounds: PageBounds,
    ) -> Result<Vec<Row>, StoreError> {
        let key = expressions(table, table.key());
        let places = vec!["?"; table.key_columns].join(", ");
        let behind = match after {
            Some(_) => format!("WHERE ({key}) > ({places})"),
            None => String::new(),
        };
        let columns = expressions(table, table.columns);
        let sql = format!(
            "SELECT {columns} FROM {} {behind} ORDER BY {key}",
            table.name
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let after = after.into_iter().flat_map(|key| bound(table, key));
        let mut rows = statement.query(params_from_iter(after))?;
        let (mut page, mut bytes) = (Vec::new(), 0);
        while page.len() < bounds.rows_max.max(1)
            && bytes < bounds.bytes_max.max(1)
            && let Some(row) = rows.next()?
        {
            let mut values = (0..table.columns.len())
                .map(|place| row.get_ref(place).map(value))
                .collect::<Result<Row, _>>()?;
            if table.name == "turns" {
                protected(&mut values);
            }
            bytes += values.iter().map(size).sum::<usize>();
            page.push(values);
        }
        Ok(page)
    }

    fn last(&mut self, table: &Table) -> Result<Option<Row>, StoreError> {
        let key = expressions(table, table.key());
        let order = key.replace(", ", " DESC, ");
        let sql = format!(
            "SELECT {key} FROM {} ORDER BY {order} DESC LIMIT 1",
            table.name
        );
        let last = self.connection.query_row(&sql, [], |row| {
            let values = 0..table.key_columns;
            values
                .map(|place| row.get_ref(place).map(value))
                .collect::<Result<Row, _>>()
        });
        Ok(last.optional()?)
    }
}

impl TransferTarget for SqliteTransfer {
    fn put(&mut self, table: &Table, rows: &[Row]) -> Result<(), StoreError> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        for InsertStatement { sql, values } in puts(table) {
            let mut statement = transaction.prepare_cached(&sql)?;
            for row in rows {
                let values = values
                    .iter()
                    .map(|&place| TypedValue(table.columns[place].kind, &row[place]));
                statement.execute(params_from_iter(values))?;
            }
        }
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

/// SQL expressions for columns that have another name or are stored in another table.
fn expressions(table: &Table, columns: &[Column]) -> String {
    let expression = |column: &Column| match (table.name, column.name) {
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
        (_, name) => name,
    };
    let expressions: Vec<&str> = columns.iter().map(expression).collect();
    expressions.join(", ")
}

/// Returns the statements that insert a row.
fn puts(table: &Table) -> Vec<InsertStatement> {
    let columns = column_list(table.columns);
    match table.name {
        "turns" => vec![
            put(
                "turns",
                "id, generation, seq, checksum, header, content",
                0..6,
            ),
            put("turn_places", "id, generation, seq", 0..3),
        ],
        "generations" => {
            let own = table.columns.len() - 2;
            let beside = |into: &str, column: &str, place| InsertStatement {
                sql: format!(
                    "INSERT OR IGNORE INTO {into} (generation, {column})
                     SELECT ?1, ?2 WHERE ?2 IS NOT NULL"
                ),
                values: vec![0, place],
            };
            vec![
                put("generations", &column_list(&table.columns[..own]), 0..own),
                beside("compactions", "status", own),
                beside("options", "options", own + 1),
            ]
        }
        "erasures" => {
            let mut put = put("erasures", &columns, 0..table.columns.len());
            // An absent position is stored as an empty blob.
            put.sql = put.sql.replace("?7", "ifnull(?7, x'')");
            vec![put]
        }
        name => vec![put(name, &columns, 0..table.columns.len())],
    }
}

fn put(into: &str, columns: &str, values: std::ops::Range<usize>) -> InsertStatement {
    let numbered: Vec<String> = (1..=values.len())
        .map(|place| format!("?{place}"))
        .collect();
    let places = numbered.join(", ");
    InsertStatement {
        sql: format!("INSERT OR IGNORE INTO {into} ({columns}) VALUES ({places})"),
        values: values.collect(),
    }
}

fn bound<'a>(table: &'a Table, row: &'a Row) -> impl Iterator<Item = TypedValue<'a>> {
    let columns = table.columns.iter().zip(row);
    columns.map(|(column, value)| TypedValue(column.kind, value))
}

impl ToSql for TypedValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match (self.0, self.1) {
            (_, Value::Nothing) => ToSqlOutput::Owned(SqlValue::Null),
            (_, Value::Number(number)) => ToSqlOutput::Owned(SqlValue::Integer(*number)),
            (ColumnKind::Text | ColumnKind::Word, Value::Bytes(bytes)) => {
                ToSqlOutput::Borrowed(ValueRef::Text(bytes))
            }
            (_, Value::Bytes(bytes)) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}

pub(super) fn value(of: ValueRef<'_>) -> Value {
    match of {
        ValueRef::Null => Value::Nothing,
        ValueRef::Integer(number) => Value::Number(number),
        // No column holds reals.
        ValueRef::Real(number) => Value::Bytes(number.to_le_bytes().to_vec()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    }
}

fn size(value: &Value) -> usize {
    match value {
        Value::Bytes(bytes) => bytes.len(),
        Value::Nothing | Value::Number(_) => 0,
    }
}

/// Adds header and checksum to a turn written by an older memoird without them.
fn protected(turn: &mut Row) {
    let [
        _,
        Value::Bytes(name),
        Value::Number(seq),
        checksum,
        header,
        Value::Bytes(content),
    ] = &mut turn[..]
    else {
        return;
    };
    if let (Value::Nothing, Ok(name)) = (&*checksum, <[u8; 16]>::try_from(&name[..])) {
        let place = TurnKey {
            generation: Generation::from_bytes(name),
            seq: seq.unsigned_abs(),
        };
        let protection = protect(place, content);
        *checksum = Value::Number(protection.checksum);
        *header = Value::Bytes(protection.header);
    }
}
