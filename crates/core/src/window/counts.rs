//! Cached token counts of turns.
//!
//! They are separate from the turns, because most sessions are never asked for a window.

use std::collections::{BTreeMap, VecDeque};

use crate::history::{TurnRecord, View};
use crate::turn::Role;

/// Identifies a way of counting tokens, in all processes. Counts of the same scale are reusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaleId(pub u64);

/// Token counts of a history's turns on one scale.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    pub(super) scale: ScaleId,
    /// Seq of the first entry of `tail`.
    base: u64,
    /// Counts by seq, 0 for turns that were not counted.
    tail: VecDeque<u32>,
    /// Sum of `tail`.
    tail_tokens: u64,
    /// Counts of separately stored turns, and of turns of the tail before `older_from`.
    apart: BTreeMap<u64, u32>,
    /// From this seq on, the tail is counted without gaps, or about to be.
    older_from: u64,
    /// Turns before `base` that windows show regardless of their position.
    held: AlwaysShown,
    /// Start of the history's tail. Earlier turns are stored separately.
    front: u64,
    /// First user turn, which is stored separately even if the tail starts before it.
    anchor: Option<u64>,
    /// Number of counts added or changed, except for turns after all others.
    pub(super) recounts: u64,
}

/// Turns of the tail that windows show regardless of their position.
#[derive(Clone, Debug, Default)]
struct AlwaysShown {
    /// Pinned turns and system turns that are not counted, ascending.
    seqs: Vec<u64>,
    /// [`View::reshaped`] at the time of the search.
    reshaped: Option<u64>,
    /// Last user turn, or 0 if unknown.
    request: u64,
}

impl Counts {
    pub(super) fn new(scale: ScaleId, view: &View<'_>) -> Self {
        Self {
            scale,
            base: view.last_seq + 1,
            tail: VecDeque::new(),
            tail_tokens: 0,
            apart: BTreeMap::new(),
            older_from: view.last_seq + 1,
            held: AlwaysShown::default(),
            front: view.front_seq(),
            anchor: view.anchor().map(|anchor| anchor.seq),
            recounts: 0,
        }
    }

    pub(super) fn get(&self, seq: u64) -> Option<u32> {
        let index = seq
            .checked_sub(self.base)
            .and_then(|index| usize::try_from(index).ok());
        let in_tail = index
            .and_then(|index| self.tail.get(index))
            .copied()
            .filter(|&tokens| tokens > 0);
        in_tail.or_else(|| self.apart.get(&seq).copied())
    }

    /// Stores the tokens of a turn, at least 1.
    pub(super) fn put(&mut self, seq: u64, tokens: u64) {
        let tokens = u32::try_from(tokens.max(1)).unwrap_or(u32::MAX);
        let is_next = seq >= self.base + self.tail.len() as u64;
        if seq < self.front.max(self.older_from) || Some(seq) == self.anchor {
            let before = self.apart.insert(seq, tokens);
            self.recounts += u64::from(!is_next && before != Some(tokens));
            return;
        }
        while seq < self.base {
            self.tail.push_front(0);
            self.base -= 1;
        }
        let index = usize::try_from(seq - self.base).unwrap_or(usize::MAX);
        while self.tail.len() <= index {
            self.tail.push_back(0);
        }
        let before = std::mem::replace(&mut self.tail[index], tokens);
        self.recounts += u64::from(!is_next && before != tokens);
        self.tail_tokens = self.tail_tokens + u64::from(tokens) - u64::from(before);
    }

    /// Removes turns that the history no longer shows.
    pub(super) fn forget(&mut self, view: &View<'_>) {
        let front = view.front_seq();
        self.anchor = view.anchor().map(|anchor| anchor.seq);
        if front == self.front {
            return;
        }
        self.front = front;
        while self.base < front
            && let Some(tokens) = self.tail.pop_front()
        {
            if tokens > 0 {
                self.apart.insert(self.base, tokens);
            }
            self.tail_tokens -= u64::from(tokens);
            self.base += 1;
        }
        self.base = self.base.max(front);
        self.apart.retain(|&seq, _| view.record(seq).is_some());
    }

    /// Removes the turns after `after_seq`. `last_seq` is the last assigned seq.
    pub(super) fn rewind(&mut self, after_seq: u64, last_seq: u64) {
        while self.base + self.tail.len() as u64 > after_seq + 1
            && let Some(tokens) = self.tail.pop_back()
        {
            self.tail_tokens -= u64::from(tokens);
        }
        if self.tail.is_empty() {
            self.base = last_seq + 1;
        }
        self.apart.retain(|&seq, _| seq <= after_seq);
        self.held = AlwaysShown::default();
        self.recounts += 1;
    }

    /// Turns without a count that a window with this budget may read, ascending.
    ///
    /// Of the older turns, only those that the window shows regardless of their position.
    pub(super) fn missing<'a>(&mut self, view: &View<'a>, budget: u64) -> Vec<&'a TurnRecord> {
        let newer = view.tail_from(self.base + self.tail.len() as u64);
        let apart = view
            .apart
            .iter()
            .copied()
            .filter(|record| self.get(record.seq).is_none());
        let mut missing: Vec<&TurnRecord> = apart.collect();
        if view.front_seq() < self.base {
            let mut newest = newer.clone().rev();
            if let Some(request) = newest.find(|record| record.begins_exchange()) {
                self.held.request = request.seq;
            }
            let older = self.older(view, budget).into_iter();
            missing.extend(older.filter(|record| self.get(record.seq).is_none()));
        }
        missing.extend(newer);
        missing
    }

    /// Turns of the tail before `base` that such a window reads, ascending.
    ///
    /// At least the exchange in progress, plus the turns shown regardless of their position.
    fn older<'a>(&mut self, view: &View<'a>, budget: u64) -> Vec<&'a TurnRecord> {
        self.held.look_for(view, self.base);
        let mut seqs = std::mem::take(&mut self.held.seqs);
        seqs.retain(|&seq| self.get(seq).is_none());
        self.held.seqs = seqs;
        let request = self.held.request;
        let mut room = budget.saturating_mul(2).saturating_sub(self.tail_tokens);
        let mut older: Vec<&TurnRecord> = view
            .tail_before(self.base)
            .rev()
            .take_while(|record| {
                let is_looked_at = room > 0 || record.seq >= request;
                room = room.saturating_sub(record.tokens.into());
                is_looked_at
            })
            .collect();
        self.older_from = older.last().map_or(self.base, |oldest| oldest.seq);
        let held = self
            .held
            .seqs
            .iter()
            .copied()
            .chain(view.current_unit())
            .filter(|&seq| seq < self.older_from);
        older.extend(held.filter_map(|seq| view.record(seq)));
        older.sort_unstable_by_key(|record| record.seq);
        older.dedup_by_key(|record| record.seq);
        older
    }
}

impl AlwaysShown {
    /// Searches the turns before `end`, unless nothing has changed since the last search.
    fn look_for(&mut self, view: &View<'_>, end: u64) {
        if self.request == 0 {
            self.request = view.request().map_or(0, |request| request.seq);
        }
        if self.reshaped != Some(view.reshaped()) {
            let is_held =
                |record: &&TurnRecord| record.role == Role::System || view.is_kept(record);
            let held = view.tail_before(end).filter(is_held);
            self.seqs = held.map(|record| record.seq).collect();
            self.reshaped = Some(view.reshaped());
        }
    }
}
