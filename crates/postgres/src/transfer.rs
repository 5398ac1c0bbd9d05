//! A PostgreSQL journal as the source or target of a migration.
//!
//! Tables are read and written one by one, while this process holds the exclusive lease.

use std::time::Duration;

use memoird_store::READERS_MAX;
use memoird_store::StoreError;
use memoird_store::transfer::{
    Column, ColumnKind, JournalCounters, PageBounds, Row, SourceId, TABLES, Table, TransferSource,
    TransferTarget, Value, column_list,
};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row as PgRow};

use crate::connect::{Arg, Database, DatabaseUse, PgOptions, change, first, query};
use crate::error::failed;
use crate::owner::Ownership;
use crate::read;
use crate::schema;
use crate::values::{Ulid, count, damaged, get, limit, whole};

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

/// The values of a column as an array parameter, and its type.
type Array<'a> = (Box<dyn ToSql + Sync + 'a>, Type);

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

    /// Runs `action` in a transaction that fails if another process has acquired the lease.
    #[allow(clippy::needless_pass_by_value, reason = "it is given a closure")]
    fn write(
        &self,
        is_durable: bool,
        action: impl AsyncFn(&Client) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let node = self.node;
        self.database.write(async |client: &Client| {
            // Rows lost in a crash are copied again. A durable commit also syncs the ones before
            // it.
            let setting = if is_durable { "on" } else { "off" };
            let sql = format!("SET LOCAL synchronous_commit = {setting}");
            client.batch_execute(&sql).await.map_err(failed)?;
            action(client).await?;
            hold(client, node).await
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

/// Prevents another process from acquiring the lease until the transaction ends.
async fn hold(client: &Client, node: Ulid) -> Result<(), StoreError> {
    let sql = "SELECT 1 FROM memoird.owner WHERE node = $1 FOR SHARE";
    match change(client, sql, &[(&node, Type::UUID)]).await? {
        0 => Err(StoreError::Database {
            detail: "another memoird took it over".to_owned(),
        }),
        _ => Ok(()),
    }
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
        let sql = format!("SELECT 1 FROM {} AS it LIMIT 1", place_of(table));
        if first(client, &sql, &[]).await?.is_some() {
            return Err(StoreError::TargetNotEmpty { place: place() });
        }
    }
    let sql = "INSERT INTO memoird.migration (id, source, min_reader)
               SELECT 1, $1, min_reader FROM memoird.schema_version";
    query(client, sql, &[(&source, Type::TEXT)]).await.map(drop)
}

impl TransferSource for PgTransfer {
    fn position(&mut self) -> Result<JournalCounters, StoreError> {
        self.database.call(async |client: &Client| {
            let last_turn = read::last_number(client, "turn_numbers").await?;
            Ok(JournalCounters {
                clock: read::clock(client).await?,
                last_turn: last_turn.unsigned_abs(),
            })
        })
    }

    fn rows(&mut self, table: &Table) -> Result<u64, StoreError> {
        let sql = match table.name {
            "turns" => {
                "SELECT coalesce(sum(last_seq), 0)::int8 FROM memoird.generations".to_owned()
            }
            _ => format!("SELECT count(*) FROM {} AS it", place_of(table)),
        };
        self.database.call(async |client: &Client| {
            let row = first(client, &sql, &[]).await?;
            row.map_or(Ok(0), |row| count(&row, 0))
        })
    }

    fn read(
        &mut self,
        table: &Table,
        after: Option<&Row>,
        bounds: PageBounds,
    ) -> Result<Vec<Row>, StoreError> {
        let key = column_list(table.key());
        let places: Vec<String> = (3..3 + table.key_columns)
            .map(|place| format!("(${place})[1]"))
            .collect();
        let behind = match after {
            Some(_) => format!("WHERE ({key}) > ({})", places.join(", ")),
            None => String::new(),
        };
        let columns: Vec<String> = table.columns.iter().map(selected).collect();
        let sizes: Vec<String> = table
            .columns
            .iter()
            .filter(|column| is_sized(column))
            .map(|column| format!("coalesce(octet_length({}), 0)", column.name))
            .collect();
        let size = if sizes.is_empty() {
            "0".to_owned()
        } else {
            sizes.join(" + ")
        };
        // No row is sent once the byte limit is reached.
        let sql = format!(
            "SELECT {} FROM (
                 SELECT *, sum({size}) OVER (ORDER BY {key}) - ({size}) AS sent
                 FROM (SELECT * FROM {} AS it {behind} ORDER BY {key} LIMIT $1) AS page) AS sized
             WHERE sent < $2 ORDER BY {key}",
            columns.join(", "),
            place_of(table)
        );
        let of_key = match after {
            Some(key) => arrays(table.key(), std::slice::from_ref(key))?,
            None => Vec::new(),
        };
        let bounds = [bounds.rows_max.max(1), bounds.bytes_max.max(1)].map(limit);
        let mut args: Vec<Arg<'_>> = vec![(&bounds[0], Type::INT8), (&bounds[1], Type::INT8)];
        args.extend(args_of(&of_key));
        let rows = self
            .database
            .call(async |client: &Client| query(client, &sql, &args).await)?;
        rows.iter()
            .map(|row| read_row(row, table.columns))
            .collect()
    }

    fn check_held(&mut self) -> Result<(), StoreError> {
        self.write(false, async |_: &Client| Ok(()))
    }

    fn last(&mut self, table: &Table) -> Result<Option<Row>, StoreError> {
        let columns: Vec<String> = table.key().iter().map(selected).collect();
        let order = column_list(table.key()).replace(", ", " DESC, ");
        let sql = format!(
            "SELECT {} FROM {} AS it ORDER BY {order} DESC LIMIT 1",
            columns.join(", "),
            place_of(table)
        );
        self.database.call(async |client: &Client| {
            let row = first(client, &sql, &[]).await?;
            row.map(|row| read_row(&row, table.key())).transpose()
        })
    }
}

impl TransferTarget for PgTransfer {
    fn put(&mut self, table: &Table, rows: &[Row]) -> Result<(), StoreError> {
        let sql = insert(table);
        let arrays = arrays(table.columns, rows)?;
        let args: Vec<Arg<'_>> = args_of(&arrays).collect();
        self.write(false, async |client: &Client| {
            query(client, &sql, &args).await.map(drop)
        })
    }

    fn set_position(&mut self, position: &JournalCounters) -> Result<(), StoreError> {
        let node = self.node;
        self.write(false, async |client: &Client| {
            // May be left over from a daemon that stored nothing.
            query(client, "DELETE FROM memoird.lanes", &[]).await?;
            if let Some(clock) = &position.clock {
                // The timeline has advanced since the source was last written.
                let sql = "INSERT INTO memoird.lanes
                               (node, lane, epoch, number, steady, wall, boot_id, boot_ms, seen)
                           VALUES ($1, 0, 0, 0, $2, $3, $4, $5,
                               least(now(), to_timestamp($3 / 1000.0)))";
                let args: [Arg<'_>; 5] = [
                    (&node, Type::UUID),
                    (&whole(clock.steady.0), Type::INT8),
                    (&clock.wall.as_ms(), Type::INT8),
                    (&clock.boot_id, Type::TEXT),
                    (&whole(clock.boot_ms), Type::INT8),
                ];
                query(client, sql, &args).await?;
            }
            let sql = "SELECT setval('memoird.turn_numbers', greatest($1, 1), $1 > 0)";
            let last_turn = whole(position.last_turn);
            query(client, sql, &[(&last_turn, Type::INT8)]).await?;
            Ok(())
        })
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        self.write(true, async |client: &Client| {
            let sql = "DELETE FROM memoird.migration";
            query(client, sql, &[]).await.map(drop)
        })
    }
}

/// SQL for the rows of a table.
fn place_of(table: &Table) -> String {
    let runs = "lower(run) AS first_seq, upper(run) - 1 AS last_seq";
    match table.name {
        "rewound" => {
            format!("(SELECT generation, {runs} FROM memoird.rewound, unnest(runs) AS run)")
        }
        "rewinds" => {
            format!("(SELECT generation, key, {runs} FROM memoird.rewinds, unnest(runs) AS run)")
        }
        name => format!("memoird.{name}"),
    }
}

/// A statement that inserts rows, passed as one array per column.
fn insert(table: &Table) -> String {
    let columns = column_list(table.columns);
    let places: Vec<String> = (1..=table.columns.len())
        .map(|place| format!("${place}"))
        .collect();
    let rows = format!("FROM unnest({}) AS new({columns})", places.join(", "));
    let runs = |key: &str| {
        format!(
            "INSERT INTO memoird.{0} AS t ({key}, runs)
             SELECT {key}, range_agg(int8range(first_seq, last_seq, '[]')) {rows} GROUP BY {key}
             ON CONFLICT ({key}) DO UPDATE SET runs = t.runs + excluded.runs",
            table.name
        )
    };
    match table.name {
        "rewound" => runs("generation"),
        "rewinds" => runs("generation, key"),
        // Turns are already copied. A stamp is a random number.
        "generations" => format!(
            "INSERT INTO memoird.generations ({columns}, stamp, journal_bytes)
             SELECT {columns}, hashtextextended(gen_random_uuid()::text, 0),
                 coalesce((SELECT sum(octet_length(t.content)) FROM memoird.turns AS t
                     WHERE t.generation = new.generation), 0)
             {rows} ON CONFLICT DO NOTHING"
        ),
        name => format!(
            "INSERT INTO memoird.{name} ({columns}) SELECT {columns} {rows} ON CONFLICT DO NOTHING"
        ),
    }
}

/// SQL that selects a column. Integers of all sizes become `int8`.
fn selected(column: &Column) -> String {
    match column.kind {
        ColumnKind::Int => format!("{}::int8", column.name),
        _ => column.name.to_owned(),
    }
}

fn is_sized(column: &Column) -> bool {
    matches!(column.kind, ColumnKind::Text | ColumnKind::Bytes)
}

/// Converts rows into one array per column.
fn arrays<'a>(columns: &[Column], rows: &'a [Row]) -> Result<Vec<Array<'a>>, StoreError> {
    let array = |(place, column): (usize, &Column)| -> Result<Array<'a>, StoreError> {
        let values = rows.iter().map(move |row| &row[place]);
        let number = |value: &Value| match value {
            Value::Number(number) => Some(*number),
            _ => None,
        };
        let bytes = |value: &'a Value| match value {
            Value::Bytes(bytes) => Some(&bytes[..]),
            _ => None,
        };
        let bytes_of = values.clone().map(bytes);
        Ok(match column.kind {
            ColumnKind::Id => {
                let id = |bytes: &[u8]| bytes.try_into().map(Ulid).map_err(|_| damaged("id"));
                let ids = bytes_of
                    .map(|bytes| bytes.map(id).transpose())
                    .collect::<Result<Vec<_>, _>>()?;
                (Box::new(ids), Type::UUID_ARRAY)
            }
            ColumnKind::Text | ColumnKind::Bytes => {
                (Box::new(bytes_of.collect::<Vec<_>>()), Type::BYTEA_ARRAY)
            }
            ColumnKind::Word => {
                let word = |bytes| std::str::from_utf8(bytes).map_err(|_| damaged("word"));
                let words = bytes_of
                    .map(|bytes| bytes.map(word).transpose())
                    .collect::<Result<Vec<_>, _>>()?;
                (Box::new(words), Type::TEXT_ARRAY)
            }
            ColumnKind::Int => (
                Box::new(values.map(number).collect::<Vec<_>>()),
                Type::INT8_ARRAY,
            ),
            ColumnKind::Bool => {
                let bools = values.map(|value| number(value).map(|number| number != 0));
                (Box::new(bools.collect::<Vec<_>>()), Type::BOOL_ARRAY)
            }
        })
    };
    columns.iter().enumerate().map(array).collect()
}

fn args_of<'a>(arrays: &'a [Array<'_>]) -> impl Iterator<Item = Arg<'a>> {
    let arg = |(array, of): &'a Array<'_>| (&**array as &(dyn ToSql + Sync), of.clone());
    arrays.iter().map(arg)
}

fn read_row(row: &PgRow, columns: &[Column]) -> Result<Row, StoreError> {
    let bytes = |bytes: &[u8]| Value::Bytes(bytes.to_vec());
    let value = |(place, column): (usize, &Column)| {
        let value = match column.kind {
            ColumnKind::Id => get::<Option<Ulid>>(row, place)?.map(|id| bytes(&id.0)),
            ColumnKind::Text | ColumnKind::Bytes => get::<Option<&[u8]>>(row, place)?.map(bytes),
            ColumnKind::Word => get::<Option<&str>>(row, place)?.map(|word| bytes(word.as_bytes())),
            ColumnKind::Int => get::<Option<i64>>(row, place)?.map(Value::Number),
            ColumnKind::Bool => get::<Option<bool>>(row, place)?.map(|is| Value::Number(is.into())),
        };
        Ok(value.unwrap_or(Value::Nothing))
    };
    columns.iter().enumerate().map(value).collect()
}
