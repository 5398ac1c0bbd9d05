//! The start: every live session comes back. Only heads are read; a session's turns
//! follow when somebody asks for them, so the start does not depend on how long the
//! conversations are.

use std::collections::HashMap;
use std::sync::Arc;

use memoird_core::ids::{SessionKey, TenantId};
use memoird_core::session::Head;
use tracing::info;

use crate::cell::{Residence, SessionCell};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::machine::Stopwatch;

/// A start that takes longer than this says how far it is, once each time.
const PROGRESS_SECONDS: f64 = 1.0;

impl Engine {
    pub(crate) async fn recover(&self) -> Result<(), EngineError> {
        if !self.shared.journal.is_on() {
            return Ok(());
        }
        let watch = Stopwatch::start();
        let heads = self
            .shared
            .journal
            .with_store(|store| {
                let watch = Stopwatch::start();
                let (mut heads, mut told) = (Vec::new(), 0.0);
                store.live_heads(&mut |key: SessionKey, head: Head| {
                    heads.push((key, head));
                    if heads.len() % 4_096 == 0 && watch.seconds() - told > PROGRESS_SECONDS {
                        told = watch.seconds();
                        info!(sessions = heads.len(), "reading the live sessions");
                    }
                })?;
                heads.sort_by_key(|(_, head)| head.last_access);
                Ok(heads)
            })
            .await?;
        let (sessions, mut turns) = (heads.len(), 0);
        let mut tenants: HashMap<TenantId, _> = HashMap::new();
        let now = self.shared.machine.now().steady;
        for (key, mut head) in heads {
            // What is written of a session that asks for windows lies a little ahead.
            head.last_access = head.last_access.min(now);
            turns += head.totals.turns;
            let last_access = head.last_access;
            let tenant = tenants
                .entry(key.tenant.clone())
                .or_insert_with_key(|id| self.tenant_or_common(id));
            let key = SessionKey {
                tenant: tenant.id.clone(),
                session: key.session,
            };
            let stored = Residence::Stored(Box::new(head));
            let cell = Arc::new(SessionCell::new(key, Arc::clone(tenant), stored));
            cell.lock().is_listed = true;
            self.shared.capacity.take_anyway(&tenant.id);
            self.shared.table.insert(&cell);
            tenant.idle.push(&cell, last_access);
        }
        info!(
            sessions,
            turns,
            seconds = watch.seconds(),
            "the live sessions are back"
        );
        Ok(())
    }
}
