//! Submitted changes: their counters and events, and the effects of a finished commit on a session.

use std::sync::Arc;

use memoird_core::change::{Change, ChangeKind, EndReason};
use memoird_core::ids::Generation;
use memoird_core::time::Timestamp;
use tracing::{debug, warn};

use super::census::SessionReservation;
use super::handle::Sessions;
use super::slot::Slot;
use crate::events::EventKind;
use crate::journal::CommitHandler;
use crate::tenants::Tenant;

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
    pub(super) successor: Option<Arc<SessionReservation>>,
}

/// Contribution of a change set to counters and events.
#[derive(Debug, Default)]
pub(super) struct Tally {
    ended: Option<(Generation, EndReason)>,
    created: Option<Generation>,
    rewound: Option<(Generation, EventKind)>,
    /// The turns appended, or the one replaced.
    turns: Option<(Generation, EventKind)>,
    /// Bytes of turns added to the journal, and deleted from it.
    journal_bytes: (u64, u64),
}

impl Tally {
    pub(super) fn new(changes: &[Change]) -> Self {
        let mut tally = Self::default();
        for change in changes {
            let generation = change.generation;
            match &change.kind {
                ChangeKind::Begin { .. } => tally.created = Some(generation),
                ChangeKind::Append(appended) => {
                    let (first, last) = (appended.turns.first(), appended.turns.last());
                    let turns = first.zip(last).map(|(first, last)| EventKind::Appended {
                        first_seq: first.0,
                        last_seq: last.0,
                        dropped_turns: appended.dropped_turns,
                        client_ids: appended.client_ids.clone(),
                    });
                    tally.turns = turns.map(|kind| (generation, kind));
                    let bytes = appended.turns.iter().map(|(_, content)| content.len());
                    tally.journal_bytes = (bytes.sum::<usize>() as u64, 0);
                }
                ChangeKind::Rewind(rewound) if rewound.after_seq < rewound.through_seq => {
                    let kind = EventKind::Rewound {
                        after_seq: rewound.after_seq,
                        through_seq: rewound.through_seq,
                    };
                    tally.rewound = Some((generation, kind));
                }
                ChangeKind::UpdateTurn(updated) => {
                    let kind = EventKind::TurnUpdated { seq: updated.seq };
                    tally.turns = Some((generation, kind));
                    let (bytes, before) = (updated.content.len(), updated.bytes_before);
                    tally.journal_bytes = (bytes as u64, before as u64);
                }
                ChangeKind::End { reason, .. } => tally.ended = Some((generation, *reason)),
                _ => {}
            }
        }
        tally
    }

    /// The first seq of its new turns.
    fn first_seq(&self) -> Option<u64> {
        match &self.turns {
            Some((_, EventKind::Appended { first_seq, .. })) => Some(*first_seq),
            _ => None,
        }
    }

    /// Updates the counters, and publishes the events.
    pub(super) fn publish(&mut self, slot: &Slot, at: Timestamp) {
        let (tenant, stats) = (&slot.tenant, &slot.tenant.stats);
        if let Some((_, reason)) = self.ended {
            stats.count_end(reason);
        }
        if self.created.is_some() {
            stats.count_created();
        }
        if let Some((_, kind)) = &self.turns {
            let (added, deleted) = self.journal_bytes;
            tenant.add_journal_bytes(added, deleted);
            if let EventKind::Appended {
                first_seq,
                last_seq,
                dropped_turns,
                ..
            } = kind
            {
                stats.count_appended(last_seq + 1 - first_seq, *dropped_turns);
            }
        }
        let ended = self
            .ended
            .map(|(ended, reason)| (ended, EventKind::Ended(reason)));
        let created = self.created.map(|created| (created, EventKind::Created));
        let events = [ended, created, self.rewound.take(), self.turns.take()];
        for (generation, kind) in events.into_iter().flatten() {
            tenant.events.push(at, &slot.key.session, generation, kind);
        }
    }
}

impl CommitHandler<SubmittedChange> for Sessions {
    fn is_base_written(&self, change: &SubmittedChange) -> bool {
        // With `interval`, this process is the only writer, and acknowledged changes are never
        // lost.
        !self.shared.journal.is_sync() || change.slot.lock().epoch == change.epoch
    }

    fn tenant<'a>(&self, change: &'a SubmittedChange) -> &'a Tenant {
        &change.slot.tenant
    }

    fn committed(&self, ticket: u64, mut change: SubmittedChange, at: Timestamp) {
        change.tally.publish(&change.slot, at);
        if change.has_deliveries {
            self.shared.outbox.notify();
        }
        if change.tally.ended.is_some() {
            let inner = change.slot.lock();
            // The slot may have a newer generation that ended in a later set.
            let is_last = inner.has_ended() && inner.ticket == ticket;
            drop(inner);
            if is_last {
                self.shared.table.remove(&change.slot);
            }
        }
    }

    fn failed(&self, change: SubmittedChange) {
        // Release the reservation before the evicted session is restored.
        if let Some(reservation) = &change.successor {
            reservation.release();
        }
        let slot = change.slot;
        let mut inner = slot.lock();
        if self.shared.cluster.is_some() {
            // Expected when another daemon was faster.
            debug!(tenant = %slot.tenant.id, "a session is read again");
            let written = change.tally.first_seq().map_or(u64::MAX, |seq| seq - 1);
            inner.outdate(&slot.tenant, written, 0);
            if inner.listed.is_some() {
                // The next call loads it. Counts and lists are those of the journal.
                return;
            }
        } else {
            inner.discard(&slot.tenant);
            warn!(tenant = %slot.tenant.id, "a session is reloaded: its change was not written");
        }
        drop(inner);
        // Fails only after the worker has stopped.
        let _ = self.shared.failed.send(slot);
    }

    fn batch_done(&self) {
        self.shared.event_signal.notify();
    }
}
