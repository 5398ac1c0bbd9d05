//! A PostgreSQL journal as the source or target of a migration.
//!
//! Tables are read and written one by one, while this process holds the exclusive lease.

use std::time::Duration;

use memoird_store::transfer::{
    JournalCounters, RowInsert, SourceId, TABLES, Table, TransferSource, TransferTarget,
    column_list, places,
};
use memoird_store::{Param, READERS_MAX, StoreError, TableBody};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connect::{Database, DatabaseUse, PgOptions, change, first, query};
use crate::owner::Ownership;
use crate::tables;
use crate::values::{Ulid, get, whole};
use crate::{read, schema};

/// Time after which the lease of a killed daemon, or a cluster member's heartbeat, has expired.
const LEASE_TIME_MAX: Duration = Duration::from_secs(6);

/// A database that this process has exclusively.
#[derive(Debug)]
pub struct PgTransfer {
    database: Database,
    node: Ulid,
    ownership: Ownership,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Target,
}

/// Fails if a migration into this database is unfinished.
pub(crate) async fn check_finished(client: &Client, shown: &str) -> Result<(), StoreError> {
    match mark(client).await? {
        Some(_) => Err(StoreError::MigrationUnfinished {
            place: shown.to_owned(),
        }),
        None => Ok(()),
    }
}

/// Source of an unfinished migration into this database.
async fn mark(client: &Client) -> Result<Option<String>, StoreError> {
    let row = first(client, "SELECT source FROM memoird.migration", &[]).await?;
    row.map(|row| get(&row, 0)).transpose()
}

impl PgTransfer {
    /// Opens a journal as the source. Connections run on `runtime`.
    ///
    /// All operations block; do not call them on a thread of the runtime. A journal with an older
    /// schema is migrated to the current one.
    ///
    /// # Errors
    /// If the database cannot be reached, has no journal, or is used by a daemon.
    pub fn source(
        options: PgOptions,
        runtime: &Handle,
    ) -> Result<impl TransferSource + use<>, StoreError> {
        let shown = options.shown();
        let transfer = Self::open(options, runtime, Side::Source)?;
        let check = async |client: &Client| check_finished(client, &shown).await;
        transfer.database.call(check)?;
        Ok(transfer)
    }

    /// Starts a migration into a database without a journal, or resumes one from the same source.
    ///
    /// # Errors
    /// [`StoreError::TargetNotEmpty`], [`StoreError::OtherMigration`], or if the database cannot be
    /// reached or is used by a daemon.
    pub fn target(
        options: PgOptions,
        runtime: &Handle,
        source: &SourceId,
    ) -> Result<impl TransferTarget + use<>, StoreError> {
        let place = options.shown();
        let transfer = Self::open(options, runtime, Side::Target)?;
        transfer
            .database
            .write(async |client: &Client| begin(client, &place, source).await)?;
        Ok(transfer)
    }

    fn open(options: PgOptions, runtime: &Handle, side: Side) -> Result<Self, StoreError> {
        let options = PgOptions {
            sharing: DatabaseUse::Exclusive,
            name: "memoird migrate".to_owned(),
            ..options
        };
        let database = {
            // The pool needs the runtime's timers.
            let _entered = runtime.enter();
            Database::new(options, runtime.clone(), READERS_MAX)?
        };
        let node = Ulid(rand::random());
        let ownership = database.wait(async {
            let client = database.connect().await?;
            if side == Side::Source {
                has_journal(&client).await?;
            }
            schema::prepare(&client, &schema::JOURNAL).await?;
            let taken = timeout(LEASE_TIME_MAX, Ownership::take(&database, client, node)).await;
            taken.unwrap_or_else(|_| Err(in_use(&database)))
        })?;
        Ok(Self {
            database,
            node,
            ownership,
        })
    }

    /// Runs `body` in a transaction that fails if another process has acquired the lease.
    fn write(&self, is_durable: bool, body: TableBody<'_>) -> Result<(), StoreError> {
        // Rows lost in a crash are copied again. A durable commit also syncs the ones before it.
        let setting = if is_durable { "on" } else { "off" };
        let settings = format!("SET LOCAL synchronous_commit = {setting}");
        tables::write(&self.database, &settings, &mut |tables| {
            body(tables)?;
            // Prevents another process from acquiring the lease until the transaction ends.
            let sql = "SELECT 1 FROM owner WHERE node = ?1 FOR SHARE";
            if tables.query(sql, &[Param::Id(self.node.0)])?.is_empty() {
                return Err(StoreError::Database {
                    detail: "another memoird took it over".to_owned(),
                });
            }
            Ok(())
        })
    }
}

impl Drop for PgTransfer {
    fn drop(&mut self) {
        // Otherwise a daemon would have to wait until the lease expires.
        self.database.wait(self.ownership.release(&self.database));
    }
}

/// Fails if the database has no journal. Called before the schema is created.
async fn has_journal(client: &Client) -> Result<(), StoreError> {
    let sql = "SELECT 1 WHERE to_regclass('memoird.schema_version') IS NOT NULL";
    match change(client, sql, &[]).await? {
        0 => Err(StoreError::Database {
            detail: "it has no memoird journal".to_owned(),
        }),
        _ => Ok(()),
    }
}

