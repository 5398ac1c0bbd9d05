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
    goal: Option<Goal>,
    /// Turns that say something else; `None` until the index was opened.
    changes: Option<Changes>,
    /// The last of these changes whose old words are gone once the merge under way is over.
    cleaning: Option<u64>,
    /// Before this the pages are not cleared again, on the engine's steady clock.
    next_cleaning_ms: u64,
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

/// What the index is to have, whatever is said meanwhile.
#[derive(Clone, Copy, Debug)]
struct Goal {
    /// A change of the journal that was known when it was read.
    seen: u64,
    /// The number of its last turn then.
    number: u64,
    /// The last of its turns then that said something else.
    change: u64,
}

/// How far turns that say something else were followed.
#[derive(Clone, Copy, Debug)]
struct Changes {
    /// The last that was taken in.
    taken: u64,
    /// The last whose old words are gone from the pages.
    cleaned: u64,
}

impl Follower {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
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

    /// True when sessions changed since the journal was last read.
    async fn have_sessions_changed(&self) -> bool {
        let change = self.shared.engine.transcripts.written_beyond(self.seen);
        tokio::time::timeout(Duration::ZERO, change).await.is_ok()
    }

    /// Does one step; gives what it took to read the whole file, where it did.
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
        self.cleaning = None;
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
        let has_more_turns = behind > 0 && reached > followed.number;
        let behind = if has_more_turns { behind } else { 0 };
        self.shared.counters.behind.store(behind, Ordering::Relaxed);
        let (taken, has_more_changes) = self.take_changed(index, reached).await?;
        self.has_more = has_more_turns || has_more_changes;
        // What was written before the journal was read has no later number.
        let goal = self.goal.get_or_insert(Goal {
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

    /// Takes in again some of what says something else by now, of the turns up to this number:
    /// later ones were read as they are, or will be. Gives how far it came, and whether there may
    /// be more.
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
        let changed = transcripts.changed_after(changes.taken, STEP_CHANGES);
        let changed = changed.await?;
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

    /// One step of clearing the words of turns that say something else from the pages, once for
    /// all that came. Gives what the last one took, which reads the whole file: nothing that is
    /// said has to wait for as long as that asks for, but the next clearing has.
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

    /// True while pages may have old words of turns that say something else.
    fn is_unclean(&self) -> bool {
        self.changes
            .is_some_and(|changes| changes.taken > changes.cleaned)
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
                // Many changes become one transaction.
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
