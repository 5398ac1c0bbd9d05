//! The turns that a compaction summarizes: the oldest ones, up to a boundary that tears no unit
//! apart.

use crate::history::{TurnRecord, View};
use crate::turn::Role;

/// The turns that a compaction summarizes: all from `first_seq` to `through_seq` but pinned turns
/// and system turns from before the first user turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub first_seq: u64,
    /// The last.
    pub through_seq: u64,
    /// Tokens of the turns behind it.
    pub tail_tokens: u64,
}

/// How much may stay as it was said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// Exchanges, at most; 0: none.
    pub(crate) exchanges: u32,
    /// True where exactly this number of exchanges stays, whatever their size.
    pub(crate) is_exact: bool,
    /// Tokens.
    pub(crate) tokens: u64,
    /// Turns.
    pub(crate) turns: u64,
    /// Encoded bytes.
    pub(crate) bytes: u64,
    /// True where the exchange under way may be split, because some of its turns are not shown
    /// any more or leave the history.
    pub(crate) splits_exchange: bool,
}

/// What stays as it was said, walking from the newest turn to the oldest.
#[derive(Clone, Copy, Debug, Default)]
struct Tail {
    tokens: u64,
    turns: u64,
    bytes: u64,
    exchanges: u32,
}

/// True for a turn that windows show whatever a summary stands for, as long as it is there.
pub(crate) fn is_apart(view: &View<'_>, record: &TurnRecord) -> bool {
    record.role == Role::System || view.is_kept(record)
}

/// True for a turn that is summarized with its exchange. A system turn behind the anchor is,
/// although windows show it: once first in, first out drops it, the summary is what is left.
pub(crate) fn is_summarized(view: &View<'_>, record: &TurnRecord) -> bool {
    let is_system = record.role == Role::System && !view.is_kept(record);
    is_system || !is_apart(view, record)
}

/// True while the newest turn waits for a result: a call without all of its results, behind
/// which nothing else was said.
pub(crate) fn is_waiting(view: &View<'_>) -> bool {
    let Some(newest) = view.tail_from(0).next_back() else {
        return false;
    };
    let mut calls = newest.answers().iter().filter_map(|&seq| view.record(seq));
    let is_open = |call: &TurnRecord| {
        let mut later = view.tail_from(call.seq + 1);
        call.open_uses().next().is_some()
            && later.all(|record| record.answers().contains(&call.seq))
    };
    is_open(newest) || calls.any(is_open)
}

/// The span after the last summary, which ends at `after_seq`; `None` where nothing is to be
/// summarized.
pub(crate) fn choose(
    view: &View<'_>,
    after_seq: u64,
    keep: &Keep,
    tokens: impl Fn(&TurnRecord) -> u64,
) -> Option<Span> {
    let span = |through_seq, tail_tokens| Span {
        first_seq: after_seq + 1,
        through_seq,
        tail_tokens,
    };
    let chosen = match keep.exchanges {
        0 => Some(span(answered_through(view), 0)),
        // All that is left may stay: what has left is summarized alone.
        _ => boundary(view, after_seq, keep, &tokens)
            .or_else(|| all_that_is_left(view, after_seq, &tokens))
            .map(|(seq, tail)| span(seq - 1, tail)),
    };
    chosen.filter(|span| has_something(view, span))
}

/// The span between the last summary, which ends at `after_seq`, and a tail that begins at
/// `tail_seq`; `None` where nothing is to be summarized. The current turn, and all it must travel
/// with, stays.
pub(crate) fn before(
    view: &View<'_>,
    after_seq: u64,
    tail_seq: u64,
    tokens: impl Fn(&TurnRecord) -> u64,
) -> Option<Span> {
    let current = view.current_unit().first().copied();
    let mut through_seq = tail_seq.min(current.unwrap_or(u64::MAX)).saturating_sub(1);
    through_seq = through_seq.min(view.last_seq);
    // A unit that reaches into the tail stays.
    let older = view.tail_from(after_seq + 1).rev();
    for record in older.skip_while(|record| record.seq >= tail_seq) {
        if record.seq <= through_seq && record.close_mates().any(|mate| mate > through_seq) {
            through_seq = record.seq - 1;
        }
    }
    let tail = view.tail_from(through_seq + 1);
    let span = Span {
        first_seq: after_seq + 1,
        through_seq,
        tail_tokens: tail
            .filter(|record| !is_apart(view, record))
            .map(tokens)
            .sum(),
    };
    Some(span).filter(|span| has_something(view, span))
}

