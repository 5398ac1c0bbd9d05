//! The configuration of memories.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::config::{AsText, Problems, Span, Unit};
use serde::{Deserialize, Serialize};

use crate::embedder::Embedder;
use crate::extractor::Extractor;
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
    /// What finds facts in conversations by itself; `None`: bots do.
    #[serde(skip)]
    pub extractor: Option<Arc<dyn Extractor>>,
    /// When it is asked, and how much.
    #[serde(skip)]
    pub extraction: ExtractionConfig,
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

/// When a model is asked for facts, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExtractionConfig {
    /// When the turns of a session are looked at.
    #[serde(with = "AsText::<After>")]
    pub after: After,
    /// Tokens of prompts and answers of a tenant in a day, of UTC.
    pub tokens_per_day: u64,
    /// Sessions that are looked at at once, of all tenants,
    pub concurrency: usize,
    /// and of one of them.
    pub tenant_concurrency: usize,
}

/// When the turns of a session are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// When nothing was said for so long.
    Idle(Duration),
    /// When there are so many, and when the session has ended.
    Turns(u32),
    /// When the session has ended.
    End,
}

impl Unit<Self> for After {
    const EXPECTED: &'static str = "`idle 5m`, `20 turns` or `end`";

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let after = match (words.next()?, words.next()) {
            ("end", None) => Self::End,
            ("idle", Some(span)) => Self::Idle(<Span as Unit<Duration>>::parse(span)?),
            (count, Some("turn" | "turns")) => Self::Turns(count.parse().ok()?),
            _ => return None,
        };
        words.next().is_none().then_some(after)
    }

    fn format(after: &Self) -> String {
        match after {
            Self::Idle(span) => format!("idle {}", <Span as Unit<Duration>>::format(span)),
            Self::Turns(count) => format!("{count} turns"),
            Self::End => "end".to_owned(),
        }
    }
}

impl Default for ExtractionConfig {
    fn default() -> Self {
        Self {
            after: After::Idle(Duration::from_secs(5 * 60)),
            tokens_per_day: 1_000_000,
            concurrency: 4,
            tenant_concurrency: 2,
        }
    }
}

impl ExtractionConfig {
    fn check(&self, problems: &mut Problems) {
        let is_time = match self.after {
            After::Idle(span) => {
                (Duration::from_millis(1)..=Duration::from_secs(30 * 86_400)).contains(&span)
            }
            After::Turns(count) => (1..=10_000).contains(&count),
            After::End => true,
        };
        problems.unless(is_time, "after", "must be 1ms to 30d, or 1 to 10000 turns");
        problems.at_least_one("tokens_per_day", self.tokens_per_day);
        problems.range("concurrency", self.concurrency as u64, 1..=256);
        let is_share = (1..=self.concurrency).contains(&self.tenant_concurrency);
        problems.unless(is_share, "tenant_concurrency", "must be 1 to concurrency");
    }
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
            extractor: None,
            extraction: ExtractionConfig::default(),
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
        let is_value = (1..=64 << 20).contains(&limits.document_bytes);
        problems.unless(is_value, "document_bytes", "must be 1 to 64MiB");
        problems.at_least_one("max_documents", limits.documents);
        problems.at_least_one("documents_bytes", limits.documents_bytes as u64);
        problems.at_least_one("window_tokens", self.window_tokens);
        problems.at_least_one("recall_events", limits.recall_events);
        problems.not_zero("extraction_lease", self.lease);
        problems.not_zero("query_wait", self.query_wait);
        problems.within("extraction", |problems| self.extraction.check(problems));
        problems.within("half_lives", |problems| self.half_lives.check(problems));
        problems.within("dream", |problems| {
            self.consolidation.check(problems);
            if let Some(interval) = self.consolidation_interval {
                problems.not_zero("interval", interval);
            }
        });
    }
}
