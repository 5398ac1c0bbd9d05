//! The long-term store of the file: where memories are, what may be kept and asked, and
//! how they are consolidated.

use std::path::{Path, PathBuf};
use std::time::Duration;

use memoird_memories::MemoriesConfig;
use memoird_memories::files::FilesOptions;
use memoird_memories::rules::consolidation::ConsolidationSettings;
use memoird_memories::rules::fusion::{Fusion, HalfLives};
use memoird_memories::rules::secrets::SecretPolicy;
use memoird_memories::rules::{MemoryKind, MemoryLimits};
use serde::{Deserialize, Serialize};

use super::embedder::EmbedderShape;
use super::file::Problems;
use super::units::{OffSpan, Size, Span};

/// Where `auto` puts memories, in the data directory.
const DIR: &str = "memories";
const AUTO: &str = "auto";
/// A recall gives 100 of them in one answer, which has to stay below what clients take.
const CONTENT_BYTES_MAX: usize = 32 << 10;
const RECALL_LIMIT_MAX: usize = 100;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What the daemon was told of memories.
#[derive(Clone, Debug)]
pub(crate) struct LongTerm {
    /// The directory with a file for each tenant.
    pub(crate) dir: PathBuf,
    /// How these files are kept.
    pub(crate) options: FilesOptions,
}

/// What is done with what looks like a secret.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Secrets {
    /// It is taken out, and the rest is kept.
    #[default]
    Redact,
    /// The whole is refused.
    Block,
    /// It is kept.
    Allow,
}

