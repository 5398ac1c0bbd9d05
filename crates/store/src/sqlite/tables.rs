//! The tables of the journal, for statements shared with other databases.

use std::cell::RefCell;

use memoird_core::ids::Generation;
use rusqlite::types::{ToSqlOutput, Value as SqlValue, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};

use super::pending::PendingTable;
use super::prewrite::CONTENT_BYTES;
use super::{prune, transfer};
use crate::transfer::{Row, Value};
use crate::{DeletedTurns, Dialect, Param, StoreError, Tables};

/// Only one process uses the file, so no row is locked.
static DIALECT: Dialect = Dialect {
    no: "0",
    skip_locked: "",
    key_row: "tenant, session, key",
    if_held: "AND held = 1",
    own_tables: &["compactions", "options"],
    content_bytes: CONTENT_BYTES,
    rows_of: |table| table,
    expression: transfer::expression,
    inserts: transfer::inserts,
};

/// The indexed tables, within a transaction.
pub(super) struct SqliteTables<'a> {
    pub(super) connection: &'a Connection,
    /// `None` for a transaction that deletes no generations.
    pub(super) pending: Option<&'a PendingTable>,
    /// Ids of the turns that the transaction deletes.
    pub(super) deleted_turns: RefCell<Vec<i64>>,
}

impl<'a> SqliteTables<'a> {
    pub(super) fn new(connection: &'a Connection, pending: Option<&'a PendingTable>) -> Self {
        Self {
            connection,
            pending,
            deleted_turns: RefCell::default(),
        }
    }
}

impl Tables for SqliteTables<'_> {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let columns = statement.column_count();
        let rows = statement.query_map(params_from_iter(params), |row| {
            let values = 0..columns;
            values.map(|at| row.get_ref(at).map(value)).collect()
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn change(&self, sql: &str, params: &[Param<'_>]) -> Result<usize, StoreError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        Ok(statement.execute(params_from_iter(params))?)
    }

    fn delete_turns(
        &self,
        generation: Generation,
        rows_max: usize,
        bytes_max: usize,
    ) -> Result<DeletedTurns, StoreError> {
        let (turns, deleted) =
            prune::delete_turns(self.connection, generation, rows_max, bytes_max)?;
        self.deleted_turns.borrow_mut().extend(turns);
        Ok(deleted)
    }

    fn is_unflushed(&self, generation: Generation) -> bool {
        self.pending
            .is_some_and(|pending| pending.row(generation).is_some())
    }
}

impl ToSql for Param<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Null => ToSqlOutput::Owned(SqlValue::Null),
            Self::Int(number) => ToSqlOutput::Owned(SqlValue::Integer(*number)),
            Self::Text(text) | Self::Word(text) => {
                ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes()))
            }
            Self::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
            Self::Id(id) => ToSqlOutput::Borrowed(ValueRef::Blob(id)),
        })
    }
}

fn value(of: ValueRef<'_>) -> Value {
    match of {
        ValueRef::Null => Value::Nothing,
        ValueRef::Integer(number) => Value::Number(number),
        // No column holds reals.
        ValueRef::Real(number) => Value::Bytes(number.to_le_bytes().to_vec()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    }
}
