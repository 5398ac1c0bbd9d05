//! Compaction in the file: when the oldest exchanges become a summary, who writes it, and
//! what happens when that fails.

use std::num::NonZeroUsize;
use std::time::Duration;

use memoird_core::compaction::CompactionPolicy;
use memoird_engine::CompactionConfig;
use serde::{Deserialize, Serialize};

use super::file::Problems;
use super::summarizer::SummarizerShape;
use super::units::{Percent, Span};

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The section of the file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CompactionShape {
    enabled: bool,
    soft_watermark: Percent,
    hard_watermark: Percent,
    floor: Percent,
    keep_exchanges: u32,
    turns_between_min: u64,
    defer_max: Span,
    summary_tokens: u64,
    lost_identifiers: Percent,
    breaker: BreakerShape,
    concurrency: usize,
    tenant_concurrency: usize,
    timeout: Span,
    provider_breaker: ProviderBreakerShape,
    pub(super) summarizer: SummarizerShape,
}

/// When a session is left alone.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct BreakerShape {
    failures: u32,
    turns: u64,
    cool_down: Span,
}

/// When a remote summarizer is left alone.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct ProviderBreakerShape {
    failures: u32,
    cool_down: Span,
}

impl CompactionShape {
    /// What the engine is told; what is wrong is told to `problems`.
    pub(super) fn engine(&self, problems: &mut Problems) -> CompactionConfig {
        self.check_shares(problems);
        self.check_numbers(problems);
        self.check_spans(problems);
        let summarizer = self.summarizer.build().unwrap_or_else(|(field, problem)| {
            problems.add(&format!("compaction.summarizer{field}"), problem);
            None
        });
        let at_least_one = |count| NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN);
        CompactionConfig {
            policy: self.policy(),
            summarizer,
            concurrency: at_least_one(self.concurrency),
            tenant_concurrency: at_least_one(self.tenant_concurrency),
            timeout: self.timeout.0,
            provider_failures_max: self.provider_breaker.failures,
            provider_cool_down: self.provider_breaker.cool_down.0,
        }
    }

    fn policy(&self) -> CompactionPolicy {
        CompactionPolicy {
            enabled: self.enabled,
            soft_watermark_percent: self.soft_watermark.0,
            hard_watermark_percent: self.hard_watermark.0,
            floor_percent: self.floor.0,
            keep_exchanges: self.keep_exchanges,
            turns_between_min: self.turns_between_min,
            defer_ms_max: ms(self.defer_max),
            summary_tokens_max: self.summary_tokens,
            lost_identifiers_percent_max: self.lost_identifiers.0,
            failures_max: self.breaker.failures,
            open_turns: self.breaker.turns,
            open_ms: ms(self.breaker.cool_down),
        }
    }

    fn check_shares(&self, problems: &mut Problems) {
        let shares = [
            ("soft_watermark", self.soft_watermark),
            ("hard_watermark", self.hard_watermark),
            ("floor", self.floor),
        ];
        for (field, share) in shares {
            let good = (1..=99).contains(&share.0);
            problems.unless(good, &at(field), "must be 1% to 99%");
        }
        let below = self.soft_watermark.0 < self.hard_watermark.0;
        problems.unless(
            below,
            &at("soft_watermark"),
            "must be less than hard_watermark",
        );
        let below = self.floor.0 < self.soft_watermark.0;
        problems.unless(below, &at("floor"), "must be less than soft_watermark");
        let lost = self.lost_identifiers.0 <= 100;
        problems.unless(lost, &at("lost_identifiers"), "must be 0% to 100%");
    }

    fn check_numbers(&self, problems: &mut Problems) {
        let (own, provider) = (&self.breaker, &self.provider_breaker);
        let numbers = [
            ("keep_exchanges", u64::from(self.keep_exchanges), 1..=1_000),
            ("turns_between_min", self.turns_between_min, 1..=1_000),
            ("summary_tokens", self.summary_tokens, 256..=16_384),
            ("breaker.failures", u64::from(own.failures), 1..=100),
            ("breaker.turns", own.turns, 1..=1_000),
            ("concurrency", self.concurrency as u64, 1..=256),
            (
                "tenant_concurrency",
                self.tenant_concurrency as u64,
                1..=256,
            ),
            (
                "provider_breaker.failures",
                u64::from(provider.failures),
                1..=100,
            ),
        ];
        for (field, number, range) in numbers {
            let problem = format!("must be {} to {}", range.start(), range.end());
            problems.unless(range.contains(&number), &at(field), &problem);
        }
        let fits = self.tenant_concurrency <= self.concurrency;
        problems.unless(
            fits,
            &at("tenant_concurrency"),
            "must be at most concurrency",
        );
    }

    fn check_spans(&self, problems: &mut Problems) {
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis(1));
        let spans = [
            ("defer_max", self.defer_max, ms..=DAY, "must be 1ms to 24h"),
            (
                "breaker.cool_down",
                self.breaker.cool_down,
                ms..=DAY,
                "must be 1ms to 24h",
            ),
            ("timeout", self.timeout, second..=HOUR, "must be 1s to 1h"),
            (
                "provider_breaker.cool_down",
                self.provider_breaker.cool_down,
                ms..=DAY,
                "must be 1ms to 24h",
            ),
        ];
        for (field, span, range, problem) in spans {
            problems.unless(range.contains(&span.0), &at(field), problem);
        }
    }
}

fn at(field: &str) -> String {
    format!("compaction.{field}")
}

fn ms(span: Span) -> u64 {
    u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX)
}

impl Default for CompactionShape {
    fn default() -> Self {
        let CompactionConfig {
            policy,
            concurrency,
            tenant_concurrency,
            timeout,
            ..
        } = CompactionConfig::default();
        Self {
            enabled: policy.enabled,
            soft_watermark: Percent(policy.soft_watermark_percent),
            hard_watermark: Percent(policy.hard_watermark_percent),
            floor: Percent(policy.floor_percent),
            keep_exchanges: policy.keep_exchanges,
            turns_between_min: policy.turns_between_min,
            defer_max: Span(Duration::from_millis(policy.defer_ms_max)),
            summary_tokens: policy.summary_tokens_max,
            lost_identifiers: Percent(policy.lost_identifiers_percent_max),
            breaker: BreakerShape::default(),
            concurrency: concurrency.get(),
            tenant_concurrency: tenant_concurrency.get(),
            timeout: Span(timeout),
            provider_breaker: ProviderBreakerShape::default(),
            summarizer: SummarizerShape::default(),
        }
    }
}

impl Default for BreakerShape {
    fn default() -> Self {
        let policy = CompactionPolicy::default();
        Self {
            failures: policy.failures_max,
            turns: policy.open_turns,
            cool_down: Span(Duration::from_millis(policy.open_ms)),
        }
    }
}

impl Default for ProviderBreakerShape {
    fn default() -> Self {
        let config = CompactionConfig::default();
        Self {
            failures: config.provider_failures_max,
            cool_down: Span(config.provider_cool_down),
        }
    }
}

#[cfg(test)]
mod tests;
