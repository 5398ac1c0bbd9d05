//! SQL access for both databases.
//!
//! Statements are written once, in the subset that SQLite and PostgreSQL share. Word and vector
//! lookups have nothing in common, so the modules `sqlite` and `postgres` each have their own.
//!
//! Statements use the syntax of SQLite; [`super::postgres`] describes how they are translated.
//! SQLite prepares each statement once per connection.

use rusqlite::OptionalExtension;
use rusqlite::types::{FromSql, ToSql, ToSqlOutput, Type, ValueRef};
#[cfg(feature = "postgres")]
use rusqlite::types::{FromSqlResult, Value};

use super::MemoryReader;
#[cfg(feature = "postgres")]
use super::postgres::Transaction;
use crate::MemoryError;

/// Result of reading or writing memories.
///
/// Every operation may fail because the storage cannot be read or written.
pub(super) type StoreResult<T> = Result<T, MemoryError>;

/// A snapshot of one tenant's memories, or a transaction that changes them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Connection<'a> {
    Sqlite(&'a rusqlite::Connection),
    #[cfg(feature = "postgres")]
    Postgres(&'a Transaction<'a>),
}

pub(super) enum Row<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    #[cfg(feature = "postgres")]
    Postgres(&'a memoird_postgres::ResultRow),
}

