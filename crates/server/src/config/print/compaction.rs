//! The section of the default configuration that says how long conversations stay alive.

use std::time::Duration;

use memoird_core::compaction::CompactionPolicy;
use memoird_engine::CompactionConfig;

use super::super::units::span;

/// The text; `${name}` stands for the value of that name.
pub(super) const TEMPLATE: &str = r#"# Long conversations: when a window gets full, the oldest exchanges (a user turn and all
# up to the next one) become one summary, made in the background. No call waits for it, or
# fails because it fails. The turns stay in the journal, and
# `memoird sessions undo-compaction` takes the last summary back. All of this applies as
# soon as the file is read again.
compaction:
  # false: only when a call asks for it (CompactSession, `memoird sessions compact`).
  enabled: ${enabled}
  # A window that uses so much of its budget asks for a compaction, which takes it down to
  # the floor. 1% to 99%, and floor < soft_watermark < hard_watermark.
  soft_watermark: ${soft_watermark}
  # Above so much, as long as there is no summary yet, a window leaves the oldest turns out
  # by itself, and its report says so.
  hard_watermark: ${hard_watermark}
  floor: ${compaction_floor}
  # Exchanges that stay as they were said, 1 to 1000; fewer where they alone are more than
  # the floor. The first user turn, system turns and pinned turns always stay.
  keep_exchanges: ${keep_exchanges}
  # Turns from one compaction of a session to the next, at least.
  turns_between_min: ${turns_between_min}
  # How long a compaction waits for the result of a pending call, or for the end of a reply
  # that is streaming.
  defer_max: ${defer_max}
  # Tokens of a summary, 256 to 16384; less where the floor leaves less.
  summary_tokens: ${summary_tokens}
  # No summary is believed blindly: an empty, cut off, refusing or too long one changes
  # nothing, and neither does one that lost more than this share of the identifiers (paths,
  # numbers, dates, names) of the last turns that it stands for. 100%: it may lose them all.
  lost_identifiers: ${lost_identifiers}
  # A session whose compaction fails so often in a row is left alone, and its windows are
  # cut; after so many turns, or so long, one trial decides whether it goes on.
  breaker: { failures: ${failures}, turns: ${open_turns}, cool_down: ${cool_down} }
  # Compactions at once: of all tenants, and of one of them.
  concurrency: ${compaction_concurrency}
  tenant_concurrency: ${tenant_concurrency}
  # One compaction, with all its pieces and tries.
  timeout: ${compaction_timeout}
  # A remote summarizer that fails so often in a row, whosever sessions they are, is asked
  # by nobody for so long.
  provider_breaker: { failures: ${provider_failures}, cool_down: ${provider_cool_down} }
  # Who writes the summaries.
  # extractive: memoird itself, without a model or a network: the sentences that matter
  # most, and all paths, numbers, dates and names to the letter. The same turns always give
  # the same summary.
  # none: nobody; windows are cut.
  # anthropic: a Claude model, by the Messages API. openai: any service that has OpenAI's
  # /v1/chat/completions, such as Ollama or vLLM. webhook: a service of your own, which
  # gets and answers JSON. What is said in the sessions is sent there. A model that
  # summarizes well is small: input_tokens says how much it takes at once, and longer spans
  # are summarized in pieces.
  #
  # summarizer:
  #   anthropic: { model: claude-haiku-4-5, api_key: { env: ANTHROPIC_API_KEY },
  #                base_url: "https://api.anthropic.com", input_tokens: 150000,
  #                timeout: 60s }
  # summarizer:
  #   openai: { model: qwen3:8b, base_url: "http://127.0.0.1:11434/v1",
  #             input_tokens: 24000, timeout: 60s, tries: 3, json_object: false,
  #             token_limit: auto,       # or max_tokens, max_completion_tokens
  #             thinking_tokens: 0 }     # more room for models that think first
  # summarizer:
  #   webhook: { url: "https://bots.example/summarize",
  #              api_key: { file: /run/secrets/summaries }, timeout: 60s }
  summarizer: extractive
"#;

/// What stands in it.
pub(super) fn values() -> Vec<(&'static str, String)> {
    let config = CompactionConfig::default();
    let policy: CompactionPolicy = config.policy;
    let ms = |ms| span(Duration::from_millis(ms));
    let percent = |percent: u8| format!("{percent}%");
    vec![
        ("enabled", policy.enabled.to_string()),
        ("soft_watermark", percent(policy.soft_watermark_percent)),
        ("hard_watermark", percent(policy.hard_watermark_percent)),
        ("compaction_floor", percent(policy.floor_percent)),
        ("keep_exchanges", policy.keep_exchanges.to_string()),
        ("turns_between_min", policy.turns_between_min.to_string()),
        ("defer_max", ms(policy.defer_ms_max)),
        ("summary_tokens", policy.summary_tokens_max.to_string()),
        (
            "lost_identifiers",
            percent(policy.lost_identifiers_percent_max),
        ),
        ("failures", policy.failures_max.to_string()),
        ("open_turns", policy.open_turns.to_string()),
        ("cool_down", ms(policy.open_ms)),
        ("compaction_concurrency", config.concurrency.to_string()),
        ("tenant_concurrency", config.tenant_concurrency.to_string()),
        ("compaction_timeout", span(config.timeout)),
        (
            "provider_failures",
            config.provider_failures_max.to_string(),
        ),
        ("provider_cool_down", span(config.provider_cool_down)),
    ]
}
