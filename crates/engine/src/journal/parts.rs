//! Rules for change sets that are too large for one transaction, and for sets that overtake them.
//!
//! The turns of a large set are prewritten, one part per transaction, so that no other commit waits
//! for all of it. Until the set is committed, later sets overtake it, except those of the same
//! session: a set is never written before its base.
//!
//! Evictions do not overtake a large set. Starts do not overtake an end that is held back.

use std::collections::HashSet;
use std::sync::Arc;

use memoird_core::change::{Appended, Change, ChangeKind, ChangeSet, EndReason};
use memoird_core::ids::{Generation, SessionKey};
use memoird_store::PrewritePart;

/// A set with more turn bytes than this many parts is written in parts.
const PARTS_IN_WHOLE_MAX: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// Approximate bytes of turns per part.
    pub(super) bytes: usize,
}

/// Sessions affected by unfinished sets that others overtake.
#[derive(Debug, Default)]
pub(super) struct OvertakenSessions {
    generations: HashSet<Generation>,
    keys: HashSet<SessionKey>,
    has_end: bool,
    is_any: bool,
}

impl Parts {
    /// Whether a set, without its first `ahead` turns, is too large for one transaction.
    pub(super) fn is_too_large(self, set: &ChangeSet, ahead: usize) -> bool {
        // Once prewriting has begun, it continues until the rest fits into one part.
        let whole_max = match ahead {
            0 => self.bytes.saturating_mul(PARTS_IN_WHOLE_MAX),
            _ => self.bytes,
        };
        append_of(set).is_some_and(|(_, appended)| bytes_after(appended, ahead) > whole_max)
    }

    /// The next part of a set, after its first `ahead` turns.
    pub(super) fn next(self, set: &ChangeSet, ahead: usize) -> Option<PrewritePart> {
        let (generation, appended) = append_of(set)?;
        let mut bytes = 0;
        let is_in_part = |(_, content): &&(u64, Arc<[u8]>)| {
            let has_room = bytes < self.bytes;
            bytes += content.len();
            has_room
        };
        let turns = appended.turns.iter().skip(ahead).take_while(is_in_part);
        Some(PrewritePart {
            generation,
            turns: turns.cloned().collect(),
        })
    }
}

pub(super) fn bytes_of(part: &PrewritePart) -> usize {
    part.turns.iter().map(|(_, content)| content.len()).sum()
}

/// Bytes of a set without its first `ahead` turns.
pub(super) fn unwritten_bytes(set: &ChangeSet, ahead: usize) -> usize {
    let written = match append_of(set) {
        Some((_, appended)) if ahead > 0 => bytes_after(appended, 0) - bytes_after(appended, ahead),
        _ => 0,
    };
    set.weight_bytes().saturating_sub(written)
}

fn bytes_after(appended: &Appended, ahead: usize) -> usize {
    let turns = appended.turns.iter().skip(ahead);
    turns.map(|(_, content)| content.len()).sum()
}

/// The append in a set. A set has at most one.
fn append_of(set: &ChangeSet) -> Option<(Generation, &Appended)> {
    set.changes.iter().find_map(|change| match &change.kind {
        ChangeKind::Append(appended) => Some((change.generation, &**appended)),
        _ => None,
    })
}

impl OvertakenSessions {
    /// Adds a set that later ones may overtake.
    pub(super) fn add(&mut self, set: &ChangeSet) {
        self.is_any = true;
        for change in &set.changes {
            self.generations.insert(change.generation);
            self.keys.extend(key_of(change).cloned());
            self.has_end |= matches!(change.kind, ChangeKind::End { .. });
        }
    }

    /// Whether a set must not overtake them.
    ///
    /// That is so if it belongs to the same session as one of them, if it starts a session,
    /// possibly in place of one that they end, or if it evicts a session, which was chosen because
    /// others were used later.
    pub(super) fn must_wait(&self, set: &ChangeSet) -> bool {
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

/// The session of a change, if the change contains it.
fn key_of(change: &Change) -> Option<&SessionKey> {
    match &change.kind {
        ChangeKind::Begin { key, .. } => Some(key),
        ChangeKind::Append(appended) => Some(&appended.key),
        ChangeKind::Rewind(rewound) => Some(&rewound.key),
        _ => None,
    }
}
