//! The tables of the journal, for statements shared with other databases.

use memoird_core::ids::Generation;
use memoird_store::transfer::{Row, Value as TableValue};
use memoird_store::{DeletedTurns, Dialect, Param, StoreError, TableBody, Tables};

use crate::connect::{BEGIN_SNAPSHOT, BEGIN_WRITE, Database};
use crate::transactions::{Column, OpenTransaction, ResultRow, Transactions, Value};
use crate::transfer;

/// Longer than the time after which the server ends the transaction of a disconnected daemon.
const SET_LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '20s'";

/// Lets statements name tables without their schema, until the transaction ends.
const SET_SCHEMA: &str = "SET LOCAL search_path = memoird";

/// Until the transaction ends.
const PLAN_BY_INDEX_ORDER: &str = "SELECT set_config(name, 'off', true)
    FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_sort']) AS name";

static DIALECT: Dialect = Dialect {
    no: "false",
    skip_locked: "FOR UPDATE SKIP LOCKED",
    key_row: "ctid",
    if_held: "",
    own_tables: &["turn_changes", "search_turns", "search_generations"],
    content_bytes: "octet_length(content)",
    rows_of: transfer::rows_of,
    expression: |_, column| column,
    inserts: transfer::inserts,
};

/// The tables, within a transaction.
struct PgTables<'a>(&'a OpenTransaction);

/// Runs `body` over one snapshot.
pub(crate) fn read(database: &Database, body: TableBody<'_>) -> Result<(), StoreError> {
    let begin = format!("{BEGIN_SNAPSHOT}; {SET_SCHEMA}");
    Transactions::over(database).read(&begin, |open| body(&PgTables(open)))
}

/// Runs `body` in a transaction with these settings.
pub(crate) fn write(
    database: &Database,
    settings: &str,
    body: TableBody<'_>,
) -> Result<(), StoreError> {
    let begin = format!("{BEGIN_WRITE}; {SET_LOCK_TIMEOUT}; {SET_SCHEMA}; {settings}");
    Transactions::over(database).transact(&begin, |open| body(&PgTables(open)))
}

impl Tables for PgTables<'_> {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        let rows = self.0.query(&numbered(sql), &values(params))?;
        let read = rows.iter().map(|row| {
            let values = row.columns()?.into_iter().map(|column| match column {
                Column::Null | Column::Real(_) => TableValue::Nothing,
                Column::Whole(number) => TableValue::Number(number),
                Column::Bytes(bytes) => TableValue::Bytes(bytes.to_vec()),
            });
            Ok(values.collect())
        });
        read.collect()
    }

    fn change(&self, sql: &str, params: &[Param<'_>]) -> Result<usize, StoreError> {
        let rows = self.0.change(&numbered(sql), &values(params))?;
        Ok(usize::try_from(rows).unwrap_or(usize::MAX))
    }

    fn send(&self, sql: &str, params: &[Param<'_>]) -> Result<(), StoreError> {
        self.0.send(&numbered(sql), values(params))
    }

    fn plan_by_index_order(&self) -> Result<(), StoreError> {
        self.0.send(PLAN_BY_INDEX_ORDER, Vec::new())
    }

    fn delete_turns(
        &self,
        generation: Generation,
        rows_max: usize,
        bytes_max: usize,
    ) -> Result<DeletedTurns, StoreError> {
        // Keeps indexing steps from running until the transaction ends.
        self.0.query("SELECT 1 FROM search_state FOR SHARE", &[])?;
        // `octet_length` does not read TOASTed content.
        let sql = "WITH gone AS (
                       DELETE FROM turns WHERE generation = ?1 AND seq IN (
                           SELECT seq FROM (
                               SELECT seq, octet_length(content) AS bytes,
                                   sum(octet_length(content)) OVER (ORDER BY seq) AS bytes_through
                               FROM turns WHERE generation = ?1 ORDER BY seq LIMIT ?2) AS first
                           WHERE bytes_through - bytes < ?3)
                       RETURNING seq, octet_length(content) AS bytes),
                   words AS (
                       DELETE FROM search_turns AS s USING gone
                       WHERE s.generation = ?1 AND s.seq = gone.seq)
                   SELECT count(*), coalesce(sum(bytes), 0)::int8 FROM gone";
        let params = [generation.into(), rows_max.into(), bytes_max.into()];
        let gone = self.0.query(&numbered(sql), &values(&params))?;
        let first = gone.first().map(ResultRow::wholes);
        let counts = first.transpose()?.unwrap_or_default();
        let count = |at: usize| {
            let count = counts.get(at).copied().unwrap_or(0);
            usize::try_from(count).unwrap_or(usize::MAX)
        };
        let deleted = DeletedTurns {
            turns: count(0),
            bytes: count(1),
        };
        let sql = "UPDATE generations SET journal_bytes = journal_bytes - ?2
                   WHERE generation = ?1";
        self.change(sql, &[generation.into(), deleted.bytes.into()])?;
        Ok(deleted)
    }
}

/// Converts the placeholders of a statement.
fn numbered(sql: &str) -> String {
    sql.replace('?', "$")
}

fn values(params: &[Param<'_>]) -> Vec<Value> {
    let value = |param: &Param<'_>| match *param {
        Param::Null => Value::Null,
        Param::Id(id) => Value::Id(id),
        Param::Text(text) => Value::Bytes(text.as_bytes().to_vec()),
        Param::Word(text) => Value::Text(text.to_owned()),
        Param::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
        Param::Int(number) => Value::Whole(number),
    };
    params.iter().map(value).collect()
}
