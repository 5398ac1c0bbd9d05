//! The worker that keeps the index up: it follows the journal, step by step, and takes out what
//! the journal has forgotten. Calls never wait for it; while sessions change it rests in
//! between, so that they have the processor.
//!
//! It takes in what a second brought, or at once where somebody searches. Words of a turn that is
//! past its retention leave the file with a later merge of FTS5; an erasure merges all segments,
//! because FTS5 has no other way to take words out of a table without content.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memoird_core::ids::Generation;
use memoird_engine::{Stopwatch, WorkError, Worker};
use memoird_store::{TurnChange, WrittenTurn};
use tracing::{info, warn};

use crate::error::SearchError;
use crate::index::{Answer, Followed, Index, NewTurn};
use crate::locked;
use crate::search::Shared;
use crate::turn_text::{SearchedTurn, ToolNames};

/// One step takes in at most so many turns, and no further one after so many bytes.
const STEP_TURNS: usize = 1_024;
const STEP_BYTES: usize = 2 << 20;
/// Turns that say something else are asked for so many at once.
const STEP_CHANGES: usize = 64;
/// After a change so much time may pass until it is taken in with others, unless somebody
/// searches.
const GATHER: Duration = Duration::from_secs(1);
/// How often it is looked what the journal has forgotten.
const FORGET_EVERY_MS: u64 = 10 * 60 * 1_000;
/// Generations that are looked at in one step, and turns that are forgotten in one.
const FORGET_GENERATIONS: usize = 500;
const FORGET_TURNS: usize = 1_000;
/// The call of a result is looked for among so many turns before it.
const CALL_TURNS: usize = 16;

/// The worker.
#[derive(Debug)]
pub(crate) struct Follower {
    shared: Arc<Shared>,
    /// How far the index is; `None` until it was opened and found to be of this journal.
    followed: Option<Followed>,
    /// The last change of the journal that was known before it was read.
    seen: u64,
    /// A change that was known when the journal was read, and the number of its last turn then.
    goal: Option<(u64, u64)>,
    /// The last change of turns that was taken in; `None` until the index was opened.
    changes: Option<u64>,
    /// What to rest after the last step.
    rest: Duration,
    has_more: bool,
    /// A round of forgetting: where it is, and where it ends.
    forgetting: Option<(Generation, Generation)>,
    /// When the next round begins, on the engine's steady clock.
    next_round_ms: u64,
    /// An index that is to be removed as soon as no search reads it any more.
    leaving: Option<Arc<Index>>,
}

impl Follower {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            followed: None,
            seen: 0,
            goal: None,
            changes: None,
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

    /// True when sessions changed since the journal was last read.
    async fn have_sessions_changed(&self) -> bool {
        let change = self.shared.engine.transcripts.written_beyond(self.seen);
        tokio::time::timeout(Duration::ZERO, change).await.is_ok()
    }

