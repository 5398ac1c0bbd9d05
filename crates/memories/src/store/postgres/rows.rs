//! Rows that wait to be inserted with others.
//!
//! A statement with many rows costs little more than one with a single row. So inserted rows are
//! collected until a statement might see them. A job that only inserts needs no savepoint either:
//! if it is rejected, its rows are dropped.

use memoird_postgres::Value;

use crate::store::sql::{ColumnType, Insert};

/// Values after which rows are sent.
const VALUES_MAX: usize = 32_768;

/// Rows of one table, value by value.
#[derive(Debug)]
struct TableRows {
    insert: &'static Insert,
    values: Vec<Value>,
    /// Number of values from earlier jobs.
    earlier: usize,
}

#[derive(Debug, Default)]
pub(super) struct WaitingRows {
    tables: Vec<TableRows>,
    count: usize,
    pub(super) job: Option<Job>,
}

/// The job in progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Job {
    pub(super) has_savepoint: bool,
}

/// A statement with its values.
pub(super) type Statement = (String, Vec<Value>);

impl WaitingRows {
    pub(super) fn add(&mut self, insert: &'static Insert, row: Vec<Value>) {
        self.count += row.len();
        let table = self
            .tables
            .iter_mut()
            .find(|table| std::ptr::eq(table.insert, insert));
        match table {
            Some(table) => table.values.extend(row),
            None => self.tables.push(TableRows {
                insert,
                values: row,
                earlier: 0,
            }),
        }
    }

    pub(super) fn are_many(&self) -> bool {
        self.count >= VALUES_MAX
    }

    pub(super) fn begin_job(&mut self) {
        self.job = Some(Job::default());
        for table in &mut self.tables {
            table.earlier = table.values.len();
        }
    }

    /// Ends the job, and drops its rows unless they are kept. Returns whether it has a savepoint.
    pub(super) fn end_job(&mut self, are_kept: bool) -> bool {
        if !are_kept {
            for table in &mut self.tables {
                table.values.truncate(table.earlier);
            }
            self.count = self.tables.iter().map(|table| table.values.len()).sum();
        }
        self.job.take().is_some_and(|job| job.has_savepoint)
    }

    /// Whether the job in progress has rows that wait.
    pub(super) fn has_own(&self) -> bool {
        let mut tables = self.tables.iter();
        self.job.is_some() && tables.any(|table| table.values.len() > table.earlier)
    }

    /// Takes the rows of earlier jobs.
    pub(super) fn take_earlier(&mut self) -> Vec<Statement> {
        let mut statements = Vec::new();
        for table in &mut self.tables {
            let own = table.values.split_off(table.earlier);
            let earlier = std::mem::replace(&mut table.values, own);
            self.count -= earlier.len();
            table.earlier = 0;
            statements.extend(statement(table.insert, earlier));
        }
        statements
    }

    /// Takes all rows.
    pub(super) fn take(&mut self) -> Vec<Statement> {
        self.count = 0;
        let tables = std::mem::take(&mut self.tables).into_iter();
        let statements = tables.filter_map(|table| statement(table.insert, table.values));
        statements.collect()
    }
}

/// Builds the statement that inserts these rows, if there are any.
fn statement(insert: &'static Insert, values: Vec<Value>) -> Option<Statement> {
    if values.is_empty() {
        return None;
    }
    let width = insert.columns.len();
    let mut columns: Vec<Vec<Value>> = insert
        .columns
        .iter()
        .map(|_| Vec::with_capacity(values.len() / width))
        .collect();
    for (place, value) in values.into_iter().enumerate() {
        columns[place % width].push(value);
    }
    let (mut kinds, mut lists) = (Vec::new(), Vec::new());
    for ((_, kind), column) in insert.columns.iter().zip(columns) {
        let place = kinds.len() + 1;
        let column = column.into_iter();
        let (kind, list) = match kind {
            ColumnType::Whole => {
                let wholes = column.map(|value| match value {
                    Value::Whole(whole) => Some(whole),
                    _ => None,
                });
                ("bigint", Value::WholesOrNull(wholes.collect()))
            }
            ColumnType::Real => {
                let reals = column.map(|value| match value {
                    Value::Real(real) => Some(real),
                    _ => None,
                });
                ("float8", Value::RealsOrNull(reals.collect()))
            }
            ColumnType::Bytes => {
                let bytes = column.map(|value| match value {
                    Value::Bytes(bytes) => Some(bytes),
                    _ => None,
                });
                ("bytea", Value::BytesOrNull(bytes.collect()))
            }
        };
        kinds.push(format!("${place}::{kind}[]"));
        lists.push(list);
    }
    let (table, names, conflict) = (insert.table, insert.names(), insert.conflict);
    let kinds = kinds.join(", ");
    let sql = format!("INSERT INTO {table} ({names}) SELECT * FROM unnest({kinds}) {conflict}");
    Some((sql, lists))
}
