//! Memories in PostgreSQL.
//!
//! All tenants share one schema, so that a tenant costs only its rows. Statements use views that
//! show only the rows of the transaction's tenant.
//!
//! The statements are written for SQLite and translated: parameters are numbered (`?` becomes
//! `$1`), `CROSS JOIN … ON`, which fixes the join order in SQLite, becomes `JOIN`, and unique
//! columns are unique per tenant (`ON CONFLICT (…)`).

mod near;
mod place;
mod places;
mod recalls;
mod schema;
mod terms;
mod vectors;

use std::cell::Cell;
use std::collections::HashMap;

use memoird_postgres::{Column, OpenTransaction, ResultRow, Value};
use memoird_store::StoreError;
use rusqlite::types::{ToSqlOutput, Type, ValueRef};

use super::sql::{Parameters, StoreResult};

pub(super) use place::{PostgresMemories, PostgresTenant};
pub(super) use places::said_at;
pub(super) use recalls::count_hits;
pub(super) use terms::{add as add_terms, look_up, remove as remove_terms};
pub(super) use vectors::{carry, measure, model_of, nearest, put, remove, vectors_of};

/// A transaction of one tenant.
#[derive(Debug)]
pub(super) struct Transaction<'a> {
    open: &'a OpenTransaction,
    tenant: i64,
    salt: &'a [u8],
    pgvector: Option<Pgvector>,
    changes: Cell<u64>,
}

/// Features of the installed pgvector.
#[derive(Clone, Copy, Debug)]
struct Pgvector {
    /// Whether index scans continue if a filter drops results (iterative scans, since 0.8).
    looks_on: bool,
}

impl<'a> Transaction<'a> {
    fn new(
        open: &'a OpenTransaction,
        tenant: i64,
        salt: &'a [u8],
        pgvector: Option<Pgvector>,
    ) -> Self {
        Self {
            open,
            tenant,
            salt,
            pgvector,
            changes: Cell::new(0),
        }
    }

    /// Sets the salt of this tenant's digests, effective from its next transaction.
    pub(super) fn set_salt(&self, salt: Vec<u8>) -> StoreResult<()> {
        let sql = "UPDATE memoird_memories.tenants SET salt = $2 WHERE no = $1";
        self.send(sql, vec![Value::Whole(self.tenant), Value::Bytes(salt)])
    }

    pub(super) fn salt(&self) -> &[u8] {
        self.salt
    }

    /// Whether the database can store vectors, that is, has pgvector.
    pub(super) fn has_vectors(&self) -> bool {
        self.pgvector.is_some()
    }

    /// Whether large partitions have vector indexes.
    fn has_indexes(&self) -> bool {
        self.pgvector.is_some_and(|pgvector| pgvector.looks_on)
    }

    fn tenant(&self) -> i64 {
        self.tenant
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.get()
    }

