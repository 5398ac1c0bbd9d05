//! The worker that follows the journal, indexes new turns, and removes deleted ones.
//!
//! Calls never wait for it. While sessions change, it pauses between steps to leave the CPU to
//! them.
//!
//! It collects changes for a second, or indexes immediately if a search is waiting. Words of a turn
//! past its retention leave the file with a later FTS5 merge. An erasure merges all segments,
//! because FTS5 has no other way to remove words from a contentless table.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memoird_core::ids::Generation;
use memoird_engine::{Stopwatch, WorkError, Worker};
use memoird_store::{TurnChange, WrittenTurn};
use tracing::{info, warn};

use crate::error::SearchError;
use crate::index::{Index, IndexResult, JournalCursor, NewTurn};
use crate::lock;
use crate::search::SearchInner;
use crate::turn_text::{SearchedTurn, ToolNames};

/// Maximum turns per step, and bytes after which no further turn is read.
const STEP_TURNS: usize = 1_024;
const STEP_BYTES: usize = 2 << 20;
/// Maximum number of turn changes read per step.
const STEP_CHANGES: usize = 64;
/// How long changes are collected into one transaction, unless a search is waiting.
const GATHER: Duration = Duration::from_secs(1);
/// Interval between checks for turns that the journal has deleted.
const FORGET_EVERY_MS: u64 = 10 * 60 * 1_000;
/// Maximum generations checked, and turns removed, per step.
const FORGET_GENERATIONS: usize = 500;
const FORGET_TURNS: usize = 1_000;
/// How many earlier turns are searched for the call that belongs to a result.
const CALL_TURNS: usize = 16;

#[derive(Debug)]
pub(crate) struct Follower {
    shared: Arc<SearchInner>,
    /// Cursor. `None` until the index is opened and known to belong to this journal.
    followed: Option<JournalCursor>,
    /// Last journal change known before the journal was read.
    seen: u64,
    goal: Option<CatchUpGoal>,
    /// Progress with changed turns. `None` until the index is opened.
    changes: Option<Changes>,
    /// The last change that the merge in progress cleans up.
    cleaning: Option<u64>,
    /// Earliest time of the next cleaning of pages, on the engine's monotonic clock.
    next_cleaning_ms: u64,
    /// Pause after the last step.
    rest: Duration,
    has_more: bool,
    /// Progress and end of a round of removals.
    forgetting: Option<(Generation, Generation)>,
    /// Start of the next round, on the engine's monotonic clock.
    next_round_ms: u64,
    /// An index to be removed once no search reads it.
    leaving: Option<Arc<Index>>,
}

/// Position the index must reach, regardless of turns written in the meantime.
#[derive(Clone, Copy, Debug)]
struct CatchUpGoal {
    /// A journal change known when the journal was read.
    seen: u64,
    /// Number of the last turn at that time.
    number: u64,
    /// Last turn change at that time.
    change: u64,
}

/// Progress with replaced turn contents.
#[derive(Clone, Copy, Debug)]
struct Changes {
    /// Last change indexed.
    taken: u64,
    /// Last change whose old words are cleared from the pages.
    cleaned: u64,
}

impl Follower {
    pub(crate) fn new(shared: Arc<SearchInner>) -> Self {
        Self {
            shared,
            followed: None,
            seen: 0,
            goal: None,
            changes: None,
            cleaning: None,
            next_cleaning_ms: 0,
            rest: Duration::ZERO,
            has_more: true,
            forgetting: None,
            next_round_ms: 0,
            leaving: None,
        }
    }

    fn now_ms(&self) -> u64 {
        self.shared.engine.machine.now().steady.0
    }

    /// Whether sessions changed since the journal was last read.
    async fn have_sessions_changed(&self) -> bool {
        let change = self.shared.engine.transcripts.written_beyond(self.seen);
        tokio::time::timeout(Duration::ZERO, change).await.is_ok()
    }

