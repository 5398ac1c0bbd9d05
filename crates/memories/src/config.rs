//! The configuration of memories.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::config::{AsText, Problems, Span};
use serde::{Deserialize, Serialize};

use crate::embedder::Embedder;
use crate::reranker::Reranker;
use crate::rules::MemoryLimits;
use crate::rules::consolidation::ConsolidationSettings;
use crate::rules::fusion::HalfLives;
use crate::rules::secrets::SecretPolicy;

/// All of it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoriesConfig {
    /// Limits of clients.
    #[serde(skip)]
    pub limits: MemoryLimits,
    /// Hits of a recall that names no number.
    pub recall_limit: usize,
    /// Tokens that the block of memories may use of a window.
    pub window_tokens: u64,
    /// From which cosine on two memories say the same; only with an embedder.
    pub near_duplicate_cosine: f32,
    /// How soon the score of a memory in a recall sinks with its age.
    pub half_lives: HalfLives,
    /// How secrets in facts are handled.
    pub secrets: SecretPolicy,
    /// What turns texts into vectors; `None`: recall is lexical only.
    #[serde(skip)]
    pub embedder: Option<Arc<dyn Embedder>>,
    /// What judges how well the best memories of a recall answer its query; `None`: their order is
    /// that of words and meaning.
    #[serde(skip)]
    pub reranker: Option<Arc<dyn Reranker>>,
    /// How long a recall waits for the vector of its query before it goes by words only.
    #[serde(with = "AsText::<Span>")]
    pub query_wait: Duration,
    /// How long a lease of turns runs.
    #[serde(rename = "extraction_lease", with = "AsText::<Span>")]
    pub lease: Duration,
    /// How often memories are consolidated; `None`: only on request.
    #[serde(skip)]
    pub consolidation_interval: Option<Duration>,
    /// How they are consolidated.
    #[serde(skip)]
    pub consolidation: ConsolidationSettings,
    /// How long a memory that has expired stays readable by its id.
    #[serde(with = "AsText::<Span>")]
    pub expired_kept: Duration,
}

impl Default for MemoriesConfig {
    fn default() -> Self {
        Self {
            limits: MemoryLimits::default(),
            recall_limit: 8,
            window_tokens: 1_000,
            near_duplicate_cosine: 0.95,
            half_lives: HalfLives::default(),
            secrets: SecretPolicy::Redact,
            embedder: None,
            reranker: None,
            query_wait: Duration::from_secs(1),
            lease: Duration::from_secs(300),
            consolidation_interval: Some(Duration::from_secs(24 * 60 * 60)),
            consolidation: ConsolidationSettings::default(),
            expired_kept: Duration::from_secs(30 * 24 * 60 * 60),
        }
    }
}

impl MemoriesConfig {
    /// Adds its problems.
    pub fn check(&self, problems: &mut Problems) {
        let limits = &self.limits;
        // A recall gives 100 of them in one answer, which clients have to accept.
        let is_content = (1..=32 << 10).contains(&limits.content_bytes);
        problems.unless(is_content, "content_bytes", "must be 1 to 32KiB");
        problems.range("recall_limit", self.recall_limit as u64, 1..=100);
        let is_cosine = self.near_duplicate_cosine > 0.0 && self.near_duplicate_cosine <= 1.0;
        let range = "must be more than 0, and at most 1";
        problems.unless(is_cosine, "near_duplicate_cosine", range);
        problems.at_least_one("max_memories", limits.memories);
        problems.at_least_one("window_tokens", self.window_tokens);
        problems.at_least_one("recall_events", limits.recall_events);
        problems.not_zero("extraction_lease", self.lease);
        problems.not_zero("query_wait", self.query_wait);
        problems.within("half_lives", |problems| self.half_lives.check(problems));
        problems.within("dream", |problems| {
            self.consolidation.check(problems);
            if let Some(interval) = self.consolidation_interval {
                problems.not_zero("interval", interval);
            }
        });
    }
}