    pub(super) fn query(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> StoreResult<Vec<ResultRow>> {
        Ok(self.open.query(&translated(sql), &values(parameters)?)?)
    }

    pub(super) fn change(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<usize> {
        let changed = self.open.change(&translated(sql), &values(parameters)?)?;
        self.changes.set(self.changes.get() + changed);
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }

    /// Sends a statement without waiting for it.
    ///
    /// It counts as one change, because its row count is unknown.
    pub(super) fn run(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<()> {
        self.send(&translated(sql), values(parameters)?)
    }

    /// Fetches rows, `at_once` at a time, until `look` returns `false`.
    pub(super) fn each(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        at_once: usize,
        mut look: impl FnMut(&ResultRow) -> StoreResult<bool>,
    ) -> StoreResult<()> {
        let declare = format!("DECLARE rows NO SCROLL CURSOR FOR {}", translated(sql));
        self.open.change(&declare, &values(parameters)?)?;
        let fetch = format!("FETCH {at_once} FROM rows");
        'all: loop {
            let rows = self.open.query(&fetch, &[])?;
            for row in &rows {
                if !look(row)? {
                    break 'all;
                }
            }
            if rows.len() < at_once {
                break;
            }
        }
        Ok(self.open.send("CLOSE rows", Vec::new())?)
    }

    /// Looks up rows by number, in the given order.
    ///
    /// The statement finds a single row, and runs once per number. For a list of numbers, a planner
    /// without statistics might read all rows of the tenant.
    pub(super) fn of_numbers(&self, sql: &str, numbers: &[i64]) -> StoreResult<Vec<ResultRow>> {
        let one = translated(&sql.replace("?1", "asked.number"));
        let sql = format!(
            "SELECT found.* FROM unnest($1) AS asked (number) CROSS JOIN LATERAL ({one} LIMIT 1) AS found"
        );
        let mut rows = self.rows(&sql, &[Value::Wholes(numbers.to_vec())])?;
        let places = numbers.iter().zip(0..);
        let places: HashMap<i64, usize> = places.map(|(no, place)| (*no, place)).collect();
        rows.sort_by_cached_key(|row| match row.column(0) {
            Ok(Column::Whole(no)) => places.get(&no).copied(),
            _ => None,
        });
        Ok(rows)
    }

    /// Sends a statement that controls the transaction, such as `SAVEPOINT`.
    pub(super) fn control(&self, sql: &str) -> StoreResult<()> {
        Ok(self.open.send(sql, Vec::new())?)
    }

    /// Waits until all statements sent have completed.
    pub(super) fn settle(&self) -> StoreResult<()> {
        Ok(self.open.wait_for_pipelined()?)
    }

    fn send(&self, sql: &str, values: Vec<Value>) -> StoreResult<()> {
        self.changes.set(self.changes.get() + 1);
        Ok(self.open.send(sql, values)?)
    }

    fn rows(&self, sql: &str, values: &[Value]) -> StoreResult<Vec<ResultRow>> {
        Ok(self.open.query(sql, values)?)
    }
}

pub(super) fn value(row: &ResultRow, index: usize) -> rusqlite::Result<ValueRef<'_>> {
    match row.column(index) {
        Ok(Column::Null) => Ok(ValueRef::Null),
        Ok(Column::Whole(whole)) => Ok(ValueRef::Integer(whole)),
        Ok(Column::Real(real)) => Ok(ValueRef::Real(real)),
        Ok(Column::Bytes(bytes)) => Ok(ValueRef::Blob(bytes)),
        Err(error) => Err(rusqlite::Error::FromSqlConversionFailure(
            index,
            Type::Blob,
            Box::new(error),
        )),
    }
}

/// Translates a statement from SQLite to PostgreSQL.
fn translated(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len() + 32);
    let mut last = 0;
    let mut rest = sql;
    while let Some(at) = rest.find('?') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number = match rest[..digits].parse() {
            Ok(number) => number,
            Err(_) => last + 1,
        };
        last = number;
        out.push_str(&format!("${number}"));
        rest = &rest[digits..];
    }
    out.push_str(rest);
    out.replace("CROSS JOIN", "JOIN")
        .replace("ON CONFLICT (", "ON CONFLICT (tenant, ")
}

pub(super) fn parameter(parameter: &dyn rusqlite::ToSql) -> StoreResult<Value> {
    let value = |value: ValueRef<'_>| match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(whole) => Value::Whole(whole),
        ValueRef::Real(real) => Value::Real(real),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    };
    match parameter.to_sql()? {
        ToSqlOutput::Borrowed(borrowed) => Ok(value(borrowed)),
        ToSqlOutput::Owned(owned) => Ok(value((&owned).into())),
        _ => Err(StoreError::Database {
            detail: "a parameter of a kind that PostgreSQL does not have".to_owned(),
        }
        .into()),
    }
}

fn values(parameters: Parameters<'_>) -> StoreResult<Vec<Value>> {
    parameters.iter().map(|one| parameter(*one)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_written_as_postgresql_has_it() {
        let sql = "INSERT INTO meta (name, value) VALUES (?, ?)
            ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        assert_eq!(
            translated(sql),
            "INSERT INTO meta (name, value) VALUES ($1, $2)
            ON CONFLICT (tenant, name) DO UPDATE SET value = excluded.value"
        );
        let sql = "SELECT a FROM b CROSS JOIN c ON d = e WHERE f = ?2 AND g = ?12 OR h = ?1";
        let found = "SELECT a FROM b JOIN c ON d = e WHERE f = $2 AND g = $12 OR h = $1";
        assert_eq!(translated(sql), found);
    }
}
