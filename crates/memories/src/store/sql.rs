//! SQL access for both databases.
//!
//! Statements are written once, in the subset that SQLite and PostgreSQL share. They use the syntax
//! of SQLite; `postgres` describes how they are translated. A [`Dialect`] contains everything that
//! differs between the databases.

use std::fmt::Debug;
use std::sync::OnceLock;

use rusqlite::types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, Type, ValueRef};

use super::batch::{FactLookup, FoundFact, Partition};
use super::vector_index::VectorIndex;
use super::word_index::WordIndex;
use crate::MemoryError;

/// Result of reading or writing memories.
///
/// Every operation may fail because the storage cannot be read or written.
pub(super) type StoreResult<T> = Result<T, MemoryError>;

/// A snapshot of one tenant's memories, or a transaction that changes them.
pub(super) type Connection<'a> = &'a dyn Dialect;

pub(super) type Parameters<'a> = &'a [&'a dyn ToSql];

/// Type of a column in PostgreSQL.
#[derive(Clone, Copy, Debug)]
pub(super) enum ColumnType {
    Whole,
    Real,
    Bytes,
}

/// A statement that inserts rows.
#[derive(Debug)]
pub(super) struct Insert {
    pub(super) table: &'static str,
    pub(super) columns: &'static [(&'static str, ColumnType)],
    /// What to do with a row that exists.
    pub(super) conflict: &'static str,
    one_row: OnceLock<String>,
}

impl Insert {
    pub(super) const fn new(
        table: &'static str,
        columns: &'static [(&'static str, ColumnType)],
        conflict: &'static str,
    ) -> Self {
        Self {
            table,
            columns,
            conflict,
            one_row: OnceLock::new(),
        }
    }

    /// Names of the columns, separated by commas.
    pub(super) fn names(&self) -> String {
        let names = self.columns.iter().map(|(name, _)| *name);
        names.collect::<Vec<_>>().join(", ")
    }

    /// A placeholder for each column, separated by commas.
    pub(super) fn places(&self) -> String {
        vec!["?"; self.columns.len()].join(", ")
    }

    fn one_row(&self) -> &str {
        self.one_row.get_or_init(|| {
            let (names, places) = (self.names(), self.places());
            let (table, conflict) = (self.table, self.conflict);
            format!("INSERT INTO {table} ({names}) VALUES ({places}) {conflict}")
        })
    }
}

