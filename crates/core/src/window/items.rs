//! Composing a window: its items in the order in which a provider expects them.
//!
//! The order is chronological. Turns that the summary does not replace precede it, the tail follows
//! it. Every result directly follows its call. A call that was never answered gets an error result,
//! and a marker shows where turns are missing.

use crate::history::{TurnRecord, View};
use crate::turn::{Part, PartKind, Turn};

use super::block::Block;
use super::counts::Counts;
use super::cut::{Cut, ShownTurn};
use super::input::Overheads;
use super::kept::{CachedFront, FrontState};
use super::words::Gap;

#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    /// The stored turn that it shows, precedes or follows.
    pub(super) record: &'a TurnRecord,
    pub(super) seq: u64,
    pub(super) kind: Kind,
    /// Newest turn on which its presence or form depends.
    pub(super) since: u64,
    pub(super) tokens: u64,
}

impl Item<'_> {
    /// Whether it shows a stored turn or a part of one.
    pub(super) fn is_stored(&self) -> bool {
        !matches!(self.kind, Kind::Gap(_) | Kind::Pause(_) | Kind::Abandoned)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The stored turn verbatim.
    Whole,
    /// The stored turn with shortened results.
    ReducedTurn,
    /// A marker in place of missing turns.
    Gap(Gap),
    /// A marker after a long pause, with the time of the previous turn.
    Pause(i64),
    /// Error results of calls that were never answered.
    Abandoned,
    /// A turn's results for the calls of this earlier turn, if other turns are in between.
    ResultsFor(u64),
    /// Everything else in a turn with such results.
    Rest,
}

#[derive(Clone, Copy)]
pub(super) struct Composer<'a> {
    pub(super) view: &'a View<'a>,
    pub(super) counts: &'a Counts,
    pub(super) overheads: Overheads,
    pub(super) open: fn(&[u8]) -> Option<Turn>,
    /// Whether the anchor is shown even if it precedes the tail.
    pub(super) with_anchor: bool,
    /// Pause in seconds after which a user turn gets a time marker, or 0 for no markers.
    pub(super) pause_s: i64,
    /// The summary of the oldest turns.
    pub(super) block: Option<&'a Block>,
}

#[derive(Debug, Default)]
pub(super) struct Composed<'a> {
    /// Cached prefix of the previous window before the items, including the summary.
    pub(super) kept: Option<CachedFront>,
    pub(super) items: Vec<Item<'a>>,
    /// Tokens of all items, the summary and the cached prefix.
    pub(super) tokens: u64,
    /// Index of the item after the summary, if there is a summary and no cached prefix.
    pub(super) block_at: usize,
    /// Index of the item before which turns are missing that the cut would show.
    pub(super) lost_at: Option<usize>,
    /// Number of stored turns it shows, and how many of them belong to the tail.
    pub(super) turns: u64,
    pub(super) tail_turns: u64,
    /// Whether no unit is split. If false, the cut is no longer valid.
    pub(super) is_whole: bool,
    /// First and last seq of each run of hidden turns before its last turn, ascending.
    pub(super) gaps: Vec<(u64, u64)>,
    /// Its last turn, shown or not, or 0 for an empty window.
    pub(super) last: u64,
    /// State from which the next window may continue.
    pub(super) front: FrontState,
}

impl Composed<'_> {
    /// Number of items at the front, before the first turn that was lost since the cut.
    pub(super) fn whole_items(&self) -> usize {
        self.lost_at.unwrap_or(self.items.len())
    }
}