    /// Runs one step. Returns the time spent reading the whole file, if it did.
    async fn work(&mut self) -> Result<Duration, SearchError> {
        let index = self.index().await?;
        let shared = Arc::clone(&self.shared);
        let following = shared.following.lock().await;
        self.follow(&index).await?;
        drop(following);
        self.shared
            .counters
            .file_bytes
            .store(index.file_bytes(), Ordering::Relaxed);
        if self.has_more {
            return Ok(Duration::ZERO);
        }
        let cleaned = self.clean_changed(&index).await?;
        self.forget(&index).await?;
        Ok(cleaned)
    }

    /// Returns the index, opened or created if necessary. A damaged one is removed first.
    async fn index(&mut self) -> Result<Arc<Index>, SearchError> {
        if self.shared.is_damaged.swap(false, Ordering::AcqRel) {
            self.leave();
        }
        self.remove_left().await?;
        if let Some(index) = lock(&self.shared.index).clone() {
            return Ok(index);
        }
        let (path, key) = (self.shared.path.clone(), self.shared.key);
        let (opened, is_new) = self.run(move || Index::open(&path, key)).await?;
        if is_new {
            self.shared
                .counters
                .rebuilds
                .fetch_add(1, Ordering::Relaxed);
            info!("building the transcript index from the journal");
        }
        let index = Arc::new(opened);
        *lock(&self.shared.index) = Some(Arc::clone(&index));
        Ok(index)
    }

    /// Withdraws the index from searches.
    fn leave(&mut self) {
        self.followed = None;
        self.goal = None;
        self.changes = None;
        self.cleaning = None;
        self.shared.reached.send_replace(None);
        self.forgetting = None;
        self.has_more = true;
        if let Some(index) = lock(&self.shared.index).take() {
            self.leaving = Some(index);
        }
    }

    /// Removes a withdrawn index once it is closed.
    ///
    /// SQLite finds the log by name, so no new file may have that name while the old one is open.
    async fn remove_left(&mut self) -> Result<(), SearchError> {
        let Some(index) = self.leaving.take() else {
            return Ok(());
        };
        match Arc::try_unwrap(index) {
            Ok(index) => self.run(move || index.discard()).await,
            Err(index) => {
                self.leaving = Some(index);
                Err(SearchError::NotReady)
            }
        }
    }

    /// Indexes what was written since the last step.
    async fn follow(&mut self, index: &Arc<Index>) -> Result<(), SearchError> {
        let transcripts = &self.shared.engine.transcripts;
        if let Ok(seen) =
            tokio::time::timeout(Duration::ZERO, transcripts.written_beyond(self.seen)).await
        {
            self.seen = seen;
        }
        let followed = match self.followed {
            Some(followed) => followed,
            None => {
                let opened = Arc::clone(index);
                self.run(move || opened.followed()).await?
            }
        };
        let transcripts = &self.shared.engine.transcripts;
        let read = transcripts.written_after(followed.number, STEP_TURNS, STEP_BYTES);
        let written = read.await?;
        if self.followed.is_none()
            && !self
                .is_of_this_journal(followed, written.last_number)
                .await?
        {
            warn!("the transcript index belongs to another journal and is rebuilt");
            self.leave();
            return Ok(());
        }
        self.followed = Some(followed);
        if let Some(last) = written.turns.last() {
            let now = JournalCursor {
                number: last.number,
                turn: Some((last.generation, last.seq)),
            };
            self.add(index, written.turns, now).await?;
            self.followed = Some(now);
        }
        let reached = self.followed.map_or(0, |followed| followed.number);
        let distance = written.last_number.saturating_sub(reached);
        // The last turns may have been deleted; then there is nothing more to read.
        let has_more_turns = distance > 0 && reached > followed.number;
        let behind = if has_more_turns { distance } else { 0 };
        self.shared.counters.behind.store(behind, Ordering::Relaxed);
        let (taken, has_more_changes) = self.take_changed(index, reached).await?;
        self.has_more = has_more_turns || has_more_changes;
        // Turns written before the journal was read have no higher number.
        let goal = self.goal.get_or_insert(CatchUpGoal {
            seen: self.seen,
            number: written.last_number,
            change: written.last_change,
        });
        let has_turns = !has_more_turns || reached >= goal.number;
        let has_changes = !has_more_changes || taken >= goal.change;
        let change = if self.has_more { goal.seen } else { self.seen };
        if has_turns && has_changes {
            self.goal = None;
            self.shared.reached.send_replace(Some(change));
        }
        Ok(())
    }

