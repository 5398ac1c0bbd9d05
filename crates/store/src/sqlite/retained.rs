//! Ended sessions in memory, for pending deliveries and erasures with durability `off`.
//!
//! Rows are in a SQLite database in memory. Turns and states are in a map next to it, so that an end
//! only writes a few small rows.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Mutex;

use memoird_core::change::ChangeSet;
use memoird_core::history::LiveSet;
use memoird_core::idempotency::{Fingerprint, Keys};
use memoird_core::ids::{Generation, HookName, SessionKey, TenantId};
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::{Head, SavedSession};
use memoird_core::time::Steady;
use rusqlite::{Connection, params};

use super::row::PLACES;
use super::tables::SqliteTables;
use super::{outbox, schema};
use crate::rows::GenerationRow;
use crate::tables::unsupported;
use crate::transfer::Row;
use crate::{
    CleanupPending, ClockAnchor, DeletedTurns, Dialect, EndedRecord, GenerationOwner, JournalPage,
    JournalRange, Param, PruneBefore, PruneBounds, StaleBase, Store, StoreError, TableBody, Tables,
    WrittenTurn, WrittenTurns, lock, retention, summaries,
};

/// Approximate overhead in bytes of a retained generation, in addition to its turns and its JSON.
const ROW_BYTES: usize = 1 << 10;
const TURN_BYTES: usize = 64;

/// Number of prepared statements.
const STATEMENTS_CACHED: usize = 64;

/// Approximate maximum number of rows deleted at once to make room.
const ROWS_PER_STEP: usize = 64;

/// Ended sessions, their deliveries, and erasures. It has no journal.
#[derive(Debug)]
pub struct RetainedStore(Mutex<Retained>);

#[derive(Debug)]
struct Retained {
    connection: Connection,
    contents: RefCell<Contents>,
}

/// Content of ended generations.
#[derive(Debug, Default)]
struct Contents {
    /// Each with its size in bytes when it was added.
    records: BTreeMap<Generation, (EndedRecord, usize)>,
    bytes: usize,
}

/// The tables, with turns in `contents`.
struct RetainedTables<'a> {
    tables: SqliteTables<'a>,
    contents: &'a RefCell<Contents>,
}

impl RetainedStore {
    /// Creates an empty store.
    ///
    /// # Errors
    /// If SQLite cannot allocate memory.
    pub fn new() -> Result<Self, StoreError> {
        let mut connection = Connection::open_in_memory()?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
        schema::migrate(&mut connection, 0)?;
        Ok(Self(Mutex::new(Retained {
            connection,
            contents: RefCell::default(),
        })))
    }

    /// Retains a generation that ended until its deliveries are finished.
    ///
    /// If space is short, generations without open deliveries are deleted, oldest first. Returns
    /// false, and retains nothing, if more than `bytes_max` bytes would still be needed.
    ///
    /// # Errors
    /// If SQLite cannot allocate memory. Nothing is retained.
    pub fn retain_ended(
        &self,
        ended: EndedRecord,
        owed: &[HookName],
        bytes_max: usize,
    ) -> Result<bool, StoreError> {
        let mut retained = lock(&self.0);
        let bytes = size(&ended);
        while retained.contents.get_mut().bytes + bytes > bytes_max {
            if !retained.delete_oldest()? {
                return Ok(false);
            }
        }
        retained.add(ended, owed, bytes)?;
        Ok(true)
    }

    /// Bytes of the retained generations.
    pub fn retained_bytes(&self) -> usize {
        lock(&self.0).contents.get_mut().bytes
    }
}

impl Retained {
    fn add(
        &mut self,
        ended: EndedRecord,
        owed: &[HookName],
        bytes: usize,
    ) -> Result<(), StoreError> {
        let generation = ended.head.generation;
        let row = GenerationRow {
            key: ended.key.clone(),
            head: ended.head.clone(),
            live_set: LiveSet::default(),
            ended: Some((ended.at, ended.reason)),
        };
        let transaction = self.connection.transaction()?;
        // The pruner need not look for deliveries before one of them is finished.
        let held = u8::from(!owed.is_empty());
        let columns = GenerationRow::COLUMNS;
        let sql = format!("INSERT INTO generations ({columns}, held) VALUES ({PLACES}, {held})");
        row.write(&mut transaction.prepare_cached(&sql)?)?;
        if let Some(summary) = &ended.summary {
            let sql = "INSERT INTO summaries (generation, number, body) VALUES (?, ?, x'')";
            let mut insert = transaction.prepare_cached(sql)?;
            insert.execute(params![generation.to_bytes(), summary.number])?;
        }
        outbox::owe(&transaction, &row, ended.reason, ended.at.steady, owed)?;
        transaction.commit()?;
        let contents = self.contents.get_mut();
        contents.bytes += bytes;
        contents.records.insert(generation, (ended, bytes));
        Ok(())
    }

    /// Deletes the oldest generations without open deliveries. Returns false if there are none.
    fn delete_oldest(&mut self) -> Result<bool, StoreError> {
        let before = PruneBefore {
            ended: Steady(u64::MAX),
            keys: Steady(0),
        };
        let bounds = PruneBounds {
            rows_max: ROWS_PER_STEP,
            pages_max: 0,
        };
        let bytes = self.contents.get_mut().bytes;
        let pruned = self.transact(|tables| retention::prune(tables, before, bounds))?;
        Ok(pruned.has_more || self.contents.get_mut().bytes < bytes)
    }

