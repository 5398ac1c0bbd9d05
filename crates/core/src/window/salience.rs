//! Thinning out: drops the least important units from the middle of a window first.
//!
//! The importance of a unit is that of its most important turn. The bot may set the importance of a
//! turn (`salience`, 0 to 1). Otherwise half of it depends on the kind of turn and half on its
//! recency:
//!
//! | kind | weight |
//! |---|---|
//! | a user's text | 1.0 |
//! | a failed result | 0.8 |
//! | the model's text | 0.6 |
//! | a call, a result | 0.3 |
//!
//! These are the recency and importance of Park et al., "Generative Agents" (2023), section 4.1,
//! without their relevance, which would need a model.

use std::collections::BTreeSet;

use crate::history::TurnRecord;
use crate::turn::{PartKind, Role, Turn};

use super::choose::CutBuilder;
use super::cut::Cut;
use super::input::WindowInput;
use super::items::Composer;
use super::tail_starts::TailStart;

/// Maximum number of runs of left out turns. To stay below it, the oldest runs are joined.
pub(super) const HOLES_MAX: usize = 64;

/// Turns that leave together.
struct TurnGroup {
    seqs: Vec<u64>,
    importance: f32,
    tokens: u64,
}

/// Leaves out all turns whose calls or results are left out.
///
/// An example is a late result for a call that has left.
pub(super) fn leave_torn(maker: &mut CutBuilder<'_, '_>) {
    let (composer, made) = (maker.composer, &maker.made);
    let view = composer.view;
    let stays = |record: &TurnRecord| view.is_kept(record) || maker.unit.contains(&record.seq);
    let in_tail = |seq: u64| seq >= made.seq && !made.leaves_out(seq);
    let is_shown =
        |seq: u64| (view.record(seq)).is_some_and(|record| stays(record) || in_tail(seq));
    let may_leave = |record: &&TurnRecord| in_tail(record.seq) && !stays(record);
    let tail = view.tail_from(made.seq).filter(may_leave);
    let mut torn: Vec<&TurnRecord> = tail
        .filter(|record| record.close_mates().any(|mate| !is_shown(mate)))
        .collect();
    let mut out = BTreeSet::new();
    while let Some(record) = torn.pop() {
        if out.insert(record.seq) {
            let mates = record.close_mates().filter_map(|mate| view.record(mate));
            torn.extend(mates.filter(may_leave));
        }
    }
    if !out.is_empty() {
        leave_out(composer, &mut maker.made, &Vec::from_iter(out));
    }
}

/// Leaves out the least important units until the window fits.
///
/// The current unit and separately kept turns stay. Together they are `least`, the smallest
/// possible window.
pub(super) fn thin_out(maker: &mut CutBuilder<'_, '_>, least: &TailStart, tokens_max: u64) {
    let composer = maker.composer;
    let (mut units, torn) = units(maker);
    let middle: u64 = units.iter().map(|unit| unit.tokens).sum();
    let mut tokens = least.tokens - least.lines + middle + exchange_tokens(maker);
    // Of equally important units, the oldest leaves first.
    units.sort_by(|a, b| {
        a.importance
            .total_cmp(&b.importance)
            .then(a.seqs.cmp(&b.seqs))
    });
    let mut out: Vec<u64> = Vec::new();
    let mut runs = GapCount::new(composer, &maker.made);
    for seq in torn.into_iter().flat_map(|unit| unit.seqs) {
        runs.take_out(seq);
        out.push(seq);
    }
    for unit in units {
        let lines = runs.count.min(HOLES_MAX) as u64 * composer.overheads.elision;
        if tokens + lines <= tokens_max {
            break;
        }
        tokens -= unit.tokens;
        unit.seqs.iter().for_each(|&seq| runs.take_out(seq));
        out.extend(unit.seqs);
    }
    out.sort_unstable();
    leave_out(composer, &mut maker.made, &out);
}

/// Counts the runs of left out turns, each of which needs a marker.
struct GapCount {
    /// Turns of the tail, ascending, and whether each is left out.
    tail: Vec<(u64, bool)>,
    count: usize,
}

impl GapCount {
    fn new(composer: &Composer<'_>, made: &Cut) -> Self {
        let view = composer.view;
        let is_out = |record: &TurnRecord| made.leaves_out(record.seq) && !view.is_kept(record);
        let tail: Vec<_> = view
            .tail_from(made.seq)
            .map(|record| (record.seq, is_out(record)))
            .collect();
        let runs = tail.chunk_by(|one, next| one.1 == next.1);
        let count = runs.filter(|run| run[0].1).count();
        Self { tail, count }
    }

    fn take_out(&mut self, seq: u64) {
        let Ok(index) = self.tail.binary_search_by_key(&seq, |&(seq, _)| seq) else {
            return;
        };
        // Neighbors on both sides.
        let beside = [index.checked_sub(1), Some(index + 1)]
            .into_iter()
            .flatten()
            .filter_map(|index| self.tail.get(index));
        let runs = beside.filter(|(_, is_out)| *is_out).count();
        self.count = (self.count + 1).saturating_sub(runs);
        self.tail[index].1 = true;
    }
}

