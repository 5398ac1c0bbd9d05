//! Window policies: which turns each leaves out, and how the window reports it.

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    BuildContextRequest, MessageFormat, Omission, OmissionReason, Role, ToolResult, Turn,
};

use super::bot::{
    ask, budget, head_tail, is_gap, is_paired, outline, report, salience, seqs, sliding,
    token_budget, window_request, words,
};
use super::plain;
use crate::harness::{
    Daemon, Setup, append, assistant, live, text_of, tool_results, tool_uses, turn, user,
    without_nonce,
};

/// A daemon with a chat of `turns` turns of about 140 tokens each.
async fn with_talk(setup: Setup, turns: usize) -> Daemon {
    let daemon = Daemon::with(setup).await;
    let mut client = daemon.sessions();
    for number in 1..=turns {
        let said = if number % 2 == 1 {
            user(&words(number))
        } else {
            assistant(&words(number))
        };
        client
            .append(append("chat", [said]))
            .await
            .expect("appended");
    }
    daemon
}

fn roomy() -> Setup {
    plain().section("context: { floor: 50% }")
}

fn omission(first_seq: u64, last_seq: u64, reason: OmissionReason) -> Omission {
    Omission {
        first_seq,
        last_seq,
        reason: reason.into(),
    }
}

#[tokio::test]
async fn sliding_window_has_last_turns_only() {
    let daemon = with_talk(roomy(), 20).await;
    let mut client = daemon.sessions();
    let window = ask(
        &mut client,
        BuildContextRequest {
            policy: sliding(4),
            ..window_request()
        },
    )
    .await;
    assert_eq!(seqs(&window), [17, 18, 19, 20], "{}", outline(&window));
    assert_eq!(
        (report(&window).policy, report(&window).turns_omitted),
        (sliding(4), 16)
    );
    let window = ask(
        &mut client,
        BuildContextRequest {
            policy: sliding(u32::MAX),
            ..window_request()
        },
    )
    .await;
    assert_eq!(seqs(&window), Vec::from_iter(1..=20));
}

#[tokio::test]
async fn head_tail_has_first_turn_gap_marker_and_last_turns() {
    let daemon = with_talk(roomy(), 40).await;
    let mut client = daemon.sessions();
    let request = BuildContextRequest {
        policy: head_tail(10),
        ..window_request()
    };
    let window = ask(&mut client, request).await;
    assert_eq!(outline(&window), "1 [elision] 33 34 35 36 37 38 39 40");
    is_gap(text_of(&window.turns[1]), 2, 32);
    let report = report(&window);
    assert_eq!((report.turns_included, report.turns_omitted), (9, 31));
    assert_eq!(report.omissions, [omission(2, 32, OmissionReason::Cut)]);
    let blocks = report.tokens_by_block.expect("blocks");
    assert_eq!(blocks.anchor, report.turn_tokens[0]);
    assert!(report.degraded, "nothing stands for them: {report:?}");
    assert_eq!(
        live(&mut client, "chat").await.len(),
        40,
        "the history stays"
    );
}

#[tokio::test]
async fn token_budget_keeps_fitting_turns_and_cuts_to_floor() {
    let daemon = with_talk(roomy(), 60).await;
    let mut client = daemon.sessions();
    let request = BuildContextRequest {
        policy: token_budget(),
        budget: budget(4_000),
        ..window_request()
    };
    let window = ask(&mut client, request).await;
    assert!(
        outline(&window).starts_with("1 [elision] "),
        "{}",
        outline(&window)
    );
    assert!(outline(&window).ends_with(" 59 60"), "{}", outline(&window));
    let report = report(&window);
    assert!((1_600..=2_000).contains(&report.tokens_total), "{report:?}");
    assert_eq!(u64::from(report.turns_included + report.turns_omitted), 60);
    assert_eq!(
        window.turns[2].role(),
        Role::User,
        "a cut is made between exchanges"
    );
}

