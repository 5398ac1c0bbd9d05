//! The bounded history of a generation, which drops whole units first in, first out (FIFO).
//!
//! A unit is an assistant turn with tool uses and all turns with their results, plus all turns
//! whose parts reference each other ([`crate::ties`]). Only a unit in progress that is too large
//! loses its oldest calls.
//!
//! Three kinds of turns are exempt:
//!
//! - the first user turn, called the anchor, which is stored separately and never dropped,
//! - pinned turns and their units,
//! - the last user turn, called the request, until the next one, if there is room for it.
//!
//! Pinned turns count toward the caps, the anchor does not. Besides the anchor, a history only
//! exceeds its caps by a unit or request that is larger than the caps.

mod live_set;
mod plan;
mod record;
mod rewind;
#[cfg(test)]
mod tests;
mod update;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::error::CoreError;
use crate::limits::Limits;
use crate::nonce::Nonce;
use crate::seq_ranges::SeqRanges;
use crate::turn::Role;

pub use live_set::{KnownTurns, LiveSet, Totals};
pub use plan::Arrival;
use plan::{Plan, Target};
pub use record::TurnRecord;
pub use rewind::REWOUND_BEFORE_MAX;
pub(crate) use view::View;

#[derive(Clone, Debug, Default)]
pub struct History {
    anchor: Option<TurnRecord>,
    tail: VecDeque<TurnRecord>,
    /// Totals of the tail and the pinned turns, which count toward the caps. The anchor does not.
    capped: Totals,
    aside: Option<Box<SparseState>>,
    /// See [`View::reshaped`].
    reshaped: u64,
}

/// Data that only histories with pins, tool calls or rewinds need.
#[derive(Clone, Debug, Default)]
struct SparseState {
    /// Held turns and the request that FIFO has passed. All precede the tail.
    pinned: Vec<TurnRecord>,
    /// System turns from before the anchor that were dropped from the history.
    preamble: Vec<TurnRecord>,
    /// Seqs after the tail's front that were dropped with their unit.
    holes: BTreeSet<u64>,
    /// Calls without a result by id, with the seqs of their turns, oldest first.
    open: BTreeMap<Box<str>, Vec<u64>>,
    /// Ids of calls that were dropped without a result, oldest first.
    departed: VecDeque<Box<str>>,
    /// Whether `departed` exceeded its limit and lost ids.
    ///
    /// If so, an unknown result is treated as late, so that no valid result is rejected.
    departed_overflow: bool,
    /// Seqs of rewound turns: those after the tail's front, and the newest before it.
    rewound: SeqRanges,
}

impl History {
    /// Appends turns atomically and makes room. Returns the number of dropped turns.
    ///
    /// # Errors
    /// [`CoreError::ToolUseUnknown`] or [`CoreError::PinnedTooMany`].
    pub fn append(
        &mut self,
        arrivals: Vec<Arrival<'_>>,
        limits: &Limits,
    ) -> Result<u64, CoreError> {
        let plan = Plan::make(self, &arrivals, limits)?;
        let before = self.count() + arrivals.len();
        let is_new = arrivals
            .iter()
            .any(|(record, results)| record.role == Role::User && results.is_empty());
        let mut late = Vec::new();
        let ties = plan.targets.into_iter().zip(plan.joined);
        for ((record, results), (targets, joined)) in arrivals.into_iter().zip(ties) {
            if targets.contains(&Target::Departed) {
                late.push(record.seq);
            }
            self.place(record, results, &targets, &joined);
        }
        if is_new && let Some(passed) = self.passed_request() {
            self.remove_unit(passed, limits);
        }
        // Only now are all units complete, so they can be dropped as a whole.
        for seq in late {
            self.remove_unit(seq, limits);
        }
        self.set_held(plan.held, true);
        if self.pinned().len() > limits.pinned_turns_effective() {
            self.release_pins(limits);
        }
        self.make_room(limits);
        Ok((before - self.count()) as u64)
    }

