//! Tests that windows fit 80 columns and that every part of a report is shown.

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    Budget, HeadTail, NextCut, Part, Role, SessionInfo, SummaryInfo, SummaryMaker, TokensByBlock,
    WindowPolicy,
};

use super::*;

fn turn(seq: u64, role: Role, text: &str, mark: &str) -> Turn {
    let part = Part {
        part: Some(Kind::Text(text.into())),
        extra_json: String::new(),
    };
    let mut turn = Turn {
        seq,
        role: role.into(),
        parts: vec![part],
        ..Turn::default()
    };
    if !mark.is_empty() {
        turn.metadata.insert(MARK.into(), mark.into());
    }
    turn
}

fn omission(first_seq: u64, last_seq: u64, reason: OmissionReason) -> Omission {
    Omission {
        first_seq,
        last_seq,
        reason: reason.into(),
    }
}

fn example() -> BuildContextResponse {
    let report = ContextReport {
        summary: None,
        next_cut: Some(NextCut {
            at_tokens: 950,
            in_turns: Some(14),
            tokens_after: 420,
            summary_ready: true,
            omissions: vec![omission(1, 3, OmissionReason::Summarized)],
        }),
        input_budget: 1_000,
        tokens_total: 600,
        tokens_by_block: Some(TokensByBlock {
            anchor: 100,
            tail: 500,
            ..Default::default()
        }),
        turns_included: 4,
        turns_omitted: 12,
        results_trimmed: 1,
        stable_prefix_tokens: 150,
        cache_breakpoints: vec![0, 2],
        turn_tokens: vec![100, 20, 180, 1_300],
        token_factor: 1.25,
        token_margin: 0.1,
        policy: Some(WindowPolicy {
            policy: Some(Policy::HeadTail(HeadTail { turns: 0 })),
        }),
        degraded: true,
        notes: vec!["the tokenizer\u{1b}[31m is not there".into()],
        budget: Some(Budget {
            context_window: Some(1_200),
            ..Budget::default()
        }),
        omissions: vec![
            omission(2, 6, OmissionReason::Cut),
            omission(9, 9, OmissionReason::Superseded),
            omission(7, 8, OmissionReason::Cut),
            omission(12, 12, OmissionReason::Cut),
        ],
        model: "m".into(),
    };
    BuildContextResponse {
        turns: vec![
            turn(1, Role::User, "book\u{1b}[2J me a flight", ""),
            turn(0, Role::User, "[8 turns left out]", "elision"),
            turn(10, Role::Tool, &"long ".repeat(1_000), "trimmed"),
            turn(11, Role::Assistant, &"字".repeat(200), ""),
        ],
        session: Some(SessionInfo {
            session_id: "chat".into(),
            ..SessionInfo::default()
        }),
        report: Some(report),
        ..BuildContextResponse::default()
    }
}

#[test]
fn window_is_drawn_with_turns_omissions_and_report() {
    let text = window(&example(), false);
    let has = |part: &str| assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    has("chat, m, head_tail\n");
    has("[a");
    has("1    user          100  book\\u{1b}[2J me a flight");
    has("-    user           20  [elision] [8 turns left out]");
    has("10   tool          180  [trimmed] long");
    has("8 turns before the cut: 2-8, 12\n1 turn superseded by a newer result: 9\n");
    has("turns          4 in the window, 12 not");
    has("stable prefix  150 of 600 tokens (25 %)");
    has("counts         times 1.250, may be off by 10 %");
    has("cache          may break after turns 1, 10");
    has("next cut       above 950 tokens, in about 14 turns\n");
    has("  now it would leave 420 tokens:\n  a summary is ready\n  3 turns summarized: 1-3\n");
    has("system prompt and tools come with the bot's own calls");
    has("degraded       the tokenizer\\u{1b}[31m is not there");
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

#[test]
fn no_line_is_wider_than_terminal() {
    for line in window(&example(), false).lines() {
        // Each of these characters is two columns wide.
        let columns = line.chars().count() + line.matches('字').count();
        assert!(columns <= 80, "{columns}: {line}");
    }
}

#[test]
fn breakpoints_refer_to_messages_if_present() {
    let mut example = example();
    example.messages_json = "[]".into();
    let text = window(&example, false);
    assert!(text.contains("may break after messages 0, 2"), "{text}");
}

#[test]
fn many_ranges_stay_one_line() {
    let mut example = example();
    let report = example.report.as_mut().expect("a report");
    report.omissions = (0..100)
        .map(|n| omission(n * 2 + 1, n * 2 + 1, OmissionReason::Salience))
        .collect();
    let text = window(&example, false);
    let line = "100 turns left out as least important: 1, 3, 5, 7, 9, 11 and 94 more";
    assert!(text.contains(line), "{text}");
}

#[test]
fn empty_response_does_not_panic() {
    let text = window(&BuildContextResponse::default(), true);
    assert!(text.contains("0 of 0 tokens"), "{text}");
}

#[test]
fn summary_is_drawn_with_covered_turns() {
    let mut example = example();
    let lines: Vec<String> = (1..=9)
        .map(|n| format!("{n} {}", "word ".repeat(40)))
        .collect();
    let text = format!("[memoird: a summary]\n\n{}\u{1b}[2J", lines.join("\n"));
    example
        .turns
        .insert(1, turn(0, Role::User, &text, "summary"));
    let report = example.report.as_mut().expect("a report");
    report.summary = Some(SummaryInfo {
        number: 3,
        first_seq: 5,
        through_seq: 9,
        turns: 8,
        made_at: None,
        made_by: SummaryMaker::Extractive.into(),
        model: String::new(),
    });
    report.tokens_by_block = Some(TokensByBlock {
        anchor: 100,
        summary: 200,
        tail: 300,
        ..Default::default()
    });
    report.turn_tokens.insert(1, 200);
    let text = window(&example, false);
    let has = |part: &str| assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    has("summary        no. 3, of 8 turns (5-9 newly), by extractive, - ago\n");
    has("  [memoird: a summary]\n  1 word");
    has("  5 word");
    assert!(!text.contains("6 word"), "{text}");
    has("  … and 4 more lines (memoird sessions show)");
    has("u summary ");
    has("[summary] [memoird: a summary]");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}