impl<'a> Composer<'a> {
    pub(super) fn compose(&self, cut: &Cut) -> Composed<'a> {
        self.compose_behind(cut, None)
    }

    /// Composes a window after the cached prefix of the previous one, if that is still valid.
    pub(super) fn compose_behind(&self, cut: &Cut, kept: Option<CachedFront>) -> Composed<'a> {
        let kept = kept.filter(|kept| kept.basis.holds(self, cut));
        let mut draft = Draft::behind(self, cut, kept);
        let last = draft.last;
        let mut apart = self.apart(cut).into_iter().peekable();
        while apart.next_if(|record| record.seq <= last).is_some() {}
        if let Some(block) = self.block.filter(|_| draft.out.kept.is_none()) {
            while let Some(earlier) = apart.next_if(|record| record.seq <= block.through_seq()) {
                draft.put(earlier);
            }
            draft.put_block(block);
        }
        let tail = self.view.tail_from(cut.seq.max(last + 1));
        draft.out.items.reserve(tail.size_hint().0 + apart.len());
        let is_plain = cut.holes.is_empty();
        for record in tail {
            while let Some(first) = apart.next_if(|first| first.seq < record.seq) {
                draft.put(first);
            }
            if is_plain || self.shows_of_tail(cut, record) {
                draft.put(record);
                draft.out.tail_turns += 1;
            }
        }
        apart.for_each(|record| draft.put(record));
        draft.out.last = draft.last;
        draft.out.front = draft.settled.unwrap_or_else(|| draft.front());
        draft.out
    }

    /// Turns before the tail that are shown, ascending.
    pub(super) fn apart(&self, cut: &Cut) -> Vec<&'a TurnRecord> {
        let anchor = self
            .view
            .anchor()
            .filter(|_| self.with_anchor)
            .map(|anchor| anchor.seq);
        let through_seq = self.through_seq();
        // A request that FIFO has passed is shown if the cut shows it.
        let is_shown = |record: &&TurnRecord| {
            let is_anchor = Some(record.seq) == anchor && record.seq > through_seq;
            let is_always = self.view.is_kept(record) || is_anchor;
            let is_tail = record.seq >= cut.seq && record.seq > through_seq;
            is_always || is_tail || cut.keeps(record.seq)
        };
        let mut apart: Vec<&'a TurnRecord> =
            self.view.apart.iter().copied().filter(is_shown).collect();
        let kept = cut.kept.iter().filter(|seq| **seq < cut.seq);
        apart.extend(kept.filter_map(|&seq| self.view.record(seq)));
        apart.sort_by_key(|record| record.seq);
        apart.dedup_by_key(|record| record.seq);
        apart
    }

    /// Whether a turn of the tail is shown.
    fn shows_of_tail(&self, cut: &Cut, record: &TurnRecord) -> bool {
        !cut.leaves_out(record.seq) || self.view.is_kept(record) || cut.keeps(record.seq)
    }

    pub(super) fn through_seq(&self) -> u64 {
        self.block.map_or(0, Block::through_seq)
    }

    /// Tokens of a turn verbatim, estimated if it was not counted.
    pub(super) fn tokens(&self, record: &TurnRecord) -> u64 {
        self.counts.get(record.seq).unwrap_or(record.tokens).into()
    }

    pub(super) fn shown<'c>(&self, cut: &'c Cut, record: &TurnRecord) -> Option<&'c ShownTurn> {
        cut.reduced_turn(record.seq)
    }

    /// Tokens of a turn as the cut shows it, including the error results of its calls.
    pub(super) fn shown_tokens(&self, cut: &Cut, record: &TurnRecord) -> u64 {
        let shown = self.shown(cut, record);
        let tokens = shown.map_or_else(|| self.tokens(record), |shown| shown.tokens);
        match self.abandoned_since(record) {
            Some(_) => tokens + self.abandoned_tokens(record),
            None => tokens,
        }
    }

    /// Tokens of the error results of its calls that were never answered.
    pub(super) fn abandoned_tokens(&self, record: &TurnRecord) -> u64 {
        let ids = record.open_uses();
        ids.map(|id| self.overheads.abandoned + id.len() as u64)
            .sum()
    }

    /// Whether the turn has parts other than results.
    ///
    /// Decodes the turn, so it is only called for turns that do not directly follow their call.
    fn has_more_than_results(&self, record: &TurnRecord) -> bool {
        let is_other = |part: &Part| !matches!(part.kind, PartKind::ToolResult { .. });
        (self.open)(&record.content).is_some_and(|turn| turn.parts.iter().any(is_other))
    }

    /// The turn that makes its open calls abandoned: the first later one without results for it.
    pub(super) fn abandoned_since(&self, record: &TurnRecord) -> Option<u64> {
        record.open_uses().next()?;
        let is_foreign = |later: &&TurnRecord| !later.answers().contains(&record.seq);
        let in_tail = self.view.tail_from(record.seq + 1).find(is_foreign);
        let apart = self
            .view
            .apart
            .iter()
            .copied()
            .filter(|later| later.seq > record.seq && is_foreign(later));
        apart.chain(in_tail).map(|later| later.seq).min()
    }
}

/// A window being composed.
struct Draft<'d, 'a> {
    composer: &'d Composer<'a>,
    cut: &'d Cut,
    out: Composed<'a>,
    /// Previous turn.
    last: u64,
    /// First and last turn that are missing since the last item.
    gap: Option<(u64, u64)>,
    /// Time of the window's last stored turn, or 0 if unknown.
    said_at: i64,
    /// Whether the summary was added or there is none.
    has_block: bool,
    /// Whether some of the missing turns have left the history since the cut was made.
    has_lost: bool,
    /// Turns with results that were moved to their calls, and whether they have other parts.
    ahead: Vec<(u64, bool)>,
    /// Whether a call still waits for results and only results follow it.
    waits: bool,
    /// State before the first item that later turns may still change.
    settled: Option<FrontState>,
}

