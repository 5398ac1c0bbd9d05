//! Splits a plan into parts, which one statement each writes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use memoird_core::change::{Appended, ChangeSet, UpdatedTurn};
use memoird_core::ids::{Generation, SessionKey};
use memoird_store::StaleBase;
use memoird_store::plan::{NewKey, Plan, RowChange};

use crate::base::Version;

/// A row to write.
#[derive(Debug)]
pub(crate) struct PartRow<'a> {
    pub(crate) change: RowChange<'a, Version>,
    /// Stamp of the new version.
    pub(crate) stamp: i64,
    /// Bytes of the new turns.
    pub(crate) added_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct NewTurn<'a> {
    pub(crate) generation: Generation,
    pub(crate) seq: u64,
    pub(crate) content: &'a [u8],
}

/// Rows that one statement writes.
#[derive(Debug, Default)]
pub(crate) struct WritePart<'a> {
    /// Sorted by generation. Rows are locked in this order.
    pub(crate) rows: BTreeMap<Generation, PartRow<'a>>,
    /// In journal order.
    pub(crate) turns: Vec<NewTurn<'a>>,
    /// New contents of turns that are already stored, by generation and seq.
    pub(crate) replaced: BTreeMap<(Generation, u64), &'a [u8]>,
    /// Without duplicates.
    pub(crate) keys: Vec<NewKey<'a>>,
    /// Whether the part is written completely or not at all. Otherwise each row is independent.
    pub(crate) is_whole: bool,
}

/// Rejects all sets that change this generation, because it was not written.
pub(crate) fn reject(
    sets: &[ChangeSet],
    results: &mut [Result<(), StaleBase>],
    generation: Generation,
) {
    for (set, result) in sets.iter().zip(results) {
        let mut names = set.changes.iter().map(|change| change.generation);
        if result.is_ok() && names.any(|name| name == generation) {
            *result = Err(StaleBase { generation });
        }
    }
}

/// Splits a plan into statements. The first part may be empty.
///
/// Generations that one set changes together get a part of their own, along with all generations
/// connected to them by other sets.
pub(crate) fn split<'a>(
    sets: &[ChangeSet],
    plan: Plan<'a, Version>,
) -> (Vec<Result<(), StaleBase>>, Vec<WritePart<'a>>) {
    let accepted = sets.iter().zip(&plan.results);
    let names: Vec<BTreeSet<Generation>> = accepted
        .filter(|(_, result)| result.is_ok())
        .map(|(set, _)| set.changes.iter().map(|change| change.generation).collect())
        .collect();
    let part_of = part_indexes(&plan.rows, &names);
    let mut parts: Vec<WritePart<'a>> = Vec::new();
    parts.resize_with(1 + part_of.values().max().copied().unwrap_or(0), || {
        WritePart {
            is_whole: true,
            ..WritePart::default()
        }
    });
    parts[0].is_whole = false;
    let place = |generation: &Generation| part_of.get(generation).copied().unwrap_or(0);
    for (generation, change) in plan.rows {
        let row = PartRow {
            change,
            stamp: rand::random(),
            added_bytes: 0,
        };
        parts[place(&generation)].rows.insert(generation, row);
    }
    for (generation, appended) in plan.appends {
        parts[place(&generation)].append(generation, appended);
    }
    for (generation, updated) in plan.updates {
        parts[place(&generation)].update(generation, updated);
    }
    for key in last_of_each(plan.keys) {
        parts[place(&key.generation)].keys.push(key);
    }
    (plan.results, parts)
}

impl<'a> WritePart<'a> {
    fn append(&mut self, generation: Generation, appended: &'a Appended) {
        let turns = appended.turns.iter();
        self.turns.extend(turns.map(|(seq, content)| NewTurn {
            generation,
            seq: *seq,
            content,
        }));
        if let Some(row) = self.rows.get_mut(&generation) {
            let turns = appended.turns.iter();
            let bytes = turns.map(|(_, content)| content.len() as u64);
            row.added_bytes += bytes.sum::<u64>();
        }
    }

    fn update(&mut self, generation: Generation, updated: &'a UpdatedTurn) {
        let UpdatedTurn { seq, content, .. } = updated;
        let mut turns = self.turns.iter_mut();
        let new = turns.find(|turn| turn.generation == generation && turn.seq == *seq);
        match (new, self.rows.get_mut(&generation)) {
            // The batch inserts the turn. No reader has seen its earlier content.
            (Some(turn), Some(row)) => {
                row.added_bytes -= turn.content.len() as u64;
                row.added_bytes += content.len() as u64;
                turn.content = content;
            }
            _ => drop(self.replaced.insert((generation, *seq), content)),
        }
    }
}

/// Part indexes of the generations that are not in the first part.
fn part_indexes(
    rows: &BTreeMap<Generation, RowChange<'_, Version>>,
    names: &[BTreeSet<Generation>],
) -> HashMap<Generation, usize> {
    if names.iter().all(|names| names.len() < 2) {
        return HashMap::new();
    }
    let mut groups: Vec<BTreeSet<Generation>> = Vec::new();
    let mut join = |names: BTreeSet<Generation>| {
        let mut joined = names;
        groups.retain(|group| {
            let is_apart = group.is_disjoint(&joined);
            if !is_apart {
                joined.extend(group);
            }
            is_apart
        });
        groups.push(joined);
    };
    let mut sessions: HashMap<&SessionKey, BTreeSet<Generation>> = HashMap::new();
    for row in rows.values() {
        let of_session = sessions.entry(row.key).or_default();
        of_session.insert(row.generation);
    }
    sessions.into_values().for_each(&mut join);
    names.iter().cloned().for_each(&mut join);
    let is_whole = |group: &&BTreeSet<Generation>| {
        let mut several = names.iter().filter(|names| names.len() > 1);
        several.any(|names| names.is_subset(group))
    };
    let whole = groups.iter().filter(is_whole);
    let placed = whole.zip(1..).flat_map(|(group, place)| {
        let names = group.iter();
        names.map(move |name| (*name, place))
    });
    placed.collect()
}

/// Keeps the last of several keys with the same name and session.
fn last_of_each(mut keys: Vec<NewKey<'_>>) -> Vec<NewKey<'_>> {
    let mut known = HashSet::new();
    keys.reverse();
    keys.retain(|key| known.insert((key.session, key.name)));
    keys.reverse();
    keys
}
