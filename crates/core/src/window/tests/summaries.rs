//! Windows whose oldest turns are replaced by a summary.

use super::*;

const HEAD_TAIL: Policy = Policy::HeadTail { turns: 0 };

fn long_chat(exchanges: usize) -> Chat {
    let mut chat = Chat::new(Limits {
        max_history_turns: 1_000,
        ..Limits::default()
    });
    chat.append(text(Role::System, "be kind"));
    chat.append(text(Role::User, "the task"));
    for _ in 0..exchanges {
        chat.append(text(Role::Assistant, "x".repeat(100)));
        chat.append(text(Role::User, "x".repeat(100)));
    }
    chat
}

#[test]
fn summary_follows_system_prompt_and_is_acknowledged() {
    let mut chat = long_chat(4);
    assert_eq!(
        chat.build(HEAD_TAIL, 5_000).unwrap().words(),
        "s1 u2 a3 u4 a5 u6 a7 u8 a9 u10"
    );
    assert!(chat.summarize(2));
    chat.show_summary();
    let built = chat.build(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(built.words(), "s1 [summary] [acknowledgement] u8 a9 u10");
    let report = &built.window.report;
    assert!(built.window.has_new_cut && report.blocks.summary > 0);
    assert_eq!(report.summary, chat.summary);
    let summarized = Omission {
        first_seq: 2,
        last_seq: 7,
        reason: OmissionReason::Summarized,
    };
    assert_eq!(report.omissions, [summarized]);
    let system = weigh(&built.turns[0]);
    assert_eq!(
        report.stable_prefix_tokens,
        chat.fixed + system,
        "the summary breaks the cache"
    );

    chat.append(text(Role::Assistant, "done"));
    let next = chat.build(HEAD_TAIL, 5_000).unwrap();
    assert!(!next.window.has_new_cut);
    assert_eq!(next.turns[..built.turns.len()], built.turns);
    assert_eq!(
        next.window.report.stable_prefix_tokens,
        report.blocks.total()
    );
}

#[test]
fn removed_summary_restores_its_turns() {
    let mut chat = long_chat(4);
    let before = chat.build(HEAD_TAIL, 5_000).unwrap();
    chat.summarize(1);
    chat.show_summary();
    assert!(
        chat.build(HEAD_TAIL, 5_000)
            .unwrap()
            .words()
            .contains("[summary]")
    );
    chat.summary = None;
    let after = chat.build(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(after.turns, before.turns);
    assert!(after.window.has_new_cut);
}

#[test]
fn summarized_system_and_pinned_turns_stay_in_window() {
    let mut chat = long_chat(1);
    chat.append(Turn {
        pinned: true,
        ..text(Role::Assistant, "pinned")
    });
    chat.append(text(Role::System, "from now on be brief"));
    chat.append(text(Role::User, "and then?"));
    chat.append(text(Role::Assistant, "then that"));
    assert!(chat.summarize(0));
    assert_eq!(
        chat.summary.as_ref().map(|summary| summary.through_seq),
        Some(8)
    );
    let built = chat.build(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(
        built.words(),
        "s1 [elision] a5 s6 [summary] [acknowledgement]"
    );
}

#[test]
fn unanswered_request_before_system_turn_is_not_summarized() {
    let mut chat = long_chat(1);
    chat.append(text(Role::System, "it is noon"));
    assert!(chat.summarize(0));
    let through = chat.summary.as_ref().map(|summary| summary.through_seq);
    assert_eq!(through, Some(3));
}

#[test]
fn summary_too_large_for_window_is_omitted_and_reported() {
    let mut chat = long_chat(4);
    chat.summarize(1);
    let text = "x".repeat(4_000);
    let summary = Summary {
        text: text.into(),
        ..(**chat.summary.as_ref().unwrap()).clone()
    };
    chat.summary = Some(Arc::new(summary));
    let built = chat.build(HEAD_TAIL, 200).unwrap();
    assert!(!built.words().contains("[summary]"), "{}", built.words());
    assert!(built.window.report.degraded && built.window.report.notes[0].contains("summary"));
}

#[test]
fn sliding_window_has_no_summary() {
    let mut chat = long_chat(4);
    chat.summarize(1);
    let built = chat
        .build(Policy::SlidingWindow { turns: 3 }, 5_000)
        .unwrap();
    assert_eq!(built.words(), "s1 [elision] a9 u10");
}

#[test]
fn no_summary_is_needed_while_results_can_be_trimmed() {
    let mut chat = long_chat(1);
    for (index, bytes) in [2_000, 2_000, 150].into_iter().enumerate() {
        let id = format!("c{index}");
        chat.append(call(&[&id], "{}"));
        chat.append(result(&id, "y".repeat(bytes)));
    }
    chat.append(text(Role::User, "go on"));
    chat.soft_percent = Some(70);
    let whole = chat.clone().build(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(whole.window.report.results_trimmed, 0);
    let budget = whole.window.counted * 10 / 9;
    let built = chat.build(HEAD_TAIL, budget).unwrap();
    assert_eq!(built.window.tail_seq, None, "no summary is needed");
    assert_eq!(built.turns, whole.turns, "the prefix is unchanged");

    assert!(chat.summarize(1));
    for n in 0..6 {
        chat.append(text(Role::Assistant, "x".repeat(100)));
        chat.append(text(Role::User, format!("go on {n}")));
    }
    let built = chat.build(HEAD_TAIL, budget).unwrap();
    assert!(
        built.words().contains("[summary]"),
        "the summary is ready: {}",
        built.words()
    );
    let again = chat.build(HEAD_TAIL, budget).unwrap();
    assert!(!again.window.has_new_cut);
}

#[test]
fn ready_summary_is_shown_when_window_would_be_cut() {
    let mut chat = long_chat(8);
    chat.soft_percent = Some(70);
    let before = chat.build(HEAD_TAIL, 640).unwrap();
    assert!(chat.summarize(1));
    let (mut last, mut swapped) = (before, None);
    for n in 0..6 {
        chat.append(text(Role::Assistant, format!("{n} {}", "y".repeat(100))));
        chat.append(text(Role::User, "and then?"));
        let built = chat.build(HEAD_TAIL, 640).unwrap();
        if built.words().contains("[summary]") {
            swapped = Some(n);
            assert_eq!(built.words().matches("[elision]").count(), 0);
            let since: Vec<&Turn> = built.turns.iter().skip(4).collect();
            let newest = &last.turns[last.turns.len() - since.len() + 2..];
            assert!(since.iter().zip(newest).all(|(now, before)| *now == before));
            break;
        }
        assert_eq!(
            built.turns[..last.turns.len()],
            last.turns,
            "the prefix is unchanged"
        );
        assert_eq!(built.window.tail_seq, None, "no summary is needed");
        last = built;
    }
    assert!(swapped.is_some_and(|n| n > 0), "{swapped:?}");
}

#[test]
fn dropped_turn_before_summary_ends_stable_prefix() {
    // Each turn has 8 bytes. The third turn that counts toward the caps drops the first one, and
    // only one of the two system turns is small enough to be retained.
    let mut chat = Chat::new(Limits {
        max_history_bytes: 20,
        ..Limits::default()
    });
    chat.append(text(Role::System, "be kind"));
    chat.append(text(Role::System, "be brief"));
    chat.append(text(Role::Assistant, "hello"));
    chat.append(text(Role::User, "the task"));
    assert!(chat.summarize(0));
    let built = chat.build(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(built.words(), "s1 s2 [summary] [acknowledgement] u4");

    chat.append(text(Role::User, "go on"));
    let next = chat.build(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(next.words(), "s1 [summary] [acknowledgement] u4 u5");
    assert_eq!(
        next.window.report.stable_prefix_tokens,
        chat.fixed + weigh(&next.turns[0]),
        "the summary follows another turn now"
    );
}

#[test]
fn turn_inserted_before_summary_ends_stable_prefix() {
    let mut chat = Chat::new(Limits::default());
    chat.append(call(&["x", "y"], "{}"));
    chat.append(text(Role::System, "be kind"));
    chat.append(text(Role::User, "the task"));
    chat.append(text(Role::User, "go on"));
    assert!(chat.summarize(0));
    let built = chat.build(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(built.words(), "s2 [summary] [acknowledgement] u4");

    // Its call, which the summary covers, is shown again, before the system turn.
    chat.append(result("x", "late"));
    let next = chat.build(HEAD_TAIL, 5_000).unwrap();
    assert!(next.words().starts_with("a1 t5"), "{}", next.words());
    assert_eq!(next.window.report.stable_prefix_tokens, chat.fixed);
}
