//! Memories in PostgreSQL.
//!
//! All tenants share one schema, so that a tenant costs only its rows. Statements use views that
//! show only the rows of the transaction's tenant.
//!
//! The statements are written for SQLite and translated: parameters are numbered (`?` becomes
//! `$1`), `CROSS JOIN … ON`, which fixes the join order in SQLite, becomes `JOIN`, and unique
//! columns are unique per tenant (`ON CONFLICT (…)`).

mod clock;
mod near;
mod place;
mod rows;
mod schema;
mod terms;
mod vectors;

use std::cell::RefCell;
use std::collections::HashMap;

use memoird_postgres::{Column, OpenTransaction, ResultRow, Value};
use memoird_store::StoreError;
use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, Type, ValueRef};

use self::rows::{Job, WaitingRows};
use super::batch::{FactLookup, FoundFact, Partition};
use super::row::limit;
use super::sql::{Columns, Dialect, Insert, Parameters, Row, StoreResult};
use crate::MemoryError;

pub(super) use place::PostgresMemories;

/// A transaction of one tenant.
#[derive(Debug)]
struct Transaction<'a> {
    open: &'a OpenTransaction,
    tenant: i64,
    salt: &'a [u8],
    pgvector: Option<Pgvector>,
    waiting: RefCell<WaitingRows>,
}

/// Features of the installed pgvector.
#[derive(Clone, Copy, Debug)]
struct Pgvector {
    /// Whether index scans continue if a filter drops results (iterative scans, since 0.8).
    looks_on: bool,
}

impl Transaction<'_> {
    /// Sends waiting rows, and waits until all statements sent have completed.
    fn settle(&self) -> StoreResult<()> {
        self.send_waiting("SELECT")?;
        Ok(self.open.wait_for_pipelined()?)
    }

    /// Sends waiting rows before this statement, which may see or change them.
    ///
    /// A job that sends anything needs a savepoint, to be rolled back.
    fn send_waiting(&self, sql: &str) -> StoreResult<()> {
        let mut waiting = self.waiting.borrow_mut();
        let is_write = !sql.trim_start().starts_with("SELECT");
        let is_sent = is_write || waiting.has_own();
        if let Some(Job {
            has_savepoint: false,
        }) = waiting.job
            && is_sent
        {
            for (sql, values) in waiting.take_earlier() {
                self.open.send(&sql, values)?;
            }
            self.open.send("SAVEPOINT job", Vec::new())?;
            waiting.job = Some(Job {
                has_savepoint: true,
            });
        }
        for (sql, values) in waiting.take() {
            self.open.send(&sql, values)?;
        }
        Ok(())
    }

    /// Sends a statement without waiting for it.
    fn send(&self, sql: &str, values: Vec<Value>) -> StoreResult<()> {
        self.send_waiting(sql)?;
        Ok(self.open.send(sql, values)?)
    }

    fn rows(&self, sql: &str, values: &[Value]) -> StoreResult<Vec<ResultRow>> {
        self.send_waiting(sql)?;
        Ok(self.open.query(sql, values)?)
    }
}