fn in_use(database: &Database) -> StoreError {
    let owner = database
        .options()
        .waits_for
        .borrow()
        .clone()
        .unwrap_or_else(|| "one without a name".to_owned());
    let detail = format!("another memoird is using it ({owner}); stop that one");
    StoreError::Database { detail }
}

/// Records the source in a database without a journal, unless it is recorded already.
async fn begin(client: &Client, place: &str, source: &SourceId) -> Result<(), StoreError> {
    let place = || place.to_owned();
    let source = source.to_string();
    match mark(client).await? {
        Some(other) if other == source => return Ok(()),
        Some(_) => return Err(StoreError::OtherMigration { place: place() }),
        None => {}
    }
    for table in &TABLES {
        let sql = format!("SELECT 1 FROM memoird.{} LIMIT 1", table.name);
        if first(client, &sql, &[]).await?.is_some() {
            return Err(StoreError::TargetNotEmpty { place: place() });
        }
    }
    let sql = "INSERT INTO memoird.migration (id, source, min_reader)
               SELECT 1, $1, min_reader FROM memoird.schema_version";
    query(client, sql, &[(&source, Type::TEXT)]).await.map(drop)
}

impl TransferSource for PgTransfer {
    fn read_tables(&mut self, body: TableBody<'_>) -> Result<(), StoreError> {
        tables::read(&self.database, body)
    }

    fn position(&mut self) -> Result<JournalCounters, StoreError> {
        self.database.call(async |client: &Client| {
            let last_turn = read::last_number(client, "turn_numbers").await?;
            Ok(JournalCounters {
                clock: read::clock(client).await?,
                last_turn: last_turn.unsigned_abs(),
            })
        })
    }

    fn check_held(&mut self) -> Result<(), StoreError> {
        self.write(false, &mut |_| Ok(()))
    }
}

impl TransferTarget for PgTransfer {
    fn write_tables(&mut self, body: TableBody<'_>) -> Result<(), StoreError> {
        self.write(false, body)
    }

    fn set_position(&mut self, position: &JournalCounters) -> Result<(), StoreError> {
        self.write(false, &mut |tables| {
            // May be left over from a daemon that stored nothing.
            tables.change("DELETE FROM lanes", &[])?;
            if let Some(clock) = &position.clock {
                // The timeline has advanced since the source was last written.
                let sql = "INSERT INTO lanes
                               (node, lane, epoch, number, steady, wall, boot_id, boot_ms, seen)
                           VALUES (?1, 0, 0, 0, ?2, ?3, ?4, ?5,
                               least(now(), to_timestamp(?3 / 1000.0)))";
                let params = [
                    Param::Id(self.node.0),
                    clock.steady.into(),
                    Param::Int(clock.wall.as_ms()),
                    Param::Word(&clock.boot_id),
                    Param::Int(whole(clock.boot_ms)),
                ];
                tables.change(sql, &params)?;
            }
            let sql = "SELECT setval('turn_numbers', greatest(?1, 1), ?1 > 0)";
            tables.query(sql, &[Param::Int(whole(position.last_turn))])?;
            Ok(())
        })
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        let sql = "DELETE FROM migration";
        self.write(true, &mut |tables| tables.change(sql, &[]).map(drop))
    }
}

/// Returns what to select from for the rows of a logical table.
pub(crate) fn rows_of(table: &'static str) -> &'static str {
    match table {
        "rewound" => {
            "(SELECT generation, lower(run) AS first_seq, upper(run) - 1 AS last_seq
              FROM rewound, unnest(runs) AS run) AS it"
        }
        "rewinds" => {
            "(SELECT generation, key, lower(run) AS first_seq, upper(run) - 1 AS last_seq
              FROM rewinds, unnest(runs) AS run) AS it"
        }
        table => table,
    }
}

/// Returns the statement that inserts a row.
pub(crate) fn inserts(table: &Table) -> Vec<RowInsert> {
    let mut insert = RowInsert::whole(table);
    let (columns, places) = (column_list(table.columns), places(table.columns));
    match table.name {
        "rewound" => {
            insert.sql = "INSERT INTO rewound AS t (generation, runs)
                VALUES (?1, int8multirange(int8range(?2, ?3, '[]')))
                ON CONFLICT (generation) DO UPDATE SET runs = t.runs + excluded.runs"
                .to_owned();
        }
        "rewinds" => {
            insert.sql = "INSERT INTO rewinds AS t (generation, key, runs)
                VALUES (?1, ?2, int8multirange(int8range(?3, ?4, '[]')))
                ON CONFLICT (generation, key) DO UPDATE SET runs = t.runs + excluded.runs"
                .to_owned();
        }
        // Turns are already copied. A stamp is a random number.
        "generations" => {
            insert.sql = format!(
                "INSERT INTO generations ({columns}, stamp, journal_bytes)
                 VALUES ({places}, hashtextextended(gen_random_uuid()::text, 0), coalesce(
                     (SELECT sum(octet_length(content)) FROM turns WHERE generation = ?1), 0))
                 ON CONFLICT DO NOTHING"
            );
        }
        _ => {}
    }
    vec![insert]
}
