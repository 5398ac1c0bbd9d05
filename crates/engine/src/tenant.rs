//! A tenant: its policy, its idle list, its counts, its events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use memoird_core::compaction::CompactionPolicy;
use memoird_core::ids::TenantId;
use memoird_core::limits::Limits;
use memoird_formats::tokens::Calibration;

use crate::config::{EngineConfig, TenantLimits};
use crate::events::Ring;
use crate::idle::IdleList;
use crate::stats::TenantStats;

/// An organisation or bot. A call gets it from its credential.
#[derive(Debug)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    policy: ArcSwap<Policy>,
    pub(crate) idle: IdleList,
    pub(crate) stats: TenantStats,
    pub(crate) events: Ring,
    /// By model profile, of which the configuration names few.
    calibrations: Mutex<BTreeMap<Box<str>, Calibration>>,
}

/// What an operator decided for a tenant; another one may take its place at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What its clients may send and keep.
    pub limits: Limits,
    /// When its sessions are compacted, and how far.
    pub compaction: CompactionPolicy,
    pub(crate) max_sessions: usize,
    pub(crate) ttl_ms: u64,
    pub(crate) sweep_ms: u64,
}

impl Tenant {
    pub(crate) fn new(id: TenantId, policy: Policy) -> Self {
        Self {
            id,
            policy: ArcSwap::from_pointee(policy),
            idle: IdleList::default(),
            stats: TenantStats::default(),
            events: Ring::default(),
            calibrations: Mutex::default(),
        }
    }

    /// How what a model's provider charges differs from what is counted.
    pub(crate) fn calibration(&self, model: &str) -> Calibration {
        self.calibrations().get(model).copied().unwrap_or_default()
    }

    /// Learns from what was charged for a window that was counted.
    pub(crate) fn calibrate(&self, model: &str, counted: u64, charged: u64) {
        let mut all = self.calibrations();
        match all.get_mut(model) {
            Some(known) => known.observe(counted, charged),
            None => {
                let mut first = Calibration::default();
                first.observe(counted, charged);
                all.insert(model.into(), first);
            }
        }
    }

    fn calibrations(&self) -> MutexGuard<'_, BTreeMap<Box<str>, Calibration>> {
        self.calibrations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What applies to it now.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Another policy applies from now on.
    pub(crate) fn set_policy(&self, policy: Policy) {
        self.policy.store(Arc::new(policy));
    }

    pub(crate) fn ttl_ms(&self) -> u64 {
        self.policy.load().ttl_ms
    }
}

impl Policy {
    /// What applies to a tenant with these limits of its own.
    pub(crate) fn new(config: &EngineConfig, own: &TenantLimits) -> Self {
        let mut limits = config.limits.clone();
        limits.max_history_turns = own.max_history_turns.unwrap_or(limits.max_history_turns);
        limits.max_history_bytes = own.max_history_bytes.unwrap_or(limits.max_history_bytes);
        let ttl_ms = ms(own.session_ttl.unwrap_or(config.sessions.session_ttl)).max(1);
        let sweep_ms = config.sessions.sweep_interval.map_or(ttl_ms / 4, ms).max(1);
        Self {
            limits,
            compaction: CompactionPolicy {
                enabled: config.compaction.is_on(),
                ..config.compaction.policy
            },
            max_sessions: own.max_sessions.unwrap_or(config.sessions.max_sessions),
            ttl_ms,
            sweep_ms,
        }
    }

    /// What applies to the tenant of this id.
    pub(crate) fn of(config: &EngineConfig, id: &TenantId) -> Self {
        let own = config.tenants.iter().find(|tenant| tenant.id == *id);
        match own {
            Some(tenant) => Self::new(config, &tenant.limits),
            // One that the configuration does not know lives by the common limits.
            None => Self::new(config, &TenantLimits::default()),
        }
    }
}

pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
