//! Effects of a finished commit on a session.

use memoird_core::time::Timestamp;
use tracing::{debug, warn};

use super::handle::Sessions;
use super::tally::SubmittedChange;
use crate::journal::CommitHandler;
use crate::tenants::Tenant;

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
            self.shared.end_listener.deliveries_added();
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
        slot.lock().discard(&slot.tenant);
        match self.shared.cluster {
            // Expected in a cluster when another daemon was faster.
            Some(_) => debug!(tenant = %slot.tenant.id, "a session is read again"),
            None => {
                warn!(tenant = %slot.tenant.id, "a session is reloaded: its change was not written");
            }
        }
        self.shared.reload_queue.push(slot);
    }

    fn batch_done(&self) {
        self.shared.event_signal.notify();
    }
}
