//! Configuration of long-term memory.

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

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoriesConfig {
    #[serde(skip)]
    pub limits: MemoryLimits,
    /// Hits of a recall that sets no limit.
    pub recall_limit: usize,
    /// Maximum tokens of the recalled memories in a window.
    pub window_tokens: u64,
    /// Minimum cosine similarity of near duplicates, if an embedder is configured.
    pub near_duplicate_cosine: f32,
    /// Half-lives by which the score of a memory decays with its age.
    pub half_lives: HalfLives,
    pub secrets: SecretPolicy,
    /// If `None`, recall is lexical only.
    #[serde(skip)]
    pub embedder: Option<Arc<dyn Embedder>>,
    /// Judges the best hits of a recall against its query.
    ///
    /// If `None`, they keep the order of the lexical and vector ranking.
    #[serde(skip)]
    pub reranker: Option<Arc<dyn Reranker>>,
    /// Time a recall waits for the vector of its query before it falls back to lexical search.
    #[serde(with = "AsText::<Span>")]
    pub query_wait: Duration,
    /// Duration of an extraction lease.
    #[serde(rename = "extraction_lease", with = "AsText::<Span>")]
    pub lease: Duration,
    /// Extracts facts in the background. If `None`, only bots do.
    #[serde(skip)]
    pub extractor: Option<Arc<dyn Extractor>>,
    /// Schedule and budget of the extractor.
    #[serde(skip)]
    pub extraction: ExtractionConfig,
    /// Interval between consolidations. If `None`, they run only on request.
    #[serde(skip)]
    pub consolidation_interval: Option<Duration>,
    #[serde(skip)]
    pub consolidation: ConsolidationSettings,
    /// Time an expired memory stays readable by its id.
    #[serde(with = "AsText::<Span>")]
    pub expired_kept: Duration,
}

/// Schedule and budget of extraction by the configured model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExtractionConfig {
    /// When the new turns of a session are extracted.
    #[serde(with = "AsText::<After>")]
    pub after: After,
    /// Maximum tokens of prompts and replies per tenant and UTC day.
    pub tokens_per_day: u64,
    /// Maximum sessions extracted concurrently, across tenants.
    pub concurrency: usize,
    /// Maximum sessions of one tenant extracted concurrently.
    pub tenant_concurrency: usize,
}

/// Trigger for extracting the new turns of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// When the session has had no turns for this duration.
    Idle(Duration),
    /// When this many new turns exist, and when the session ends.
    Turns(u32),
    /// When the session ends.
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
    pub fn check(&self, problems: &mut Problems) {
        let limits = &self.limits;
        // A recall returns up to 100 memories in one response, which must fit the message size that
        // clients accept.
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