impl Dialect for Transaction<'_> {
    fn change(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<usize> {
        self.send_waiting(sql)?;
        let changed = self.open.change(&translated(sql), &values(parameters)?)?;
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }

    /// Sends a statement without waiting for it.
    fn run(&self, sql: &str, parameters: Parameters<'_>) -> StoreResult<()> {
        self.send(&translated(sql), values(parameters)?)
    }

    fn visit(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        at_once: Option<usize>,
        look: &mut dyn FnMut(&Row<'_>) -> StoreResult<bool>,
    ) -> StoreResult<()> {
        let mut look_at = |rows: &[ResultRow]| {
            for row in rows {
                if !look(&Row(row))? {
                    return Ok(false);
                }
            }
            Ok::<_, MemoryError>(true)
        };
        let Some(at_once) = at_once else {
            let rows = self.rows(&translated(sql), &values(parameters)?)?;
            return look_at(&rows).map(drop);
        };
        self.send_waiting(sql)?;
        let declare = format!("DECLARE rows NO SCROLL CURSOR FOR {}", translated(sql));
        self.open.change(&declare, &values(parameters)?)?;
        let fetch = format!("FETCH {at_once} FROM rows");
        loop {
            let rows = self.open.query(&fetch, &[])?;
            if !look_at(&rows)? || rows.len() < at_once {
                return self.control("CLOSE rows");
            }
        }
    }

    /// Runs the statement once per number.
    ///
    /// For a list of numbers, a planner without statistics might read all rows of the tenant.
    fn visit_numbers(
        &self,
        sql: &str,
        numbers: &[i64],
        look: &mut dyn FnMut(&Row<'_>) -> rusqlite::Result<()>,
    ) -> StoreResult<()> {
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
        rows.iter().try_for_each(|row| look(&Row(row)))?;
        Ok(())
    }

    fn control(&self, sql: &str) -> StoreResult<()> {
        Ok(self.open.send(sql, Vec::new())?)
    }

    fn insert(&self, insert: &'static Insert, row: Parameters<'_>) -> StoreResult<()> {
        let row = values(row)?;
        self.waiting.borrow_mut().add(insert, row);
        if self.waiting.borrow().are_many() {
            self.send_waiting(insert.table)?;
        }
        Ok(())
    }

    fn set_next(&self, partitions: &[Partition]) -> StoreResult<()> {
        if partitions.is_empty() {
            return Ok(());
        }
        let numbers = partitions.iter().map(|partition| partition.no).collect();
        let next = partitions.iter().map(|partition| partition.next).collect();
        let sql = "UPDATE partitions SET next = moved.next
            FROM unnest($1, $2) AS moved (number, next) WHERE no = moved.number";
        self.send(sql, vec![Value::Wholes(numbers), Value::Wholes(next)])
    }

    fn look_up_facts(&self, facts: &[FactLookup]) -> StoreResult<Vec<FoundFact>> {
        // Without statistics, a planner might read all memories of the tenant for an equal digest.
        // The order leaves only one index.
        let sql = "SELECT place, partition.no, partition.next,
                (SELECT owner = partition.no AND says = asked.says FROM memories
                    WHERE (owner, says) >= (partition.no, asked.says)
                    AND superseded_by IS NULL ORDER BY owner, says LIMIT 1),
                (SELECT 1 FROM keys WHERE key = asked.key LIMIT 1)
            FROM unnest($1, $2, $3) WITH ORDINALITY AS asked (subject, says, key, place)
            LEFT JOIN LATERAL (SELECT no, next FROM partitions WHERE subject = asked.subject
                LIMIT 1) AS partition ON true ORDER BY place";
        let subject = |fact: &FactLookup| Some(fact.subject.as_str().as_bytes().to_vec());
        let key = |fact: &FactLookup| fact.key.map(|key| key.to_vec());
        let values = [
            Value::BytesOrNull(facts.iter().map(subject).collect()),
            Value::Wholes(facts.iter().map(|fact| fact.says).collect()),
            Value::BytesOrNull(facts.iter().map(key).collect()),
        ];
        let rows = self.rows(sql, &values)?;
        let found = rows.iter().map(|row| {
            let at = |index| {
                Ok::<_, MemoryError>(
                    value(row, index)?
                        .as_i64_or_null()
                        .map_err(rusqlite::Error::from)?,
                )
            };
            let partition = at(1)?.zip(at(2)?);
            Ok(FoundFact {
                partition: partition.map(|(no, next)| Partition { no, next }),
                is_said: at(3)? == Some(1),
                is_key_used: at(4)?.is_some(),
            })
        });
        found.collect()
    }

    fn begin_job(&self) -> StoreResult<()> {
        self.waiting.borrow_mut().begin_job();
        Ok(())
    }

    fn end_job(&self, are_kept: bool) -> StoreResult<()> {
        if !self.waiting.borrow_mut().end_job(are_kept) {
            return Ok(());
        }
        if !are_kept {
            self.control("ROLLBACK TO job")?;
        }
        self.control("RELEASE job")
    }

    fn any<'a>(&self, value: &'a dyn ToSql) -> StoreResult<ToSqlOutput<'a>> {
        let output = value.to_sql()?;
        Ok(match value_of(&output)? {
            ValueRef::Integer(number) => ToSqlOutput::from(number.to_string()),
            _ => output,
        })
    }

    fn salt(&self) -> StoreResult<Vec<u8>> {
        Ok(self.salt.to_vec())
    }

    fn set_salt(&self, salt: &[u8]) -> StoreResult<()> {
        let sql = "UPDATE memoird_memories.tenants SET salt = $2 WHERE no = $1";
        let values = vec![Value::Whole(self.tenant), Value::Bytes(salt.to_vec())];
        self.send(sql, values)
    }

    fn said_at(&self, places: &[(i64, i64)], each_max: usize) -> StoreResult<Vec<(usize, i64)>> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT place, no FROM unnest($1, $2) WITH ORDINALITY AS asked (said, seq, place)
            CROSS JOIN LATERAL (SELECT no FROM places
                WHERE places.said = asked.said AND places.seq = asked.seq ORDER BY no LIMIT $3) AS found
            ORDER BY place, no";
        let (said, seqs) = places.iter().copied().unzip();
        let each_max = Value::Whole(limit(each_max));
        let rows = self.rows(sql, &[Value::Wholes(said), Value::Wholes(seqs), each_max])?;
        let found = rows.iter().map(|row| {
            let place = usize::try_from(whole(row, 0)? - 1);
            Ok((place.unwrap_or(usize::MAX), whole(row, 1)?))
        });
        found.collect()
    }
}

impl Columns for ResultRow {
    fn value(&self, index: usize) -> rusqlite::Result<ValueRef<'_>> {
        value(self, index)
    }
}

fn value(row: &ResultRow, index: usize) -> rusqlite::Result<ValueRef<'_>> {
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

fn values(parameters: Parameters<'_>) -> StoreResult<Vec<Value>> {
    let value = |parameter: &&dyn ToSql| {
        let output = parameter.to_sql()?;
        Ok(match value_of(&output)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(whole) => Value::Whole(whole),
            ValueRef::Real(real) => Value::Real(real),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
        })
    };
    parameters.iter().map(value).collect()
}

fn value_of<'a>(output: &'a ToSqlOutput<'_>) -> StoreResult<ValueRef<'a>> {
    match output {
        ToSqlOutput::Borrowed(borrowed) => Ok(*borrowed),
        ToSqlOutput::Owned(owned) => Ok(owned.into()),
        _ => Err(StoreError::Database {
            detail: "a parameter of a kind that PostgreSQL does not have".to_owned(),
        }
        .into()),
    }
}

/// An integer column.
fn whole(row: &ResultRow, index: usize) -> StoreResult<i64> {
    Ok(value(row, index)?.as_i64().map_err(rusqlite::Error::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_translated_to_postgresql() {
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