/// The newest turn that needs no answer any more: the turns that the model answers next are
/// never summarized.
fn answered_through(view: &View<'_>) -> u64 {
    let is_said = |record: &&TurnRecord| record.role != Role::System;
    let in_tail = view.tail_from(0).rev().find(is_said);
    let apart = view.apart.iter().copied().filter(is_said);
    let Some(newest) = apart.chain(in_tail).max_by_key(|record| record.seq) else {
        return view.last_seq;
    };
    match newest.role {
        Role::User | Role::Tool => {
            let unit = newest.mates().fold(newest.seq, u64::min);
            let request = view.request_under_way().map_or(unit, |request| request.seq);
            unit.min(request) - 1
        }
        Role::Assistant | Role::System => view.last_seq,
    }
}

/// Where the tail begins, and its tokens. The tail has `keep.exchanges` exchanges, or fewer if
/// they do not fit, and at least the newest one. If that one alone is too large, the tail has
/// those of its units that fit.
fn boundary(
    view: &View<'_>,
    after_seq: u64,
    keep: &Keep,
    tokens: impl Fn(&TurnRecord) -> u64,
) -> Option<(u64, u64)> {
    let mut tail = Tail::default();
    let (mut oldest_mate, mut oldest_joined) = (u64::MAX, u64::MAX);
    let request = view.request_under_way().map_or(0, |request| request.seq);
    // Where it may not be split, all of it stays.
    let may_split = keep.splits_exchange || request == 0;
    // A unit that is too large is split between its calls.
    let (mut exchange, mut unit, mut split) = (None, None, None);
    for record in view.tail_from(after_seq + 1).rev() {
        if !is_apart(view, record) {
            tail.tokens += tokens(record);
            tail.turns += 1;
            tail.bytes += record.content.len() as u64;
        }
        oldest_mate = record.close_mates().fold(oldest_mate, u64::min);
        let joined = record.joined().filter(|seq| *seq > after_seq);
        oldest_joined = joined.fold(oldest_joined, u64::min);
        if oldest_mate < record.seq {
            continue;
        }
        let fits = keep.is_exact || keep.holds(&tail);
        let begins_exchange = record.role == Role::User && record.answers().is_empty();
        if begins_exchange {
            tail.exchanges += 1;
            if fits && oldest_joined >= record.seq {
                exchange = Some((record.seq, tail.tokens));
            }
        }
        if tail.exchanges == 0 && fits && may_split {
            let best = if oldest_joined < record.seq {
                &mut split
            } else {
                &mut unit
            };
            *best = Some((record.seq, tail.tokens));
        }
        if !may_split && record.seq <= request && exchange.is_none() {
            // However large it is.
            exchange = Some((record.seq, tail.tokens));
        }
        if tail.exchanges >= keep.exchanges || (tail.exchanges > 0 && !fits) {
            return exchange.or(unit).or(split);
        }
    }
    // All that is left is kept, unless even the newest exchange is too much.
    let is_all_kept = keep.is_exact || keep.holds(&tail);
    if is_all_kept {
        None
    } else {
        exchange.or(unit).or(split)
    }
}

/// Where the turns behind the last summary begin that are still there, and their tokens.
fn all_that_is_left(
    view: &View<'_>,
    after_seq: u64,
    tokens: impl Fn(&TurnRecord) -> u64,
) -> Option<(u64, u64)> {
    let mut left = view.tail_from(after_seq + 1).peekable();
    let first_seq = left.peek()?.seq;
    let weighed = left.filter(|record| !is_apart(view, record));
    Some((first_seq, weighed.map(tokens).sum()))
}

/// True when a turn of the span would be summarized, here or in a journal.
fn has_something(view: &View<'_>, span: &Span) -> bool {
    if span.through_seq < span.first_seq {
        return false;
    }
    let is_gone = |seq: u64| view.record(seq).is_none();
    let here = view.tail_from(span.first_seq);
    let mut here = here.take_while(|turn| turn.seq <= span.through_seq);
    let end = view.front_seq().min(span.through_seq + 1);
    here.any(|record| !is_apart(view, record)) || (span.first_seq..end).any(is_gone)
}

impl Keep {
    fn holds(&self, tail: &Tail) -> bool {
        tail.tokens <= self.tokens && tail.turns <= self.turns && tail.bytes <= self.bytes
    }
}
