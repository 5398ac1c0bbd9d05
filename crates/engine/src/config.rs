//! Engine configuration, composed of its components' configurations.

use memoird_core::compaction::CompactionPolicy;
use memoird_core::limits::Limits;
use memoird_core::nonce::NonceSecret;

use crate::cluster::Cluster;
use crate::compaction::CompactionConfig;
use crate::hook::HooksConfig;
use crate::journal::JournalConfig;
use crate::models::ContextConfig;
use crate::tenants::{SessionConfig, TenantConfig, TenantsConfig};

#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    /// Default client limits, for tenants without their own.
    pub limits: Limits,
    pub sessions: SessionConfig,
    /// Maximum memory for sessions and calls in bytes. 0 means no limit.
    pub memory_bytes: u64,
    /// Maximum bytes of turns in the journal, across all tenants. 0 means no limit.
    pub journal_bytes: u64,
    pub journal: JournalConfig,
    pub context: ContextConfig,
    pub compaction: CompactionConfig,
    pub hooks: HooksConfig,
    /// Tenants to create at startup.
    pub tenants: Vec<TenantConfig>,
    /// Secret for deriving the nonces in windows. Read only when the engine is opened.
    ///
    /// `None` generates one, so nonces do not survive a restart.
    pub nonce_secret: Option<NonceSecret>,
    /// Set if other daemons share the journal. Read only when the engine is opened.
    pub cluster: Option<Cluster>,
}

impl EngineConfig {
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