    /// Applies limits that may have been lowered. Returns the number of dropped turns.
    ///
    /// Releases the oldest pins first, so that pins always leave room for the conversation. Then
    /// drops the oldest units.
    pub fn trim(&mut self, limits: &Limits) -> u64 {
        let before = self.count();
        self.release_pins(limits);
        self.make_room(limits);
        (before - self.count()) as u64
    }

    fn release_pins(&mut self, limits: &Limits) {
        let turns_max = limits.pinned_turns_effective();
        let bytes_max = limits.pinned_bytes_effective();
        loop {
            let held = || self.capped_turns().filter(|record| record.held);
            let bytes: usize = held().map(|record| record.content.len()).sum();
            let are_few = held().count() <= turns_max && bytes <= bytes_max;
            let Some(oldest) = held().map(|record| record.seq).next().filter(|_| !are_few) else {
                return;
            };
            let unit = self.unit_of(oldest);
            // Only the pin retains a unit that FIFO has passed, so drop the whole unit.
            if self
                .pinned()
                .iter()
                .any(|record| unit.contains(&record.seq))
            {
                self.remove_unit(oldest, limits);
            } else {
                self.set_held(unit, false);
            }
        }
    }

    fn set_held(&mut self, seqs: impl IntoIterator<Item = u64>, is_held: bool) {
        for seq in seqs {
            let Some(record) = self.find_mut(seq) else {
                continue;
            };
            if std::mem::replace(&mut record.held, is_held) != is_held {
                self.reshaped += 1;
            }
        }
    }

    /// Drops the oldest units until the history is within its caps.
    fn make_room(&mut self, limits: &Limits) {
        while self.capped.turns > limits.max_history_turns as u64
            || self.capped.bytes > limits.max_history_bytes as u64
        {
            match self.tail.front() {
                None => break,
                Some(front) if front.held => self.pass_held_front(),
                Some(front) if self.is_preamble(front, limits) => self.pass_preamble_front(),
                Some(front) if self.is_request(front, limits) => self.pass_held_front(),
                Some(front) => self.remove_oldest(front.seq, limits),
            }
        }
    }

    /// Whether `front` is the last user turn and leaves half of the caps for its answer.
    fn is_request(&self, front: &TurnRecord, limits: &Limits) -> bool {
        if !front.begins_exchange() {
            return false;
        }
        let pinned = self.pinned().iter().map(|record| record.content.len());
        let last = self
            .tail
            .iter()
            .rev()
            .find(|record| record.begins_exchange());
        pinned.sum::<usize>() + front.content.len() <= limits.max_history_bytes / 2
            && self.pinned().len() + 1 < limits.max_history_turns
            && last.is_some_and(|last| last.seq == front.seq)
    }

    /// The request, if FIFO has passed it.
    fn passed_request(&self) -> Option<u64> {
        let mut passed = self.pinned().iter();
        let request = passed.find(|record| !record.held && record.begins_exchange());
        request.map(|request| request.seq)
    }

    /// Drops the oldest unit.
    ///
    /// While that unit is in progress, drops the passed request instead, or the unit's oldest
    /// calls.
    fn remove_oldest(&mut self, front: u64, limits: &Limits) {
        let newest = self.tail.back().map_or(0, |newest| newest.seq);
        let is_current = |unit: &BTreeSet<u64>| unit.contains(&newest);
        let is_under_way = is_current(&self.unit_of(front));
        let passed = self.passed_request().filter(|_| is_under_way);
        let close = self.unit_by(front, TurnRecord::close_mates);
        if passed.is_none() && is_under_way && !is_current(&close) && self.can_split(&close) {
            self.split_off(&close, limits);
        } else {
            self.remove_unit(passed.unwrap_or(front), limits);
        }
    }

    /// Whether without these turns, references of later turns still resolve to the same turns.
    ///
    /// If an id occurs twice, they could resolve to an older turn.
    fn can_split(&self, close: &BTreeSet<u64>) -> bool {
        let mut leaving = close.iter().filter_map(|seq| self.find(*seq));
        leaving.all(|record| {
            let later = record.joined().filter_map(|seq| self.find(seq));
            let mut ids = later.flat_map(TurnRecord::refs);
            ids.all(|id| {
                let named = self.named_before(record.seq, id);
                named.is_none_or(|named| close.contains(&named))
            })
        })
    }

