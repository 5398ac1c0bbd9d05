//! Short forms of the calls to SQLite that stand in this folder again and again. Every
//! statement is prepared once for each connection.

use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Params, Row};

use crate::MemoryError;

/// What a call gives that asks a file.
pub(super) type Answer<T> = Result<T, MemoryError>;

pub(super) trait Sql {
    /// Changes rows; gives how many.
    fn change(&self, sql: &str, parameters: impl Params) -> Answer<usize>;

    /// Changes rows, however many.
    fn run(&self, sql: &str, parameters: impl Params) -> Answer<()> {
        self.change(sql, parameters).map(drop)
    }

    /// The first row, if there is one.
    fn one<T>(
        &self,
        sql: &str,
        parameters: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Option<T>>;

    /// All rows.
    fn all<T>(
        &self,
        sql: &str,
        parameters: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Vec<T>>;

    /// The first column of the first row, if there is one.
    fn value<T: FromSql>(&self, sql: &str, parameters: impl Params) -> Answer<Option<T>> {
        self.one(sql, parameters, |row| row.get(0))
    }

    /// A number that is there in any case.
    fn number(&self, sql: &str, parameters: impl Params) -> Answer<i64> {
        let number = self.value(sql, parameters)?;
        number.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
    }

    /// The same of what has no sign.
    fn count(&self, sql: &str, parameters: impl Params) -> Answer<u64> {
        Ok(self.number(sql, parameters)?.unsigned_abs())
    }

    /// True when there is a row.
    fn has(&self, sql: &str, parameters: impl Params) -> Answer<bool> {
        Ok(self.one(sql, parameters, |_| Ok(()))?.is_some())
    }
}

impl Sql for Connection {
    fn change(&self, sql: &str, parameters: impl Params) -> Answer<usize> {
        Ok(self.prepare_cached(sql)?.execute(parameters)?)
    }

    fn one<T>(
        &self,
        sql: &str,
        parameters: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Option<T>> {
        let mut statement = self.prepare_cached(sql)?;
        Ok(statement.query_row(parameters, read).optional()?)
    }

    fn all<T>(
        &self,
        sql: &str,
        parameters: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Vec<T>> {
        let mut statement = self.prepare_cached(sql)?;
        let rows = statement.query_map(parameters, read)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}