    /// Whether the journal is the one that was followed.
    ///
    /// After an older journal was restored, it is shorter, or has another turn at the cursor.
    async fn is_of_this_journal(
        &self,
        followed: JournalCursor,
        last_number: u64,
    ) -> Result<bool, SearchError> {
        let transcripts = &self.shared.engine.transcripts;
        let turns = transcripts.written_at(vec![followed.number]).await?;
        let same = |turn: &WrittenTurn| Some((turn.generation, turn.seq)) == followed.turn;
        Ok(followed.number <= last_number && turns.iter().all(same))
    }

    async fn add(
        &self,
        index: &Arc<Index>,
        written: Vec<WrittenTurn>,
        followed: JournalCursor,
    ) -> Result<(), SearchError> {
        let (opened, tools) = self.opened(index, written, u64::MAX).await?;
        let mut generations: Vec<Generation> =
            opened.iter().map(|(turn, _)| turn.generation).collect();
        generations.sort_unstable();
        generations.dedup();
        let owners = self.shared.engine.transcripts.owners(generations).await?;
        let index = Arc::clone(index);
        let added = self
            .run(move || index.add(&new_turns(opened, &tools), owners, followed))
            .await? as u64;
        self.shared
            .counters
            .indexed
            .fetch_add(added, Ordering::Relaxed);
        Ok(())
    }

    /// Reindexes some of the changed turns up to number `reached`.
    ///
    /// Later ones are read in their current version anyway.
    ///
    /// Returns the last change handled, and whether there may be more.
    async fn take_changed(
        &mut self,
        index: &Arc<Index>,
        reached: u64,
    ) -> Result<(u64, bool), SearchError> {
        let mut changes = match self.changes {
            Some(changes) => changes,
            None => {
                let opened = Arc::clone(index);
                let cleaned = self.run(move || opened.changes()).await?;
                Changes {
                    taken: cleaned,
                    cleaned,
                }
            }
        };
        let transcripts = &self.shared.engine.transcripts;
        let changed = transcripts
            .changed_after(changes.taken, STEP_CHANGES)
            .await?;
        for change in &changed {
            if change.number <= reached {
                self.replace(index, change).await?;
            }
            changes.taken = change.change;
        }
        self.changes = Some(changes);
        Ok((changes.taken, changed.len() >= STEP_CHANGES))
    }

    async fn replace(&self, index: &Arc<Index>, change: &TurnChange) -> Result<(), SearchError> {
        let (number, generation) = (change.number, change.generation);
        let transcripts = &self.shared.engine.transcripts;
        let written = transcripts.written_at(vec![number]).await?;
        let (opened, tools) = self.opened(index, written, number).await?;
        let index = Arc::clone(index);
        let replaced = self.run(move || {
            let new = new_turns(opened, &tools);
            index.replace(number, generation, new.first())
        });
        replaced.await?;
        Ok(())
    }