/// The section of the file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LongTermShape {
    dir: PathBuf,
    open_files: usize,
    content_bytes: Size,
    max_memories: u64,
    recall_limit: usize,
    window_tokens: u64,
    near_duplicate_cosine: f64,
    secrets: Secrets,
    extraction_lease: Span,
    expired_kept: Span,
    recall_events: u64,
    embedder: EmbedderShape,
    query_wait: Span,
    half_lives: HalfLivesShape,
    dream: DreamShape,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct HalfLivesShape {
    user: Span,
    feedback: Span,
    project: Span,
    reference: Span,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct DreamShape {
    interval: OffSpan,
    max_promotions: usize,
    min_recalls: u64,
    min_queries: u64,
    min_days: u64,
    min_score: f64,
    unpin_after: Span,
    retention: RetentionShape,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct RetentionShape {
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    feedback: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<Span>,
}

impl LongTermShape {
    /// What the daemon is told; what is wrong is told to `problems`.
    pub(super) fn build(
        &self,
        data_dir: &Path,
        problems: &mut Problems,
    ) -> (LongTerm, MemoriesConfig) {
        self.check(problems);
        self.dream.check(problems);
        let embedder = self.embedder.build();
        let embedder = embedder.unwrap_or_else(|(field, problem)| {
            problems.add(&format!("long_term.embedder{field}"), problem);
            None
        });
        let dir = match self.dir == Path::new(AUTO) {
            true => data_dir.join(DIR),
            false => self.dir.clone(),
        };
        let options = FilesOptions {
            files_open_max: self.open_files,
            ..FilesOptions::default()
        };
        (LongTerm { dir, options }, self.engine(embedder))
    }

    fn engine(&self, embedder: super::embedder::Built) -> MemoriesConfig {
        MemoriesConfig {
            limits: MemoryLimits {
                content_bytes: self.content_bytes.0,
                memories: self.max_memories,
                recall_events: self.recall_events,
                ..MemoryLimits::default()
            },
            recall_limit: self.recall_limit,
            window_tokens: self.window_tokens,
            #[allow(clippy::cast_possible_truncation)]
            near_cosine: self.near_duplicate_cosine as f32,
            fusion: Fusion {
                half_lives: self.half_lives.days(),
                ..Fusion::default()
            },
            secrets: match self.secrets {
                Secrets::Redact => SecretPolicy::Redact,
                Secrets::Block => SecretPolicy::Block,
                Secrets::Allow => SecretPolicy::Allow,
            },
            embedder,
            query_wait: self.query_wait.0,
            lease: self.extraction_lease.0,
            consolidation_interval: match self.dream.interval {
                OffSpan::Off => None,
                OffSpan::Span(span) => Some(span),
            },
            consolidation: self.dream.settings(),
            expired_kept: self.expired_kept.0,
        }
    }

    fn check(&self, problems: &mut Problems) {
        let named = !self.dir.as_os_str().is_empty();
        problems.unless(named, "long_term.dir", "must be a directory, or auto");
        let bytes = (1..=CONTENT_BYTES_MAX).contains(&self.content_bytes.0);
        problems.unless(bytes, "long_term.content_bytes", "must be 1 to 32KiB");
        let hits = (1..=RECALL_LIMIT_MAX).contains(&self.recall_limit);
        problems.unless(hits, "long_term.recall_limit", "must be 1 to 100");
        let cosine = self.near_duplicate_cosine > 0.0 && self.near_duplicate_cosine <= 1.0;
        let more = "must be more than 0, and at most 1";
        problems.unless(cosine, "long_term.near_duplicate_cosine", more);
        let counts = [
            ("open_files", self.open_files > 0),
            ("max_memories", self.max_memories > 0),
            ("window_tokens", self.window_tokens > 0),
            ("recall_events", self.recall_events > 0),
        ];
        for (field, is_good) in counts {
            problems.unless(is_good, &format!("long_term.{field}"), "must be at least 1");
        }
        let spans = [
            ("extraction_lease", self.extraction_lease),
            ("query_wait", self.query_wait),
        ];
        let half_lives = self.half_lives.by_kind();
        let half_lives = half_lives.map(|(kind, span)| (format!("half_lives.{kind}"), span));
        let spans = spans.map(|(field, span)| (field.to_owned(), span));
        for (field, span) in spans.into_iter().chain(half_lives) {
            let is_good = !span.0.is_zero();
            problems.unless(
                is_good,
                &format!("long_term.{field}"),
                "must be more than zero",
            );
        }
    }
}

impl HalfLivesShape {
    fn days(&self) -> HalfLives {
        let days = |span: Span| span.0.as_secs_f64() / DAY.as_secs_f64();
        HalfLives {
            user_days: days(self.user),
            feedback_days: days(self.feedback),
            project_days: days(self.project),
            reference_days: days(self.reference),
        }
    }

    fn by_kind(&self) -> [(&'static str, Span); 4] {
        MemoryKind::ALL.map(|kind| {
            let span = match kind {
                MemoryKind::User => self.user,
                MemoryKind::Feedback => self.feedback,
                MemoryKind::Project => self.project,
                MemoryKind::Reference => self.reference,
            };
            (kind.as_str(), span)
        })
    }
}

impl DreamShape {
    fn settings(&self) -> ConsolidationSettings {
        ConsolidationSettings {
            promotions_max: self.max_promotions,
            recalls_min: self.min_recalls,
            queries_min: self.min_queries,
            days_min: self.min_days,
            score_min: self.min_score,
            unpin_after_days: whole_days(self.unpin_after),
            retention_days: self
                .retention
                .by_kind()
                .map(|(_, span)| span.map(whole_days)),
        }
    }

    fn check(&self, problems: &mut Problems) {
        let at = |field: &str| format!("long_term.dream.{field}");
        let counts = [
            ("min_recalls", self.min_recalls),
            ("min_queries", self.min_queries),
            ("min_days", self.min_days),
        ];
        for (field, count) in counts {
            problems.unless(count > 0, &at(field), "must be at least 1");
        }
        let score = (0.0..=1.0).contains(&self.min_score);
        problems.unless(score, &at("min_score"), "must be 0 to 1");
        let interval = match self.interval {
            OffSpan::Off => None,
            OffSpan::Span(span) => Some(Span(span)),
        };
        let spans = [
            ("interval".to_owned(), interval),
            ("unpin_after".into(), Some(self.unpin_after)),
        ];
        let kept = self.retention.by_kind();
        let kept = kept.map(|(kind, span)| (format!("retention.{}", kind.as_str()), span));
        for (field, span) in spans.into_iter().chain(kept) {
            let is_good = span.is_none_or(|span| !span.0.is_zero());
            problems.unless(is_good, &at(&field), "must be more than zero");
        }
    }
}

/// Days as a sweep counts them: what is begun counts whole.
fn whole_days(span: Span) -> u64 {
    span.0.as_secs().div_ceil(DAY.as_secs())
}

impl RetentionShape {
    fn by_kind(&self) -> [(MemoryKind, Option<Span>); 4] {
        MemoryKind::ALL.map(|kind| {
            let span = match kind {
                MemoryKind::User => self.user,
                MemoryKind::Feedback => self.feedback,
                MemoryKind::Project => self.project,
                MemoryKind::Reference => self.reference,
            };
            (kind, span)
        })
    }
}

impl Default for LongTermShape {
    fn default() -> Self {
        let (engine, options) = (MemoriesConfig::default(), FilesOptions::default());
        Self {
            dir: AUTO.into(),
            open_files: options.files_open_max,
            content_bytes: Size(engine.limits.content_bytes),
            max_memories: engine.limits.memories,
            recall_limit: engine.recall_limit,
            window_tokens: engine.window_tokens,
            near_duplicate_cosine: 0.95,
            secrets: Secrets::default(),
            extraction_lease: Span(engine.lease),
            expired_kept: Span(engine.expired_kept),
            recall_events: engine.limits.recall_events,
            embedder: EmbedderShape::default(),
            query_wait: Span(engine.query_wait),
            half_lives: HalfLivesShape::default(),
            dream: DreamShape::default(),
        }
    }
}

impl Default for HalfLivesShape {
    fn default() -> Self {
        let days = |days| Span(DAY * days);
        Self {
            user: days(10_000),
            feedback: days(365),
            project: days(90),
            reference: days(10_000),
        }
    }
}

impl Default for DreamShape {
    fn default() -> Self {
        Self {
            interval: OffSpan::Span(DAY),
            max_promotions: 20,
            min_recalls: 3,
            min_queries: 2,
            min_days: 2,
            min_score: 0.35,
            unpin_after: Span(DAY * 60),
            retention: RetentionShape::default(),
        }
    }
}

#[cfg(test)]
mod tests;