impl<'d, 'a> Draft<'d, 'a> {
    fn behind(composer: &'d Composer<'a>, cut: &'d Cut, mut kept: Option<CachedFront>) -> Self {
        let gaps = kept.as_mut().map(|kept| std::mem::take(&mut kept.gaps));
        let front = kept.as_ref().map(|kept| kept.front).unwrap_or_default();
        Self {
            composer,
            cut,
            out: Composed {
                kept,
                tokens: front.tokens,
                turns: front.turns,
                tail_turns: front.tail_turns,
                is_whole: true,
                gaps: gaps.unwrap_or_default(),
                ..Composed::default()
            },
            last: front.last,
            gap: None,
            said_at: front.said_at,
            has_block: composer.block.is_none() || front.has_block,
            has_lost: false,
            ahead: Vec::new(),
            waits: false,
            settled: None,
        }
    }

    /// State after all items so far.
    fn front(&self) -> FrontState {
        let out = &self.out;
        FrontState {
            items: out.items.len(),
            gaps: out.gaps.len(),
            last: self.last,
            tokens: out.tokens,
            turns: out.turns,
            tail_turns: out.tail_turns,
            said_at: self.said_at,
            has_block: self.has_block,
        }
    }

    /// Adds the summary. It names the turns that it covers, so they need no marker.
    fn put_block(&mut self, block: &Block) {
        let end = (block.through_seq() + 1).max(self.last + 1);
        self.note_gap(self.last + 1, end);
        self.last = end - 1;
        self.gap = None;
        self.has_lost = false;
        self.out.block_at = self.out.items.len();
        self.out.tokens += block.tokens();
        self.said_at = block.until();
        self.has_block = true;
    }

    fn put(&mut self, record: &'a TurnRecord) {
        // Fast path for most turns: no turn is missing before it, it has no ties, and it is shown
        // verbatim.
        let is_plain = record.seq == self.last + 1 && self.gap.is_none() && record.stands_alone();
        if is_plain && self.ahead.is_empty() && self.cut.is_plain() {
            self.last = record.seq;
            self.out.turns += 1;
            self.put_pause(record);
            self.push(record, Kind::Whole, self.composer.tokens(record));
            return;
        }
        let front = self.front();
        self.settled.get_or_insert(front);
        self.put_with_care(record);
        let is_open = record.open_uses().next().is_some();
        self.waits |= is_open && self.composer.abandoned_since(record).is_none();
        if self.gap.is_none() && self.ahead.is_empty() && !self.waits {
            self.settled = None;
        }
    }

    fn put_with_care(&mut self, record: &'a TurnRecord) {
        self.note_gap(self.last + 1, record.seq);
        self.last = record.seq;
        self.out.turns += 1;
        if record.answers().iter().any(|&call| !self.shows(call)) {
            self.out.is_whole = false;
        }
        if let Some(place) = self.ahead.iter().position(|(seq, _)| *seq == record.seq) {
            let (_, has_rest) = self.ahead.swap_remove(place);
            if has_rest {
                self.elide(record);
                self.push(record, Kind::Rest, self.composer.tokens(record));
            }
            return;
        }
        self.elide(record);
        self.push_turn(record);
        if !record.stands_alone() {
            self.put_results(record);
        }
    }

    /// Adds the results of a turn's calls directly after it.
    fn put_results(&mut self, record: &'a TurnRecord) {
        let mut answers: Vec<u64> = record.answered_by().collect();
        answers.sort_unstable();
        answers.dedup();
        let mut next = record.seq + 1;
        let mut split = None;
        for answer in answers {
            let result = self.composer.view.record(answer);
            let Some(result) = result.filter(|_| self.shows(answer)) else {
                self.out.is_whole = false;
                continue;
            };
            let is_all_of_it = result.answers().iter().all(|&call| call == record.seq);
            let is_next = is_all_of_it && self.follows(next, answer);
            let has_rest = !is_next && self.composer.has_more_than_results(result);
            if is_next || (is_all_of_it && !has_rest) {
                if is_next {
                    // As long as another turn was between them, only a part of the result was here.
                    self.note_lost(next, answer);
                    next = answer + 1;
                }
                self.push_turn(result);
                self.ahead.push((answer, false));
                continue;
            }
            split = split.or(has_rest.then_some(answer));
            let kind = Kind::ResultsFor(record.seq);
            self.push(result, kind, self.composer.tokens(result));
            match self.ahead.iter_mut().find(|(seq, _)| *seq == answer) {
                Some(known) => known.1 = has_rest,
                None => self.ahead.push((answer, has_rest)),
            }
        }
        let split = split.filter(|_| record.open_uses().next().is_some());
        if let Some(since) = self.composer.abandoned_since(record).or(split) {
            let tokens = self.composer.abandoned_tokens(record);
            self.push_since(since, record, Kind::Abandoned, tokens);
        }
    }

