//! The database's clock, which all daemons share.
//!
//! Their own clocks may differ by hours. In between two measurements, time is counted by the
//! monotonic clock.

use std::sync::Mutex;
use std::time::Duration;

use memoird_core::time::Timestamp;
use memoird_engine::Stopwatch;
use memoird_postgres::{OpenTransaction, Transactions};
use memoird_store::StoreError;

use crate::lock;

/// Age of a measurement after which the next transaction measures again.
///
/// A clock that is stepped is followed after this time.
const AGE_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct DatabaseClock(Mutex<Measurement>);

#[derive(Debug)]
struct Measurement {
    at: Timestamp,
    since: Stopwatch,
}

impl DatabaseClock {
    pub(super) fn new(transactions: &Transactions) -> Result<Self, StoreError> {
        let measured = transactions.read("BEGIN READ ONLY", measure)?;
        Ok(Self(Mutex::new(measured)))
    }

    /// The current time, at most one round trip late.
    pub(super) fn now(&self) -> Timestamp {
        let measured = lock(&self.0);
        let passed_ms = measured.since.elapsed().as_millis();
        let passed_ms = i64::try_from(passed_ms).unwrap_or(i64::MAX);
        Timestamp::from_ms(measured.at.as_ms().saturating_add(passed_ms))
    }

    /// Measures again if the last measurement is old.
    pub(super) fn follow(&self, open: &OpenTransaction) -> Result<(), StoreError> {
        if lock(&self.0).since.elapsed() < AGE_MAX {
            return Ok(());
        }
        let measured = measure(open)?;
        *lock(&self.0) = measured;
        Ok(())
    }
}

fn measure(open: &OpenTransaction) -> Result<Measurement, StoreError> {
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8";
    let rows = open.query(sql, &[])?;
    let since = Stopwatch::start();
    let ms = rows.first().map(memoird_postgres::ResultRow::wholes);
    let ms = ms.transpose()?.and_then(|row| row.first().copied());
    let at = ms.ok_or_else(|| StoreError::Database {
        detail: "the database returned no time".to_owned(),
    })?;
    Ok(Measurement {
        at: Timestamp::from_ms(at),
        since,
    })
}
