//! The configuration of the engine, composed of those of its components.

use memoird_core::compaction::CompactionPolicy;
use memoird_core::limits::Limits;
use memoird_core::mark::MarkSecret;

use crate::cluster::Cluster;
use crate::compaction::CompactionConfig;
use crate::hooks::HooksConfig;
use crate::journal::JournalConfig;
use crate::models::ContextConfig;
use crate::tenants::{SessionConfig, TenantConfig, TenantsConfig};

/// What an operator decides of the engine.
#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    /// What clients may send and keep, unless their tenant has other limits.
    pub limits: Limits,
    /// How many sessions live, and how long.
    pub sessions: SessionConfig,
    /// Memory that sessions and calls may use, in bytes; 0: no limit.
    pub memory_bytes: u64,
    /// Bytes of turns that the journal may have, of all tenants together; 0: no limit.
    pub journal_bytes: u64,
    /// How the journal is kept.
    pub journal: JournalConfig,
    /// How windows are built.
    pub context: ContextConfig,
    /// How sessions are compacted.
    pub compaction: CompactionConfig,
    /// The hooks.
    pub hooks: HooksConfig,
    /// The tenants that are known from the start.
    pub tenants: Vec<TenantConfig>,
    /// What the marks in windows are made from. `None`: one that no other process knows, so that
    /// marks do not outlive this one. It applies when the engine is opened.
    pub mark_secret: Option<MarkSecret>,
    /// Where other daemons have the same journal. It applies when the engine is opened.
    pub cluster: Option<Cluster>,
}

impl EngineConfig {
    /// What applies to tenants: in common, and to each.
    pub(crate) fn tenants(&self) -> TenantsConfig {
        TenantsConfig {
            limits: self.limits.clone(),
            sessions: self.sessions.clone(),
            compaction: CompactionPolicy {
                enabled: self.compaction.is_on(),
                ..self.compaction.policy
            },
            tenants: self.tenants.clone(),
        }
    }
}
