//! A tenant: its limits, its idle list, its counts.

use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_core::limits::Limits;

use crate::config::{EngineConfig, TenantLimits};
use crate::idle::IdleList;
use crate::stats::TenantStats;

/// An organisation or bot. A call gets it from its credential.
#[derive(Debug)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// What its clients may send and keep.
    pub limits: Limits,
    pub(crate) max_sessions: usize,
    pub(crate) ttl_ms: u64,
    pub(crate) sweep_ms: u64,
    pub(crate) idle: IdleList,
    pub(crate) stats: TenantStats,
}

impl Tenant {
    pub(crate) fn new(id: TenantId, config: &EngineConfig, own: &TenantLimits) -> Self {
        let mut limits = config.limits.clone();
        limits.max_history_turns = own.max_history_turns.unwrap_or(limits.max_history_turns);
        limits.max_history_bytes = own.max_history_bytes.unwrap_or(limits.max_history_bytes);
        let ttl_ms = ms(own.session_ttl.unwrap_or(config.sessions.session_ttl)).max(1);
        let sweep_ms = config.sessions.sweep_interval.map_or(ttl_ms / 4, ms).max(1);
        Self {
            id,
            limits,
            max_sessions: own.max_sessions.unwrap_or(config.sessions.max_sessions),
            ttl_ms,
            sweep_ms,
            idle: IdleList::default(),
            stats: TenantStats::default(),
        }
    }
}

pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
