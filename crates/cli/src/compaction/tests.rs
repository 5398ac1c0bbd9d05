//! Tests of the terminal output of compactions.

use super::*;
use crate::json;

fn summary() -> SummaryInfo {
    SummaryInfo {
        number: 2,
        first_seq: 12,
        through_seq: 30,
        turns: 1_028,
        made_at: None,
        made_by: SummaryMaker::Model.into(),
        model: "openai/qwen\u{1b}[2J".into(),
    }
}

#[test]
fn summary_shows_covered_turns() {
    let line = stands_for(&summary());
    let expected = "no. 2, of 1,028 turns (12-30 newly), by openai/qwen\\u{1b}[2J, - ago";
    assert_eq!(line, expected);
}

#[test]
fn healthy_compaction_has_no_line() {
    let fine = CompactionInfo {
        breaker: BreakerState::Closed.into(),
        summaries: 3,
        ..Default::default()
    };
    assert_eq!(health(&fine), "");
    assert_eq!(health(&CompactionInfo::default()), "");
    let bad = CompactionInfo {
        breaker: BreakerState::HalfOpen.into(),
        consecutive_failures: 3,
        last_error: "unavailable: 503\n\u{1b}[2J".into(),
        running: true,
        ..fine
    };
    let expected = "one is being made, breaker half open, failed 3 times in a row, \
                    unavailable: 503 \\u{1b}[2J";
    assert_eq!(health(&bad), expected);
}

#[test]
fn compaction_output_shows_summary_and_size() {
    let mut reply = CompactSessionResponse {
        summary: "[memoird: a summary]\n\n## Done\n- red\u{1b}[2J".into(),
        summary_info: Some(summary()),
        tokens_before: 9_000,
        tokens_after: 800,
        is_new: true,
        ..Default::default()
    };
    let text = compacted(&reply);
    assert!(text.starts_with("summary no. 2, of 1,028 turns"), "{text}");
    assert!(text.contains("\n9,000 → 800 tokens\n"), "{text}");
    assert!(
        text.ends_with("[memoird: a summary]\n## Done\n- red\\u{1b}[2J"),
        "{text}"
    );
    assert_eq!(json::of(&reply)["summary_info"]["turns"], 1_028);
    reply.is_new = false;
    assert!(compacted(&reply).starts_with("nothing new to summarize; the summary stays"));
    reply.summary_info = None;
    assert_eq!(compacted(&reply), "nothing to summarize");
}