    async fn work(&mut self) -> Result<(), SearchError> {
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
            return Ok(());
        }
        self.clean_changed(&index).await?;
        self.forget(&index).await
    }

    /// The index, opened or made where it is not; one that is damaged is removed first.
    async fn index(&mut self) -> Result<Arc<Index>, SearchError> {
        if self.shared.is_damaged.swap(false, Ordering::AcqRel) {
            self.leave();
        }
        self.remove_left().await?;
        if let Some(index) = locked(&self.shared.index).clone() {
            return Ok(index);
        }
        let (path, key) = (self.shared.path.clone(), self.shared.key);
        let (index, is_new) = self.run(move || Index::open(&path, key)).await?;
        if is_new {
            self.shared
                .counters
                .rebuilds
                .fetch_add(1, Ordering::Relaxed);
            info!("an index of what was said is made from the journal");
        }
        let index = Arc::new(index);
        *locked(&self.shared.index) = Some(Arc::clone(&index));
        Ok(index)
    }

    /// Takes the index away from whoever searches.
    fn leave(&mut self) {
        self.followed = None;
        self.goal = None;
        self.changes = None;
        self.shared.reached.send_replace(None);
        self.forgetting = None;
        self.has_more = true;
        if let Some(index) = locked(&self.shared.index).take() {
            self.leaving = Some(index);
        }
    }

    /// Removes an index that was taken away. SQLite finds the log by its name: no other file may
    /// have that name while anybody has this one open.
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

    /// Takes in what was written since.
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
            warn!("the index of what was said is of another journal; it is built anew");
            self.leave();
            return Ok(());
        }
        self.followed = Some(followed);
        if let Some(last) = written.turns.last() {
            let now = Followed {
                number: last.number,
                turn: Some((last.generation, last.seq)),
            };
            self.add(index, written.turns, now).await?;
            self.followed = Some(now);
        }
        let reached = self.followed.map_or(0, |followed| followed.number);
        let behind = written.last_number.saturating_sub(reached);
        // The last turns may be forgotten: then there is nothing more to read.
        self.has_more = behind > 0 && reached > followed.number;
        let behind = if self.has_more { behind } else { 0 };
        self.shared.counters.behind.store(behind, Ordering::Relaxed);
        self.take_changed(index, reached).await?;
        // What was written before the journal was read has no later number.
        let goal = self.goal.get_or_insert((self.seen, written.last_number));
        let is_reached = reached >= goal.1;
        let change = if self.has_more { goal.0 } else { self.seen };
        if is_reached || !self.has_more {
            self.goal = None;
            self.shared.reached.send_replace(Some(change));
        }
        Ok(())
    }

    /// False where the journal is not the one that was followed, as after an older one was put
    /// back: it never came so far, or has another turn there.
    async fn is_of_this_journal(
        &self,
        followed: Followed,
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
        followed: Followed,
    ) -> Result<(), SearchError> {
        let (opened, tools) = self.opened(index, written, u64::MAX).await?;
        let mut generations: Vec<Generation> =
            opened.iter().map(|(turn, _)| turn.generation).collect();
        generations.sort_unstable();
        generations.dedup();
        let owners = self.shared.engine.transcripts.owners(generations).await?;
        let index = Arc::clone(index);
        let added = self.run(move || index.add(&new_turns(opened, &tools), owners, followed));
        let added = added.await? as u64;
        self.shared
            .counters
            .indexed
            .fetch_add(added, Ordering::Relaxed);
        Ok(())
    }

    /// Takes in again what says something else by now, of the turns up to this number: later ones
    /// were read as they are, or will be.
    async fn take_changed(&mut self, index: &Arc<Index>, reached: u64) -> Result<(), SearchError> {
        let after = match self.changes {
            Some(change) => change,
            None => {
                let opened = Arc::clone(index);
                self.run(move || opened.changes()).await?
            }
        };
        self.changes = Some(after);
        loop {
            let after = self.changes.unwrap_or_default();
            let transcripts = &self.shared.engine.transcripts;
            let changed = transcripts.changed_after(after, STEP_CHANGES).await?;
            for change in &changed {
                if change.number <= reached {
                    self.replace(index, change).await?;
                }
                self.changes = Some(change.change);
            }
            if changed.len() < STEP_CHANGES {
                return Ok(());
            }
        }
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

    /// Clears the words of turns that say something else from the pages, once for all that came.
    async fn clean_changed(&self, index: &Arc<Index>) -> Result<(), SearchError> {
        let opened = Arc::clone(index);
        let cleaned = self.run(move || opened.changes()).await?;
        let Some(change) = self.changes.filter(|change| *change > cleaned) else {
            return Ok(());
        };
        let mut is_first = true;
        loop {
            let opened = Arc::clone(index);
            if !self.run(move || opened.merge_step(is_first)).await? {
                break;
            }
            is_first = false;
        }
        let opened = Arc::clone(index);
        if self.run(move || opened.clean()).await? {
            let opened = Arc::clone(index);
            self.run(move || opened.save_changes(change)).await?;
        }
        Ok(())
    }

    /// Reads turns, and the tools that they are about.
    async fn opened(
        &self,
        index: &Arc<Index>,
        written: Vec<WrittenTurn>,
        before: u64,
    ) -> Result<(Opened, HashMap<Generation, ToolNames>), SearchError> {
        let blocking = self.shared.engine.blocking;
        let opened = blocking.run(move || open(&written)).await?;
        let tools = self.tool_names(index, &opened, before).await?;
        Ok((opened, tools))
    }

    /// The tools of the calls that turns have results of: most were made a moment before, and
    /// the others stand not far before them in the journal.
    async fn tool_names(
        &self,
        index: &Arc<Index>,
        turns: &[(Place, SearchedTurn)],
        before: u64,
    ) -> Result<HashMap<Generation, ToolNames>, SearchError> {
        let mut names: HashMap<Generation, ToolNames> = HashMap::new();
        for (place, turn) in turns {
            turn.note_calls(names.entry(place.generation).or_default());
        }
        let is_open = |(place, turn): &&(Place, SearchedTurn)| {
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

    /// One step of a round in which the index forgets what the journal has forgotten. Only what
    /// began so long ago that its retention may be over is looked at.
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
        let old = Arc::clone(index);
        let old = self.run(move || old.generations(after, until, FORGET_GENERATIONS));
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
                // It may have more turns: the next step looks at it again.
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

    /// Runs a call of the index where it may block.
    async fn run<T: Send + 'static>(
        &self,
        action: impl FnOnce() -> Answer<T> + Send + 'static,
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
        if self.has_more || self.forgetting.is_some() {
            return;
        }
        let shared = &self.shared;
        let until_round = self.next_round_ms.saturating_sub(self.now_ms());
        tokio::select! {
            _ = shared.engine.transcripts.written_beyond(self.seen) => {
                // Many changes become one transaction.
                let _ = tokio::time::timeout(GATHER, shared.wanted.notified()).await;
            }
            () = shared.wanted.notified() => {}
            () = tokio::time::sleep(Duration::from_millis(until_round)) => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let watch = Stopwatch::start();
        let done = self.work().await;
        self.rest = self.shared.config.rest_after(watch.elapsed());
        match done {
            Ok(()) => Ok(()),
            Err(SearchError::Failed { cause }) if cause.is_damage() => {
                warn!(%cause, "the index of what was said is damaged; it is built anew");
                self.leave();
                Ok(())
            }
            Err(error) => Err(WorkError(format!("{error:?}"))),
        }
    }
}

/// Turns that were read.
type Opened = Vec<(Place, SearchedTurn)>;

/// What the index takes in of them.
fn new_turns(opened: Opened, tools: &HashMap<Generation, ToolNames>) -> Vec<NewTurn> {
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

/// Where a turn is.
#[derive(Clone, Copy, Debug)]
struct Place {
    number: u64,
    generation: Generation,
}

/// Reads encoded turns. One that is damaged is left out.
fn open(written: &[WrittenTurn]) -> Opened {
    let opened = written.iter().filter_map(|written| {
        let place = Place {
            number: written.number,
            generation: written.generation,
        };
        Some((place, SearchedTurn::open(written.seq, &written.content)?))
    });
    opened.collect()
}

/// The name just before this one.
fn before(generation: Generation) -> Generation {
    let number = u128::from_be_bytes(generation.to_bytes());
    Generation::from_bytes(number.saturating_sub(1).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_looks_again_at_what_it_has_begun_to_forget() {
        let generation = Generation::new(5, 7);
        assert!(before(generation) < generation);
        assert_eq!(before(generation), Generation::new(5, 6));
    }
}
