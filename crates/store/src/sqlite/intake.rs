//! What was taken in and is not yet in its place.
//!
//! The idea is that of a log-structured store: writing is cheap because it goes to the
//! end, and the sorting is done later, for many changes at once. What a change has to be
//! checked against, the newest state of its generation, is kept in memory until then.
//!
//! Once there is enough of it a fold begins (see `fold.rs`), which the following commits do
//! step by step, while what they bring is taken in anew.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use memoird_core::ids::{Generation, SessionKey};
use memoird_core::time::Steady;

use super::fold::{Fold, KEYS_BETWEEN_CUTS, Place};
use super::row::{GenerationRow, select_from};
use crate::StoreError;

/// What the end of a generation costs a fold, in changes of other kinds: it is a row that
/// nobody has touched for long, and it moves from one index to two others.
const END_WEIGHT: usize = 12;
/// What an idempotency key costs: it gets its place in two indexes, and another one, of the
/// same session, is forgotten.
pub(super) const KEY_WEIGHT: usize = 2;

/// So many steps take a fold from its beginning to its end, or fewer.
const STEPS: usize = 64;
/// Once the keys of so many sessions are counted, the counting begins anew.
const COUNTED_SESSIONS_MAX: usize = 100_000;

/// A turn that was taken in.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenTurn {
    pub(super) seq: i64,
    pub(super) id: i64,
}

/// What some transactions took in: the newest state of every generation that changed.
#[derive(Debug, Default)]
pub(super) struct Taken {
    rows: HashMap<Generation, GenerationRow>,
    /// The live generation of every session that changed; `None`: it has none.
    live: HashMap<SessionKey, Option<Generation>>,
    /// Turns that have no place yet, ascending.
    turns: HashMap<Generation, Vec<TakenTurn>>,
    /// How many idempotency keys each session got.
    keys: HashMap<SessionKey, usize>,
    /// What a fold of it costs at most, but for a quarter of it.
    changes: usize,
    /// Of these, what the keys cost: a fold of many of them at once costs no less.
    key_changes: usize,
}

/// What was taken in and is not in its place yet.
#[derive(Debug)]
pub(super) struct Intake {
    /// Changes that may be in it, but for keys and for those of two transactions.
    changes_max: usize,
    /// Since the last fold began.
    newest: Taken,
    folding: Option<Fold>,
    /// Changes that were taken in since the last step of the fold.
    unmatched: usize,
    /// How many keys each session got since its keys were cut, folds included.
    keys: HashMap<SessionKey, usize>,
    unfolded: Arc<Unfolded>,
}

/// The sessions with something in the intake, or about to have: only they have to be looked
/// for there.
#[derive(Debug, Default)]
pub(super) struct Unfolded {
    sessions: Mutex<UnfoldedSessions>,
}

#[derive(Debug, Default)]
struct UnfoldedSessions {
    newest: HashSet<SessionKey>,
    folding: HashSet<SessionKey>,
}

impl Taken {
    /// Notes the newest state of a generation.
    pub(super) fn put(&mut self, row: GenerationRow) {
        self.changes += row_weight(&row);
        let live = self.live.entry(row.key.clone()).or_default();
        if row.ended.is_none() {
            *live = Some(row.head.generation);
        } else if *live == Some(row.head.generation) {
            *live = None;
        }
        self.rows.insert(row.head.generation, row);
    }

    /// Notes a turn that has no place yet.
    pub(super) fn put_turn(&mut self, generation: Generation, turn: TakenTurn) {
        self.changes += 1;
        self.turns.entry(generation).or_default().push(turn);
    }

    /// Notes that a session got an idempotency key.
    pub(super) fn count_key(&mut self, key: &SessionKey) {
        self.changes += KEY_WEIGHT;
        self.key_changes += KEY_WEIGHT;
        *self.keys.entry(key.clone()).or_default() += 1;
    }

    pub(super) fn row(&self, generation: Generation) -> Option<&GenerationRow> {
        self.rows.get(&generation)
    }

    /// The live generation of a session, if the session changed.
    pub(super) fn live(&self, key: &SessionKey) -> Option<Option<Generation>> {
        self.live.get(key).copied()
    }

    /// The turns of a generation that have no place yet, ascending.
    pub(super) fn turns(&self, generation: Generation) -> &[TakenTurn] {
        self.turns.get(&generation).map_or(&[], Vec::as_slice)
    }

