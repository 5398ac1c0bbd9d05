//! Memories in PostgreSQL: one schema for all tenants, so that any number of them cost nothing but
//! rows. A statement sees the rows of one tenant only, by views that know whose transaction it is.
//!
//! The texts of statements are those of SQLite, but for three things: parameters are numbered
//! (`?` is `$1`); `CROSS JOIN … ON`, which tells SQLite in which order to look, is a `JOIN`; and what
//! is unique is so within a tenant (`ON CONFLICT (…)`).

mod near;
mod place;
mod places;
mod recalls;
mod schema;
mod terms;
mod vectors;

use std::cell::Cell;
use std::collections::HashMap;

use memoird_postgres::{Column, FoundRow, OpenTransaction, Value};
use memoird_store::StoreError;
use rusqlite::types::{ToSqlOutput, Type, ValueRef};

use super::sql::{Answer, Parameters};

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

/// What of pgvector a database has.
#[derive(Clone, Copy, Debug)]
struct Pgvector {
    /// Its indexes look on where a filter leaves out what they found: from 0.8 on.
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

    /// Digests of this tenant's names are salted with this from its next transaction on.
    pub(super) fn set_salt(&self, salt: Vec<u8>) -> Answer<()> {
        let sql = "UPDATE memoird_memories.tenants SET salt = $2 WHERE no = $1";
        self.send(sql, vec![Value::Whole(self.tenant), Value::Bytes(salt)])
    }

    /// What digests of this tenant's names are salted with.
    pub(super) fn salt(&self) -> &[u8] {
        self.salt
    }

    /// False where the database has no pgvector: then there are no vectors.
    pub(super) fn has_vectors(&self) -> bool {
        self.pgvector.is_some()
    }

    /// True where large partitions have indexes of their vectors.
    fn has_indexes(&self) -> bool {
        self.pgvector.is_some_and(|pgvector| pgvector.looks_on)
    }

    /// The number of the tenant.
    fn tenant(&self) -> i64 {
        self.tenant
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.get()
    }

    pub(super) fn query(&self, sql: &str, parameters: Parameters<'_>) -> Answer<Vec<FoundRow>> {
        Ok(self.open.query(&translated(sql), &values(parameters)?)?)
    }

    pub(super) fn change(&self, sql: &str, parameters: Parameters<'_>) -> Answer<usize> {
        let changed = self.open.change(&translated(sql), &values(parameters)?)?;
        self.changes.set(self.changes.get() + changed);
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }

    /// Does not wait for it: how many rows it changes is not known, and counts as one.
    pub(super) fn run(&self, sql: &str, parameters: Parameters<'_>) -> Answer<()> {
        self.send(&translated(sql), values(parameters)?)
    }

    /// The rows, so many at once, until `look` gives false.
    pub(super) fn each(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        at_once: usize,
        mut look: impl FnMut(&FoundRow) -> Answer<bool>,
    ) -> Answer<()> {
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

    /// The rows of these numbers in their order, by a statement that finds that of one. Each is looked
    /// up by itself: for a list of numbers a planner without statistics may read all of the tenant's.
    pub(super) fn of_numbers(&self, sql: &str, numbers: &[i64]) -> Answer<Vec<FoundRow>> {
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

    /// A statement that begins or ends a part of it.
    pub(super) fn control(&self, sql: &str) -> Answer<()> {
        Ok(self.open.send(sql, Vec::new())?)
    }

    /// Waits until all that was changed is.
    pub(super) fn settle(&self) -> Answer<()> {
        Ok(self.open.settle()?)
    }

    fn send(&self, sql: &str, values: Vec<Value>) -> Answer<()> {
        self.changes.set(self.changes.get() + 1);
        Ok(self.open.send(sql, values)?)
    }

    fn rows(&self, sql: &str, values: &[Value]) -> Answer<Vec<FoundRow>> {
        Ok(self.open.query(sql, values)?)
    }
}

/// What stands in a column.
pub(super) fn value(row: &FoundRow, index: usize) -> rusqlite::Result<ValueRef<'_>> {
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

/// A statement as PostgreSQL has it.
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

/// A parameter as PostgreSQL takes it.
pub(super) fn parameter(parameter: &dyn rusqlite::ToSql) -> Answer<Value> {
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

fn values(parameters: Parameters<'_>) -> Answer<Vec<Value>> {
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