    /// Drops the oldest calls of a unit that is too large.
    fn split_off(&mut self, close: &BTreeSet<u64>, limits: &Limits) {
        for seq in close {
            let Some(record) = self.take(*seq) else {
                continue;
            };
            for mate in record.joined() {
                if let Some(mate) = self.find_mut(mate) {
                    mate.unjoin(*seq);
                }
            }
            self.depart(&record, limits);
        }
        self.forget_holes_before_tail();
    }

    /// Restores a history from its stored turns in ascending order and the rewound seqs.
    ///
    /// Leaves out results whose call is missing because it was damaged on disk.
    pub fn restore(kept: &LiveSet, rewound: SeqRanges, arrivals: Vec<Arrival<'_>>) -> Self {
        let mut history = Self::default();
        if !rewound.is_empty() {
            history.aside.get_or_insert_default().rewound = rewound;
        }
        let (mut pins, mut orphans) = (Vec::new(), Vec::new());
        for (record, results) in arrivals {
            if record.pinned {
                pins.push(record.seq);
            }
            if kept.anchor == Some(record.seq) {
                history.anchor = Some(record);
                continue;
            }
            if kept.preamble.contains(&record.seq) {
                history.aside.get_or_insert_default().preamble.push(record);
                continue;
            }
            let targets = history.targets_of(&record, results);
            if targets.contains(&Target::Departed) {
                orphans.push(record.seq);
            } else {
                let ids = record.refs().iter();
                let named = ids.filter_map(|id| history.named_before(record.seq, id));
                let mut joined = BTreeSet::from_iter(named.chain(history.led_by(&record, None)));
                if !record.takes_orphans && targets.contains(&Target::Unknown) {
                    joined.extend(history.opening_orphan());
                }
                history.place(record, results, &targets, &Vec::from_iter(joined));
            }
        }
        for pin in pins {
            history.set_held(history.unit_of(pin), true);
        }
        let floor = |tail: &VecDeque<TurnRecord>| tail.front().map(|front| front.seq);
        while floor(&history.tail).is_some_and(|front| front < kept.floor) {
            history.pass_held_front();
        }
        if !(kept.holes.is_empty() && kept.departed.is_empty()) || kept.departed_overflow {
            let aside = history.aside.get_or_insert_default();
            aside.holes = kept.holes.iter().copied().collect();
            aside.departed = kept.departed.iter().cloned().collect();
            aside.departed_overflow = kept.departed_overflow;
        }
        if !orphans.is_empty() {
            let aside = history.aside.get_or_insert_default();
            aside.holes.extend(orphans);
        }
        history.bound_rewound();
        history
    }

    /// Returns the retained turns up to `through_seq`, ascending.
    pub(crate) fn into_records(self, through_seq: u64) -> Vec<TurnRecord> {
        let aside = self.aside.map(|aside| *aside).unwrap_or_default();
        let apart = aside.preamble.into_iter().chain(aside.pinned);
        let all = self.anchor.into_iter().chain(apart).chain(self.tail);
        let mut records: Vec<TurnRecord> = all.filter(|record| record.seq <= through_seq).collect();
        records.sort_by_key(TurnRecord::seq);
        records
    }

    /// Returns the retained turns for a store. `last_seq` is the newest turn of the generation.
    pub fn live_set(&self, last_seq: u64) -> LiveSet {
        let mut kept = LiveSet {
            anchor: self.anchor.as_ref().map(|anchor| anchor.seq),
            floor: self.tail.front().map_or(last_seq + 1, |front| front.seq),
            ..LiveSet::default()
        };
        if let Some(aside) = &self.aside {
            kept.pinned = aside.pinned.iter().map(|record| record.seq).collect();
            kept.preamble = aside.preamble.iter().map(|record| record.seq).collect();
            kept.holes = aside.holes.iter().copied().collect();
            kept.departed = aside.departed.iter().cloned().collect();
            kept.departed_overflow = aside.departed_overflow;
        }
        kept
    }

