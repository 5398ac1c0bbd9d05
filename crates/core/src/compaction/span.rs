//! The span of turns that a compaction summarizes: the oldest ones, up to a unit boundary.

use crate::history::{TurnRecord, View};
use crate::turn::Role;

/// The turns that a compaction summarizes.
///
/// All from `first_seq` to `through_seq`, except pinned turns and system turns from before the
/// first user turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnSpan {
    pub first_seq: u64,
    pub through_seq: u64,
    /// Tokens of the turns after the span.
    pub tail_tokens: u64,
}

/// Maximum sizes of the turns that stay verbatim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailLimits {
    /// Maximum exchanges, 0 for none.
    pub(crate) exchanges: u32,
    /// Whether exactly this number of exchanges stays, regardless of size.
    pub(crate) is_exact: bool,
    pub(crate) tokens: u64,
    pub(crate) turns: u64,
    /// Encoded size.
    pub(crate) bytes: u64,
    /// Whether the exchange in progress may be split.
    ///
    /// Set if some of its turns are already left out or leave the history.
    pub(crate) splits_exchange: bool,
}

/// Size of the verbatim turns while walking from the newest to the oldest.
#[derive(Clone, Copy, Debug, Default)]
struct TailSize {
    tokens: u64,
    turns: u64,
    bytes: u64,
    exchanges: u32,
}

/// Whether windows show the turn in addition to a summary that covers it.
pub(crate) fn is_apart(view: &View<'_>, record: &TurnRecord) -> bool {
    record.role == Role::System || view.is_kept(record)
}

/// Whether the turn is summarized with its exchange.
///
/// That includes system turns after the anchor, although windows show them: once FIFO drops them,
/// only the summary has them.
pub(crate) fn is_summarized(view: &View<'_>, record: &TurnRecord) -> bool {
    let is_system = record.role == Role::System && !view.is_kept(record);
    is_system || !is_apart(view, record)
}

/// Whether the newest turn is a call without all results, or the newest results are incomplete.
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

/// Chooses the span after the previous summary, which ends at `after_seq`.
///
/// `None` if there is nothing to summarize.
pub(crate) fn choose(
    view: &View<'_>,
    after_seq: u64,
    keep: &TailLimits,
    tokens: impl Fn(&TurnRecord) -> u64,
) -> Option<TurnSpan> {
    let span = |through_seq, tail_tokens| TurnSpan {
        first_seq: after_seq + 1,
        through_seq,
        tail_tokens,
    };
    let chosen = match keep.exchanges {
        0 => Some(span(answered_through(view), 0)),
        // If all remaining turns may stay, summarize only the dropped ones.
        _ => boundary(view, after_seq, keep, &tokens)
            .or_else(|| all_that_is_left(view, after_seq, &tokens))
            .map(|(seq, tail)| span(seq - 1, tail)),
    };
    chosen.filter(|span| has_something(view, span))
}

/// Returns the span between the previous summary (to `after_seq`) and a tail from `tail_seq`.
///
/// `None` if there is nothing to summarize. The current turn and its unit are not part of the span.
pub(crate) fn before(
    view: &View<'_>,
    after_seq: u64,
    tail_seq: u64,
    tokens: impl Fn(&TurnRecord) -> u64,
) -> Option<TurnSpan> {
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
    let span = TurnSpan {
        first_seq: after_seq + 1,
        through_seq,
        tail_tokens: tail
            .filter(|record| !is_apart(view, record))
            .map(tokens)
            .sum(),
    };
    Some(span).filter(|span| has_something(view, span))
}

/// The newest turn that may be summarized.
///
/// The turns that the model answers next are never summarized.
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

/// Returns the start of the tail and its tokens.
///
/// The tail has `keep.exchanges` exchanges, or as many as fit, and at least the newest one. If the
/// newest exchange alone is too large, the tail has those of its units that fit.
fn boundary(
    view: &View<'_>,
    after_seq: u64,
    keep: &TailLimits,
    tokens: impl Fn(&TurnRecord) -> u64,
) -> Option<(u64, u64)> {
    let mut tail = TailSize::default();
    let (mut oldest_mate, mut oldest_joined) = (u64::MAX, u64::MAX);
    let request = view.request_under_way().map_or(0, |request| request.seq);
    // If the exchange in progress may not be split, all of it stays.
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
            // Regardless of its size.
            exchange = Some((record.seq, tail.tokens));
        }
        if tail.exchanges >= keep.exchanges || (tail.exchanges > 0 && !fits) {
            return exchange.or(unit).or(split);
        }
    }
    // All remaining turns stay, unless even the newest exchange is too large.
    let is_all_kept = keep.is_exact || keep.holds(&tail);
    if is_all_kept {
        None
    } else {
        exchange.or(unit).or(split)
    }
}

/// First remaining turn after the previous summary, and the tokens from there on.
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

/// Whether the span has a turn to summarize, in the history or only in the journal.
fn has_something(view: &View<'_>, span: &TurnSpan) -> bool {
    if span.through_seq < span.first_seq {
        return false;
    }
    let is_gone = |seq: u64| view.record(seq).is_none();
    let mut here = view
        .tail_from(span.first_seq)
        .take_while(|turn| turn.seq <= span.through_seq);
    let end = view.front_seq().min(span.through_seq + 1);
    here.any(|record| !is_apart(view, record)) || (span.first_seq..end).any(is_gone)
}

impl TailLimits {
    fn holds(&self, tail: &TailSize) -> bool {
        tail.tokens <= self.tokens && tail.turns <= self.turns && tail.bytes <= self.bytes
    }
}
