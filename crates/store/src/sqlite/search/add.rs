//! Indexing steps: new turns of all tenants, stale turns, and the new mark, in one transaction.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};

use memoird_core::ids::{Generation, Subject, TenantId};
use memoird_core::words::Languages;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::{IndexLock, SqliteStore, TenantRange, TenantRow, find_tenant, generation_word, quoted};
use crate::sqlite::row::{count, whole};
use crate::{
    CALL_TURNS, GenerationOwner, IndexBounds, IndexEntry, IndexStep, Store, StoreError,
    WrittenTurn, index_entries,
};

pub(super) const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
/// How far the journal is indexed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    /// Number of the last turn indexed or skipped. 0 if none.
    number: u64,
    /// That turn, to recognize the journal. `None` if it was deleted or rewound.
    turn: Option<(Generation, u64)>,
}

/// A row whose turn was changed or deleted.
#[derive(Clone, Copy, Debug)]
struct StaleRow {
    row: i64,
    /// Number in the journal.
    number: u64,
    /// Number of the generation in the index.
    generation: i64,
}

/// Runs one step. The lock keeps turns that are read from being changed before they are indexed.
pub(super) fn step(
    store: &SqliteStore,
    index: &mut IndexLock<'_>,
    bounds: IndexBounds,
) -> Result<IndexStep, StoreError> {
    let is_new = open(store, index)?;
    let last_stale = index.writer.last_stale;
    let Some(connection) = index.existing()? else {
        return Ok(IndexStep::default());
    };
    let stale = stale_rows(connection, last_stale, bounds.stale_max)?;
    let mark = read_mark(connection)?;
    let numbers: Vec<u64> = stale.iter().map(|row| row.number).collect();
    let mut written = store.written_at(&numbers)?;
    let next = store.written_after(mark.number, bounds.turns_max, bounds.bytes_max)?;
    let bytes: usize = next.turns.iter().map(|turn| turn.content.len()).sum();
    let is_all = next.turns.len() < bounds.turns_max && bytes < bounds.bytes_max;
    let last = next.turns.last().map(|turn| Mark {
        number: turn.number,
        turn: Some((turn.generation, turn.seq)),
    });
    let new_mark = last
        .filter(|last| !is_all || last.number == next.last_number)
        .unwrap_or(Mark {
            number: next.last_number.max(mark.number),
            // The last turn may have been deleted.
            turn: mark.turn.filter(|_| next.last_number <= mark.number),
        });
    written.extend(next.turns);
    let turns = index_entries(store, &written, |generation, before| {
        earlier_turns(connection, generation, before)
    })?;
    let mut done = write(connection, &stale, &turns, new_mark)?;
    let unclean = "SELECT unclean > 0 FROM state";
    done.is_unclean = connection.query_row(unclean, [], |row| row.get(0))?;
    done.is_new = is_new;
    done.behind = next.last_number.saturating_sub(new_mark.number);
    done.has_more = done.behind > 0 || stale.len() == bounds.stale_max;
    done.file_bytes = index.file.bytes();
    if let Some(last) = stale.last() {
        index.writer.last_stale = last.row;
    }
    Ok(done)
}

/// Opens the index, or creates it if there is none of this journal. Returns whether it is new.
fn open(store: &SqliteStore, index: &mut IndexLock<'_>) -> Result<bool, StoreError> {
    let is_of_journal = index.writer.is_of_journal;
    if let Some(connection) = index.existing()?
        && !is_of_journal
        && !is_of_journal_of(store, connection)?
    {
        index.discard()?;
    }
    let is_new = index.existing()?.is_none();
    if is_new {
        index.open(true)?;
    }
    index.writer.is_of_journal = true;
    Ok(is_new)
}

/// Whether the index belongs to the store's journal.
///
/// After an older journal was restored, it is shorter, or has another turn at the mark.
fn is_of_journal_of(store: &SqliteStore, connection: &Connection) -> Result<bool, StoreError> {
    let mark = read_mark(connection)?;
    let last_number = store.written_after(u64::MAX >> 1, 1, 1)?.last_number;
    let turns = store.written_at(&[mark.number])?;
    let is_same = |turn: &WrittenTurn| Some((turn.generation, turn.seq)) == mark.turn;
    Ok(mark.number <= last_number && turns.iter().all(is_same))
}

fn read_mark(connection: &Connection) -> Result<Mark, StoreError> {
    let sql = "SELECT indexed, last_generation, last_seq FROM state";
    let mut statement = connection.prepare_cached(sql)?;
    let mark = statement.query_row([], |row| {
        let generation = row.get::<_, Option<[u8; 16]>>(1)?;
        let seq = row.get::<_, Option<i64>>(2)?;
        let turn = generation.zip(seq);
        Ok(Mark {
            number: count(row, 0)?,
            turn: turn
                .map(|(generation, seq)| (Generation::from_bytes(generation), seq.unsigned_abs())),
        })
    })?;
    Ok(mark)
}

