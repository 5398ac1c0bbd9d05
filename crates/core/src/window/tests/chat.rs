//! Single windows, case by case.

use super::*;
use crate::CoreError;

fn chat(turns: impl IntoIterator<Item = Turn>) -> Chat {
    let mut chat = Chat::new(Limits::default());
    for turn in turns {
        assert!(chat.append(turn));
    }
    chat
}

fn long(role: Role, tokens: usize) -> Turn {
    text(role, "x".repeat(tokens * 4 - 16))
}

#[test]
fn large_budget_returns_whole_history() {
    let mut chat = chat([
        text(Role::System, "be kind"),
        text(Role::User, "hello"),
        call(&["x"], "{}"),
        result("x", "42"),
        text(Role::Assistant, "42"),
    ]);
    for policy in POLICIES
        .into_iter()
        .filter(|p| *p != Policy::SlidingWindow { turns: 1 })
    {
        let built = chat.build(policy, 10_000).unwrap();
        assert_eq!(built.words(), "s1 u2 a3 t4 a5", "{policy:?}");
        assert_eq!(built.window.report.omissions, []);
        assert!(!built.window.has_new_cut);
    }
}

#[test]
fn unanswered_call_gets_error_result_once_a_turn_follows() {
    let mut chat = chat([
        text(Role::User, "hello"),
        call(&["x", "y"], "{}"),
        result("x", "1"),
    ]);
    let built = chat.build(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(built.words(), "u1 a2 t3");
    chat.append(text(Role::User, "never mind"));
    let built = chat.build(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(built.words(), "u1 a2 t3 [abandoned] u4");
    let PartKind::ToolResult {
        tool_use_id,
        is_error,
        ..
    } = &built.turns[3].parts[0].kind
    else {
        panic!("no result")
    };
    assert_eq!((tool_use_id.as_str(), *is_error), ("y", true));
    assert!(!built.window.has_new_cut, "the sent prefix is unchanged");
}

#[test]
fn sliding_window_reports_first_user_turn_as_cut() {
    let turns = (0..6).map(|_| text(Role::User, "hello"));
    let mut chat = chat(turns);
    let built = chat
        .build(Policy::SlidingWindow { turns: 2 }, 10_000)
        .unwrap();
    assert_eq!(built.words(), "[elision] u5 u6");
    let omissions = &built.window.report.omissions;
    assert!(
        omissions.iter().all(|it| it.reason == OmissionReason::Cut),
        "{omissions:?}"
    );
    assert_eq!((omissions[0].first_seq, omissions[0].last_seq), (1, 4));
}

#[test]
fn late_result_directly_follows_its_call() {
    let mut chat = chat([
        text(Role::User, "hello"),
        call(&["x"], "{}"),
        text(Role::User, "still there?"),
        text(Role::Assistant, "yes"),
        result("x", "1"),
        text(Role::Assistant, "it is 1"),
    ]);
    assert_eq!(
        chat.build(Policy::TokenBudget, 1_000).unwrap().turns.len(),
        6
    );
    let built = chat.build(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(built.turns[2].role, Role::Tool, "{}", built.words());
    assert_eq!(built.turns[3], text(Role::User, "still there?"));
}

#[test]
fn only_late_result_of_summarized_call_is_omitted_after_summary() {
    for policy in POLICIES {
        if matches!(policy, Policy::SlidingWindow { .. }) {
            continue;
        }
        let mut chat = chat([
            text(Role::User, "hello"),
            call(&["x"], "{}"),
            text(Role::User, "still there?"),
            text(Role::Assistant, "yes"),
        ]);
        assert!(chat.summarize(0));
        for turn in [
            text(Role::Assistant, "A"),
            text(Role::User, "B"),
            result("x", "late"),
            text(Role::Assistant, "C"),
            text(Role::User, "D"),
        ] {
            assert!(chat.append(turn));
        }
        let words = chat.build(policy, 100_000).unwrap().words();
        assert!(
            words.contains("a5 u6") && words.ends_with("a8 u9"),
            "{policy:?}: {words}"
        );
    }
}

#[test]
fn results_for_calls_of_two_turns_split_into_two_turns() {
    let both = |x: &str, y: &str| {
        let mut turn = result("x", x);
        turn.parts.extend(result("y", y).parts);
        turn.parts.push(PartKind::Text("both".into()).into());
        Turn {
            role: Role::User,
            ..turn
        }
    };
    let mut chat = chat([
        text(Role::User, "hello"),
        call(&["x"], "{}"),
        call(&["y"], "{}"),
        both("1", "2"),
        text(Role::Assistant, "done"),
    ]);
    let built = chat.build(Policy::TokenBudget, 1_000).unwrap();
    let links: Vec<String> = built
        .turns
        .iter()
        .map(|turn| format!("{:?}", turn.links().results))
        .collect();
    assert_eq!(links, ["[]", "[]", "[\"x\"]", "[]", "[\"y\"]", "[]", "[]"]);
    assert_eq!(built.turns[5].parts[0].kind, PartKind::Text("both".into()));
}

#[test]
fn cut_reaches_floor_at_exchange_start_and_is_kept() {
    let mut chat = chat([text(Role::User, "task"), text(Role::Assistant, "ok")]);
    for _ in 0..10 {
        chat.append(long(Role::User, 40));
        chat.append(long(Role::Assistant, 40));
    }
    let built = chat.build(Policy::HeadTail { turns: 0 }, 820).unwrap();
    assert!(built.window.has_new_cut);
    assert!(
        built.window.report.blocks.total() <= 410,
        "{:?}",
        built.window.report.blocks
    );
    assert_eq!(built.words(), "u1 [elision] u17 a18 u19 a20 u21 a22");
    let elision = PartKind::Text("[memoird 000000000: turns 2-16 are not shown here]".into());
    assert_eq!(built.turns[1].parts[0].kind, elision);

    chat.append(text(Role::User, "and now?"));
    let next = chat.build(Policy::HeadTail { turns: 0 }, 820).unwrap();
    assert!(!next.window.has_new_cut);
    assert_eq!(next.turns[..built.turns.len()], built.turns);
    let before = built.window.report.blocks.total();
    assert_eq!(next.window.report.stable_prefix_tokens, before);
}

#[test]
fn oversized_current_turn_is_refused_with_token_counts() {
    let mut chat = chat([text(Role::User, "task"), text(Role::Assistant, "ok")]);
    chat.append(long(Role::User, 500));
    for policy in POLICIES {
        let refused = chat.build(policy, 400).unwrap_err();
        let CoreError::CurrentTurnTooLarge {
            budget: 400,
            tokens,
            system: 20,
            turn: 500,
            ..
        } = refused
        else {
            panic!("{policy:?}: {refused:?}")
        };
        assert!(tokens > 520, "{policy:?}: {tokens}");
    }
}

#[test]
fn oversized_first_turn_is_refused_while_it_is_current() {
    let mut chat = chat([long(Role::User, 500)]);
    assert!(matches!(
        chat.build(Policy::TokenBudget, 400),
        Err(CoreError::CurrentTurnTooLarge { tokens: 520, .. })
    ));
}

#[test]
fn oversized_anchor_becomes_excerpt() {
    let mut chat = chat([long(Role::User, 500), text(Role::Assistant, "ok")]);
    chat.append(text(Role::User, "go on"));
    let built = chat.build(Policy::TokenBudget, 300).unwrap();
    assert_eq!(built.words(), "[excerpt] a2 u3");
    assert!(built.window.report.degraded && built.window.report.blocks.total() <= 300);
    let anchor = built.window.report.blocks.anchor;
    assert!(anchor > 60, "the excerpt uses the budget: {anchor}");
    chat.append(text(Role::Assistant, "yes"));
    chat.append(text(Role::User, "more"));
    let next = chat.build(Policy::TokenBudget, 300).unwrap();
    assert_eq!(next.turns[0], built.turns[0], "the excerpt is unchanged");
}

#[test]
fn anchor_excerpt_fills_window_to_floor() {
    let mut chat = chat([long(Role::User, 5_000), text(Role::Assistant, "ok")]);
    chat.append(long(Role::User, 300));
    let (budget, watermark) = (3_000, u64::from(chat.settings.watermark_percent));
    let first = chat.build(Policy::HeadTail { turns: 0 }, budget).unwrap();
    assert_eq!(first.words(), "[excerpt] a2 u3");
    let (used, used_max) = (first.window.counted, budget * watermark / 100);
    let goal = chat.fixed + (budget - chat.fixed) / 2;
    assert!(
        (goal - goal / 20..=goal).contains(&used),
        "{used} of {goal}"
    );
    // The next turns fit after it.
    let mut last = first;
    while last.window.counted + 120 <= used_max {
        chat.append(long(Role::Assistant, 50));
        chat.append(long(Role::User, 50));
        let next = chat.build(Policy::HeadTail { turns: 0 }, budget).unwrap();
        assert_eq!(next.turns[0], last.turns[0], "the excerpt is unchanged");
        last = next;
    }
    assert!(last.turns.len() >= 3 + 2 * 6, "{}", last.words());
}

#[test]
fn superseded_result_is_replaced_by_one_line() {
    let mut chat = chat([text(Role::User, "task")]);
    for n in 0..6 {
        let id = format!("c{n}");
        chat.append(call(&[&id], r#"{"b": 1, "a": [1]}"#));
        chat.append(result(&id, "y".repeat(600)));
    }
    let built = chat.build(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(
        built.turns.len(),
        13,
        "no turn was dropped: {}",
        built.words()
    );
    assert_eq!(built.window.report.results_trimmed, 5);
    let PartKind::ToolResult {
        content,
        tool_use_id,
        ..
    } = &built.turns[2].parts[0].kind
    else {
        panic!("no result")
    };
    assert_eq!(tool_use_id, "c0");
    assert_eq!(
        content,
        "[memoird 000000000: superseded by the result of the later call c5]"
    );
    assert_eq!(built.turns[12], result("c5", "y".repeat(600)));
}

#[test]
fn long_results_are_trimmed_before_turns_are_dropped() {
    let mut chat = chat([text(Role::User, "task")]);
    for (n, bytes) in [(0, 2_000), (1, 2_000), (2, 800)] {
        let id = format!("c{n}");
        chat.append(call(&[&id], &format!("{{\"n\":{n}}}")));
        chat.append(result(&id, "z".repeat(bytes)));
    }
    let built = chat.build(Policy::TokenBudget, 1_280).unwrap();
    assert_eq!(built.turns.len(), 7, "{}", built.words());
    assert_eq!(built.window.report.results_trimmed, 2);
    assert_eq!(
        built.turns[6],
        result("c2", "z".repeat(800)),
        "the current turn stays whole"
    );
}

#[test]
fn salience_policy_keeps_most_salient_turns() {
    let mut chat = chat([text(Role::User, "task"), text(Role::Assistant, "ok")]);
    for n in 0..8 {
        let mut turn = long(Role::User, 100);
        turn.salience = Some(if n % 2 == 0 { 1.0 } else { 0.0 });
        chat.append(turn);
    }
    let built = chat.build(Policy::Salience, 800).unwrap();
    let kept: Vec<f32> = built
        .turns
        .iter()
        .filter_map(|turn| turn.salience)
        .collect();
    assert!(
        kept.iter().filter(|salience| **salience == 1.0).count() >= 2,
        "{}",
        built.words()
    );
    assert!(
        built.words().matches("[elision]").count() >= 2,
        "{}",
        built.words()
    );
}

#[test]
fn sliding_window_contains_only_last_turns() {
    let mut chat = chat((0..9).map(|n| {
        text(
            if n % 2 == 0 {
                Role::User
            } else {
                Role::Assistant
            },
            format!("turn {n}"),
        )
    }));
    assert_eq!(
        chat.build(Policy::SlidingWindow { turns: 3 }, 900)
            .unwrap()
            .words(),
        "[elision] u7 a8 u9"
    );
    let all = chat.build(Policy::SlidingWindow { turns: 8 }, 900).unwrap();
    assert_eq!(all.words(), "[elision] a2 u3 a4 u5 a6 u7 a8 u9");
    for turns in [9, 10, u32::MAX] {
        let all = chat.build(Policy::SlidingWindow { turns }, 900).unwrap();
        assert_eq!(all.words(), "u1 a2 u3 a4 u5 a6 u7 a8 u9", "of {turns}");
    }
}

#[test]
fn first_turn_outside_sliding_window_uses_no_budget() {
    let mut chat = chat([long(Role::User, 500)]);
    for n in 0..9 {
        chat.append(text(
            if n % 2 == 0 {
                Role::Assistant
            } else {
                Role::User
            },
            format!("turn {n}"),
        ));
    }
    let built = chat.build(Policy::SlidingWindow { turns: 8 }, 400).unwrap();
    assert_eq!(built.words(), "[elision] u3 a4 u5 a6 u7 a8 u9 a10");
}

#[test]
fn no_turn_is_dropped_if_trimming_results_suffices() {
    let mut chat = chat([
        text(Role::User, "task"),
        call(&["a"], "1"),
        result("a", "x".repeat(2_000)),
        text(Role::Assistant, "ok"),
        text(Role::User, "and now?"),
    ]);
    let built = chat.build(Policy::HeadTail { turns: 0 }, 500).unwrap();
    assert_eq!(built.words(), "u1 a2 [trimmed] a4 u5");
}

#[test]
fn leading_system_turn_stays_in_window_after_fifo_drops_it() {
    let limits = Limits {
        max_history_turns: 4,
        ..Limits::default()
    };
    let mut chat = Chat::new(limits);
    chat.append(text(Role::System, "be kind"));
    for n in 0..9 {
        chat.append(text(
            if n % 2 == 0 {
                Role::User
            } else {
                Role::Assistant
            },
            format!("turn {n}"),
        ));
    }
    for policy in POLICIES {
        let words = chat.build(policy, 900).unwrap().words();
        assert!(words.starts_with("s1 "), "{policy:?}: {words}");
    }
    assert_eq!(
        chat.history.turns_after(0).next().unwrap().seq,
        2,
        "but the history dropped it"
    );
}

/// The first user turn follows a unit of calls, which windows contain whole or not at all.
#[test]
fn late_first_user_turn_does_not_split_unit() {
    let mut chat = chat([
        text(Role::Assistant, "hm"),
        call(&["x", "y"], "{}"),
        result("x", "z".repeat(900)),
        text(Role::Assistant, "so"),
    ]);
    let built = chat.build(Policy::TokenBudget, 150).unwrap();
    assert_eq!(built.words(), "a1 a2 [trimmed] [abandoned] a4");
    chat.append(result("y", "1"));
    let built = chat.build(Policy::TokenBudget, 150).unwrap();
    assert!(
        built.words().contains("a2 [trimmed] t5"),
        "{}",
        built.words()
    );
    chat.append(text(Role::User, "hello"));
    for policy in POLICIES {
        let words = chat.build(policy, 140).unwrap().words();
        assert!(words.ends_with(" u6"), "{policy:?}: {words}");
        assert_eq!(
            words.contains("a2"),
            words.contains("t5"),
            "{policy:?}: {words}"
        );
    }
}

#[test]
fn window_that_is_not_kept_does_not_change_next_window() {
    let mut chat = chat([text(Role::User, "task"), text(Role::Assistant, "ok")]);
    for _ in 0..6 {
        chat.append(long(Role::User, 40));
        chat.append(long(Role::Assistant, 40));
    }
    let before = chat.build(Policy::TokenBudget, 1_000).unwrap();
    let smaller = chat.build_with(Policy::TokenBudget, 300, false).unwrap();
    assert!(smaller.turns.len() < before.turns.len());
    assert_eq!(
        chat.build(Policy::TokenBudget, 1_000).unwrap().turns,
        before.turns
    );
}

#[test]
fn rewound_turns_are_neither_shown_nor_reported() {
    let chat_of = |turns: &[(Role, &str)]| {
        let turns = turns.iter().map(|(role, words)| text(*role, *words));
        chat(turns.collect::<Vec<_>>())
    };
    let mut chat = chat_of(&[
        (Role::User, "hello"),
        (Role::Assistant, "hi"),
        (Role::User, "what is the time?"),
        (Role::Assistant, "late"),
    ]);
    let before = chat.build(Policy::TokenBudget, 1_000).unwrap();
    assert!(chat.rewind(2));
    let built = chat.build(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(built.words(), "u1 a2");
    assert_eq!(built.window.report.omissions, []);
    assert!(!built.window.report.degraded);
    chat.append(text(Role::User, "what is the day?"));
    let built = chat.build(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(built.words(), "u1 a2 u5");
    let report = &built.window.report;
    assert_eq!((&report.omissions[..], report.degraded), (&[][..], false));
    assert!(
        report.stable_prefix_tokens > 0,
        "the remaining turns were sent before"
    );
    assert!(report.blocks.total() < before.window.report.blocks.total());
    assert!(chat.rewind(0), "the first user turn can be rewound");
    chat.append(text(Role::System, "be brief"));
    chat.append(text(Role::User, "hello again"));
    let built = chat.build(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(built.words(), "s6 u7");
    assert_eq!(built.window.report.omissions, []);
}

#[test]
fn rewind_past_a_cut_discards_the_cut() {
    let words = "word ".repeat(40);
    let turns = (0..12).map(|index| match index % 2 {
        0 => text(Role::User, words.as_str()),
        _ => text(Role::Assistant, words.as_str()),
    });
    let mut chat = chat(turns.collect::<Vec<_>>());
    let cut = chat.build(Policy::TokenBudget, 400).unwrap();
    assert!(cut.window.has_new_cut);
    assert!(chat.rewind(4));
    let built = chat.build(Policy::TokenBudget, 400).unwrap();
    assert_eq!(built.words(), "u1 a2 u3 a4");
    let mut later = chat.restarted();
    let again = later.build(Policy::TokenBudget, 400).unwrap();
    assert_eq!(again.words(), built.words(), "the same after a restart");
}

#[test]
fn turns_skipped_by_small_window_are_counted_for_larger_one() {
    let mut chat = Chat::new(Limits {
        max_history_turns: 1_000,
        ..Limits::default()
    });
    chat.append(text(Role::Assistant, "hi"));
    chat.append(text(Role::User, "task"));
    for _ in 0..100 {
        chat.append(long(Role::Assistant, 100));
        chat.append(text(Role::User, "go on"));
    }
    let mut terms = Terms {
        model: 1,
        budget: 150,
        ..Terms::default()
    };
    let built = chat.build_on(&terms).unwrap();
    assert_eq!(built.words(), "[elision] u2 [elision] u202");
    terms.budget = 1_000_000;
    let built = chat.build_on(&terms).unwrap();
    assert_eq!(built.turns.len(), 202);
    let reported = built.window.turns.iter().map(|turn| turn.tokens);
    assert!(reported.eq(built.turns.iter().map(terms.weigh())));
}

#[test]
fn old_turns_shown_by_small_window_are_counted() {
    let mut chat = Chat::new(Limits {
        max_history_turns: 1_000,
        ..Limits::default()
    });
    chat.append(long(Role::System, 100));
    chat.append(text(Role::User, "task"));
    let mut pinned = long(Role::User, 100);
    pinned.pinned = true;
    chat.append(pinned);
    for _ in 0..100 {
        chat.append(text(Role::User, "hello"));
        chat.append(text(Role::Assistant, "hi"));
    }
    chat.append(text(Role::User, "now work"));
    for _ in 0..200 {
        chat.append(text(Role::Assistant, "step"));
    }
    let built = chat.build(Policy::TokenBudget, 400).unwrap();
    let words = built.words();
    let start = "s1 u2 u3 [elision] u204 [elision] a";
    assert!(words.starts_with(start), "{words}");
    for (turn, reported) in built.turns.iter().zip(built.window.turns.iter()) {
        assert!(weigh(turn) <= reported.tokens, "{turn:?}");
    }
}