pub(super) type Parameters<'a> = &'a [&'a dyn ToSql];

pub(super) trait Sql {
    fn connection(&self) -> Connection<'_>;

    /// Runs a statement, and returns the number of changed rows.
    fn change(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<usize> {
        match self.connection() {
            Connection::Sqlite(file) => Ok(file.prepare_cached(sql)?.execute(parameters)?),
            #[cfg(feature = "postgres")]
            Connection::Postgres(transaction) => transaction.change(sql, parameters),
        }
    }

    /// Runs a statement. An error may only be returned by the next statement.
    fn run(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<()> {
        match self.connection() {
            Connection::Sqlite(file) => {
                file.prepare_cached(sql)?.execute(parameters)?;
                Ok(())
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(transaction) => transaction.run(sql, parameters),
        }
    }

    /// Inserts a row into a table with row numbers, and returns its number `no`.
    fn insert(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<i64> {
        match self.connection() {
            Connection::Sqlite(file) => {
                file.prepare_cached(sql)?.execute(parameters)?;
                Ok(file.last_insert_rowid())
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(_) => self.number(&format!("{sql} RETURNING no"), parameters),
        }
    }

    /// Returns the first row, if any.
    fn one<T>(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<Option<T>> {
        match self.connection() {
            Connection::Sqlite(file) => {
                let mut statement = file.prepare_cached(sql)?;
                let found = statement.query_row(parameters, |row| read(&Row::Sqlite(row)));
                Ok(found.optional()?)
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(transaction) => {
                let rows = transaction.query(sql, parameters)?;
                let found = rows.first().map(|row| read(&Row::Postgres(row)));
                Ok(found.transpose()?)
            }
        }
    }

    fn all<T>(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<Vec<T>> {
        match self.connection() {
            Connection::Sqlite(file) => {
                let mut statement = file.prepare_cached(sql)?;
                let rows = statement.query_map(parameters, |row| read(&Row::Sqlite(row)))?;
                Ok(rows.collect::<Result<_, _>>()?)
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(transaction) => {
                let rows = transaction.query(sql, parameters)?;
                let rows = rows.iter().map(|row| read(&Row::Postgres(row)));
                Ok(rows.collect::<Result<_, _>>()?)
            }
        }
    }

    /// Passes rows to `look` until it returns `false`. About `at_once` rows are in memory.
    fn each(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        at_once: usize,
        mut look: impl FnMut(&Row<'_>) -> StoreResult<bool>,
    ) -> StoreResult<()> {
        match self.connection() {
            Connection::Sqlite(file) => {
                let mut statement = file.prepare_cached(sql)?;
                let mut rows = statement.query(parameters)?;
                while let Some(row) = rows.next()? {
                    if !look(&Row::Sqlite(row))? {
                        break;
                    }
                }
                // SQLite reads the rows from its pages as needed.
                let _ = at_once;
                Ok(())
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(transaction) => {
                transaction.each(sql, parameters, at_once, |row| look(&Row::Postgres(row)))
            }
        }
    }

    /// Looks up rows by number, in the given order. Missing ones are skipped.
    ///
    /// The statement finds a single row by `no = ?1`, and its first column is the number.
    fn of_numbers<T>(
        &self,
        sql: &str,
        numbers: &[i64],
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<Vec<T>> {
        match self.connection() {
            Connection::Sqlite(file) => {
                let mut statement = file.prepare_cached(sql)?;
                let mut found = Vec::with_capacity(numbers.len());
                for number in numbers {
                    // Do not step to a second row, which would cost as much again.
                    if let Some(row) = statement.query([number])?.next()? {
                        found.push(read(&Row::Sqlite(row))?);
                    }
                }
                Ok(found)
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(transaction) => {
                let rows = transaction.of_numbers(sql, numbers)?;
                let rows = rows.iter().map(|row| read(&Row::Postgres(row)));
                Ok(rows.collect::<Result<_, _>>()?)
            }
        }
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

impl Sql for Connection<'_> {
    fn connection(&self) -> Connection<'_> {
        *self
    }
}

impl Sql for MemoryReader<'_> {
    fn connection(&self) -> Connection<'_> {
        self.connection
    }
}

impl Connection<'_> {
    /// Prefix of a column that keeps SQLite's planner from using an index on it.
    ///
    /// PostgreSQL needs none: its planner has statistics.
    pub(super) fn unindexed(self) -> &'static str {
        match self {
            Self::Sqlite(_) => "+",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "",
        }
    }

    /// Converts a value for a column of any type.
    ///
    /// In PostgreSQL such a column has bytes, and numbers in decimal form.
    pub(super) fn any<'a>(self, value: &'a dyn ToSql) -> StoreResult<ToSqlOutput<'a>> {
        let output = value.to_sql()?;
        #[cfg(feature = "postgres")]
        if let Self::Postgres(_) = self {
            return Ok(match output {
                ToSqlOutput::Owned(Value::Integer(number))
                | ToSqlOutput::Borrowed(ValueRef::Integer(number)) => {
                    ToSqlOutput::Owned(Value::Text(number.to_string()))
                }
                other => other,
            });
        }
        Ok(output)
    }

    /// Runs a statement that controls the transaction, such as `SAVEPOINT`.
    pub(super) fn control(self, sql: &str) -> StoreResult<()> {
        match self {
            Self::Sqlite(file) => {
                file.prepare_cached(sql)?.execute([])?;
                Ok(())
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(transaction) => transaction.control(sql),
        }
    }

    /// Change counter. While it stays the same, nothing was changed.
    pub(super) fn changes(self) -> u64 {
        match self {
            Self::Sqlite(file) => file.total_changes(),
            #[cfg(feature = "postgres")]
            Self::Postgres(transaction) => transaction.changes(),
        }
    }
}

impl Row<'_> {
    pub(super) fn get<T: FromSql>(&self, index: usize) -> rusqlite::Result<T> {
        match self {
            Self::Sqlite(row) => row.get(index),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {
                let value = self.value(index)?;
                let read = match value {
                    ValueRef::Blob(bytes) => read_bytes(bytes),
                    other => T::column_result(other),
                };
                read.map_err(|error| not_read(index, value, error))
            }
        }
    }

    pub(super) fn text(&self, index: usize) -> rusqlite::Result<&str> {
        let text = self.text_or_null(index)?;
        text.ok_or_else(|| missing(index))
    }

    pub(super) fn text_or_null(&self, index: usize) -> rusqlite::Result<Option<&str>> {
        let value = self.value(index)?;
        let read = match value {
            ValueRef::Blob(bytes) => ValueRef::Text(bytes).as_str_or_null(),
            other => other.as_str_or_null(),
        };
        read.map_err(|error| not_read(index, value, error))
    }

    pub(super) fn bytes(&self, index: usize) -> rusqlite::Result<&[u8]> {
        let bytes = self.bytes_or_null(index)?;
        bytes.ok_or_else(|| missing(index))
    }

    pub(super) fn bytes_or_null(&self, index: usize) -> rusqlite::Result<Option<&[u8]>> {
        let value = self.value(index)?;
        let read = value.as_blob_or_null();
        read.map_err(|error| not_read(index, value, error))
    }

    fn value(&self, index: usize) -> rusqlite::Result<ValueRef<'_>> {
        match self {
            Self::Sqlite(row) => row.get_ref(index),
            #[cfg(feature = "postgres")]
            Self::Postgres(row) => super::postgres::value(row, index),
        }
    }
}

/// Converts bytes to the requested type.
///
/// PostgreSQL's `text` cannot contain NUL, so all texts are stored as bytes, and numbers in columns
/// of any type are in decimal form.
#[cfg(feature = "postgres")]
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