    /// The id of a turn that has no place yet.
    pub(super) fn turn(&self, generation: Generation, seq: i64) -> Option<i64> {
        let turns = self.turns(generation);
        let place = turns.binary_search_by_key(&seq, |turn| turn.seq);
        place.ok().map(|place| turns[place].id)
    }

    /// The newest states, ends first: a session's next generation must not meet the one before
    /// it, neither in an index nor where a crash leaves them to be read back.
    pub(super) fn rows_in_order(&self) -> Vec<&GenerationRow> {
        let mut rows: Vec<&GenerationRow> = self.rows.values().collect();
        rows.sort_by_key(|row| (row.ended.is_none(), row.head.generation));
        rows
    }

    /// Takes over what another one noted later.
    fn extend(&mut self, newer: Self) {
        self.rows.extend(newer.rows);
        self.live.extend(newer.live);
        for (generation, turns) in newer.turns {
            self.turns.entry(generation).or_default().extend(turns);
        }
        for (key, count) in newer.keys {
            *self.keys.entry(key).or_default() += count;
        }
        self.changes += newer.changes;
        self.key_changes += newer.key_changes;
    }
}

/// What it costs to put a row in its place.
pub(super) fn row_weight(row: &GenerationRow) -> usize {
    if row.ended.is_some() { END_WEIGHT } else { 1 }
}

impl Intake {
    /// What a crash left of the intake.
    pub(super) fn restore(
        connection: &Connection,
        changes_max: usize,
        unfolded: Arc<Unfolded>,
    ) -> Result<Self, StoreError> {
        let mut newest = Taken::default();
        let sql = format!("{} ORDER BY id", select_from("intake_heads"));
        let mut statement = connection.prepare(&sql)?;
        for row in statement.query_map([], GenerationRow::read)? {
            newest.put(row?);
        }
        let sql = "SELECT generation, seq, id FROM turns
                   WHERE id > (SELECT placed FROM progress) ORDER BY id";
        let mut statement = connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (seq, id) = (row.get(1)?, row.get(2)?);
            newest.put_turn(Generation::from_bytes(row.get(0)?), TakenTurn { seq, id });
        }
        unfolded.add(newest.rows.values().map(|row| &row.key));
        Ok(Self {
            changes_max,
            newest,
            folding: None,
            unmatched: 0,
            keys: HashMap::new(),
            unfolded,
        })
    }

    /// Told, before anybody can see what a transaction wrote, what it will have taken in.
    pub(super) fn announce(&self, taken: &Taken) {
        self.unfolded.add(taken.rows.values().map(|row| &row.key));
    }

    /// Takes over what a transaction wrote, and how far it came with the fold.
    pub(super) fn extend(&mut self, mut taken: Taken, folded: Option<Place>) {
        for (key, count) in std::mem::take(&mut taken.keys) {
            *self.keys.entry(key).or_default() += count;
        }
        self.unmatched += taken.changes;
        self.newest.extend(taken);
        self.advance(folded);
    }

    pub(super) fn row(&self, generation: Generation) -> Option<&GenerationRow> {
        let row = self.newest.row(generation);
        row.or_else(|| self.folding.as_ref()?.taken.row(generation))
    }

    /// The live generation of a session, if the session changed.
    pub(super) fn live(&self, key: &SessionKey) -> Option<Option<Generation>> {
        let live = self.newest.live(key);
        live.or_else(|| self.folding.as_ref()?.taken.live(key))
    }

    /// The ids of a generation's turns, ascending, that may have no place yet.
    pub(super) fn turns(&self, generation: Generation) -> Vec<i64> {
        let folding = self.folding.iter().map(|fold| &fold.taken);
        let taken = folding.chain([&self.newest]);
        let turns = taken.flat_map(|taken| taken.turns(generation));
        turns.map(|turn| turn.id).collect()
    }

    /// The id of a turn, if it may have no place yet.
    pub(super) fn turn(&self, generation: Generation, seq: i64) -> Option<i64> {
        let newest = self.newest.turn(generation, seq);
        newest.or_else(|| self.folding.as_ref()?.taken.turn(generation, seq))
    }

    /// The newest states, in no order.
    pub(super) fn rows(&self) -> impl Iterator<Item = &GenerationRow> {
        let folding = self
            .folding
            .iter()
            .flat_map(|fold| fold.taken.rows.values());
        let older = folding.filter(|row| self.newest.row(row.head.generation).is_none());
        self.newest.rows.values().chain(older)
    }

    /// Begins a fold if there is enough for one.
    pub(super) fn begin_fold_if_due(
        &mut self,
        connection: &Connection,
        last_turn: i64,
    ) -> Result<(), StoreError> {
        let changes = self.newest.changes - self.newest.key_changes;
        match changes >= (self.changes_max / 2).max(1) {
            true => self.begin_fold(connection, last_turn),
            false => Ok(()),
        }
    }

    /// Begins a fold of what there is, unless one is under way or there is nothing.
    pub(super) fn begin_fold(
        &mut self,
        connection: &Connection,
        last_turn: i64,
    ) -> Result<(), StoreError> {
        if self.folding.is_some() || self.newest.rows.is_empty() {
            return Ok(());
        }
        let mut cuts = Vec::new();
        self.keys.retain(|key, count| {
            let is_due = *count >= KEYS_BETWEEN_CUTS;
            if is_due {
                cuts.push(key.clone());
            }
            !is_due
        });
        if self.keys.len() >= COUNTED_SESSIONS_MAX {
            self.keys.clear();
        }
        let taken = std::mem::take(&mut self.newest);
        self.folding = Some(Fold::begin(connection, taken, last_turn, cuts)?);
        self.unmatched = 0;
        self.unfolded.begin_fold();
        Ok(())
    }

    /// How much of the fold a transaction has to do that takes in this; `None`: nothing yet. It
    /// is more than it takes in, so that a fold is over before the next one has to begin.
    pub(super) fn step_of(&self, taken: &Taken) -> Option<usize> {
        let unmatched = self.unmatched + taken.changes;
        let is_due = self.folding.is_some() && unmatched >= (self.changes_max / STEPS).max(1);
        is_due.then_some(unmatched + unmatched / 2 + 1)
    }

    /// Does a part of the fold; gives how far it is then, once the transaction is committed.
    pub(super) fn fold(
        &self,
        transaction: &Transaction<'_>,
        changes: usize,
    ) -> Result<Option<Place>, StoreError> {
        let fold = self.folding.as_ref();
        fold.map(|fold| fold.step(transaction, changes)).transpose()
    }

    /// What [`Self::fold`] did is committed.
    pub(super) fn advance(&mut self, folded: Option<Place>) {
        let (Some(place), Some(fold)) = (folded, &mut self.folding) else {
            return;
        };
        self.unmatched = 0;
        fold.place = place;
        if place.is_over {
            self.folding = None;
            self.unfolded.end_fold();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.newest.rows.is_empty() && self.folding.is_none()
    }

    /// True when it has a generation that ended before this moment.
    pub(super) fn has_ended_before(&self, moment: Steady) -> bool {
        self.rows()
            .any(|row| row.ended.is_some_and(|(at, _)| at.steady < moment))
    }
}

