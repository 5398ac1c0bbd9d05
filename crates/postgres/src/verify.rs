//! Verifies the checksums of all turns, by their number.
//!
//! The check is read-only. Each query reads some turns in its own transaction, so that vacuum is not
//! held up. If the server cannot read them, they are read in smaller batches, down to one.

use std::path::PathBuf;

use memoird_core::ids::Generation;
use memoird_store::StoreError;
use memoird_store::checksum::TurnKey;
use memoird_store::rows::StoredRow;
use memoird_store::verify::{BATCH_TURNS, BatchEnd, FileCheck, TurnScan};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connect::{Arg, Database};
use crate::error::{failed, is_damage};
use crate::transactions::ResultRow;
use crate::values::Ulid;

/// Maximum content bytes per query. The last turn may exceed it.
const BYTES_MAX: usize = 4 << 20;

/// Rows, or the reason why the server cannot read them.
type ReadableRows = Result<Vec<ResultRow>, String>;

/// Checks all turns that are stored now.
///
/// # Errors
/// If the database cannot be read for a reason other than damage.
pub(crate) fn check(database: &Database) -> Result<FileCheck, StoreError> {
    let size = database.query("SELECT pg_table_size('memoird.turns')", &[])?;
    let mut check = FileCheck {
        path: PathBuf::from(database.options().shown()),
        bytes: size.first().map_or(Ok(0), |row| row.count(0))?,
        ..FileCheck::default()
    };
    check.turns(&PgScan(database))?;
    Ok(check)
}

struct PgScan<'a>(&'a Database);

impl PgScan<'_> {
    /// Reads turns that match a condition until [`BYTES_MAX`] is reached.
    fn read(&self, those: &str, rows_max: i64) -> Result<ReadableRows, StoreError> {
        self.ask(&format!(
            "SELECT number, generation, seq, content, header, checksum
             FROM (SELECT *, sum(octet_length(content)) OVER (ORDER BY number) AS size
                   FROM (SELECT * FROM memoird.turns WHERE {those}
                         ORDER BY number LIMIT {rows_max}) AS batch) AS sized
             WHERE size - octet_length(content) < {BYTES_MAX} ORDER BY number"
        ))
    }

    fn ask(&self, sql: &str) -> Result<ReadableRows, StoreError> {
        self.0.read_snapshot(
            async |client: &Client| match client.query_typed(sql, &[]).await {
                Ok(rows) => Ok(Ok(rows.into_iter().map(ResultRow).collect())),
                Err(error) if is_damage(&error) => Ok(Err(failed(error).to_string())),
                Err(error) => Err(failed(error)),
            },
        )
    }
}

impl TurnScan for PgScan<'_> {
    fn check_batch(&self, check: &mut FileCheck, from: i64) -> Result<BatchEnd, StoreError> {
        let those = format!("number >= {from}");
        let (mut rows_max, mut problem) = (BATCH_TURNS, String::new());
        while rows_max > 0 {
            match self.read(&those, rows_max)? {
                Ok(rows) => {
                    rows.iter().for_each(|row| check.turn(row, self));
                    return Ok(match rows.last() {
                        Some(last) => BatchEnd::Before(last.int(0)? + 1),
                        None => BatchEnd::End,
                    });
                }
                Err(found) => problem = found,
            }
            rows_max /= 10;
        }
        Ok(BatchEnd::Damage { from, problem })
    }

    fn check_one(&self, check: &mut FileCheck, number: i64) -> Result<Option<String>, StoreError> {
        let read = self.read(&format!("number = {number}"), 1)?;
        Ok(read
            .map(|rows| rows.iter().for_each(|row| check.turn(row, self)))
            .err())
    }

    fn is_readable_from(&self, number: i64) -> Result<bool, StoreError> {
        let sql = format!(
            "SELECT seq FROM memoird.turns WHERE number >= {number} ORDER BY number LIMIT 1"
        );
        Ok(self.ask(&sql)?.is_ok())
    }

    fn turn_of(&self, number: i64) -> Option<TurnKey> {
        let sql = format!("SELECT generation, seq FROM memoird.turns WHERE number = {number}");
        let rows = self.ask(&sql).ok()?.ok()?;
        let row = rows.first()?;
        Some(TurnKey {
            generation: row.generation(0).ok()?,
            seq: row.count(1).ok()?,
        })
    }

    fn session_of(&self, generation: Generation) -> Option<(String, String)> {
        let sql = "SELECT tenant, session FROM memoird.generations WHERE generation = $1";
        let args: [Arg<'_>; 1] = [(&Ulid::from(generation), Type::UUID)];
        let rows = self.0.query(sql, &args).ok()?;
        let key = rows.first()?.key(0, 1).ok()?;
        Some((key.tenant.to_string(), key.session.to_string()))
    }
}
