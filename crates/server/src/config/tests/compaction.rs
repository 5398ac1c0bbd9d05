//! Tests of the section `compaction`.

use memoird_core::compaction::{CompactionPolicy, SessionBreaker, SummaryTokens};
use memoird_engine::ProviderBreaker;

use super::*;

fn built(text: &str) -> Result<CompactionConfig, String> {
    Ok(parse(&format!("compaction: {text}"))?.engine.compaction)
}

fn problem(text: &str) -> String {
    built(text).expect_err("a problem was expected")
}

#[test]
fn omitted_settings_have_defaults() {
    let (is, default) = (
        built("{}").expect("the default"),
        CompactionConfig::default(),
    );
    assert_eq!(is.policy, default.policy);
    assert_eq!(
        (is.concurrency, is.tenant_concurrency),
        (default.concurrency, default.tenant_concurrency)
    );
    assert_eq!(is.timeout, default.timeout);
    assert_eq!(is.provider_breaker, default.provider_breaker);
    assert_eq!(
        is.summarizer.map(|summarizer| summarizer.name().to_owned()),
        Some("extractive".into())
    );
}

#[test]
fn every_setting_is_applied() {
    let text = "
  enabled: false
  soft_watermark: 60%
  hard_watermark: 80%
  turns_between_min: 8
  defer_max: 1m
  summary_tokens: 500
  breaker: { failures: 2, turns: 9, cool_down: 10s }
  concurrency: 6
  tenant_concurrency: 3
  timeout: 30s
  provider_breaker: { failures: 4, cool_down: 20s }
  summarizer: none
";
    let config = built(text).expect("fine settings");
    let expected = CompactionPolicy {
        enabled: false,
        soft_watermark_percent: 60,
        hard_watermark_percent: 80,
        turns_between_min: 8,
        defer_ms_max: 60_000,
        summary_tokens: SummaryTokens::Fixed(500),
        breaker: SessionBreaker {
            failures_max: 2,
            open_turns: 9,
            open_ms: 10_000,
        },
    };
    assert_eq!(config.policy, expected);
    assert_eq!((config.concurrency, config.tenant_concurrency), (6, 3));
    assert_eq!(config.timeout, Duration::from_secs(30));
    let provider_breaker = ProviderBreaker {
        failures_max: 4,
        cool_down: Duration::from_secs(20),
    };
    assert_eq!(config.provider_breaker, provider_breaker);
    assert!(config.summarizer.is_none());
}

#[test]
fn summary_tokens_are_auto_or_a_number() {
    for (text, tokens) in [
        ("{}", SummaryTokens::Auto),
        ("{ summary_tokens: auto }", SummaryTokens::Auto),
        ("{ summary_tokens: 65536 }", SummaryTokens::Fixed(65_536)),
    ] {
        let policy = built(text).expect("fine settings").policy;
        assert_eq!(policy.summary_tokens, tokens, "{text}");
    }
    let said = problem("{ summary_tokens: 65537 }");
    assert!(said.contains("must be 256 to 65536"), "{said}");
}

#[test]
fn all_problems_are_reported_together() {
    let text = "
  soft_watermark: 0%
  hard_watermark: 100%
  turns_between_min: 1001
  defer_max: 25h
  summary_tokens: 255
  breaker: { failures: 0, turns: 0, cool_down: 0s }
  concurrency: 0
  tenant_concurrency: 257
  timeout: 999ms
  provider_breaker: { failures: 101, cool_down: 0s }
  summarizer: { openai: { model: m, api_key: { env: MEMOIRD_TEST_NO_SUCH_VARIABLE } } }
";
    let problem = problem(text);
    for part in [
        "15 problems",
        "compaction.soft_watermark: must be 1% to 99%",
        "compaction.hard_watermark: must be 1% to 99%",
        "compaction.turns_between_min: must be 1 to 1000",
        "compaction.summary_tokens: must be 256 to 65536",
        "compaction.breaker.failures: must be 1 to 100",
        "compaction.breaker.turns: must be 1 to 1000",
        "compaction.concurrency: must be 1 to 256",
        "compaction.tenant_concurrency: must be 1 to 256",
        "compaction.provider_breaker.failures: must be 1 to 100",
        "compaction.tenant_concurrency: must be at most concurrency",
        "compaction.defer_max: must be 1ms to 24h",
        "compaction.breaker.cool_down: must be 1ms to 24h",
        "compaction.timeout: must be 1s to 1h",
        "compaction.provider_breaker.cool_down: must be 1ms to 24h",
        "compaction.summarizer.openai.api_key: the environment has no variable",
    ] {
        assert!(problem.contains(part), "{part:?} is missing in: {problem}");
    }
    let crossed = self::problem("{ soft_watermark: 99% }");
    let part = "soft_watermark: must be less than hard_watermark";
    assert!(crossed.contains(part), "{crossed}");
}

#[test]
fn internal_fields_are_no_settings() {
    for (text, part) in [
        ("{ watermark: 70% }", "watermark"),
        ("{ soft_watermark: 0.5 }", "a share such as 50%"),
        ("{ floor: 15% }", "floor"),
        ("{ keep_exchanges: 5 }", "keep_exchanges"),
        ("{ lost_identifiers: 10% }", "lost_identifiers"),
        (
            "{ summary_tokens: most }",
            "expected auto or a number of tokens",
        ),
        ("{ breaker: { seconds: 5 } }", "seconds"),
        ("{ summarizer: cohere }", "extractive"),
        ("{ summarizer: { anthropic: { } } }", "model"),
        ("{ summarizer: { webhook: { } } }", "url"),
        (
            "{ summarizer: { openai: { model: m, api_key: sk-hunter2 } } }",
            "{ env: NAME }",
        ),
    ] {
        let problem = problem(text);
        assert!(
            problem.contains(part) && problem.contains("line"),
            "{problem}"
        );
    }
}
