//! Which sets are too large for one transaction, and which sets may pass them.
//!
//! The turns of a large set are written ahead of it, a part in each of the transactions that
//! follow, so that nobody's commit waits for all of it. Until it is committed the sets behind it
//! in the queue pass it, unless they are of the same session: what is built on a set is written
//! behind it.
//!
//! Evictions stay behind a large set, and so do starts behind an end that stays.

use std::collections::HashSet;
use std::sync::Arc;

use memoird_core::change::{Appended, Change, ChangeKind, ChangeSet, EndReason};
use memoird_core::ids::{Generation, SessionKey};
use memoird_store::TurnsAhead;

/// A set with more bytes of turns than so many parts is written in parts.
const WHOLE_PARTS: usize = 2;

/// Which sets are written in parts, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// About so many bytes of turns are written at once.
    pub(super) bytes: usize,
}

/// What the sets are about that are not written yet, and that others pass.
#[derive(Debug, Default)]
pub(super) struct Passed {
    generations: HashSet<Generation>,
    keys: HashSet<SessionKey>,
    has_end: bool,
    is_any: bool,
}

impl Parts {
    /// True where a set has too much for one transaction beside the `ahead` turns that are
    /// written already.
    pub(super) fn is_too_large(self, set: &ChangeSet, ahead: usize) -> bool {
        // Once a part is written the rest is, too, but for what is as small as a part.
        let whole_max = match ahead {
            0 => self.bytes.saturating_mul(WHOLE_PARTS),
            _ => self.bytes,
        };
        append_of(set).is_some_and(|(_, appended)| bytes_behind(appended, ahead) > whole_max)
    }

    /// The next part of a set, of which `ahead` turns are written.
    pub(super) fn next(self, set: &ChangeSet, ahead: usize) -> Option<TurnsAhead> {
        let (generation, appended) = append_of(set)?;
        let mut bytes = 0;
        let is_in_part = |(_, content): &&(u64, Arc<[u8]>)| {
            let has_room = bytes < self.bytes;
            bytes += content.len();
            has_room
        };
        let turns = appended.turns.iter().skip(ahead).take_while(is_in_part);
        Some(TurnsAhead {
            generation,
            turns: turns.cloned().collect(),
        })
    }
}

/// Bytes of the turns of a part.
pub(super) fn bytes_of(part: &TurnsAhead) -> usize {
    part.turns.iter().map(|(_, content)| content.len()).sum()
}

/// Bytes of the turns of a set behind its first `ahead` ones, and of all else in it.
pub(super) fn unwritten_bytes(set: &ChangeSet, ahead: usize) -> usize {
    let written = match append_of(set) {
        Some((_, appended)) if ahead > 0 => {
            bytes_behind(appended, 0) - bytes_behind(appended, ahead)
        }
        _ => 0,
    };
    set.weight_bytes().saturating_sub(written)
}

fn bytes_behind(appended: &Appended, ahead: usize) -> usize {
    let turns = appended.turns.iter().skip(ahead);
    turns.map(|(_, content)| content.len()).sum()
}

/// The append of a set, which has one at most.
fn append_of(set: &ChangeSet) -> Option<(Generation, &Appended)> {
    set.changes.iter().find_map(|change| match &change.kind {
        ChangeKind::Append(appended) => Some((change.generation, &**appended)),
        _ => None,
    })
}

impl Passed {
    /// Sets behind this one pass it from now on.
    pub(super) fn add(&mut self, set: &ChangeSet) {
        self.is_any = true;
        for change in &set.changes {
            self.generations.insert(change.generation);
            self.keys.extend(key_of(change).cloned());
            self.has_end |= matches!(change.kind, ChangeKind::End { .. });
        }
    }

    /// True where a set must not pass them: it is of the same session as one of them; it starts a
    /// session, perhaps in the place of one that they end; or it evicts one, which was chosen
    /// because others were used later.
    pub(super) fn hold_back(&self, set: &ChangeSet) -> bool {
        let is_held = |change: &Change| {
            let starts = matches!(change.kind, ChangeKind::Begin { .. });
            let evicts = matches!(
                change.kind,
                ChangeKind::End {
                    reason: EndReason::Evicted,
                    ..
                }
            );
            self.generations.contains(&change.generation)
                || (starts && self.has_end)
                || evicts
                || key_of(change).is_some_and(|key| self.keys.contains(key))
        };
        self.is_any && set.changes.iter().any(is_held)
    }
}

/// The session of a change, where that is said in it.
fn key_of(change: &Change) -> Option<&SessionKey> {
    match &change.kind {
        ChangeKind::Begin { key, .. } => Some(key),
        ChangeKind::Append(appended) => Some(&appended.key),
        ChangeKind::Rewind(rewound) => Some(&rewound.key),
        _ => None,
    }
}
