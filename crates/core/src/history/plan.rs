//! What an append will do, worked out before anything is changed: so that it is done
//! whole or refused whole.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::CoreError;
use crate::limits::Limits;
use crate::turn::Role;

use super::{History, TurnRecord};

/// A turn to be added, and the ids of the calls that it answers.
pub type Arrival<'a> = (TurnRecord, &'a [Box<str>]);

/// What a tool result answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A call of the turn with this seq.
    Use(u64),
    /// A call that has left the history.
    Departed,
}

/// What an append will do.
#[derive(Debug)]
pub(super) struct Plan {
    /// For each turn, what each of its results answers.
    pub(super) targets: Vec<Vec<Target>>,
    /// Seqs of the turns that a pin will hold from now on.
    pub(super) held: BTreeSet<u64>,
}

impl Plan {
    pub(super) fn make(
        history: &History,
        arrivals: &[Arrival<'_>],
        limits: &Limits,
    ) -> Result<Self, CoreError> {
        let targets = match_results(history, arrivals)?;
        let held = held_by_pins(history, arrivals, &targets, limits)?;
        Ok(Self { targets, held })
    }
}

/// Finds the call of every result: the latest of its id that waits for one.
fn match_results(
    history: &History,
    arrivals: &[Arrival<'_>],
) -> Result<Vec<Vec<Target>>, CoreError> {
    let mut opened: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut closed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut arrived_late: BTreeMap<&str, usize> = BTreeMap::new();
    let mut all = Vec::with_capacity(arrivals.len());
    for (index, (record, results)) in arrivals.iter().enumerate() {
        let mut targets = Vec::with_capacity(results.len());
        for id in *results {
            let id = &**id;
            let target = opened.get_mut(id).and_then(Vec::pop).or_else(|| {
                let taken = closed.entry(id).or_default();
                let seq = history.open_call(id, *taken)?;
                *taken += 1;
                Some(seq)
            });
            if target.is_none() {
                let late = arrived_late.entry(id).or_default();
                *late += 1;
                if !record.takes_orphans && !history.has_departed(id, *late) {
                    return Err(unknown(index, id));
                }
            }
            targets.push(target.map_or(Target::Departed, Target::Use));
        }
        for id in record.uses() {
            opened.entry(&**id).or_default().push(record.seq);
        }
        all.push(targets);
    }
    Ok(all)
}

fn unknown(index: usize, id: &str) -> CoreError {
    let id = id.to_owned();
    CoreError::ToolUseUnknown { index, id }
}

/// Spreads the pins over the units they touch, and checks what that would hold.
fn held_by_pins(
    history: &History,
    arrivals: &[Arrival<'_>],
    targets: &[Vec<Target>],
    limits: &Limits,
) -> Result<BTreeSet<u64>, CoreError> {
    let mut anchor_missing = history.anchor.is_none();
    let mut mates: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut seeds = Vec::new();
    let mut late = Vec::new();
    for (index, ((record, results), targets)) in arrivals.iter().zip(targets).enumerate() {
        if anchor_missing && record.role == Role::User && record.stands_alone() {
            anchor_missing = false;
            continue;
        }
        let uses = || {
            targets.iter().filter_map(|target| match target {
                Target::Use(seq) => Some(*seq),
                Target::Departed => None,
            })
        };
        for seq in uses() {
            mates.entry(seq).or_default().push(record.seq);
            mates.entry(record.seq).or_default().push(seq);
        }
        if record.pinned || uses().any(|seq| history.is_held(seq)) {
            seeds.push((index, record.seq));
        }
        let mut answers = targets.iter().zip(*results);
        let departed = answers.find(|(target, _)| **target == Target::Departed);
        late.extend(departed.map(|(_, id)| (record.seq, index, id)));
    }
    let Some(&(index, _)) = seeds.last() else {
        return Ok(BTreeSet::new());
    };

    let mut held = BTreeSet::new();
    let mut rest: Vec<u64> = seeds.into_iter().map(|(_, seq)| seq).collect();
    while let Some(seq) = rest.pop() {
        if held.insert(seq) {
            rest.extend(mates.get(&seq).into_iter().flatten());
            rest.extend(history.find(seq).into_iter().flat_map(TurnRecord::mates));
        }
    }
    // A unit that is held cannot leave with a result that came too late.
    if let Some((_, index, id)) = late.into_iter().find(|(seq, ..)| held.contains(seq)) {
        return Err(unknown(index, id));
    }
    check_held(history, arrivals, &held, index, limits)?;
    Ok(held)
}

fn check_held(
    history: &History,
    arrivals: &[Arrival<'_>],
    held: &BTreeSet<u64>,
    index: usize,
    limits: &Limits,
) -> Result<(), CoreError> {
    let arrived = arrivals.iter().map(|(record, _)| record);
    let all = history.capped_turns().chain(arrived);
    let all: Vec<&TurnRecord> = all
        .filter(|record| record.held || held.contains(&record.seq))
        .collect();
    let turns = all.len();
    let bytes = all.iter().map(|record| record.content.len()).sum();
    let turns_max = limits.pinned_turns_effective();
    let bytes_max = limits.pinned_bytes_effective();
    match turns <= turns_max && bytes <= bytes_max {
        true => Ok(()),
        false => Err(CoreError::PinnedTooMany {
            index,
            turns,
            bytes,
            turns_max,
            bytes_max,
        }),
    }
}
