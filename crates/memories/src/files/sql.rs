//! Short forms of calls to SQLite. Every statement is prepared once for each connection.

use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Params, Row};

use super::MemoryReader;
use crate::MemoryError;

/// The result of a call that reads or writes a file.
pub(super) type Answer<T> = Result<T, MemoryError>;

pub(super) trait Sql {
    fn connection(&self) -> &Connection;

    /// Changes rows, and returns their number.
    fn change(&self, sql: &str, parameters: impl Params) -> Answer<usize> {
        Ok(self.connection().prepare_cached(sql)?.execute(parameters)?)
    }

    /// Changes rows.
    fn run(&self, sql: &str, parameters: impl Params) -> Answer<()> {
        self.change(sql, parameters).map(drop)
    }

    /// The first row, if there is one.
    fn one<T>(
        &self,
        sql: &str,
        parameters: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Option<T>> {
        let mut statement = self.connection().prepare_cached(sql)?;
        Ok(statement.query_row(parameters, read).optional()?)
    }

    /// All rows.
    fn all<T>(
        &self,
        sql: &str,
        parameters: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Vec<T>> {
        let mut statement = self.connection().prepare_cached(sql)?;
        let rows = statement.query_map(parameters, read)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The first column of the first row, if there is one.
    fn value<T: FromSql>(&self, sql: &str, parameters: impl Params) -> Answer<Option<T>> {
        self.one(sql, parameters, |row| row.get(0))
    }

    /// The first column of the first row, which is always there.
    fn number(&self, sql: &str, parameters: impl Params) -> Answer<i64> {
        let number = self.value(sql, parameters)?;
        number.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
    }

    /// The same of a number that is never negative.
    fn count(&self, sql: &str, parameters: impl Params) -> Answer<u64> {
        Ok(self.number(sql, parameters)?.unsigned_abs())
    }

    /// True when there is a row.
    fn has(&self, sql: &str, parameters: impl Params) -> Answer<bool> {
        Ok(self.one(sql, parameters, |_| Ok(()))?.is_some())
    }
}

impl Sql for Connection {
    fn connection(&self) -> &Connection {
        self
    }
}

impl Sql for MemoryReader<'_> {
    fn connection(&self) -> &Connection {
        self.connection
    }
}
