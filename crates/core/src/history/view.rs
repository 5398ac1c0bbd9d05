//! What windows read of a history: the turns that stand apart, and the tail from a seq on.

use super::{History, TurnRecord};
use crate::turn::Role;

/// So many turns at most are a system prompt.
const PREAMBLE_TURNS: u64 = 4;

/// A history as windows read it.
pub(crate) struct View<'a> {
    history: &'a History,
    /// The newest turn of the generation.
    pub(crate) last_seq: u64,
    /// The turns that first in, first out has passed and that windows go on showing: system
    /// turns from before the anchor, the anchor, pinned turns. Ascending.
    pub(crate) apart: Vec<&'a TurnRecord>,
}

impl History {
    /// This history for a window; `last_seq` is the generation's newest turn.
    pub(crate) fn view(&self, last_seq: u64) -> View<'_> {
        let apart = self.preamble().iter().chain(&self.anchor);
        let mut apart: Vec<&TurnRecord> = apart.chain(self.pinned()).collect();
        apart.sort_by_key(|record| record.seq);
        View {
            history: self,
            last_seq,
            apart,
        }
    }

    /// The first turn of the tail; the turn after the newest where there is none.
    pub(crate) fn front_seq(&self, last_seq: u64) -> u64 {
        self.tail.front().map_or(last_seq + 1, |front| front.seq)
    }

    /// True for a system turn at the very start, before the anchor.
    pub(super) fn leads(&self, record: &TurnRecord) -> bool {
        record.role == Role::System
            && record.stands_alone()
            && !self.anchor.iter().any(|anchor| anchor.seq <= record.seq)
            && self.turns_before(record.seq) < PREAMBLE_TURNS
    }
}

impl<'a> View<'a> {
    /// The first user turn.
    pub(crate) fn anchor(&self) -> Option<&'a TurnRecord> {
        self.history.anchor.as_ref()
    }

    /// The last user turn: with all after it it is the newest exchange.
    pub(crate) fn request(&self) -> Option<&'a TurnRecord> {
        let is_request = |record: &&TurnRecord| record.begins_exchange();
        let in_tail = self.tail_from(0).rev().find(is_request);
        let apart = self.apart.iter().rev().copied().find(is_request);
        let both = in_tail.into_iter().chain(apart);
        both.max_by_key(|request| request.seq)
    }

    /// The same while the assistant has not finished answering it: until the newest words are its
    /// own, without a call.
    pub(crate) fn request_under_way(&self) -> Option<&'a TurnRecord> {
        let request = self.request()?;
        let mut later = self.tail_from(request.seq + 1).rev();
        let newest = later.find(|record| record.role != Role::System);
        let is_answer =
            |newest: &TurnRecord| newest.role == Role::Assistant && newest.uses().next().is_none();
        (!newest.is_some_and(is_answer)).then_some(request)
    }

    /// The turn that is said now, with the calls and results it is tied to. Ascending. A result
    /// that came too late for its call has left at once: then it is the turn before.
    pub(crate) fn current_unit(&self) -> Vec<u64> {
        let mut unit = Vec::new();
        let newest = self.tail_from(0).next_back().into_iter();
        let newest = newest.chain(self.apart.iter().copied());
        let mut rest = Vec::from_iter(newest.map(|record| record.seq).max());
        while let Some(seq) = rest.pop() {
            if let Some(record) = self.record(seq).filter(|_| !unit.contains(&seq)) {
                unit.push(seq);
                rest.extend(record.close_mates());
            }
        }
        unit.sort_unstable();
        unit
    }

    /// The turns of the tail from `seq` on, ascending.
    pub(crate) fn tail_from(
        &self,
        seq: u64,
    ) -> impl DoubleEndedIterator<Item = &'a TurnRecord> + Clone + use<'a> {
        let tail = &self.history.tail;
        // Mostly what came last, or all of it: nothing between is read for that.
        let start = match (tail.front(), tail.back()) {
            (Some(front), _) if seq <= front.seq => 0,
            (_, Some(back)) if seq > back.seq => tail.len(),
            _ => tail.partition_point(|record| record.seq < seq),
        };
        tail.range(start..)
    }

    /// The turns of the tail before `seq`, ascending.
    pub(crate) fn tail_before(
        &self,
        seq: u64,
    ) -> impl DoubleEndedIterator<Item = &'a TurnRecord> + use<'a> {
        let end = self.history.tail.partition_point(|record| record.seq < seq);
        self.history.tail.range(..end)
    }

    /// How many turns the history keeps.
    pub(crate) fn turns(&self) -> u64 {
        self.history.count() as u64
    }

    /// The tokens of these turns, estimated.
    pub(crate) fn tokens(&self) -> u64 {
        self.history.totals().tokens
    }

    /// The first turn of the tail; the turn after the newest where there is none.
    pub(crate) fn front_seq(&self) -> u64 {
        self.history.front_seq(self.last_seq)
    }

    /// How often something happened to turns that is neither a new one at the end nor a unit that
    /// leaves at the front: what was put together before is then put together anew.
    pub(crate) fn reshaped(&self) -> u64 {
        self.history.reshaped
    }

    /// A turn that windows may show.
    pub(crate) fn record(&self, seq: u64) -> Option<&'a TurnRecord> {
        let by_seq = |record: &&TurnRecord| record.seq.cmp(&seq);
        match self.apart.binary_search_by(by_seq) {
            Ok(place) => Some(self.apart[place]),
            Err(_) => self.history.find(seq),
        }
    }

    /// True when a turn from `seq` on has left that is not `known` to be left out.
    pub(crate) fn has_lost_since(&self, seq: u64, known: &[(u64, u64)]) -> bool {
        let seq = seq.max(1);
        let is_known = |seq: u64| {
            known
                .iter()
                .any(|&(first, last)| first <= seq && seq <= last)
        };
        let aside = self.history.aside.iter();
        let mut holes = aside.flat_map(|aside| aside.holes.range(seq..));
        if holes.any(|&hole| !is_known(hole)) {
            return true;
        }
        let front = self.front_seq();
        let apart = |first: u64, end: u64| {
            let seqs = self.apart.iter().map(|record| record.seq);
            seqs.filter(|seq| (first..end).contains(seq)).count() as u64
        };
        let known = known.iter().map(|&(first, last)| {
            let (first, end) = (first.max(seq), (last + 1).min(front));
            self.turns_between(first, end)
                .saturating_sub(apart(first, end))
        });
        self.turns_between(seq, front) > apart(seq, front) + known.sum::<u64>()
    }

    /// The turns from `first` up to `end` that were not rewound, whether they are there or not:
    /// each run of them with its end.
    pub(crate) fn said_between(&self, first: u64, end: u64) -> Vec<(u64, u64)> {
        match self.history.rewound() {
            Some(rewound) => rewound.rest(first, end).collect(),
            None => Vec::from_iter((first < end).then_some((first, end))),
        }
    }

    /// How many they are.
    fn turns_between(&self, first: u64, end: u64) -> u64 {
        let said = self.said_between(first, end).into_iter();
        said.map(|(first, end)| end - first).sum()
    }

    /// True for a system turn at the very start, before the anchor.
    pub(crate) fn leads(&self, record: &TurnRecord) -> bool {
        self.history.leads(record)
    }

    /// True for a turn that windows never leave out: one that is held by a pin, or a system
    /// turn from before the anchor.
    pub(crate) fn is_kept(&self, record: &TurnRecord) -> bool {
        record.held || self.history.leads(record)
    }
}
