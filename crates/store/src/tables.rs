//! SQL access to the tables of a journal that no append or load needs.
//!
//! Outbox, retention and erasure are written once, in the subset of SQL that SQLite and PostgreSQL
//! share. A store runs them in one of its transactions. Turns have a different layout in each store
//! and are deleted through [`Tables::delete_turns`].

use memoird_core::ids::{ErasureId, Generation, HookName, SessionId, Subject, TenantId};
use memoird_core::time::Steady;

use crate::transfer::{Row, RowInsert, Table};
use crate::{Store, StoreError};

/// A snapshot of a journal's tables, or a transaction that changes them.
///
/// Parameters are written `?1`, `?2` and so on. Every method may block.
pub trait Tables {
    fn dialect(&self) -> &'static Dialect;

    /// Runs a statement and returns its rows.
    fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError>;

    /// Runs a statement and returns the number of changed rows.
    fn change(&self, sql: &str, params: &[Param<'_>]) -> Result<usize, StoreError>;

    /// Runs a statement without waiting for it. The next call that waits returns its error.
    fn send(&self, sql: &str, params: &[Param<'_>]) -> Result<(), StoreError> {
        self.change(sql, params).map(drop)
    }

    /// Deletes up to `rows_max` of the first turns of a generation.
    ///
    /// Deletes no further turn once `bytes_max` bytes are deleted.
    fn delete_turns(
        &self,
        generation: Generation,
        rows_max: usize,
        bytes_max: usize,
    ) -> Result<DeletedTurns, StoreError>;

    /// Makes the queries that follow read rows in the order of an index, and stop at their limit.
    ///
    /// Without statistics, a planner may sort all rows instead.
    fn plan_by_index_order(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether rows of a generation are not in the tables yet.
    fn is_unflushed(&self, generation: Generation) -> bool {
        let _ = generation;
        false
    }
}

/// Differences between the databases in shared statements.
#[derive(Debug)]
pub struct Dialect {
    /// Literal for false. Conditions with it match partial indexes.
    pub no: &'static str,
    /// Clause that skips rows locked by other processes.
    pub skip_locked: &'static str,
    /// Columns that identify a row of `idempotency` at least cost within a statement.
    pub key_row: &'static str,
    /// Condition that omits needless updates of `held`.
    ///
    /// Empty if another process may be about to set it: an update then waits for that process.
    pub if_held: &'static str,
    /// Tables with rows of a generation that only this database has.
    pub own_tables: &'static [&'static str],
    /// Expression for the size in bytes of a turn's content.
    pub content_bytes: &'static str,
    /// Returns what to select from for the rows of a table of [`crate::transfer::TABLES`].
    pub rows_of: fn(table: &'static str) -> &'static str,
    /// Returns the expression for a column of such a table.
    pub expression: fn(table: &str, column: &'static str) -> &'static str,
    /// Returns the statements that insert a row of such a table, if it does not exist.
    pub inserts: fn(&Table) -> Vec<RowInsert>,
}

/// A statement parameter.
#[derive(Clone, Copy, Debug)]
pub enum Param<'a> {
    Null,
    /// A ULID.
    Id([u8; 16]),
    /// Text from clients, with any character including NUL.
    Text(&'a str),
    /// Text defined by memoird or its configuration, without NUL.
    Word(&'a str),
    Bytes(&'a [u8]),
    Int(i64),
}

/// Turns deleted by one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeletedTurns {
    pub turns: usize,
    /// Total size of their contents.
    pub bytes: usize,
}

/// A body that a store runs in a transaction, and again if it has to repeat the transaction.
pub type TableBody<'a> = &'a mut dyn FnMut(&dyn Tables) -> Result<(), StoreError>;

pub(crate) fn read<T>(
    store: &(impl Store + ?Sized),
    body: impl FnMut(&dyn Tables) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    run(|body| store.read_tables(body), body)
}

pub(crate) fn write<T>(
    store: &(impl Store + ?Sized),
    body: impl FnMut(&dyn Tables) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    run(|body| store.write_tables(body), body)
}

pub(crate) fn run<T>(
    transact: impl FnOnce(TableBody<'_>) -> Result<(), StoreError>,
    mut body: impl FnMut(&dyn Tables) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut outcome = Err(unsupported());
    transact(&mut |tables| {
        outcome = Ok(body(tables)?);
        Ok(())
    })?;
    outcome
}

/// Error of a call that the store does not implement.
pub(crate) fn unsupported() -> StoreError {
    StoreError::Database {
        detail: "the store does not support this call".to_owned(),
    }
}

macro_rules! params {
    ($($kind:ty, $it:ident => $param:expr;)+) => {
        $(impl<'a> From<$kind> for Param<'a> {
            fn from($it: $kind) -> Self {
                $param
            }
        })+
    };
}

params! {
    Generation, id => Self::Id(id.to_bytes());
    ErasureId, id => Self::Id(id.to_bytes());
    &'a TenantId, id => Self::Text(id.as_str());
    &'a SessionId, id => Self::Text(id.as_str());
    &'a Subject, id => Self::Text(id.as_str());
    &'a HookName, name => Self::Word(name.as_str());
    Steady, at => Self::Int(i64::try_from(at.0).unwrap_or(i64::MAX));
    usize, rows => Self::Int(i64::try_from(rows).unwrap_or(i64::MAX));
}

impl<'a, T: Into<Self>> From<Option<T>> for Param<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Param::Null, Into::into)
    }
}
