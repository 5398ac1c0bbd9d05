//! Rows of generations in the pending table and in the indexed table, which have the same columns.

use std::borrow::Cow;

use rusqlite::{CachedStatement, Connection, Params, Row, params};

use memoird_core::history::LiveSet;
use memoird_core::ids::Subject;
use memoird_core::session::Head;

use crate::plan::{BaseRow, RowBefore, RowChange, RowState};
use crate::rows::GenerationRow;
use crate::{StoreError, encoding};

/// Version of the encoding.
const FORMAT: i64 = 1;

pub(super) const PLACES: &str = "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?";

/// Visits the generations that match a condition, in one of the tables.
///
/// Compaction status and options are stored in tables of their own, shared by all rows of a
/// generation.
pub(super) fn visit_rows(
    connection: &Connection,
    table: &str,
    condition: &str,
    parameters: impl Params,
    mut visit: impl FnMut(GenerationRow),
) -> Result<(), StoreError> {
    let columns = GenerationRow::COLUMNS;
    let sql = format!(
        "SELECT {columns}, (SELECT status FROM compactions AS compacted
             WHERE compacted.generation = {table}.generation),
             (SELECT options FROM options AS decided
             WHERE decided.generation = {table}.generation) FROM {table} {condition}"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(parameters)?;
    while let Some(row) = rows.next()? {
        visit(GenerationRow::read(row)?);
    }
    Ok(())
}

/// Reads the generation that matches a condition.
pub(super) fn find_row(
    connection: &Connection,
    table: &str,
    condition: &str,
    parameters: impl Params,
) -> Result<Option<GenerationRow>, StoreError> {
    let mut found = None;
    visit_rows(connection, table, condition, parameters, |row| {
        found = Some(row);
    })?;
    Ok(found)
}

impl BaseRow for Cow<'_, GenerationRow> {
    fn state(&self) -> RowState<'_> {
        RowState {
            key: &self.key,
            revision: self.head.revision,
            last_seq: self.head.last_seq,
            is_live: self.ended.is_none(),
        }
    }
}

impl GenerationRow {
    /// Returns the row after the changes of a batch.
    pub(super) fn changed(change: &RowChange<'_, Cow<'_, Self>>) -> Self {
        let mut row = match change.before {
            RowBefore::Nothing { created_at } => {
                let last_access = change.last_access.unwrap_or_default();
                Self {
                    key: change.key.clone(),
                    head: Head::begin(change.generation, created_at, last_access),
                    live_set: LiveSet::default(),
                    ended: None,
                }
            }
            RowBefore::Row(row) => Self::clone(row),
        };
        change.apply_to(&mut row.head);
        if let Some(live_set) = change.live_set {
            row.live_set.clone_from(live_set);
        }
        row.ended = change.ended.map(|(at, reason, _)| (at, reason));
        row
    }

    /// Runs a statement with the parameters [`Self::COLUMNS`].
    pub(super) fn write(&self, statement: &mut CachedStatement<'_>) -> rusqlite::Result<()> {
        let head = &self.head;
        statement.execute(params![
            head.generation.to_bytes(),
            FORMAT,
            self.key.tenant.as_str(),
            self.key.session.as_str(),
            head.subject.as_ref().map(Subject::as_str),
            head.created_at.as_ms(),
            whole(head.last_access.0),
            whole(head.revision),
            whole(head.last_seq),
            encoding::encode_live_set(&self.live_set),
            whole(head.totals.turns),
            whole(head.totals.bytes),
            whole(head.totals.tokens),
            head.partial,
            whole(head.state_version),
            self.ended.map(|(at, _)| at.wall.as_ms()),
            self.ended.map(|(at, _)| whole(at.steady.0)),
            self.ended.map(|(_, reason)| reason.name()),
            whole(head.newest_seq),
        ])?;
        Ok(())
    }
}

/// Converts a count to SQLite's signed integers. No real count reaches the maximum.
pub(super) fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Reads a count. Stored counts are never negative.
pub(super) fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::unsigned_abs)
}
