//! Verifies the checksums of all turns, in the physical order of their table.
//!
//! The check is read-only. Each query reads a few blocks and a few MiB of content in its own
//! transaction, so that vacuum is not held up. A turn updated during the check may be read twice or
//! not at all. If the server cannot read some blocks, they are checked one by one, then row by row.

use std::error::Error;
use std::path::PathBuf;

use memoird_core::ids::Generation;
use memoird_store::StoreError;
use memoird_store::checksum::{StoredTurn, TurnKey};
use memoird_store::rows::StoredRow;
use memoird_store::verify::FileCheck;
use tokio_postgres::Client;
use tokio_postgres::types::{FromSql, Type, accepts};

use crate::connect::{Arg, Database, first};
use crate::error::{failed, is_damage};
use crate::transactions::ResultRow;
use crate::values::{Ulid, get};

/// Number of blocks (8 KiB) per query.
const BLOCKS: u32 = 128;
/// Maximum content bytes per query. The last turn may exceed it.
const BYTES_MAX: usize = 4 << 20;

/// Physical position of a row: its block, and its number in the block, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowPlace {
    block: u32,
    row: u16,
}

/// State of the table on disk.
#[derive(Debug)]
struct Table {
    /// Number of its file. It changes when the table is rewritten.
    file: u32,
    blocks: u32,
    bytes: u64,
}

/// Rows, or the reason why the server cannot read them.
type ReadableRows = Result<Vec<ResultRow>, String>;

/// Checks all turns that are stored now.
///
/// # Errors
/// If the database cannot be read for a reason other than damage, or the table was rewritten during
/// the check.
pub(crate) fn check(database: &Database) -> Result<FileCheck, StoreError> {
    let table = database.call(table)?;
    let mut scan = Scan {
        database,
        check: FileCheck {
            path: PathBuf::from(database.options().shown()),
            bytes: table.bytes,
            ..FileCheck::default()
        },
    };
    let mut block = 0;
    while block < table.blocks {
        let until = block.saturating_add(BLOCKS).min(table.blocks);
        scan.turns(RowPlace { block, row: 0 }, until)?;
        block = until;
    }
    if database.call(self::table)?.file == table.file {
        Ok(scan.check)
    } else {
        Err(StoreError::Database {
            detail: "memoird.turns was rewritten during the check, for example by VACUUM FULL; \
                repeat the check"
                .to_owned(),
        })
    }
}

async fn table(client: &Client) -> Result<Table, StoreError> {
    let sql = "SELECT pg_relation_filenode('memoird.turns')::int8,
                   pg_relation_size('memoird.turns') / current_setting('block_size')::int8,
                   pg_table_size('memoird.turns')";
    let row = first(client, sql, &[])
        .await?
        .ok_or_else(|| StoreError::Database {
            detail: "the size of memoird.turns is not known".to_owned(),
        })?;
    let small = |column| {
        row.count(column)
            .map(|it| u32::try_from(it).unwrap_or(u32::MAX))
    };
    Ok(Table {
        file: small(0)?,
        blocks: small(1)?,
        bytes: row.count(2)?,
    })
}

struct Scan<'a> {
    database: &'a Database,
    check: FileCheck,
}