    /// Whether no shown turn is between `from` and `seq`.
    fn follows(&self, from: u64, seq: u64) -> bool {
        let view = self.composer.view;
        let between = |record: &&TurnRecord| (from..seq).contains(&record.seq);
        let tail = view.tail_from(from).take_while(|record| record.seq < seq);
        from == seq
            || !tail
                .chain(view.apart.iter().copied().filter(between))
                .any(|record| self.shows(record.seq))
    }

    /// Records that the turns in `first..end` are not shown.
    ///
    /// Turns that the cut did not leave out must have left the history since.
    fn note_gap(&mut self, first: u64, end: u64) {
        if first == end {
            return;
        }
        // Skip rewound turns, which are not reported as missing.
        for (first, end) in self.composer.view.said_between(first, end) {
            self.out.gaps.push((first, end - 1));
            let begin = self.gap.map_or(first, |(begin, _)| begin);
            self.gap = Some((begin, end - 1));
            self.has_lost |= self.note_lost(first, end);
        }
    }

    /// Records whether the cut would show any of the missing turns in `first..end`.
    ///
    /// If so, they have left the history since the cut.
    fn note_lost(&mut self, first: u64, end: u64) -> bool {
        let kept = &self.cut.kept;
        let was_kept =
            kept.partition_point(|&seq| seq < first) < kept.partition_point(|&seq| seq < end);
        let first = first.max(self.cut.seq);
        let was_tail = first < end && !self.cut.leaves_out_all(first, end);
        let is_lost = was_kept || was_tail;
        if is_lost {
            self.out.lost_at.get_or_insert(self.out.items.len());
        }
        is_lost
    }

    /// Adds a marker if turns are missing before this one or it follows a long pause.
    fn elide(&mut self, record: &'a TurnRecord) {
        let Some((first, last)) = self.gap.take() else {
            self.put_pause(record);
            return;
        };
        let has_lost = std::mem::take(&mut self.has_lost);
        // Turns before a system prompt are left out without a marker.
        if self.composer.view.leads(record) {
            return;
        }
        let gap = Gap {
            first,
            last,
            is_summarized: last <= self.composer.through_seq(),
            between: (self.said_at, record.said_at),
        };
        let since = if has_lost {
            u64::MAX
        } else {
            self.cut.made_at.max(record.seq)
        };
        self.push_since(
            since,
            record,
            Kind::Gap(gap),
            self.composer.overheads.elision,
        );
    }

    /// Adds a time marker before a user turn that follows a long pause.
    fn put_pause(&mut self, record: &'a TurnRecord) {
        let pause_s = self.composer.pause_s;
        let is_late = pause_s > 0
            && record.begins_exchange()
            && self.said_at > 0
            && record.said_at - self.said_at >= pause_s;
        if is_late {
            let kind = Kind::Pause(self.said_at);
            self.push_since(record.seq, record, kind, self.composer.overheads.pause);
        }
    }

    fn push_turn(&mut self, record: &'a TurnRecord) {
        let composer = self.composer;
        let kind = if self.cut.reduced.contains_key(&record.seq) {
            Kind::ReducedTurn
        } else {
            Kind::Whole
        };
        let shown = composer.shown(self.cut, record);
        let tokens = shown.map_or_else(|| composer.tokens(record), |shown| shown.tokens);
        self.push(record, kind, tokens);
    }

    fn push(&mut self, record: &'a TurnRecord, kind: Kind, tokens: u64) {
        self.said_at = record.said_at;
        self.push_since(record.seq, record, kind, tokens);
    }

    fn push_since(&mut self, since: u64, record: &'a TurnRecord, kind: Kind, tokens: u64) {
        self.out.tokens += tokens;
        self.out.items.push(Item {
            record,
            seq: record.seq,
            kind,
            since,
            tokens,
        });
    }

    fn shows(&self, seq: u64) -> bool {
        let view = self.composer.view;
        view.record(seq).is_some_and(|record| {
            if seq >= self.cut.seq {
                self.composer.shows_of_tail(self.cut, record)
            } else {
                self.cut.keeps(seq) || view.apart.iter().any(|apart| apart.seq == seq)
            }
        })
    }
}