    /// Runs one step of clearing the old words of changed turns from the pages.
    ///
    /// A run covers all changes made before it.
    ///
    /// The last step reads the whole file. Its duration is returned and delays only the next
    /// cleaning, not indexing.
    async fn clean_changed(&mut self, index: &Arc<Index>) -> Result<Duration, SearchError> {
        let Some(changes) = self.changes.filter(|_| self.is_unclean()) else {
            return Ok(Duration::ZERO);
        };
        if self.cleaning.is_none() && self.now_ms() < self.next_cleaning_ms {
            return Ok(Duration::ZERO);
        }
        let is_first = self.cleaning.is_none();
        let cleaned = *self.cleaning.get_or_insert(changes.taken);
        let opened = Arc::clone(index);
        if self.run(move || opened.merge_step(is_first)).await? {
            return Ok(Duration::ZERO);
        }
        self.cleaning = None;
        let watch = Stopwatch::start();
        let opened = Arc::clone(index);
        if self.run(move || opened.clean()).await? {
            let opened = Arc::clone(index);
            self.run(move || opened.save_changes(cleaned)).await?;
            self.changes = Some(Changes { cleaned, ..changes });
        }
        let took = watch.elapsed();
        let pause = self.shared.config.rest_after(took);
        let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.next_cleaning_ms = self.now_ms().saturating_add(pause_ms);
        Ok(took)
    }

    /// Whether pages may contain old words of changed turns.
    fn is_unclean(&self) -> bool {
        self.changes
            .is_some_and(|changes| changes.taken > changes.cleaned)
    }

    /// Decodes turns, and finds the names of the tools they involve.
    async fn opened(
        &self,
        index: &Arc<Index>,
        written: Vec<WrittenTurn>,
        before: u64,
    ) -> Result<(DecodedTurns, HashMap<Generation, ToolNames>), SearchError> {
        let blocking = self.shared.engine.blocking;
        let opened = blocking.run(move || open(&written)).await?;
        let tools = self.tool_names(index, &opened, before).await?;
        Ok((opened, tools))
    }

    /// Finds the tool names for results in these turns.
    ///
    /// Most calls are in the same batch. The others are a few turns earlier in the journal.
    async fn tool_names(
        &self,
        index: &Arc<Index>,
        turns: &[(TurnPosition, SearchedTurn)],
        before: u64,
    ) -> Result<HashMap<Generation, ToolNames>, SearchError> {
        let mut names: HashMap<Generation, ToolNames> = HashMap::new();
        for (place, turn) in turns {
            turn.note_calls(names.entry(place.generation).or_default());
        }
        let is_open = |(place, turn): &&(TurnPosition, SearchedTurn)| {
            let known = names.get(&place.generation);
            let is_known = |id: &String| known.is_some_and(|names| names.contains_key(id));
            !turn.answers.iter().all(is_known)
        };
        let mut open: Vec<Generation> = turns
            .iter()
            .filter(is_open)
            .map(|(place, _)| place.generation)
            .collect();
        open.sort_unstable();
        open.dedup();
        for generation in open {
            let index = Arc::clone(index);
            let earlier = self.run(move || index.newest_turns(generation, before, CALL_TURNS));
            let numbers = earlier.await?;
            let earlier = self.shared.engine.transcripts.written_at(numbers).await?;
            let known = names.entry(generation).or_default();
            for (_, turn) in self
                .shared
                .engine
                .blocking
                .run(move || self::open(&earlier))
                .await?
            {
                turn.note_calls(known);
            }
        }
        Ok(names)
    }

    /// Runs one step of removing what the journal has deleted.
    ///
    /// Only generations old enough to be past their retention are checked.
    async fn forget(&mut self, index: &Arc<Index>) -> Result<(), SearchError> {
        let engine = &self.shared.engine;
        let (after, until) = match self.forgetting {
            Some(round) => round,
            None if self.now_ms() < self.next_round_ms => return Ok(()),
            None => {
                let retention = i64::try_from(engine.retention().as_millis()).unwrap_or(i64::MAX);
                let until_ms = engine.machine.now().wall.as_ms().saturating_sub(retention);
                (Generation::new(0, 0), Generation::new(until_ms, u128::MAX))
            }
        };
        let older_index = Arc::clone(index);
        let old = self.run(move || older_index.generations(after, until, FORGET_GENERATIONS));
        let generations = old.await?;
        let last = generations.last().copied();
        let owners = engine.transcripts.owners(generations.clone()).await?;
        let is_kept = |name: &Generation| owners.iter().any(|owner| owner.generation == *name);
        let mut turns_left = FORGET_TURNS;
        for gone in generations.into_iter().filter(|name| !is_kept(name)) {
            let index = Arc::clone(index);
            let forgotten = self.run(move || index.forget(gone, turns_left)).await?;
            let counters = &self.shared.counters;
            counters
                .forgotten
                .fetch_add(forgotten as u64, Ordering::Relaxed);
            turns_left -= forgotten;
            if turns_left == 0 {
                // It may have more turns, so the next step starts with it again.
                self.forgetting = Some((before(gone), until));
                return Ok(());
            }
        }
        self.forgetting = last.map(|last| (last, until));
        if self.forgetting.is_none() {
            self.next_round_ms = self.now_ms().saturating_add(FORGET_EVERY_MS);
        }
        Ok(())
    }

