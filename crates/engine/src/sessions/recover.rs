//! Recovery of live sessions at startup.
//!
//! Only heads are read. Turns are loaded on demand, so the startup time does not depend on the
//! length of conversations.

use std::collections::HashMap;
use std::sync::Arc;

use memoird_core::ids::{SessionKey, TenantId};
use memoird_core::session::Head;
use tracing::info;

use super::handle::{SessionRef, Sessions};
use super::slot::{Slot, SlotState};
use crate::error::EngineError;
use crate::machine::Stopwatch;
use crate::tenants::Tenant;

/// Interval of progress reports during a slow startup.
const PROGRESS_SECONDS: f64 = 1.0;

impl Sessions {
    /// Restores the head of every live session. Does nothing in a cluster.
    pub(crate) async fn recover(&self) -> Result<(), EngineError> {
        if !self.shared.journal.is_on() || self.shared.cluster.is_some() {
            return Ok(());
        }
        let watch = Stopwatch::start();
        let read = self.store()?.run(None, |store| {
            let watch = Stopwatch::start();
            let mut reported_seconds = 0.0;
            let mut heads = Vec::new();
            store.live_heads(&mut |key: SessionKey, head: Head| {
                heads.push((key, head));
                let is_slow = || watch.seconds() - reported_seconds > PROGRESS_SECONDS;
                if heads.len() % 4_096 == 0 && is_slow() {
                    reported_seconds = watch.seconds();
                    info!(sessions = heads.len(), "reading the live sessions");
                }
            })?;
            heads.sort_by_key(|(_, head)| head.last_access);
            Ok(heads)
        });
        let heads = read.await?;
        let sessions = heads.len();
        let mut turns = 0;
        let mut tenants: HashMap<TenantId, Arc<Tenant>> = HashMap::new();
        let now = self.now().steady;
        for (key, mut head) in heads {
            // The last access of a session with windows is journaled slightly in the future.
            head.last_access = head.last_access.min(now);
            turns += head.totals.turns;
            let tenant = tenants
                .entry(key.tenant.clone())
                .or_insert_with_key(|id| self.shared.tenants.get_or_insert(id));
            let session = SessionRef::new(tenant, &key.session);
            self.insert_known(&session, SlotState::OnDisk(Box::new(head)));
        }
        info!(
            sessions,
            turns,
            seconds = watch.seconds(),
            "the live sessions are back"
        );
        Ok(())
    }

    /// Inserts a live session from the journal into the table, the orders and the counts.
    pub(super) fn insert_known(&self, session: &SessionRef, state: SlotState) -> Arc<Slot> {
        let census = &self.shared.census;
        let orders = self.shared.table.orders(&session.tenant.id);
        let tenant = Arc::clone(&session.tenant);
        let slot = Slot::new(session.key.clone(), tenant, orders, state);
        let mut inner = slot.lock();
        census.count_unconditionally(&slot.tenant.id);
        self.shared.table.insert(&slot);
        inner.list(&slot);
        drop(inner);
        slot
    }
}