/// Returns up to `max` stale rows after this one, and then from the first one on.
///
/// So rows that are marked again and again delay no others.
fn stale_rows(connection: &Connection, last: i64, max: usize) -> Result<Vec<StaleRow>, StoreError> {
    let mut rows = Vec::new();
    for range in ["no > ?1", "no <= ?1"] {
        let sql = format!(
            "SELECT no, number, generation FROM turns WHERE is_stale AND {range}
             ORDER BY no LIMIT ?2"
        );
        let mut statement = connection.prepare_cached(&sql)?;
        let left = whole((max - rows.len()) as u64);
        let found = statement.query_map([last, left], |row| {
            Ok(StaleRow {
                row: row.get(0)?,
                number: count(row, 1)?,
                generation: row.get(2)?,
            })
        })?;
        for row in found {
            rows.push(row?);
        }
    }
    Ok(rows)
}

/// Returns the journal numbers of the last indexed turns of a generation before this one.
fn earlier_turns(
    connection: &Connection,
    generation: Generation,
    before: u64,
) -> Result<Vec<u64>, StoreError> {
    let sql = "SELECT no FROM generations WHERE generation = ?";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row([generation.to_bytes()], |row| row.get(0));
    let Some(no) = found.optional()? else {
        return Ok(Vec::new());
    };
    let sql = "SELECT turns.number FROM words CROSS JOIN turns ON turns.no = words.rowid
               WHERE words MATCH ? AND turns.number < ?
               ORDER BY words.rowid DESC LIMIT ?";
    let mut statement = connection.prepare_cached(sql)?;
    let parameters = params![
        quoted(&generation_word(no)),
        whole(before),
        whole(CALL_TURNS)
    ];
    let numbers = statement.query_map(parameters, |row| count(row, 0))?;
    Ok(numbers.collect::<Result<_, _>>()?)
}

/// Writes a step.
fn write(
    connection: &mut Connection,
    stale: &[StaleRow],
    turns: &[IndexEntry],
    mark: Mark,
) -> Result<IndexStep, StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut batch = Batch {
        connection: &transaction,
        tenants: HashMap::new(),
        generations: HashMap::new(),
        days: HashMap::new(),
    };
    let known: HashMap<u64, i64> = stale.iter().map(|row| (row.number, row.row)).collect();
    let mut rows = Vec::with_capacity(turns.len());
    for turn in turns {
        rows.push(batch.row(turn, known.get(&turn.number).copied())?);
    }
    // FTS5 starts a new segment for each row that is out of order.
    rows.sort_unstable_by_key(|row| row.row);
    let current: HashSet<i64> = rows.iter().map(|row| row.row).collect();
    let (replaced, removed): (Vec<StaleRow>, Vec<StaleRow>) =
        stale.iter().partition(|row| current.contains(&row.row));
    remove_words(&transaction, stale)?;
    batch.write(&rows)?;
    remove_empty(&transaction, &removed)?;
    let sql = "UPDATE state SET indexed = ?, last_generation = ?, last_seq = ?,
                   unclean = unclean + ?";
    transaction.prepare_cached(sql)?.execute(params![
        whole(mark.number),
        mark.turn.map(|(generation, _)| generation.to_bytes()),
        mark.turn.map(|(_, seq)| whole(seq)),
        whole(stale.len() as u64),
    ])?;
    transaction.commit()?;
    Ok(IndexStep {
        indexed: (rows.len() - replaced.len()) as u64,
        replaced: replaced.len() as u64,
        removed: removed.len() as u64,
        ..IndexStep::default()
    })
}

fn remove_words(transaction: &Transaction<'_>, stale: &[StaleRow]) -> Result<(), StoreError> {
    for table in ["words WHERE rowid", "turns WHERE no"] {
        let mut delete = transaction.prepare_cached(&format!("DELETE FROM {table} = ?"))?;
        for stale in stale {
            delete.execute([stale.row])?;
        }
    }
    Ok(())
}

/// Removes generations and days that have no turns left.
fn remove_empty(transaction: &Transaction<'_>, removed: &[StaleRow]) -> Result<(), StoreError> {
    let generations: BTreeSet<i64> = removed.iter().map(|row| row.generation).collect();
    for generation in generations {
        let word = quoted(&generation_word(generation));
        let has_turns = transaction
            .prepare_cached("SELECT 1 FROM words WHERE words MATCH ? LIMIT 1")?
            .exists([word])?;
        if !has_turns {
            transaction
                .prepare_cached("DELETE FROM generations WHERE no = ?")?
                .execute([generation])?;
        }
    }
    let tenants: BTreeSet<i64> = removed
        .iter()
        .map(|row| row.row >> super::TENANT_SHIFT)
        .collect();
    for tenant in tenants {
        let range = TenantRange { tenant };
        let sql = "DELETE FROM days WHERE tenant = ?1 AND last <
                   (SELECT ifnull(min(no), ?3) FROM turns WHERE no BETWEEN ?2 AND ?3)";
        let parameters = [tenant, range.row(1), range.row(u64::MAX)];
        transaction.prepare_cached(sql)?.execute(parameters)?;
    }
    Ok(())
}