/// The units of the tail that may leave, and those that must.
fn units(maker: &CutBuilder<'_, '_>) -> (Vec<TurnGroup>, Vec<TurnGroup>) {
    let CutBuilder {
        composer,
        input,
        made,
        unit: current,
        ..
    } = maker;
    let view = composer.view;
    let exchange_seq = maker.exchange_seq();
    let held = |seq: u64| {
        seq >= exchange_seq || view.record(seq).is_some_and(|record| view.is_kept(record))
    };
    let may_leave = |record: &&TurnRecord| {
        let stays = view.is_kept(record) || current.contains(&record.seq);
        record.seq < exchange_seq && !stays && !made.leaves_out(record.seq)
    };
    let middle: Vec<&TurnRecord> = view.tail_from(made.seq).filter(may_leave).collect();
    let count = middle.len().max(1) as f32;
    let mut units: Vec<TurnGroup> = Vec::new();
    for (index, record) in middle.iter().enumerate() {
        let importance = importance(record, (index as f32 + 1.0) / count, input);
        let tokens = composer.shown_tokens(made, record);
        let mut mates = record.mates().filter(|mate| *mate < record.seq);
        let mate = mates.next();
        let unit = mate.and_then(|mate| units.iter_mut().rev().find(|u| u.seqs.contains(&mate)));
        match unit {
            Some(unit) => {
                unit.seqs.push(record.seq);
                unit.importance = unit.importance.max(importance);
                unit.tokens += tokens;
            }
            None => units.push(TurnGroup {
                seqs: vec![record.seq],
                importance,
                tokens,
            }),
        }
    }
    // A unit that reaches into the retained turns stays. An incomplete unit must leave.
    let is_unit = |unit: &TurnGroup| {
        let turns = || unit.seqs.iter().filter_map(|&seq| view.record(seq));
        let is_beyond = |mate: &u64| !unit.seqs.contains(mate);
        let mut beyond = turns().flat_map(TurnRecord::mates).filter(is_beyond);
        if beyond.any(|mate| current.contains(&mate) || held(mate)) {
            return Some(true);
        }
        let mut torn = turns().flat_map(TurnRecord::close_mates);
        torn.any(|mate| is_beyond(&mate)).then_some(false)
    };
    let mut may_leave = Vec::new();
    let mut must_leave = Vec::new();
    for unit in units {
        match is_unit(&unit) {
            None => may_leave.push(unit),
            Some(true) => {}
            Some(false) => must_leave.push(unit),
        }
    }
    (may_leave, must_leave)
}

/// Tokens of the exchange in progress, without the turns that always stay.
fn exchange_tokens(maker: &CutBuilder<'_, '_>) -> u64 {
    let CutBuilder { composer, made, .. } = maker;
    let view = composer.view;
    let stays = |record: &&TurnRecord| {
        let is_always = view.is_kept(record) || maker.unit.contains(&record.seq);
        !is_always && !made.leaves_out(record.seq)
    };
    let turns = view.tail_from(maker.exchange_seq()).filter(stays);
    turns
        .map(|record| composer.shown_tokens(made, record))
        .sum()
}

fn importance(record: &TurnRecord, recency: f32, input: &WindowInput<'_>) -> f32 {
    let turn = (input.codec.open)(&record.content);
    match turn.as_ref().and_then(|turn| turn.salience) {
        Some(said) => said,
        None => 0.5 * turn.as_ref().map_or(0.3, |turn| weight(record.role, turn)) + 0.5 * recency,
    }
}

fn weight(role: Role, turn: &Turn) -> f32 {
    let has = |what: fn(&PartKind) -> bool| turn.parts.iter().any(|part| what(&part.kind));
    let has_failed = has(|kind| matches!(kind, PartKind::ToolResult { is_error: true, .. }));
    let has_tools =
        has(|kind| matches!(kind, PartKind::ToolResult { .. } | PartKind::ToolUse { .. }));
    match role {
        _ if has_failed => 0.8,
        _ if has_tools => 0.3,
        Role::User => 1.0,
        Role::Assistant => 0.6,
        Role::Tool | Role::System => 0.3,
    }
}

/// Leaves turns out, and joins runs if there are too many.
fn leave_out(composer: &Composer<'_>, made: &mut Cut, out: &[u64]) {
    let is_out = |seq: u64| out.binary_search(&seq).is_ok() || made.leaves_out(seq);
    let mut holes: Vec<(u64, u64)> = Vec::new();
    let mut is_open = false;
    for record in composer.view.tail_from(made.seq) {
        if composer.view.is_kept(record) || !is_out(record.seq) {
            is_open = false;
            continue;
        }
        match holes.last_mut().filter(|_| is_open) {
            Some(hole) => hole.1 = record.seq,
            None => holes.push((record.seq, record.seq)),
        }
        is_open = true;
    }
    // Joining the oldest runs leaves out everything between them.
    let spare = holes.len().saturating_sub(HOLES_MAX);
    if spare > 0 {
        let joined = (holes[0].0, holes[spare].1);
        holes.splice(..=spare, [joined]);
    }
    made.reduced
        .retain(|seq, _| out.binary_search(seq).is_err());
    made.holes = holes;
}