    /// Totals including the anchor.
    pub fn totals(&self) -> Totals {
        self.anchor
            .iter()
            .fold(self.capped, |sum, anchor| sum.plus(anchor.totals()))
    }

    /// The turns after `after_seq`, oldest first.
    pub fn turns_after(&self, after_seq: u64) -> impl Iterator<Item = &TurnRecord> {
        let start = self.tail.partition_point(|record| record.seq <= after_seq);
        let mut rest = self
            .pinned()
            .iter()
            .chain(self.tail.range(start..))
            .peekable();
        let mut anchor = self.anchor.as_ref();
        std::iter::from_fn(move || match (anchor, rest.peek()) {
            (Some(first), Some(next)) if next.seq < first.seq => rest.next(),
            (Some(_), _) => anchor.take(),
            (None, _) => rest.next(),
        })
        .filter(move |record| record.seq > after_seq)
    }

    /// Records which turns contain the nonce of their session.
    pub(crate) fn note_mark(&mut self, nonce: Nonce) {
        self.reshaped += 1;
        let aside = self
            .aside
            .iter_mut()
            .flat_map(|aside| aside.pinned.iter_mut().chain(&mut aside.preamble));
        let all = self.anchor.iter_mut().chain(&mut self.tail).chain(aside);
        all.for_each(|record| record.note_mark(nonce));
    }

    fn pinned(&self) -> &[TurnRecord] {
        self.aside.as_ref().map_or(&[], |aside| &aside.pinned)
    }

    fn preamble(&self) -> &[TurnRecord] {
        self.aside.as_ref().map_or(&[], |aside| &aside.preamble)
    }

    fn capped_turns(&self) -> impl Iterator<Item = &TurnRecord> {
        self.pinned().iter().chain(&self.tail)
    }

    fn count(&self) -> usize {
        usize::from(self.anchor.is_some()) + self.pinned().len() + self.tail.len()
    }

    fn find(&self, seq: u64) -> Option<&TurnRecord> {
        // If no turn was dropped from the middle, the index follows from the seq.
        let front = self.tail.front().map_or(0, |front| front.seq);
        let guess = usize::try_from(seq.saturating_sub(front))
            .ok()
            .and_then(|index| self.tail.get(index));
        if guess.is_some_and(|guess| guess.seq == seq) {
            return guess;
        }
        match self.tail.binary_search_by_key(&seq, TurnRecord::seq) {
            Ok(index) => self.tail.get(index),
            Err(_) => self.pinned().get(self.pinned_index(seq)?),
        }
    }

    fn find_mut(&mut self, seq: u64) -> Option<&mut TurnRecord> {
        match self.tail.binary_search_by_key(&seq, TurnRecord::seq) {
            Ok(index) => self.tail.get_mut(index),
            Err(_) => {
                let index = self.pinned_index(seq)?;
                self.aside.as_mut()?.pinned.get_mut(index)
            }
        }
    }

    fn pinned_index(&self, seq: u64) -> Option<usize> {
        let found = self.pinned().binary_search_by_key(&seq, TurnRecord::seq);
        found.ok()
    }

    fn is_held(&self, seq: u64) -> bool {
        self.find(seq).is_some_and(|record| record.held)
    }

    /// The seq of the latest call `id` that waits for a result, not counting the latest `skip`.
    fn open_call(&self, id: &str, skip: usize) -> Option<u64> {
        let seqs = self.aside.as_ref()?.open.get(id)?;
        seqs.iter().rev().nth(skip).copied()
    }

    /// Finds the calls of a turn's results. The results must be valid.
    fn targets_of(&self, record: &TurnRecord, results: &[Box<str>]) -> Vec<Target> {
        // Results that came too late were never stored. Of those that opened the generation, the
        // oldest may have been dropped.
        let is_first = self.tail.is_empty() && self.pinned().is_empty();
        let is_opening = is_first || self.opening_orphan().is_some();
        let otherwise = if is_opening || record.takes_orphans {
            Target::Unknown
        } else {
            Target::Departed
        };
        let target = |index: usize| {
            let id = &results[index];
            let earlier = results[..index].iter().filter(|earlier| *earlier == id);
            let call = self.open_call(id, earlier.count());
            call.map_or(otherwise, Target::Use)
        };
        (0..results.len()).map(target).collect()
    }