/// A row of the index.
struct Row {
    row: i64,
    number: u64,
    generation: i64,
    at_ms: i64,
    words: String,
}

/// Lookups cached for the duration of a batch.
struct Batch<'a> {
    connection: &'a Connection,
    tenants: HashMap<TenantId, TenantRow>,
    generations: HashMap<Generation, i64>,
    /// First and last row of each tenant's days.
    days: HashMap<(i64, i64), (i64, i64)>,
}

impl Batch<'_> {
    /// Assigns a row to a turn, unless it already has one.
    fn row(&mut self, turn: &IndexEntry, known: Option<i64>) -> Result<Row, StoreError> {
        let generation = self.generation(&turn.owner)?;
        let tenant = self.tenant(&turn.owner.key.tenant)?;
        let row = known.unwrap_or_else(|| {
            tenant.next += 1;
            tenant.range.row(tenant.next - 1)
        });
        tenant.languages = tenant.languages.with(turn.language);
        let day = (tenant.range.tenant, turn.at_ms.div_euclid(DAY_MS));
        let day = self.days.entry(day).or_insert((row, row));
        *day = (day.0.min(row), day.1.max(row));
        Ok(Row {
            row,
            number: turn.number,
            generation,
            at_ms: turn.at_ms,
            words: format!("{} {}", turn.words, generation_word(generation)),
        })
    }

    fn tenant(&mut self, name: &TenantId) -> Result<&mut TenantRow, StoreError> {
        let vacant = match self.tenants.entry(name.clone()) {
            Entry::Occupied(known) => return Ok(known.into_mut()),
            Entry::Vacant(vacant) => vacant,
        };
        let tenant = match find_tenant(self.connection, name.as_str())? {
            Some(found) => found,
            None => {
                let languages = Languages::default();
                let sql = "INSERT INTO tenants (name, next, languages) VALUES (?, 1, ?)";
                self.connection
                    .prepare_cached(sql)?
                    .execute(params![name.as_str(), languages.bits()])?;
                let tenant = self.connection.last_insert_rowid();
                TenantRow {
                    range: TenantRange { tenant },
                    next: 1,
                    languages,
                }
            }
        };
        Ok(vacant.insert(tenant))
    }

    /// Returns the number of a generation, and updates its subject.
    fn generation(&mut self, owner: &GenerationOwner) -> Result<i64, StoreError> {
        if let Some(no) = self.generations.get(&owner.generation) {
            return Ok(*no);
        }
        let tenant = self.tenant(&owner.key.tenant)?.range.tenant;
        let sql = "INSERT INTO generations (generation, tenant, session, subject)
                   VALUES (?, ?, ?, ?)
                   ON CONFLICT (generation) DO UPDATE SET subject = excluded.subject
                   RETURNING no";
        let mut statement = self.connection.prepare_cached(sql)?;
        let no = statement.query_row(
            params![
                owner.generation.to_bytes(),
                tenant,
                owner.key.session.as_str(),
                owner.subject.as_ref().map(Subject::as_str),
            ],
            |row| row.get(0),
        )?;
        self.generations.insert(owner.generation, no);
        Ok(no)
    }

    fn write(&self, rows: &[Row]) -> Result<(), StoreError> {
        let sql = "INSERT INTO turns (no, number, generation, at) VALUES (?, ?, ?, ?)";
        let mut turns = self.connection.prepare_cached(sql)?;
        let sql = "INSERT INTO words (rowid, stems) VALUES (?, ?)";
        let mut words = self.connection.prepare_cached(sql)?;
        for row in rows {
            let parameters = params![row.row, whole(row.number), row.generation, row.at_ms];
            turns.execute(parameters)?;
            words.execute(params![row.row, row.words])?;
        }
        let sql = "UPDATE tenants SET next = ?, languages = ? WHERE no = ?";
        let mut tenants = self.connection.prepare_cached(sql)?;
        for tenant in self.tenants.values() {
            let no = tenant.range.tenant;
            tenants.execute(params![whole(tenant.next), tenant.languages.bits(), no])?;
        }
        let sql = "INSERT INTO days (tenant, day, first, last) VALUES (?, ?, ?, ?)
                   ON CONFLICT DO UPDATE SET first = min(first, excluded.first),
                       last = max(last, excluded.last)";
        let mut days = self.connection.prepare_cached(sql)?;
        for ((tenant, day), (first, last)) in &self.days {
            days.execute([tenant, day, first, last])?;
        }
        Ok(())
    }
}