    /// Runs a call of the index on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        action: impl FnOnce() -> IndexResult<T> + Send + 'static,
    ) -> Result<T, SearchError> {
        Ok(self.shared.engine.blocking.run(action).await??)
    }
}

impl Worker for Follower {
    fn name(&self) -> &'static str {
        "search-follower"
    }

    async fn wait(&mut self) {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_zero() && self.have_sessions_changed().await {
            tokio::time::sleep(rest).await;
        }
        if self.has_more || self.cleaning.is_some() || self.forgetting.is_some() {
            return;
        }
        let shared = &self.shared;
        let mut due_ms = self.next_round_ms;
        if self.is_unclean() {
            due_ms = due_ms.min(self.next_cleaning_ms);
        }
        let until_due = due_ms.saturating_sub(self.now_ms());
        tokio::select! {
            _ = shared.engine.transcripts.written_beyond(self.seen) => {
                // Combine many changes into one transaction.
                let _ = tokio::time::timeout(GATHER, shared.wanted.notified()).await;
            }
            () = shared.wanted.notified() => {}
            () = tokio::time::sleep(Duration::from_millis(until_due)) => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let watch = Stopwatch::start();
        let done = self.work().await;
        let apart = done.as_ref().copied().unwrap_or_default();
        let work = watch.elapsed().saturating_sub(apart);
        self.rest = self.shared.config.rest_after(work);
        match done {
            Ok(_) => Ok(()),
            Err(SearchError::Failed { cause }) if cause.is_damage() => {
                warn!(%cause, "the transcript index is damaged and is rebuilt");
                self.leave();
                Ok(())
            }
            Err(error) => Err(WorkError(format!("{error:?}"))),
        }
    }
}

/// Decoded turns.
type DecodedTurns = Vec<(TurnPosition, SearchedTurn)>;

/// Converts decoded turns into index entries.
fn new_turns(opened: DecodedTurns, tools: &HashMap<Generation, ToolNames>) -> Vec<NewTurn> {
    let none = ToolNames::new();
    let turns = opened.into_iter().map(|(place, turn)| {
        let names = tools.get(&place.generation).unwrap_or(&none);
        NewTurn {
            number: place.number,
            generation: place.generation,
            role: turn.role,
            at: turn.at,
            tools: turn.tools(names).map(str::to_owned).collect(),
            text: turn.text,
        }
    });
    turns.collect()
}

/// Position of a turn in the journal, and its generation.
#[derive(Clone, Copy, Debug)]
struct TurnPosition {
    number: u64,
    generation: Generation,
}

/// Decodes turns. Damaged ones are skipped.
fn open(written: &[WrittenTurn]) -> DecodedTurns {
    let opened = written.iter().filter_map(|written| {
        let place = TurnPosition {
            number: written.number,
            generation: written.generation,
        };
        Some((place, SearchedTurn::open(written.seq, &written.content)?))
    });
    opened.collect()
}

/// Returns the generation id directly before this one.
fn before(generation: Generation) -> Generation {
    let number = u128::from_be_bytes(generation.to_bytes());
    Generation::from_bytes(number.saturating_sub(1).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_returns_the_preceding_generation() {
        let generation = Generation::new(5, 7);
        assert!(before(generation) < generation);
        assert_eq!(before(generation), Generation::new(5, 6));
    }
}
