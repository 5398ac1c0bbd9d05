//! A submitted change, and its contribution to counters and events.

use std::sync::Arc;

use memoird_core::change::{ChangeKind, ChangeSet, EndReason};
use memoird_core::ids::Generation;
use memoird_core::time::Timestamp;

use super::census::SessionReservation;
use super::slot::Slot;
use crate::events::EventKind;

/// A session's change in the journal queue.
#[derive(Debug)]
pub(crate) struct SubmittedChange {
    pub(super) slot: Arc<Slot>,
    /// Epoch of the slot at submission.
    pub(super) epoch: u32,
    pub(super) tally: Tally,
    /// Whether writing it creates pending deliveries.
    pub(super) has_deliveries: bool,
    /// For an eviction, the reservation of the session that replaces it.
    pub(super) successor: Option<SessionReservation>,
}

/// Contribution of a change set to counters and events.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) ended: Option<(Generation, EndReason)>,
    created: Option<Generation>,
    appended: Option<NewTurns>,
    rewound: Option<LostTurns>,
    updated: Option<ReplacedTurn>,
}

#[derive(Clone, Copy, Debug)]
struct ReplacedTurn {
    generation: Generation,
    seq: u64,
    bytes_before: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct LostTurns {
    generation: Generation,
    after_seq: u64,
    through_seq: u64,
}

#[derive(Clone, Debug)]
struct NewTurns {
    generation: Generation,
    first_seq: u64,
    last_seq: u64,
    dropped: u64,
    bytes: u64,
    client_ids: Vec<Box<str>>,
}

impl Tally {
    /// `dropped_turns` is the number of turns that the set removes from the history.
    pub(super) fn new(set: &ChangeSet, dropped_turns: u64) -> Self {
        let mut tally = Self::default();
        for change in &set.changes {
            let generation = change.generation;
            match &change.kind {
                ChangeKind::Begin { .. } => tally.created = Some(generation),
                ChangeKind::Append(appended) => {
                    let (first, last) = (appended.turns.first(), appended.turns.last());
                    let bytes = appended
                        .turns
                        .iter()
                        .map(|(_, content)| content.len() as u64)
                        .sum();
                    tally.appended = first.zip(last).map(|(first, last)| NewTurns {
                        generation,
                        first_seq: first.0,
                        last_seq: last.0,
                        dropped: dropped_turns,
                        bytes,
                        client_ids: appended.client_ids.clone(),
                    });
                }
                ChangeKind::Rewind(rewound) if rewound.after_seq < rewound.through_seq => {
                    tally.rewound = Some(LostTurns {
                        generation,
                        after_seq: rewound.after_seq,
                        through_seq: rewound.through_seq,
                    });
                }
                ChangeKind::UpdateTurn(updated) => {
                    tally.updated = Some(ReplacedTurn {
                        generation,
                        seq: updated.seq,
                        bytes_before: updated.bytes_before as u64,
                        bytes: updated.content.len() as u64,
                    });
                }
                ChangeKind::End { reason, .. } => tally.ended = Some((generation, *reason)),
                _ => {}
            }
        }
        tally
    }

    /// Updates the counters, and publishes the events.
    pub(super) fn publish(&mut self, slot: &Slot, at: Timestamp) {
        let stats = &slot.tenant.stats;
        let push = |generation, kind| {
            let events = &slot.tenant.events;
            events.push(at, &slot.key.session, generation, kind);
        };
        if let Some((generation, reason)) = self.ended {
            stats.count_end(reason);
            push(generation, EventKind::Ended(reason));
        }
        if let Some(generation) = self.created {
            stats.count_created();
            push(generation, EventKind::Created);
        }
        if let Some(lost) = self.rewound {
            let kind = EventKind::Rewound {
                after_seq: lost.after_seq,
                through_seq: lost.through_seq,
            };
            push(lost.generation, kind);
        }
        if let Some(turn) = self.updated {
            let tenant = &slot.tenant;
            tenant.add_journal_bytes(turn.bytes, turn.bytes_before);
            push(turn.generation, EventKind::TurnUpdated { seq: turn.seq });
        }
        if let Some(turns) = &mut self.appended {
            slot.tenant.add_journal_bytes(turns.bytes, 0);
            stats.count_appended(turns.last_seq + 1 - turns.first_seq, turns.dropped);
            let kind = EventKind::Appended {
                first_seq: turns.first_seq,
                last_seq: turns.last_seq,
                dropped_turns: turns.dropped,
                client_ids: std::mem::take(&mut turns.client_ids),
            };
            push(turns.generation, kind);
        }
    }
}