#[tokio::test]
async fn salience_omits_least_important_turns() {
    let daemon = Daemon::with(roomy()).await;
    let mut client = daemon.sessions();
    for number in 1..=40 {
        let important = [7, 8, 21].contains(&number);
        let said = if number % 2 == 1 {
            user(&words(number))
        } else {
            assistant(&words(number))
        };
        let said = Turn {
            salience: Some(if important { 1.0 } else { 0.2 }),
            ..said
        };
        client
            .append(append("chat", [said]))
            .await
            .expect("appended");
    }
    let request = BuildContextRequest {
        policy: salience(),
        budget: budget(3_000),
        ..window_request()
    };
    let window = ask(&mut client, request).await;
    let shown = seqs(&window);
    for seq in [1, 7, 8, 21, 40] {
        assert!(shown.contains(&seq), "{seq} in {}", outline(&window));
    }
    let report = report(&window);
    assert!(report.omissions.len() >= 3, "{report:?}");
    let mut left_out = 0;
    for omission in &report.omissions {
        assert_eq!(omission.reason(), OmissionReason::Salience);
        left_out += omission.last_seq - omission.first_seq + 1;
        assert!(
            !shown
                .iter()
                .any(|seq| (omission.first_seq..=omission.last_seq).contains(seq))
        );
    }
    assert_eq!(left_out, u64::from(report.turns_omitted));
    let markers: Vec<&Turn> = window.turns.iter().filter(|turn| turn.seq == 0).collect();
    assert_eq!(markers.len(), report.omissions.len());
    for (marker, gap) in markers.into_iter().zip(&report.omissions) {
        is_gap(text_of(marker), gap.first_seq, gap.last_seq);
    }
}

#[tokio::test]
async fn dropped_and_cut_turns_are_reported_separately() {
    let small = plain().section("short_term: { max_history_turns: 20 }");
    let daemon = with_talk(small, 60).await;
    let mut client = daemon.sessions();
    let window = ask(
        &mut client,
        BuildContextRequest {
            policy: head_tail(10),
            ..window_request()
        },
    )
    .await;
    let report = report(&window);
    let reasons: Vec<OmissionReason> = report.omissions.iter().map(Omission::reason).collect();
    assert_eq!(
        reasons,
        [OmissionReason::Dropped, OmissionReason::Cut],
        "{report:?}"
    );
    assert_eq!(
        (
            report.omissions[0].first_seq,
            report.omissions[1].last_seq + 8
        ),
        (2, 60)
    );
    is_gap(text_of(&window.turns[1]), 2, 52);
    assert_eq!(
        u64::from(report.turns_included + report.turns_omitted),
        21,
        "of the history"
    );
}

#[tokio::test]
async fn oversized_first_turn_becomes_reported_excerpt() {
    let daemon = Daemon::with(roomy()).await;
    let mut client = daemon.sessions();
    let task: String = (0..60).map(words).collect();
    client
        .append(append(
            "chat",
            [user(&task), assistant("I see"), user("go")],
        ))
        .await
        .expect("appended");
    let window = ask(
        &mut client,
        BuildContextRequest {
            budget: budget(2_000),
            ..window_request()
        },
    )
    .await;
    assert_eq!(outline(&window), "1:excerpt 2 3");
    let text = text_of(&window.turns[0]);
    assert!(
        text.starts_with("number 0:") && without_nonce(text).contains("[memoird: "),
        "{text}"
    );
    let report = report(&window);
    assert!(
        report.degraded && report.notes.iter().any(|note| note.contains("excerpt")),
        "{report:?}"
    );
    assert_eq!(report.omissions, [omission(1, 1, OmissionReason::Excerpt)]);
    let window = ask(&mut client, window_request()).await;
    assert_eq!(
        (outline(&window).as_str(), text_of(&window.turns[0])),
        ("1 2 3", &*task)
    );
}

#[tokio::test]
async fn very_long_first_turn_leaves_room_for_last_turns() {
    let daemon = Daemon::with(roomy()).await;
    let mut client = daemon.sessions();
    let task: String = (0..60).map(words).collect();
    let request = BuildContextRequest {
        budget: budget(4_000),
        ..window_request()
    };
    let (mut before, mut cuts) = (0, 0);
    client
        .append(append("chat", [user(&task)]))
        .await
        .expect("appended");
    for number in 0..60 {
        client
            .append(append(
                "chat",
                [assistant(&words(number)), user("and then?")],
            ))
            .await
            .expect("appended");
        let window = ask(&mut client, request.clone()).await;
        assert!(
            outline(&window).starts_with("1:excerpt "),
            "{}",
            outline(&window)
        );
        if window.turns.len() < before {
            cuts += 1;
            assert!(
                window.turns.len() >= 6,
                "all but nothing is left: {}",
                outline(&window)
            );
        }
        before = window.turns.len();
    }
    assert!(cuts >= 2, "{cuts} cuts");
}