    fn transact<T>(
        &mut self,
        body: impl FnOnce(&dyn Tables) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let transaction = self.connection.transaction()?;
        let outcome = body(&RetainedTables {
            tables: SqliteTables::new(&transaction, None),
            contents: &self.contents,
        })?;
        transaction.commit()?;
        Ok(outcome)
    }
}

/// Approximate size of a record in memory.
fn size(ended: &EndedRecord) -> usize {
    let turns = ended.turns.iter();
    let turns = turns.map(|(_, content)| content.len() + TURN_BYTES);
    let state = ended.state.as_ref().map_or(0, |state| state.json.len());
    let summary = ended.summary.as_ref();
    let summary = summary.map_or(0, |summary| summaries::encode(summary).len());
    ROW_BYTES + turns.sum::<usize>() + state + summary
}

/// Copies a record with the newest turns that fit into `bytes_max`, at least one.
fn newest(ended: &EndedRecord, bytes_max: usize) -> EndedRecord {
    let mut record = ended.clone();
    let (mut turns, mut bytes) = (0, 0);
    for (_, content) in record.turns.iter().rev() {
        bytes += content.len();
        if bytes > bytes_max && turns > 0 {
            break;
        }
        turns += 1;
    }
    record.turns.drain(..record.turns.len() - turns);
    record
}

impl Tables for RetainedTables<'_> {
    fn dialect(&self) -> &'static Dialect {
        self.tables.dialect()
    }

    fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        self.tables.query(sql, params)
    }

    fn change(&self, sql: &str, params: &[Param<'_>]) -> Result<usize, StoreError> {
        self.tables.change(sql, params)
    }

    fn delete_turns(
        &self,
        generation: Generation,
        rows_max: usize,
        bytes_max: usize,
    ) -> Result<DeletedTurns, StoreError> {
        let mut deleted = DeletedTurns::default();
        let mut contents = self.contents.borrow_mut();
        let Some((record, _)) = contents.records.get_mut(&generation) else {
            return Ok(deleted);
        };
        for (_, content) in record.turns.iter().take(rows_max) {
            if deleted.bytes >= bytes_max {
                break;
            }
            deleted.turns += 1;
            deleted.bytes += content.len();
        }
        record.turns.drain(..deleted.turns);
        if record.turns.is_empty()
            && let Some((_, bytes)) = contents.records.remove(&generation)
        {
            contents.bytes -= bytes;
        }
        Ok(deleted)
    }
}

impl Store for RetainedStore {
    fn read_tables(&self, body: TableBody<'_>) -> Result<(), StoreError> {
        self.write_tables(body)
    }

    fn write_tables(&self, body: TableBody<'_>) -> Result<(), StoreError> {
        lock(&self.0).transact(body)
    }

    fn ended(
        &self,
        wanted: &[(SessionKey, Generation)],
        bytes_max: usize,
    ) -> Result<Vec<EndedRecord>, StoreError> {
        let mut retained = lock(&self.0);
        let known = &retained.contents.get_mut().records;
        let (mut records, mut bytes) = (Vec::new(), 0);
        for (_, generation) in wanted {
            if bytes >= bytes_max && !records.is_empty() {
                break;
            }
            if let Some((ended, _)) = known.get(generation) {
                let record = newest(ended, bytes_max);
                let contents = record.turns.iter().map(|(_, content)| content.len());
                bytes += contents.sum::<usize>();
                records.push(record);
            }
        }
        Ok(records)
    }

    fn clean_pages(&self, _: usize) -> Result<CleanupPending, StoreError> {
        Ok(CleanupPending::default())
    }

    fn commit(
        &self,
        _: &ClockAnchor,
        _: &[ChangeSet],
    ) -> Result<Vec<Result<(), StaleBase>>, StoreError> {
        Err(unsupported())
    }

    fn clock(&self) -> Result<Option<ClockAnchor>, StoreError> {
        Ok(None)
    }

    fn live_heads(&self, _: &mut dyn FnMut(SessionKey, Head)) -> Result<(), StoreError> {
        Ok(())
    }

    fn load(&self, _: &SessionKey, _: Steady) -> Result<Option<SavedSession>, StoreError> {
        Err(unsupported())
    }

    fn keys(&self, _: &SessionKey, _: Steady) -> Result<Keys, StoreError> {
        Err(unsupported())
    }

    fn keyed_sessions(
        &self,
        _: Option<&SessionKey>,
        _: usize,
    ) -> Result<Vec<SessionKey>, StoreError> {
        Err(unsupported())
    }

    fn journal(
        &self,
        _: &SessionKey,
        _: Option<Generation>,
        _: JournalRange,
    ) -> Result<Option<JournalPage>, StoreError> {
        Err(unsupported())
    }

    fn rewound_by(&self, _: Generation, _: &Fingerprint) -> Result<SeqRanges, StoreError> {
        Err(unsupported())
    }

    fn written_after(&self, _: u64, _: usize, _: usize) -> Result<WrittenTurns, StoreError> {
        Err(unsupported())
    }

    fn written_at(&self, _: &[u64]) -> Result<Vec<WrittenTurn>, StoreError> {
        Err(unsupported())
    }

    fn owners(&self, _: &[Generation]) -> Result<Vec<GenerationOwner>, StoreError> {
        Err(unsupported())
    }

    fn turn_bytes(&self) -> Result<Vec<(TenantId, u64)>, StoreError> {
        Err(unsupported())
    }
}
