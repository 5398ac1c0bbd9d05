//! Indexing of new turns: a batch of all tenants and the new cursor, in one transaction.

use std::collections::HashMap;

use memoird_core::ids::{Generation, Subject, TenantId};
use memoird_core::time::Timestamp;
use memoird_core::turn::Role;
use memoird_store::GenerationOwner;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::{
    Index, IndexResult, JournalCursor, TenantRange, TenantRow, find_tenant, generation_word,
    role_word, save_followed, tool_word, whole,
};
use crate::lock;
use crate::words::{self, Languages};

pub(super) const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// A turn to be indexed.
#[derive(Clone, Debug)]
pub(crate) struct NewTurn {
    /// Number in the journal.
    pub(crate) number: u64,
    pub(crate) generation: Generation,
    pub(crate) role: Role,
    pub(crate) at: Timestamp,
    /// Tools that the turn calls or has results of.
    pub(crate) tools: Vec<String>,
    pub(crate) text: String,
}

impl NewTurn {
    /// Returns the stems and filter words of the turn, and its language.
    pub(super) fn words(&self, generation: i64) -> (String, Languages) {
        let mut words = String::with_capacity(self.text.len() + 64);
        let language = words::add_index_words(&self.text, &mut words);
        let marks = [generation_word(generation), role_word(self.role)];
        let tools = self.tools.iter().map(|tool| tool_word(tool));
        for mark in marks.into_iter().chain(tools) {
            words.push(' ');
            words.push_str(&mark);
        }
        (words, language)
    }
}

/// State of a tenant while a batch is written.
struct Tenant {
    range: TenantRange,
    /// Number of its next turn.
    next: u64,
    /// Languages of its turns.
    languages: Languages,
    /// First and last row of each day.
    days: HashMap<i64, (i64, i64)>,
}

/// A row of the index.
///
/// Rows are written in order, because FTS5 starts a new segment for each one that is out of order.
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
    owners: HashMap<Generation, GenerationOwner>,
    tenants: HashMap<TenantId, Tenant>,
    generations: HashMap<Generation, i64>,
}

impl Index {
    /// Indexes turns and saves the new cursor. Returns the number of turns indexed.
    ///
    /// A turn whose generation has no owner was deleted in the meantime, and is skipped.
    pub(crate) fn add(
        &self,
        turns: &[NewTurn],
        owners: Vec<GenerationOwner>,
        followed: JournalCursor,
    ) -> IndexResult<usize> {
        let mut writer = lock(&self.writer);
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let owners = owners.into_iter().map(|owner| (owner.generation, owner));
        let mut batch = Batch {
            connection: &transaction,
            owners: owners.collect(),
            tenants: HashMap::new(),
            generations: HashMap::new(),
        };
        let mut rows = Vec::with_capacity(turns.len());
        for turn in turns {
            rows.extend(batch.row(turn)?);
        }
        rows.sort_unstable_by_key(|row| row.row);
        batch.write(&rows)?;
        save_followed(&transaction, followed)?;
        transaction.commit()?;
        Ok(rows.len())
    }
}

impl Batch<'_> {
    /// Assigns a row to a turn.
    fn row(&mut self, turn: &NewTurn) -> IndexResult<Option<Row>> {
        let Some(owner) = self.owners.get(&turn.generation).cloned() else {
            return Ok(None);
        };
        let generation = self.generation(&owner)?;
        let tenant = self.tenant(&owner.key.tenant)?;
        let row = tenant.range.row(tenant.next);
        tenant.next += 1;
        let at_ms = turn.at.as_ms();
        let day = tenant.days.entry(day_of(turn.at)).or_insert((row, row));
        day.1 = row;
        let (words, language) = turn.words(generation);
        tenant.languages = tenant.languages.with(language);
        Ok(Some(Row {
            row,
            number: turn.number,
            generation,
            at_ms,
            words,
        }))
    }

    fn tenant(&mut self, name: &TenantId) -> IndexResult<&mut Tenant> {
        if !self.tenants.contains_key(name) {
            let found = match find_tenant(self.connection, name.as_str())? {
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
            let tenant = Tenant {
                range: found.range,
                next: found.next,
                languages: found.languages,
                days: HashMap::new(),
            };
            self.tenants.insert(name.clone(), tenant);
        }
        let missing = rusqlite::Error::QueryReturnedNoRows;
        Ok(self.tenants.get_mut(name).ok_or(missing)?)
    }

    /// Returns the number of a generation, and updates its subject.
    fn generation(&mut self, owner: &GenerationOwner) -> IndexResult<i64> {
        if let Some(no) = self.generations.get(&owner.generation) {
            return Ok(*no);
        }
        let tenant = self.tenant(&owner.key.tenant)?.range.tenant;
        let sql = "INSERT INTO generations (generation, tenant, session, subject)
                   VALUES (?, ?, ?, ?)
                   ON CONFLICT (generation) DO UPDATE SET subject = excluded.subject
                   RETURNING no";
        let mut statement = self.connection.prepare_cached(sql)?;
        let no = statement
            .query_row(
                params![
                    owner.generation.to_bytes(),
                    tenant,
                    owner.key.session.as_str(),
                    owner.subject.as_ref().map(Subject::as_str),
                ],
                |row| row.get(0),
            )
            .optional()?
            .ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        self.generations.insert(owner.generation, no);
        Ok(no)
    }

    fn write(&self, rows: &[Row]) -> IndexResult<()> {
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
            for (day, (first, last)) in &tenant.days {
                widen_day(self.connection, no, *day, *first, *last)?;
            }
        }
        Ok(())
    }
}

/// Returns the day of a timestamp, in days since the epoch.
pub(super) fn day_of(at: Timestamp) -> i64 {
    at.as_ms().div_euclid(DAY_MS)
}

/// Extends the row range of a tenant's day.
pub(super) fn widen_day(
    connection: &Connection,
    tenant: i64,
    day: i64,
    first: i64,
    last: i64,
) -> IndexResult<()> {
    let sql = "INSERT INTO days (tenant, day, first, last) VALUES (?, ?, ?, ?)
               ON CONFLICT DO UPDATE SET first = min(first, excluded.first),
                   last = max(last, excluded.last)";
    connection
        .prepare_cached(sql)?
        .execute([tenant, day, first, last])?;
    Ok(())
}
