//! What an operator decides of memories.

use std::sync::Arc;
use std::time::Duration;

use crate::embedder::Embedder;
use crate::rules::MemoryLimits;
use crate::rules::consolidation::ConsolidationSettings;
use crate::rules::fusion::Fusion;
use crate::rules::secrets::SecretPolicy;

/// All of it.
#[derive(Clone, Debug)]
pub struct MemoriesConfig {
    /// What clients may keep and ask.
    pub limits: MemoryLimits,
    /// Hits of a recall that names no number.
    pub recall_limit: usize,
    /// Tokens that the block of memories may use of a window.
    pub window_tokens: u64,
    /// From which cosine on two memories say the same; only with an embedder.
    pub near_cosine: f32,
    /// How what was found by words and by meaning becomes one list.
    pub fusion: Fusion,
    /// What is done with secrets in what is to be remembered.
    pub secrets: SecretPolicy,
    /// What turns texts into vectors; `None`: recall is lexical only.
    pub embedder: Option<Arc<dyn Embedder>>,
    /// How long a recall waits for the vector of its query before it goes by words only.
    pub query_wait: Duration,
    /// How long a lease of turns runs.
    pub lease: Duration,
    /// How often memories are consolidated; `None`: only on request.
    pub consolidation_interval: Option<Duration>,
    /// How they are consolidated.
    pub consolidation: ConsolidationSettings,
    /// How long a memory that has expired stays readable by its id.
    pub expired_kept: Duration,
}

impl Default for MemoriesConfig {
    fn default() -> Self {
        Self {
            limits: MemoryLimits::default(),
            recall_limit: 8,
            window_tokens: 1_000,
            near_cosine: 0.95,
            fusion: Fusion::default(),
            secrets: SecretPolicy::Redact,
            embedder: None,
            query_wait: Duration::from_secs(1),
            lease: Duration::from_secs(300),
            consolidation_interval: Some(Duration::from_secs(24 * 60 * 60)),
            consolidation: ConsolidationSettings::default(),
            expired_kept: Duration::from_secs(30 * 24 * 60 * 60),
        }
    }
}
