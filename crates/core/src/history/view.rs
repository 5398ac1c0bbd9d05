//! View of a history for windows: the tail, and the turns that windows show regardless of it.

use super::{History, TurnRecord};
use crate::turn::Role;

/// Number of first turns among which system turns form the preamble.
const PREAMBLE_TURNS: u64 = 4;

pub(crate) struct View<'a> {
    history: &'a History,
    pub(crate) last_seq: u64,
    /// Turns that FIFO has passed and that windows still show, ascending.
    ///
    /// These are system turns from before the anchor, the anchor, and pinned turns.
    pub(crate) apart: Vec<&'a TurnRecord>,
}

impl History {
    /// Creates a view for a window. `last_seq` is the newest turn of the generation.
    pub(crate) fn view(&self, last_seq: u64) -> View<'_> {
        let mut apart: Vec<&TurnRecord> = self
            .preamble()
            .iter()
            .chain(&self.anchor)
            .chain(self.pinned())
            .collect();
        apart.sort_by_key(|record| record.seq);
        View {
            history: self,
            last_seq,
            apart,
        }
    }

    /// The first turn of the tail, or the seq after the newest turn if the tail is empty.
    pub(crate) fn front_seq(&self, last_seq: u64) -> u64 {
        self.tail.front().map_or(last_seq + 1, |front| front.seq)
    }

    /// Whether `record` is a system turn at the very start, before the anchor.
    pub(super) fn leads(&self, record: &TurnRecord) -> bool {
        record.role == Role::System
            && record.stands_alone()
            && !self.anchor.iter().any(|anchor| anchor.seq <= record.seq)
            && self.turns_before(record.seq) < PREAMBLE_TURNS
    }
}

impl<'a> View<'a> {
    pub(crate) fn anchor(&self) -> Option<&'a TurnRecord> {
        self.history.anchor.as_ref()
    }

    /// The last user turn. It starts the newest exchange.
    pub(crate) fn request(&self) -> Option<&'a TurnRecord> {
        let is_request = |record: &&TurnRecord| record.begins_exchange();
        let in_tail = self.tail_from(0).rev().find(is_request);
        let apart = self.apart.iter().rev().copied().find(is_request);
        let both = in_tail.into_iter().chain(apart);
        both.max_by_key(|request| request.seq)
    }

    /// The request while the assistant is still answering it.
    ///
    /// The answer is complete once the newest turn is an assistant turn without calls.
    pub(crate) fn request_under_way(&self) -> Option<&'a TurnRecord> {
        let request = self.request()?;
        let mut later = self.tail_from(request.seq + 1).rev();
        let newest = later.find(|record| record.role != Role::System);
        let is_answer =
            |newest: &TurnRecord| newest.role == Role::Assistant && newest.uses().next().is_none();
        (!newest.is_some_and(is_answer)).then_some(request)
    }

    /// The newest turn with the calls and results it is tied to, ascending.
    ///
    /// A result that came too late for its call was dropped at once. In that case it is the turn
    /// before.
    pub(crate) fn current_unit(&self) -> Vec<u64> {
        let mut unit = Vec::new();
        let newest = self
            .tail_from(0)
            .next_back()
            .into_iter()
            .chain(self.apart.iter().copied());
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
        // Most calls ask for all turns or the newest ones. Answer them without a search.
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

    /// Number of retained turns.
    pub(crate) fn turns(&self) -> u64 {
        self.history.count() as u64
    }

    /// Estimated tokens of the retained turns.
    pub(crate) fn tokens(&self) -> u64 {
        self.history.totals().tokens
    }

    pub(crate) fn front_seq(&self) -> u64 {
        self.history.front_seq(self.last_seq)
    }

    /// Counts the changes other than appending at the end and dropping a unit at the front.
    ///
    /// Each of them invalidates data that was derived from the history.
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

    /// Whether a turn from `seq` on was dropped that is outside the `known` ranges.
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

    /// The runs of turns in `first..end` that were not rewound, including dropped turns.
    ///
    /// Each run is its first seq and its exclusive end.
    pub(crate) fn said_between(
        &self,
        first: u64,
        end: u64,
    ) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let rewound = self.history.rewound();
        let all = rewound.is_none() && first < end;
        let rest = rewound
            .into_iter()
            .flat_map(move |rewound| rewound.rest(first, end));
        rest.chain(all.then_some((first, end)))
    }

    /// Number of turns in [`Self::said_between`].
    fn turns_between(&self, first: u64, end: u64) -> u64 {
        let said = self.said_between(first, end);
        said.map(|(first, end)| end - first).sum()
    }

    pub(crate) fn leads(&self, record: &TurnRecord) -> bool {
        self.history.leads(record)
    }

    /// Whether windows never leave the turn out.
    ///
    /// True for turns held by a pin, and for system turns from before the anchor.
    pub(crate) fn is_kept(&self, record: &TurnRecord) -> bool {
        record.held || self.history.leads(record)
    }
}