    /// Whether at least `times` calls `id` were dropped without a result.
    fn has_departed(&self, id: &str, times: usize) -> bool {
        self.aside.as_ref().is_some_and(|aside| {
            let known = aside.departed.iter().filter(|departed| &***departed == id);
            aside.departed_overflow || known.take(times).count() == times
        })
    }

    /// The seqs of all turns in this turn's unit, ascending, including itself.
    fn unit_of(&self, seq: u64) -> BTreeSet<u64> {
        self.unit_by(seq, TurnRecord::mates)
    }

    /// Like [`Self::unit_of`], but follows only the given ties.
    fn unit_by<'a, I: Iterator<Item = u64>>(
        &'a self,
        seq: u64,
        mates: impl Fn(&'a TurnRecord) -> I,
    ) -> BTreeSet<u64> {
        let mut unit = BTreeSet::new();
        let mut rest = vec![seq];
        while let Some(seq) = rest.pop() {
            if let Some(record) = self.find(seq).filter(|_| unit.insert(seq)) {
                rest.extend(mates(record));
            }
        }
        unit
    }

    /// The latest turn before `seq` with a part of this id.
    fn named_before(&self, seq: u64, id: &str) -> Option<u64> {
        let end = self.tail.partition_point(|record| record.seq < seq);
        let tail = self.tail.range(..end).rev();
        let pinned = self.pinned().iter().rev();
        let mut newest = tail.chain(pinned.filter(|record| record.seq < seq));
        let named = newest.find(|record| record.is_named(id));
        named.map(TurnRecord::seq)
    }

    /// The turn directly before `record` if it ends in reasoning that led to `record`.
    ///
    /// That is `before`, or by default the newest turn.
    fn led_by(&self, record: &TurnRecord, before: Option<&TurnRecord>) -> Option<u64> {
        let newest = self.tail.back().or(self.pinned().last());
        let before = before.or(newest)?;
        let is_led = before.leads_on && record.role == Role::Assistant;
        (is_led && !self.has_gap(before.seq, record.seq)).then_some(before.seq)
    }

    /// The newest turn, if the generation so far has only results whose calls it never had.
    fn opening_orphan(&self) -> Option<u64> {
        let newest = self.tail.back().or(self.pinned().last());
        newest
            .filter(|newest| newest.is_opening_orphan())
            .map(TurnRecord::seq)
    }

    fn join(&mut self, named: u64, seq: u64) {
        for (one, other) in [(named, seq), (seq, named)] {
            let Some(record) = self.find_mut(one) else {
                continue;
            };
            if !record.joined().any(|joined| joined == other) {
                record.join(other);
            }
        }
    }

    /// Adds a turn at the end and ties it to the calls it answers and the turns it references.
    fn place(
        &mut self,
        mut record: TurnRecord,
        results: &[Box<str>],
        targets: &[Target],
        joined: &[u64],
    ) {
        if self.anchor.is_none() && record.role == Role::User && record.stands_alone() {
            self.anchor = Some(record);
            self.reshaped += 1;
            return;
        }
        for (id, target) in results.iter().zip(targets) {
            match *target {
                Target::Use(use_seq) => {
                    self.reshaped += u64::from(self.is_abandoned(use_seq));
                    record.note_answers(use_seq);
                    if let Some(caller) = self.find_mut(use_seq) {
                        caller.note_answered(id, record.seq);
                    }
                    self.close_call(id, use_seq);
                }
                Target::Departed => self.forget_departed(id),
                Target::Unknown => record.note_answers(record.seq),
            }
        }
        for id in record.open_uses() {
            let aside = self.aside.get_or_insert_default();
            aside.open.entry(id.clone()).or_default().push(record.seq);
        }
        let seq = record.seq;
        self.capped = self.capped.plus(record.totals());
        self.tail.push_back(record);
        joined.iter().for_each(|&named| self.join(named, seq));
    }