impl Unfolded {
    pub(super) fn contains(&self, key: &SessionKey) -> bool {
        let sessions = self.sessions();
        sessions.newest.contains(key) || sessions.folding.contains(key)
    }

    fn add<'a>(&self, keys: impl Iterator<Item = &'a SessionKey>) {
        let mut sessions = self.sessions();
        for key in keys {
            if !sessions.newest.contains(key) {
                sessions.newest.insert(key.clone());
            }
        }
    }

    fn begin_fold(&self) {
        let mut sessions = self.sessions();
        sessions.folding = std::mem::take(&mut sessions.newest);
    }

    fn end_fold(&self) {
        self.sessions().folding.clear();
    }

    fn sessions(&self) -> MutexGuard<'_, UnfoldedSessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The row of a generation, where it is found once it was folded.
pub(super) fn folded_row(
    connection: &Connection,
    generation: Generation,
) -> Result<Option<GenerationRow>, StoreError> {
    let sql = format!("{} WHERE generation = ?", select_from("generations"));
    let mut statement = connection.prepare_cached(&sql)?;
    Ok(statement
        .query_row([generation.to_bytes()], GenerationRow::read)
        .optional()?)
}

/// The live generation of a session, where it is found once it was folded.
pub(super) fn folded_live(
    connection: &Connection,
    key: &SessionKey,
) -> Result<Option<Generation>, StoreError> {
    let sql = "SELECT generation FROM generations
               WHERE tenant = ? AND session = ? AND ended_at IS NULL";
    let found = connection
        .prepare_cached(sql)?
        .query_row(params![key.tenant.as_str(), key.session.as_str()], |row| {
            row.get(0)
        })
        .optional()?;
    Ok(found.map(Generation::from_bytes))
}
