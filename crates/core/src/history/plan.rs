//! Plans an append before anything changes, so that it is applied or rejected as a whole.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::CoreError;
use crate::ids::ID_BYTES_MAX;
use crate::limits::Limits;
use crate::turn::Role;

use super::{History, TurnRecord};

/// A turn to append, and the ids of the calls that it answers.
pub type Arrival<'a> = (TurnRecord, &'a [Box<str>]);

/// The call that a tool result belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A call in the turn with this seq.
    Use(u64),
    /// A call that was dropped from the history.
    Departed,
    /// A call that the history never had.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Plan {
    /// For each turn, the calls of its results.
    pub(super) targets: Vec<Vec<Target>>,
    /// For each turn, the earlier turns of its unit that are tied to it other than by results.
    pub(super) joined: Vec<Vec<u64>>,
    /// Seqs of the turns that pins hold after the append.
    pub(super) held: BTreeSet<u64>,
}

impl Plan {
    pub(super) fn make(
        history: &History,
        arrivals: &[Arrival<'_>],
        limits: &Limits,
    ) -> Result<Self, CoreError> {
        let targets = match_results(history, arrivals)?;
        let joined = match_refs(history, arrivals, &targets);
        let held = held_by_pins(history, arrivals, (&targets, &joined), limits)?;
        Ok(Self {
            targets,
            joined,
            held,
        })
    }
}

/// Finds the call of every result, which is the latest call of its id without a result.
///
/// A generation may begin with results. Their calls were in an earlier one, which expired or was
/// evicted while a tool or an approval took its time.
fn match_results(
    history: &History,
    arrivals: &[Arrival<'_>],
) -> Result<Vec<Vec<Target>>, CoreError> {
    let mut opened: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut closed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut arrived_late: BTreeMap<&str, usize> = BTreeMap::new();
    let mut all = Vec::with_capacity(arrivals.len());
    let mut is_opening = history.opening_orphan().is_some();
    for (index, (record, results)) in arrivals.iter().enumerate() {
        is_opening = (is_opening || record.seq == 1) && !results.is_empty();
        let mut targets = Vec::with_capacity(results.len());
        for id in *results {
            let id = &**id;
            let target = opened.get_mut(id).and_then(Vec::pop).or_else(|| {
                let taken = closed.entry(id).or_default();
                let seq = history.open_call(id, *taken)?;
                *taken += 1;
                Some(seq)
            });
            targets.push(match target {
                Some(seq) => Target::Use(seq),
                None => {
                    let late = arrived_late.entry(id).or_default();
                    *late += 1;
                    if history.has_departed(id, *late) {
                        Target::Departed
                    } else if is_opening || record.takes_orphans {
                        Target::Unknown
                    } else {
                        return Err(unknown(index, id));
                    }
                }
            });
        }
        for id in record.uses() {
            opened.entry(&**id).or_default().push(record.seq);
        }
        all.push(targets);
    }
    Ok(all)
}

/// Finds the turns that each turn references, and the reasoning turn that led to it.
///
/// A reference resolves to the latest earlier turn with its id. Turns of results that open a
/// generation form one unit.
fn match_refs(
    history: &History,
    arrivals: &[Arrival<'_>],
    targets: &[Vec<Target>],
) -> Vec<Vec<u64>> {
    let opens = |index: &usize| {
        !arrivals[*index].0.takes_orphans && targets[*index].contains(&Target::Unknown)
    };
    let joined = |(index, (record, _)): (usize, &Arrival<'_>)| {
        let ids = record.refs().iter();
        let found_by_id = ids.filter_map(|id| {
            let mut arrived = arrivals[..index].iter().rev();
            let named = arrived.find(|(earlier, _)| earlier.is_named(id));
            named.map_or_else(
                || history.named_before(record.seq, id),
                |(earlier, _)| Some(earlier.seq),
            )
        });
        let index_before = index.checked_sub(1);
        let before = index_before.map(|before| &arrivals[before].0);
        let mut found: Vec<u64> = found_by_id.collect();
        found.extend(history.led_by(record, before));
        if opens(&index) {
            let before = index_before.filter(opens).map(|at| arrivals[at].0.seq);
            found.extend(before.or_else(|| history.opening_orphan()));
        }
        found.sort_unstable();
        found.dedup();
        found
    };
    arrivals.iter().enumerate().map(joined).collect()
}

fn unknown(index: usize, id: &str) -> CoreError {
    let id = id[..id.floor_char_boundary(ID_BYTES_MAX)].to_owned();
    CoreError::ToolUseUnknown { index, id }
}

/// Extends pins to the units they touch, and checks the limits for pinned turns.
fn held_by_pins(
    history: &History,
    arrivals: &[Arrival<'_>],
    (targets, joined): (&[Vec<Target>], &[Vec<u64>]),
    limits: &Limits,
) -> Result<BTreeSet<u64>, CoreError> {
    let mut anchor_missing = history.anchor.is_none();
    let mut mates: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut seeds = Vec::new();
    let mut late = Vec::new();
    let ties = targets.iter().zip(joined);
    for (index, ((record, results), (targets, joined))) in arrivals.iter().zip(ties).enumerate() {
        if anchor_missing && record.role == Role::User && record.stands_alone() {
            anchor_missing = false;
            continue;
        }
        let mates_before = || {
            let uses = targets.iter().filter_map(|target| match target {
                Target::Use(seq) => Some(*seq),
                Target::Departed | Target::Unknown => None,
            });
            uses.chain(joined.iter().copied())
        };
        for seq in mates_before() {
            mates.entry(seq).or_default().push(record.seq);
            mates.entry(record.seq).or_default().push(seq);
        }
        if record.pinned || mates_before().any(|seq| history.is_held(seq)) {
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
    // A held unit cannot be dropped along with a late result.
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
    let all: Vec<&TurnRecord> = history
        .capped_turns()
        .chain(arrived)
        .filter(|record| record.held || held.contains(&record.seq))
        .collect();
    let turns = all.len();
    let bytes = all.iter().map(|record| record.content.len()).sum();
    let turns_max = limits.pinned_turns_effective();
    let bytes_max = limits.pinned_bytes_effective();
    if turns <= turns_max && bytes <= bytes_max {
        Ok(())
    } else {
        Err(CoreError::PinnedTooMany {
            index,
            turns,
            bytes,
            turns_max,
            bytes_max,
        })
    }
}
