//! Statements, in whichever database memories are: one text for both, in what SQLite and
//! PostgreSQL have in common. Where they have nothing in common, as in how words and vectors are
//! looked up, the modules `sqlite` and `postgres` have a statement each.
//!
//! A statement is written as SQLite has it; [`super::postgres`] says what is changed in it for the
//! other one. SQLite prepares every statement once for each connection.

use rusqlite::OptionalExtension;
use rusqlite::types::{FromSql, ToSql, ToSqlOutput, Type, ValueRef};
#[cfg(feature = "postgres")]
use rusqlite::types::{FromSqlResult, Value};

use super::MemoryReader;
#[cfg(feature = "postgres")]
use super::postgres::Transaction;
use crate::MemoryError;

/// The result of a call that reads or writes memories.
pub(super) type Answer<T> = Result<T, MemoryError>;

/// A view of one tenant's memories, or a transaction that changes them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Connection<'a> {
    /// In a file.
    Sqlite(&'a rusqlite::Connection),
    /// In a database that daemons share.
    #[cfg(feature = "postgres")]
    Postgres(&'a Transaction<'a>),
}

/// A row that was found.
pub(super) enum Row<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    #[cfg(feature = "postgres")]
    Postgres(&'a memoird_postgres::FoundRow),
}

/// What a statement takes.
pub(super) type Parameters<'a> = &'a [&'a dyn ToSql];

pub(super) trait Sql {
    fn connection(&self) -> Connection<'_>;

    /// Changes rows, and returns their number.
    fn change(&self, sql: &str, parameters: Parameters<'_>) -> Answer<usize> {
        match self.connection() {
            Connection::Sqlite(file) => Ok(file.prepare_cached(sql)?.execute(parameters)?),
            #[cfg(feature = "postgres")]
            Connection::Postgres(transaction) => transaction.change(sql, parameters),
        }
    }

    /// Changes rows. Whether that failed may be told by the next statement only.
    fn run(&self, sql: &str, parameters: Parameters<'_>) -> Answer<()> {
        match self.connection() {
            Connection::Sqlite(file) => {
                file.prepare_cached(sql)?.execute(parameters)?;
                Ok(())
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(transaction) => transaction.run(sql, parameters),
        }
    }

    /// Inserts a row into a table that numbers its rows; gives the number, `no`.
    fn insert(&self, sql: &str, parameters: Parameters<'_>) -> Answer<i64> {
        match self.connection() {
            Connection::Sqlite(file) => {
                file.prepare_cached(sql)?.execute(parameters)?;
                Ok(file.last_insert_rowid())
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(_) => self.number(&format!("{sql} RETURNING no"), parameters),
        }
    }

    /// The first row, if there is one.
    fn one<T>(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Option<T>> {
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

    /// All rows.
    fn all<T>(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Vec<T>> {
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

    /// Row by row, until `look` gives false. About `at_once` of them are in memory.
    fn each(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        at_once: usize,
        mut look: impl FnMut(&Row<'_>) -> Answer<bool>,
    ) -> Answer<()> {
        match self.connection() {
            Connection::Sqlite(file) => {
                let mut statement = file.prepare_cached(sql)?;
                let mut rows = statement.query(parameters)?;
                while let Some(row) = rows.next()? {
                    if !look(&Row::Sqlite(row))? {
                        break;
                    }
                }
                // SQLite has them on its pages.
                let _ = at_once;
                Ok(())
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(transaction) => {
                transaction.each(sql, parameters, at_once, |row| look(&Row::Postgres(row)))
            }
        }
    }

    /// Of each of these numbers its row, in their order, where it has one: by a statement that finds
    /// that of one, as `no = ?1`, and whose first column is the number.
    fn of_numbers<T>(
        &self,
        sql: &str,
        numbers: &[i64],
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Vec<T>> {
        match self.connection() {
            Connection::Sqlite(file) => {
                let mut statement = file.prepare_cached(sql)?;
                let mut found = Vec::with_capacity(numbers.len());
                for number in numbers {
                    // Not looked for another one, which costs as much again.
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

    /// The first column of the first row, if there is one.
    fn value<T: FromSql>(&self, sql: &str, parameters: Parameters<'_>) -> Answer<Option<T>> {
        self.one(sql, parameters, |row| row.get(0))
    }

    /// The first column of the first row, which is always there.
    fn number(&self, sql: &str, parameters: Parameters<'_>) -> Answer<i64> {
        let number = self.value(sql, parameters)?;
        number.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
    }

    /// The same of a number that is never negative.
    fn count(&self, sql: &str, parameters: Parameters<'_>) -> Answer<u64> {
        Ok(self.number(sql, parameters)?.unsigned_abs())
    }

    /// True when there is a row.
    fn has(&self, sql: &str, parameters: Parameters<'_>) -> Answer<bool> {
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
    /// What stands before a column that SQLite shall not look up in an index, in an order that its
    /// planner would choose; PostgreSQL's knows how many rows there are.
    pub(super) fn unindexed(self) -> &'static str {
        match self {
            Self::Sqlite(_) => "+",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "",
        }
    }

    /// A value for a column that has any: among those of PostgreSQL's, which are bytes, numbers are
    /// decimal.
    pub(super) fn any<'a>(self, value: &'a dyn ToSql) -> Answer<ToSqlOutput<'a>> {
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

    /// A statement that begins or ends a part of a transaction.
    pub(super) fn control(self, sql: &str) -> Answer<()> {
        match self {
            Self::Sqlite(file) => {
                file.prepare_cached(sql)?.execute([])?;
                Ok(())
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(transaction) => transaction.control(sql),
        }
    }

    /// Counts changes: while the number stays the same, nothing was changed.
    pub(super) fn changes(self) -> u64 {
        match self {
            Self::Sqlite(file) => file.total_changes(),
            #[cfg(feature = "postgres")]
            Self::Postgres(transaction) => transaction.changes(),
        }
    }
}

impl Row<'_> {
    /// What stands in a column, as what it is taken for.
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

/// Bytes are what the one who reads them takes them for: PostgreSQL's `text` takes no NUL, so there
/// all texts are bytes, and numbers among values of other kinds are decimal.
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
