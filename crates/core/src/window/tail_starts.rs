//! Possible starts of a tail that keep calls with their results, and the resulting window sizes.

use crate::history::TurnRecord;
use crate::turn::Role;

use super::block::Block;
use super::cut::Cut;
use super::input::WindowInput;
use super::items::Composer;

/// The window size for a tail that starts at `seq`.
#[derive(Clone, Copy, Debug)]
pub(super) struct TailStart {
    pub(super) seq: u64,
    /// Tokens of the window.
    pub(super) tokens: u64,
    /// Tokens among these that are reserved for markers where turns are left out.
    pub(super) lines: u64,
    /// Whether it splits a unit, though not a call from its result.
    pub(super) splits_unit: bool,
}

/// Iterates over the possible starts of a tail, from the end backward.
pub(super) struct TailStarts<'a, I> {
    composer: &'a Composer<'a>,
    made: &'a Cut,
    /// The current turn and its unit.
    unit: &'a [u64],
    tail: I,
    /// Whether the tail may be empty because the current turn is not part of it.
    may_be_empty: bool,
    tokens: u64,
    lines: u64,
    /// Oldest turn that a turn of the tail must be shown with.
    oldest_mate: u64,
    /// Oldest turn in the units of the tail, of those that can be shown.
    oldest_joined: u64,
    /// Turns and encoded bytes at the last start, as counted by the caps.
    pub(super) turns: u64,
    pub(super) bytes: u64,
    /// Whether an exchange starts at the last start.
    pub(super) at_exchange: bool,
}

impl<'a> TailStarts<'a, ()> {
    pub(super) fn new(
        composer: &'a Composer<'a>,
        made: &'a Cut,
        unit: &'a [u64],
        input: &WindowInput<'_>,
    ) -> TailStarts<'a, impl Iterator<Item = &'a TurnRecord> + use<'a>> {
        let view = composer.view;
        let tail = view.tail_from(made.seq);
        let anchor = view.anchor().map(|anchor| anchor.seq);
        // If the anchor does not survive cuts, it is a turn like any other.
        let plain = view.anchor().filter(|_| !composer.with_anchor);
        let plain_seq = plain.map_or(0, |anchor| anchor.seq);
        let older = tail.clone().filter(move |record| record.seq < plain_seq);
        let newer = view.tail_from(made.seq.max(plain_seq)).rev();
        let newest = tail.clone().next_back();
        let mut starts = TailStarts {
            composer,
            made,
            unit,
            tail: newer.chain(plain).chain(older.rev()),
            may_be_empty: newest.is_none_or(|newest| !unit.contains(&newest.seq)),
            tokens: input.fixed,
            lines: 0,
            oldest_mate: u64::MAX,
            oldest_joined: u64::MAX,
            turns: 0,
            bytes: 0,
            at_exchange: false,
        };
        let held = tail
            .filter(|record| view.is_kept(record))
            .map(|record| record.seq);
        let all_apart = composer.apart(made);
        let apart = all_apart.iter().filter(|record| {
            let stays =
                view.is_kept(record) || view.apart.iter().any(|apart| apart.seq == record.seq);
            stays && (composer.with_anchor || view.is_kept(record))
        });
        let mut always: Vec<u64> = apart.map(|record| record.seq).chain(held).collect();
        always.extend(unit);
        always.sort_unstable();
        always.dedup();
        starts.lines = composer.overheads.elision * (always.len() as u64 + 1);
        starts.tokens += starts.lines + composer.block.map_or(0, Block::tokens);
        for record in always.iter().filter_map(|&seq| view.record(seq)) {
            starts.tokens += composer.shown_tokens(made, record);
            starts.note_joined(record);
            if Some(record.seq) != anchor {
                starts.turns += 1;
                starts.bytes += record.content.len() as u64;
            }
        }
        starts
    }
}

impl<I> TailStarts<'_, I> {
    /// Records the earlier turns of its unit. Turns that the cut does not show are ignored.
    fn note_joined(&mut self, record: &TurnRecord) {
        let (view, made, unit) = (self.composer.view, self.made, self.unit);
        let may_show = |seq: &u64| {
            let is_in_tail = *seq >= made.seq && !made.leaves_out(*seq);
            is_in_tail && !unit.contains(seq) && view.record(*seq).is_some()
        };
        let joined = record.joined().filter(|seq| *seq < record.seq);
        if let Some(oldest) = joined.filter(may_show).min() {
            self.oldest_joined = self.oldest_joined.min(oldest);
        }
    }
}

impl<'a, I: Iterator<Item = &'a TurnRecord>> TailStarts<'a, I> {
    /// The next possible start, going backward.
    pub(super) fn next(&mut self) -> Option<TailStart> {
        if std::mem::take(&mut self.may_be_empty) {
            self.at_exchange = true;
            return Some(self.start(self.composer.view.last_seq + 1));
        }
        loop {
            let record = self.tail.next()?;
            let is_always = self.composer.view.is_kept(record) || self.unit.contains(&record.seq);
            if !is_always {
                // The caps count left out turns too.
                self.turns += 1;
                self.bytes += record.content.len() as u64;
                if self.made.leaves_out(record.seq) {
                    continue;
                }
                self.tokens += self.composer.shown_tokens(self.made, record);
                if let Some(oldest) = record.close_mates().min() {
                    self.oldest_mate = self.oldest_mate.min(oldest);
                }
                self.note_joined(record);
            }
            if self.oldest_mate >= record.seq {
                self.at_exchange = record.role == Role::User && record.answers().is_empty();
                return Some(self.start(record.seq));
            }
        }
    }

    fn start(&self, seq: u64) -> TailStart {
        TailStart {
            seq,
            tokens: self.tokens,
            lines: self.lines,
            splits_unit: self.oldest_joined < seq,
        }
    }
}