/// A transaction of one of the databases.
pub(super) trait Dialect: WordIndex + VectorIndex + Debug {
    /// Runs a statement, and returns the number of changed rows.
    fn change(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<usize>;

    /// Runs a statement. An error may only be returned by the next statement.
    fn run(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<()>;

    /// Inserts a row. A database may insert it with others, before the next statement.
    fn insert(&self, insert: &'static Insert, row: Parameters<'_>) -> StoreResult<()> {
        self.run(insert.one_row(), row)
    }

    /// Stores the next number of each of these partitions.
    fn set_next(&self, partitions: &[Partition]) -> StoreResult<()> {
        let sql = "UPDATE partitions SET next = ? WHERE no = ?";
        partitions
            .iter()
            .try_for_each(|partition| self.run(sql, &[&partition.next, &partition.no]))
    }

    /// Looks up facts at once, if that is cheaper than one by one. Otherwise returns nothing.
    fn look_up_facts(&self, _facts: &[FactLookup]) -> StoreResult<Vec<FoundFact>> {
        Ok(Vec::new())
    }

    /// Begins a job. [`Self::end_job`] can roll back its writes.
    fn begin_job(&self) -> StoreResult<()> {
        self.control("SAVEPOINT job")
    }

    /// Ends a job, and rolls back its writes unless they are kept.
    fn end_job(&self, are_kept: bool) -> StoreResult<()> {
        if !are_kept {
            self.control("ROLLBACK TO job")?;
        }
        self.control("RELEASE job")
    }

    /// Passes rows to `look` until it returns `false`.
    ///
    /// About `at_once` rows are in memory, or all rows without it.
    fn visit(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        at_once: Option<usize>,
        look: &mut dyn FnMut(&Row<'_>) -> StoreResult<bool>,
    ) -> StoreResult<()>;

    /// Passes the rows with these numbers to `look`, in the given order. Missing ones are skipped.
    ///
    /// The statement finds a single row by `no = ?1`, and its first column is the number.
    fn visit_numbers(
        &self,
        sql: &str,
        numbers: &[i64],
        look: &mut dyn FnMut(&Row<'_>) -> rusqlite::Result<()>,
    ) -> StoreResult<()>;

    /// Runs a statement that controls the transaction, such as `SAVEPOINT`.
    fn control(&self, sql: &str) -> StoreResult<()>;

    /// Prefix of a column that keeps SQLite's planner from using an index on it.
    ///
    /// PostgreSQL needs none: its planner has statistics.
    fn unindexed(&self) -> &'static str {
        ""
    }

    /// Converts a value for a column of any type.
    ///
    /// In PostgreSQL such a column has bytes, and numbers in decimal form.
    fn any<'a>(&self, value: &'a dyn ToSql) -> StoreResult<ToSqlOutput<'a>>;

    /// Salt of this tenant's digests.
    fn salt(&self) -> StoreResult<Vec<u8>>;

    /// Sets the salt, effective from the next transaction.
    fn set_salt(&self, salt: &[u8]) -> StoreResult<()>;

    /// Numbers of the memories at these positions (`said`, `seq`), with the index of the position.
    ///
    /// Returns at most `each_max` per position.
    fn said_at(&self, places: &[(i64, i64)], each_max: usize) -> StoreResult<Vec<(usize, i64)>>;
}

/// Queries that read typed rows.
pub(super) trait Sql {
    fn connection(&self) -> Connection<'_>;

    /// See [`Dialect::change`].
    fn change(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<usize> {
        self.connection().change(sql, parameters)
    }

    /// See [`Dialect::run`].
    fn run(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<()> {
        self.connection().run(sql, parameters)
    }

    /// Returns the first row, if any.
    fn one<T>(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<Option<T>> {
        let mut found = None;
        self.connection().visit(sql, parameters, None, &mut |row| {
            found = Some(read(row)?);
            Ok(false)
        })?;
        Ok(found)
    }

    fn all<T>(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<Vec<T>> {
        let mut found = Vec::new();
        self.connection().visit(sql, parameters, None, &mut |row| {
            found.push(read(row)?);
            Ok(true)
        })?;
        Ok(found)
    }

    /// Passes rows to `look` until it returns `false`. About `at_once` rows are in memory.
    fn each(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        at_once: usize,
        mut look: impl FnMut(&Row<'_>) -> StoreResult<bool>,
    ) -> StoreResult<()> {
        let connection = self.connection();
        connection.visit(sql, parameters, Some(at_once), &mut look)
    }

    /// Reads the rows that [`Dialect::visit_numbers`] finds.
    fn of_numbers<T>(
        &self,
        sql: &str,
        numbers: &[i64],
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<Vec<T>> {
        let mut found = Vec::with_capacity(numbers.len());
        self.connection().visit_numbers(sql, numbers, &mut |row| {
            found.push(read(row)?);
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the first column of the first row, if any.
    fn value<T: FromSql>(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<Option<T>> {
        self.one(sql, parameters, |row| row.get(0))
    }

    /// Returns the first column of the first row, which must exist.
    fn number(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<i64> {
        let number = self.value(sql, parameters)?;
        number.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
    }

    /// Like [`Self::number`], for a number that is never negative.
    fn count(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<u64> {
        Ok(self.number(sql, parameters)?.unsigned_abs())
    }

    /// Whether the statement returns a row.
    fn has(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<bool> {
        Ok(self.one(sql, parameters, |_| Ok(()))?.is_some())
    }
}

impl Sql for dyn Dialect + '_ {
    fn connection(&self) -> Connection<'_> {
        self
    }
}

/// A row of one of the databases.
pub(super) struct Row<'a>(pub(super) &'a dyn Columns);

pub(super) trait Columns {
    fn value(&self, index: usize) -> rusqlite::Result<ValueRef<'_>>;
}

impl Row<'_> {
    pub(super) fn get<T: FromSql>(&self, index: usize) -> rusqlite::Result<T> {
        let value = self.0.value(index)?;
        let read = match value {
            ValueRef::Blob(bytes) => read_bytes(bytes),
            other => T::column_result(other),
        };
        read.map_err(|error| not_read(index, value, error))
    }

    pub(super) fn text(&self, index: usize) -> rusqlite::Result<&str> {
        let text = self.text_or_null(index)?;
        text.ok_or_else(|| missing(index))
    }

    pub(super) fn text_or_null(&self, index: usize) -> rusqlite::Result<Option<&str>> {
        let value = self.0.value(index)?;
        let read = match value {
            ValueRef::Blob(bytes) => ValueRef::Text(bytes).as_str_or_null(),
            other => other.as_str_or_null(),
        };
        read.map_err(|error| not_read(index, value, error))
    }

    /// Bytes of a text, which may be no valid UTF-8.
    pub(super) fn bytes_of_text(&self, index: usize) -> rusqlite::Result<&[u8]> {
        let value = self.0.value(index)?;
        let read = value.as_bytes();
        read.map_err(|error| not_read(index, value, error))
    }

    pub(super) fn bytes(&self, index: usize) -> rusqlite::Result<&[u8]> {
        let bytes = self.bytes_or_null(index)?;
        bytes.ok_or_else(|| missing(index))
    }

    pub(super) fn bytes_or_null(&self, index: usize) -> rusqlite::Result<Option<&[u8]>> {
        let value = self.0.value(index)?;
        let read = value.as_blob_or_null();
        read.map_err(|error| not_read(index, value, error))
    }
}

/// Converts bytes to the requested type.
///
/// PostgreSQL's `text` cannot contain NUL, so all texts are stored as bytes, and numbers in columns
/// of any type are in decimal form.
fn read_bytes<T: FromSql>(bytes: &[u8]) -> FromSqlResult<T> {
    let number = || std::str::from_utf8(bytes).ok()?.parse().ok();
    T::column_result(ValueRef::Blob(bytes))
        .or_else(|_| T::column_result(ValueRef::Text(bytes)))
        .or_else(|error| match number() {
            Some(number) => T::column_result(ValueRef::Integer(number)),
            None => Err(error),
        })
}

fn not_read(
    index: usize,
    value: ValueRef<'_>,
    error: rusqlite::types::FromSqlError,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, value.data_type(), Box::new(error))
}

fn missing(index: usize) -> rusqlite::Error {
    let problem = "nothing where there always is something";
    rusqlite::Error::FromSqlConversionFailure(index, Type::Null, problem.into())
}