impl Scan<'_> {
    /// Checks the turns after a row, up to and excluding block `until`.
    fn turns(&mut self, mut behind: RowPlace, until: u32) -> Result<(), StoreError> {
        loop {
            match self.ask(&turns_sql(behind, until))? {
                Ok(rows) => match self.examine(&rows)? {
                    Some(last) => behind = last,
                    None => return Ok(()),
                },
                Err(problem) if behind.block + 1 >= until => {
                    return self.one_by_one(behind, &problem);
                }
                Err(_) => {
                    self.turns(behind, behind.block + 1)?;
                    for block in behind.block + 1..until {
                        self.turns(RowPlace { block, row: 0 }, block + 1)?;
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Checks the turns of a partly unreadable block one by one.
    fn one_by_one(&mut self, behind: RowPlace, problem: &str) -> Result<(), StoreError> {
        let block = behind.block;
        let sql = format!(
            "SELECT generation, seq, ctid FROM memoird.turns WHERE {}",
            within(behind, block + 1)
        );
        let rows = match self.ask(&sql)? {
            Ok(rows) => rows,
            Err(_) => {
                let damage = format!(
                    "the turns in block {block} of memoird.turns cannot be read: {problem}"
                );
                self.check.add(damage);
                return Ok(());
            }
        };
        for row in &rows {
            let at: RowPlace = get(row, 2)?;
            let before = RowPlace {
                row: at.row - 1,
                ..at
            };
            match self.ask(&format!("{} LIMIT 1", turns_sql(before, block + 1)))? {
                Ok(rows) => drop(self.examine(&rows)?),
                Err(problem) => {
                    let place = turn_place(row)?;
                    let session = session_of(self.database, place.generation);
                    let problem = format!("cannot be read: {problem}");
                    self.check.add_turn(place, session, &problem);
                }
            }
        }
        Ok(())
    }

    /// Checks turns. Returns the position of the last one if there are more after it.
    fn examine(&mut self, rows: &[ResultRow]) -> Result<Option<RowPlace>, StoreError> {
        for row in rows {
            let place = turn_place(row)?;
            let turn = StoredTurn {
                content: row.bytes(3)?,
                header: row.bytes_or_null(4)?,
                checksum: row.int_or_null(5)?,
            };
            let session = || session_of(self.database, place.generation);
            self.check.examine(place, &turn, session);
        }
        let Some(last) = rows.last() else {
            return Ok(None);
        };
        let is_more = last.count(6)? > rows.len() as u64;
        is_more.then(|| get(last, 2)).transpose()
    }

    fn ask(&self, sql: &str) -> Result<ReadableRows, StoreError> {
        self.database.read_snapshot(async |client: &Client| {
            match client.query_typed(sql, &[]).await {
                Ok(rows) => Ok(Ok(rows.into_iter().map(ResultRow).collect())),
                Err(error) if is_damage(&error) => Ok(Err(failed(error).to_string())),
                Err(error) => Err(failed(error)),
            }
        })
    }
}

/// Condition for rows after `behind`, up to and excluding block `until`.
fn within(behind: RowPlace, until: u32) -> String {
    let RowPlace { block, row } = behind;
    format!("ctid > '({block},{row})' AND ctid < '({until},0)'")
}

/// Selects turns until `BYTES_MAX` is reached, each with the total number of turns in the range.
fn turns_sql(behind: RowPlace, until: u32) -> String {
    format!(
        "SELECT generation, seq, place, content, header, checksum, turns
         FROM (SELECT *, ctid AS place, count(*) OVER () AS turns,
                   sum(octet_length(content)) OVER (ORDER BY ctid) AS size
               FROM memoird.turns WHERE {}) AS sized
         WHERE size - octet_length(content) < {BYTES_MAX} ORDER BY place",
        within(behind, until)
    )
}

fn turn_place(row: &ResultRow) -> Result<TurnKey, StoreError> {
    Ok(TurnKey {
        generation: row.generation(0)?,
        seq: row.count(1)?,
    })
}

/// The session of a generation, if it can still be determined.
fn session_of(database: &Database, generation: Generation) -> Option<(String, String)> {
    let sql = "SELECT tenant, session FROM memoird.generations WHERE generation = $1";
    let args: [Arg<'_>; 1] = [(&Ulid::from(generation), Type::UUID)];
    let found = database.call(async |client: &Client| {
        let row = first(client, sql, &args).await?;
        row.map(|row| row.key(0, 1)).transpose()
    });
    let key = found.ok().flatten()?;
    Some((key.tenant.to_string(), key.session.to_string()))
}

impl FromSql<'_> for RowPlace {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let (block, row) = raw.split_at_checked(4).ok_or("a place has 6 bytes")?;
        Ok(Self {
            block: u32::from_be_bytes(block.try_into()?),
            row: u16::from_be_bytes(row.try_into()?),
        })
    }

    accepts!(TID);
}