#[tokio::test]
async fn old_and_long_results_are_trimmed_before_turns_are_omitted() {
    let daemon = Daemon::with(roomy()).await;
    let mut client = daemon.sessions();
    let result = |id: &str, content: String| {
        let result = ToolResult {
            tool_use_id: id.into(),
            content,
            ..ToolResult::default()
        };
        turn(Role::Tool, [Kind::ToolResult(result)])
    };
    let other = |id: &str| {
        let mut call = tool_uses(&[id]);
        if let Some(Kind::ToolUse(call)) = &mut call.parts[0].part {
            call.input_json = r#"{"at": "that"}"#.into();
        }
        call
    };
    let flights: Vec<String> = (0..900)
        .map(|n| format!(r#"{{"flight":"HAT{n:03}","seats":{n}}}"#))
        .collect();
    let long = format!("[{}]", flights.join(","));
    let turns = [
        user("find it"),
        tool_uses(&["old"]),
        result("old", words(1)),
        other("long"),
        result("long", long.clone()),
        tool_uses(&["new"]),
        result("new", words(2)),
        assistant("found"),
        user("and?"),
    ];
    client
        .append(append("chat", turns))
        .await
        .expect("appended");
    let request = BuildContextRequest {
        budget: budget(3_000),
        ..window_request()
    };
    let window = ask(&mut client, request.clone()).await;
    assert_eq!(outline(&window), "1 2 3:superseded 4 5:trimmed 6 7 8 9");
    is_paired(&window.turns);
    let content = |place: usize| match &window.turns[place].parts[0].part {
        Some(Kind::ToolResult(result)) => result.content.as_str(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        without_nonce(content(2)),
        "[memoird: superseded by the result of the later call new]"
    );
    let trimmed = without_nonce(content(4));
    assert!(
        trimmed.starts_with("[memoird: values only, each string once, of ")
            && trimmed.contains("] HAT000 0 HAT001 1 "),
        "{trimmed}"
    );
    assert_eq!(content(6), words(2), "the newest stays");
    let report = report(&window);
    assert_eq!((report.results_trimmed, report.turns_omitted), (2, 0));
    let (old, trimmed) = (OmissionReason::Superseded, OmissionReason::Trimmed);
    assert_eq!(
        report.omissions,
        [omission(3, 3, old), omission(5, 5, trimmed)]
    );
    let stored = live(&mut client, "chat").await;
    assert!(matches!(&stored[4].parts[0].part, Some(Kind::ToolResult(r)) if r.content == long));
}

#[tokio::test]
async fn pinned_turns_survive_every_cut() {
    let daemon = Daemon::with(roomy()).await;
    let mut client = daemon.sessions();
    for number in 1..=60 {
        let said = if number % 2 == 1 {
            user(&words(number))
        } else {
            assistant(&words(number))
        };
        let said = Turn {
            pinned: number == 6,
            ..said
        };
        client
            .append(append("chat", [said]))
            .await
            .expect("appended");
    }
    for policy in [head_tail(0), head_tail(4), token_budget(), salience()] {
        let request = BuildContextRequest {
            policy,
            budget: budget(2_500),
            ..window_request()
        };
        let window = ask(&mut client, request).await;
        assert!(
            seqs(&window).starts_with(&[1, 6]),
            "{policy:?}: {}",
            outline(&window)
        );
        assert!(
            outline(&window).starts_with("1 [elision] 6 [elision] "),
            "{}",
            outline(&window)
        );
    }
}

#[tokio::test]
async fn no_policy_or_budget_separates_calls_from_results() {
    let daemon = Daemon::with(roomy()).await;
    let mut client = daemon.sessions();
    for number in 0..30 {
        let ids = [format!("a{number}"), format!("b{number}")];
        let ids = [ids[0].as_str(), ids[1].as_str()];
        let turns = match number % 3 {
            0 => vec![user(&words(number)), tool_uses(&ids), tool_results(&ids)],
            1 => vec![
                user("two apart"),
                tool_uses(&ids),
                tool_results(&ids[1..]),
                user("wait"),
                tool_results(&ids[..1]),
            ],
            _ => vec![
                user("nobody answers"),
                tool_uses(&ids),
                user(&words(number)),
            ],
        };
        client
            .append(append("chat", turns))
            .await
            .expect("appended");
    }
    let formats = [
        MessageFormat::Unspecified,
        MessageFormat::Openai,
        MessageFormat::OpenaiResponses,
        MessageFormat::Anthropic,
    ];
    for policy in [
        None,
        head_tail(7),
        token_budget(),
        salience(),
        sliding(1),
        sliding(8),
    ] {
        for tokens in [700, 1_500, 4_000, 100_000] {
            for format in formats {
                let format = format.into();
                let request = BuildContextRequest {
                    policy,
                    format,
                    budget: budget(tokens),
                    ..window_request()
                };
                is_paired(&ask(&mut client, request).await.turns);
            }
        }
    }
}