    /// Whether a turn other than its results follows the call.
    fn is_abandoned(&self, use_seq: u64) -> bool {
        let start = self.tail.partition_point(|record| record.seq <= use_seq);
        let apart = self
            .pinned()
            .iter()
            .chain(self.preamble())
            .chain(&self.anchor);
        let mut later = apart.chain(self.tail.range(start..));
        later.any(|later| later.seq > use_seq && !later.answers().contains(&use_seq))
    }

    fn close_call(&mut self, id: &str, use_seq: u64) {
        let Some(aside) = &mut self.aside else { return };
        let Some(seqs) = aside.open.get_mut(id) else {
            return;
        };
        if let Some(place) = seqs.iter().rposition(|&seq| seq == use_seq) {
            seqs.remove(place);
        }
        if seqs.is_empty() {
            aside.open.remove(id);
        }
    }

    fn forget_departed(&mut self, id: &str) {
        let Some(aside) = &mut self.aside else { return };
        if let Some(place) = aside.departed.iter().position(|departed| &**departed == id) {
            aside.departed.remove(place);
        }
    }

    fn pass_held_front(&mut self) {
        if let Some(front) = self.tail.pop_front() {
            self.aside.get_or_insert_default().pinned.push(front);
            self.reshaped += 1;
            self.forget_holes_before_tail();
        }
    }

    /// Whether `record` is a system turn from before the anchor and small enough to be retained.
    fn is_preamble(&self, record: &TurnRecord, limits: &Limits) -> bool {
        let all = self.preamble().iter().chain([record]);
        let bytes: usize = all.map(|record| record.content.len()).sum();
        self.leads(record) && bytes <= limits.pinned_bytes_effective()
    }

    fn pass_preamble_front(&mut self) {
        if let Some(front) = self.tail.pop_front() {
            self.capped = self.capped.minus(front.totals());
            self.aside.get_or_insert_default().preamble.push(front);
            self.reshaped += 1;
            self.forget_holes_before_tail();
        }
    }

    fn remove_unit(&mut self, seq: u64, limits: &Limits) {
        let is_alone = |front: &mut TurnRecord| front.seq == seq && front.stands_alone();
        if let Some(record) = self.tail.pop_front_if(is_alone) {
            self.depart(&record, limits);
        } else {
            for seq in self.unit_of(seq) {
                if let Some(record) = self.take(seq) {
                    self.depart(&record, limits);
                }
            }
        }
        self.forget_holes_before_tail();
    }

    /// Removes a turn from the tail or the pinned turns.
    fn take(&mut self, seq: u64) -> Option<TurnRecord> {
        if let Some(index) = self.pinned_index(seq) {
            self.reshaped += 1;
            return Some(self.aside.as_mut()?.pinned.remove(index));
        }
        let index = self.tail.binary_search_by_key(&seq, TurnRecord::seq).ok()?;
        if index > 0 {
            self.aside.get_or_insert_default().holes.insert(seq);
            self.reshaped += 1;
        }
        self.tail.remove(index)
    }

    fn depart(&mut self, record: &TurnRecord, limits: &Limits) {
        self.capped = self.capped.minus(record.totals());
        for id in record.open_uses() {
            self.close_call(id, record.seq);
            let aside = self.aside.get_or_insert_default();
            aside.departed.push_back(id.clone());
            if aside.departed.len() > limits.departed_calls {
                aside.departed.pop_front();
                aside.departed_overflow = true;
            }
        }
    }

    fn forget_holes_before_tail(&mut self) {
        self.bound_rewound();
        let Some(aside) = self.aside.as_mut().filter(|aside| !aside.holes.is_empty()) else {
            return;
        };
        match self.tail.front() {
            Some(front) => aside.holes = aside.holes.split_off(&front.seq),
            None => aside.holes.clear(),
        }
    }
}
