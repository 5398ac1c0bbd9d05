//! Another configuration for an engine that runs: nothing stops, and no session is lost
//! that the new limits allow.

use std::sync::Arc;

use memoird_core::limits::Limits;
use tracing::{info, warn};

use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::models::Models;
use crate::tenant::{Policy, Tenant};

impl Engine {
    /// Applies another configuration. Lowered caps evict, a shortened TTL expires, and both
    /// are done when this returns; histories that are longer than allowed are shortened.
    /// Durability and the room of the journal's queue stay as they are. A tenant that is
    /// gone lives by the common limits until its sessions end.
    pub async fn reconfigure(&self, config: EngineConfig) {
        self.adopt(config);
        self.enforce_limits().await;
    }

    /// The first half of [`Self::reconfigure`]: from here on every call lives by the other
    /// configuration. Sessions that it no longer allows are still there.
    pub fn adopt(&self, config: EngineConfig) {
        let shared = &self.shared;
        let config = Arc::new(config);
        // First: a tenant that somebody's call brings up now must not live by what was.
        shared
            .models
            .store(Arc::new(Models::new(&config.context, &shared.scale_ids)));
        shared.config.store(Arc::clone(&config));
        // What the last summarizer did is no fault of this one.
        shared.compactions.forget_provider();
        for tenant in &config.tenants {
            self.tenant_or_common(&tenant.id);
        }
        let mut shorter = Vec::new();
        for tenant in self.tenants() {
            let (was, policy) = (tenant.policy(), Policy::of(&config, &tenant.id));
            if keeps_less(&was.limits, &policy.limits) {
                shorter.push(Arc::clone(&tenant));
            }
            tenant.set_policy(policy);
        }
        shared
            .capacity
            .set_max_sessions(config.sessions.max_sessions);
        shared.journal.reconfigure(&config.journal);
        shared.outbox.reconfigure(config.hooks.clone());
        shared.policies_changed.notify_waiters();
        shorter
            .iter()
            .for_each(|tenant| self.shorten_histories(tenant));
    }

    /// The second half: ends the sessions that the limits no longer allow, however many
    /// they are.
    pub async fn enforce_limits(&self) {
        if let Err(error) = self.enforce_caps().await {
            warn!(%error, "not all sessions above the new caps could be evicted yet");
        }
        match self.sweep(None).await {
            Ok(expired) => info!(expired = expired.len(), "another configuration applies"),
            Err(error) => warn!(%error, "not all expired sessions could be ended yet"),
        }
    }

    /// Drops what lowered limits no longer keep, of sessions that are in memory; of others
    /// when they are loaded. The journal hears of it with the next append.
    fn shorten_histories(&self, tenant: &Tenant) {
        let policy = tenant.policy();
        for cell in tenant.idle.cells() {
            let mut inner = cell.lock();
            if let Some(session) = inner.session_mut() {
                let before = session.head().totals;
                session.trim(&policy.limits);
                tenant.stats.count_live(before, session.head().totals);
            }
        }
    }
}

fn keeps_less(was: &Limits, is: &Limits) -> bool {
    is.max_history_turns < was.max_history_turns
        || is.max_history_bytes < was.max_history_bytes
        || is.pinned_turns < was.pinned_turns
        || is.pinned_bytes < was.pinned_bytes
}
