//! Statements on a file. Each is prepared once per connection.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, params};

use crate::store::row::limit;
use crate::store::sql::{Columns, Dialect, Parameters, Row, Sql, StoreResult};

impl Dialect for Connection {
    fn change(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<usize> {
        Ok(self.prepare_cached(sql)?.execute(parameters)?)
    }

    fn run(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<()> {
        self.change(sql, parameters).map(drop)
    }

    /// SQLite reads the rows from its pages as needed, so `at_once` has no effect.
    fn visit(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        _at_once: Option<usize>,
        look: &mut dyn FnMut(&Row<'_>) -> StoreResult<bool>,
    ) -> StoreResult<()> {
        let mut statement = self.prepare_cached(sql)?;
        let mut rows = statement.query(parameters)?;
        while let Some(row) = rows.next()? {
            if !look(&Row(row))? {
                break;
            }
        }
        Ok(())
    }

    fn visit_numbers(
        &self,
        sql: &str,
        numbers: &[i64],
        look: &mut dyn FnMut(&Row<'_>) -> rusqlite::Result<()>,
    ) -> StoreResult<()> {
        let mut statement = self.prepare_cached(sql)?;
        for number in numbers {
            // Do not step to a second row, which would cost as much again.
            if let Some(row) = statement.query([number])?.next()? {
                look(&Row(row))?;
            }
        }
        Ok(())
    }

    fn control(&self, sql: &str) -> StoreResult<()> {
        self.run(sql, &[])
    }

    fn unindexed(&self) -> &'static str {
        "+"
    }

    fn any<'a>(&self, value: &'a dyn ToSql) -> StoreResult<ToSqlOutput<'a>> {
        Ok(value.to_sql()?)
    }

    fn salt(&self) -> StoreResult<Vec<u8>> {
        let this: &dyn Dialect = self;
        let salt = this.value("SELECT value FROM meta WHERE name = 'salt'", &[])?;
        Ok(salt.unwrap_or_default())
    }

    fn set_salt(&self, salt: &[u8]) -> StoreResult<()> {
        self.run("UPDATE meta SET value = ? WHERE name = 'salt'", &[&salt])
    }

    fn said_at(&self, places: &[(i64, i64)], each_max: usize) -> StoreResult<Vec<(usize, i64)>> {
        let this: &dyn Dialect = self;
        let sql = "SELECT no FROM places WHERE said = ? AND seq = ? LIMIT ?";
        let mut found = Vec::new();
        for (index, (said, seq)) in places.iter().enumerate() {
            let parameters = params![said, seq, limit(each_max)];
            found.extend(this.all(sql, parameters, |row| Ok((index, row.get(0)?)))?);
        }
        Ok(found)
    }
}

impl Columns for rusqlite::Row<'_> {
    fn value(&self, index: usize) -> rusqlite::Result<ValueRef<'_>> {
        self.get_ref(index)
    }
}
