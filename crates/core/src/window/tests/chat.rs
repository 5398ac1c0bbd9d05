//! Single windows, case by case.

use super::*;
use crate::CoreError;

fn chat(turns: impl IntoIterator<Item = Turn>) -> Chat {
    let mut chat = Chat::new(Limits::default());
    for turn in turns {
        assert!(chat.say(turn));
    }
    chat
}

fn long(role: Role, tokens: usize) -> Turn {
    text(role, "x".repeat(tokens * 4 - 16))
}

#[test]
fn a_window_with_room_is_the_history() {
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
        let seen = chat.see(policy, 10_000).unwrap();
        assert_eq!(seen.words(), "s1 u2 a3 t4 a5", "{policy:?}");
        assert_eq!(seen.window.report.omissions, []);
        assert!(!seen.window.has_new_cut);
    }
}

#[test]
fn an_unanswered_call_is_pending_at_the_end_and_abandoned_before_it() {
    let mut chat = chat([
        text(Role::User, "hello"),
        call(&["x", "y"], "{}"),
        result("x", "1"),
    ]);
    let seen = chat.see(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(seen.words(), "u1 a2 t3");
    chat.say(text(Role::User, "never mind"));
    let seen = chat.see(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(seen.words(), "u1 a2 t3 [abandoned] u4");
    let PartKind::ToolResult {
        tool_use_id,
        is_error,
        ..
    } = &seen.turns[3].parts[0].kind
    else {
        panic!("no result")
    };
    assert_eq!((tool_use_id.as_str(), *is_error), ("y", true));
    assert!(!seen.window.has_new_cut, "what was sent before stays");
}

#[test]
fn a_sliding_window_cuts_the_first_user_turn_off_and_has_not_lost_it() {
    let turns = (0..6).map(|_| text(Role::User, "hello"));
    let mut chat = chat(turns);
    let seen = chat
        .see(Policy::SlidingWindow { turns: 2 }, 10_000)
        .unwrap();
    assert_eq!(seen.words(), "[elision] u5 u6");
    let omissions = &seen.window.report.omissions;
    assert!(
        omissions.iter().all(|it| it.reason == OmissionReason::Cut),
        "{omissions:?}"
    );
    assert_eq!((omissions[0].first_seq, omissions[0].last_seq), (1, 4));
}

#[test]
fn a_result_that_comes_late_stands_behind_its_call() {
    let mut chat = chat([
        text(Role::User, "hello"),
        call(&["x"], "{}"),
        text(Role::User, "still there?"),
        text(Role::Assistant, "yes"),
        result("x", "1"),
        text(Role::Assistant, "it is 1"),
    ]);
    assert_eq!(chat.see(Policy::TokenBudget, 1_000).unwrap().turns.len(), 6);
    let seen = chat.see(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(seen.turns[2].role, Role::Tool, "{}", seen.words());
    assert_eq!(seen.turns[3], text(Role::User, "still there?"));
}

#[test]
fn of_what_stands_behind_a_summary_only_a_result_leaves_that_came_late_for_its_call() {
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
            assert!(chat.say(turn));
        }
        let words = chat.see(policy, 100_000).unwrap().words();
        assert!(
            words.contains("a5 u6") && words.ends_with("a8 u9"),
            "{policy:?}: {words}"
        );
    }
}

#[test]
fn a_turn_with_results_for_two_turns_is_shown_in_two() {
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
    let seen = chat.see(Policy::TokenBudget, 1_000).unwrap();
    let links: Vec<String> = seen
        .turns
        .iter()
        .map(|turn| format!("{:?}", turn.links().results))
        .collect();
    assert_eq!(links, ["[]", "[]", "[\"x\"]", "[]", "[\"y\"]", "[]", "[]"]);
    assert_eq!(seen.turns[5].parts[0].kind, PartKind::Text("both".into()));
}

#[test]
fn a_cut_goes_to_the_floor_at_an_exchange_and_is_kept() {
    let mut chat = chat([text(Role::User, "task"), text(Role::Assistant, "ok")]);
    for _ in 0..10 {
        chat.say(long(Role::User, 40));
        chat.say(long(Role::Assistant, 40));
    }
    let seen = chat.see(Policy::HeadTail { turns: 0 }, 820).unwrap();
    assert!(seen.window.has_new_cut);
    assert!(
        seen.window.report.blocks.total() <= 410,
        "{:?}",
        seen.window.report.blocks
    );
    assert_eq!(seen.words(), "u1 [elision] u17 a18 u19 a20 u21 a22");
    let elision = PartKind::Text("[memoird 000000000: turns 2-16 are not shown here]".into());
    assert_eq!(seen.turns[1].parts[0].kind, elision);

    chat.say(text(Role::User, "and now?"));
    let next = chat.see(Policy::HeadTail { turns: 0 }, 820).unwrap();
    assert!(!next.window.has_new_cut);
    assert_eq!(next.turns[..seen.turns.len()], seen.turns);
    let before = seen.window.report.blocks.total();
    assert_eq!(next.window.report.stable_prefix_tokens, before);
}

#[test]
fn a_current_turn_that_does_not_fit_is_refused_with_its_tokens() {
    let mut chat = chat([text(Role::User, "task"), text(Role::Assistant, "ok")]);
    chat.say(long(Role::User, 500));
    for policy in POLICIES {
        let refused = chat.see(policy, 400).unwrap_err();
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
fn the_first_turn_is_never_an_excerpt_while_it_is_said() {
    let mut chat = chat([long(Role::User, 500)]);
    assert!(matches!(
        chat.see(Policy::TokenBudget, 400),
        Err(CoreError::CurrentTurnTooLarge { tokens: 520, .. })
    ));
}

#[test]
fn an_anchor_that_cannot_fit_becomes_an_excerpt() {
    let mut chat = chat([long(Role::User, 500), text(Role::Assistant, "ok")]);
    chat.say(text(Role::User, "go on"));
    let seen = chat.see(Policy::TokenBudget, 300).unwrap();
    assert_eq!(seen.words(), "[excerpt] a2 u3");
    assert!(seen.window.report.degraded && seen.window.report.blocks.total() <= 300);
    let anchor = seen.window.report.blocks.anchor;
    assert!(anchor > 60, "it uses the room: {anchor}");
    chat.say(text(Role::Assistant, "yes"));
    chat.say(text(Role::User, "more"));
    let next = chat.see(Policy::TokenBudget, 300).unwrap();
    assert_eq!(next.turns[0], seen.turns[0], "it is kept");
}

#[test]
fn an_excerpt_fills_the_window_to_the_floor() {
    let mut chat = chat([long(Role::User, 5_000), text(Role::Assistant, "ok")]);
    chat.say(long(Role::User, 300));
    let (budget, watermark) = (3_000, u64::from(chat.settings.watermark_percent));
    let first = chat.see(Policy::HeadTail { turns: 0 }, budget).unwrap();
    assert_eq!(first.words(), "[excerpt] a2 u3");
    let (used, most) = (first.window.counted, budget * watermark / 100);
    let goal = chat.fixed + (budget - chat.fixed) / 2;
    assert!(
        (goal - goal / 20..=goal).contains(&used),
        "{used} of {goal}"
    );
    // The next turns fit after it.
    let mut last = first;
    while last.window.counted + 120 <= most {
        chat.say(long(Role::Assistant, 50));
        chat.say(long(Role::User, 50));
        let next = chat.see(Policy::HeadTail { turns: 0 }, budget).unwrap();
        assert_eq!(next.turns[0], last.turns[0], "it is kept");
        last = next;
    }
    assert!(last.turns.len() >= 3 + 2 * 6, "{}", last.words());
}

#[test]
fn a_result_that_was_asked_for_again_becomes_a_line() {
    let mut chat = chat([text(Role::User, "task")]);
    for n in 0..6 {
        let id = format!("c{n}");
        chat.say(call(&[&id], r#"{"b": 1, "a": [1]}"#));
        chat.say(result(&id, "y".repeat(600)));
    }
    let seen = chat.see(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(
        seen.turns.len(),
        13,
        "no turn was dropped: {}",
        seen.words()
    );
    assert_eq!(seen.window.report.results_trimmed, 5);
    let PartKind::ToolResult {
        content,
        tool_use_id,
        ..
    } = &seen.turns[2].parts[0].kind
    else {
        panic!("no result")
    };
    assert_eq!(tool_use_id, "c0");
    assert_eq!(
        content,
        "[memoird 000000000: superseded by the result of the later call c5]"
    );
    assert_eq!(seen.turns[12], result("c5", "y".repeat(600)));
}

#[test]
fn long_results_are_trimmed_before_a_turn_is_dropped() {
    let mut chat = chat([text(Role::User, "task")]);
    for (n, bytes) in [(0, 2_000), (1, 2_000), (2, 800)] {
        let id = format!("c{n}");
        chat.say(call(&[&id], &format!("{{\"n\":{n}}}")));
        chat.say(result(&id, "z".repeat(bytes)));
    }
    let seen = chat.see(Policy::TokenBudget, 1_280).unwrap();
    assert_eq!(seen.turns.len(), 7, "{}", seen.words());
    assert_eq!(seen.window.report.results_trimmed, 2);
    assert_eq!(
        seen.turns[6],
        result("c2", "z".repeat(800)),
        "the current turn stays whole"
    );
}

#[test]
fn salience_drops_what_the_bot_finds_least_important() {
    let mut chat = chat([text(Role::User, "task"), text(Role::Assistant, "ok")]);
    for n in 0..8 {
        let mut turn = long(Role::User, 100);
        turn.salience = Some(if n % 2 == 0 { 1.0 } else { 0.0 });
        chat.say(turn);
    }
    let seen = chat.see(Policy::Salience, 800).unwrap();
    let kept: Vec<f32> = seen.turns.iter().filter_map(|turn| turn.salience).collect();
    assert!(
        kept.iter().filter(|salience| **salience == 1.0).count() >= 2,
        "{}",
        seen.words()
    );
    assert!(
        seen.words().matches("[elision]").count() >= 2,
        "{}",
        seen.words()
    );
}

#[test]
fn a_sliding_window_is_the_last_turns_and_nothing_else() {
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
        chat.see(Policy::SlidingWindow { turns: 3 }, 900)
            .unwrap()
            .words(),
        "[elision] u7 a8 u9"
    );
    let all = chat.see(Policy::SlidingWindow { turns: 8 }, 900).unwrap();
    assert_eq!(all.words(), "[elision] a2 u3 a4 u5 a6 u7 a8 u9");
    for turns in [9, 10, u32::MAX] {
        let all = chat.see(Policy::SlidingWindow { turns }, 900).unwrap();
        assert_eq!(all.words(), "u1 a2 u3 a4 u5 a6 u7 a8 u9", "of {turns}");
    }
}

#[test]
fn a_first_turn_outside_a_sliding_window_takes_no_room_in_it() {
    let mut chat = chat([long(Role::User, 500)]);
    for n in 0..9 {
        chat.say(text(
            if n % 2 == 0 {
                Role::Assistant
            } else {
                Role::User
            },
            format!("turn {n}"),
        ));
    }
    let seen = chat.see(Policy::SlidingWindow { turns: 8 }, 400).unwrap();
    assert_eq!(seen.words(), "[elision] u3 a4 u5 a6 u7 a8 u9 a10");
}

#[test]
fn where_results_in_other_words_are_enough_no_turn_leaves() {
    let mut chat = chat([
        text(Role::User, "task"),
        call(&["a"], "1"),
        result("a", "x".repeat(2_000)),
        text(Role::Assistant, "ok"),
        text(Role::User, "and now?"),
    ]);
    let seen = chat.see(Policy::HeadTail { turns: 0 }, 500).unwrap();
    assert_eq!(seen.words(), "u1 a2 [trimmed] a4 u5");
}

#[test]
fn a_system_turn_from_before_the_first_user_turn_outlives_fifo() {
    let limits = Limits {
        max_history_turns: 4,
        ..Limits::default()
    };
    let mut chat = Chat::new(limits);
    chat.say(text(Role::System, "be kind"));
    for n in 0..9 {
        chat.say(text(
            if n % 2 == 0 {
                Role::User
            } else {
                Role::Assistant
            },
            format!("turn {n}"),
        ));
    }
    for policy in POLICIES {
        let words = chat.see(policy, 900).unwrap().words();
        assert!(words.starts_with("s1 "), "{policy:?}: {words}");
    }
    assert_eq!(
        chat.history.turns_after(0).next().unwrap().seq,
        2,
        "but it left the history"
    );
}

/// The tail has no possible start then, because a unit reaches beyond it.
#[test]
fn a_first_user_turn_that_comes_late_tears_no_unit_apart() {
    let mut chat = chat([
        text(Role::Assistant, "hm"),
        call(&["x", "y"], "{}"),
        result("x", "z".repeat(900)),
        text(Role::Assistant, "so"),
    ]);
    let seen = chat.see(Policy::TokenBudget, 150).unwrap();
    assert_eq!(seen.words(), "a1 a2 [trimmed] [abandoned] a4");
    chat.say(result("y", "1"));
    let seen = chat.see(Policy::TokenBudget, 150).unwrap();
    assert!(seen.words().contains("a2 [trimmed] t5"), "{}", seen.words());
    chat.say(text(Role::User, "hello"));
    for policy in POLICIES {
        let words = chat.see(policy, 140).unwrap().words();
        assert!(words.ends_with(" u6"), "{policy:?}: {words}");
        assert_eq!(
            words.contains("a2"),
            words.contains("t5"),
            "{policy:?}: {words}"
        );
    }
}

#[test]
fn an_attempt_that_is_not_kept_changes_nothing() {
    let mut chat = chat([text(Role::User, "task"), text(Role::Assistant, "ok")]);
    for _ in 0..6 {
        chat.say(long(Role::User, 40));
        chat.say(long(Role::Assistant, 40));
    }
    let before = chat.see(Policy::TokenBudget, 1_000).unwrap();
    let smaller = chat.see_with(Policy::TokenBudget, 300, false).unwrap();
    assert!(smaller.turns.len() < before.turns.len());
    assert_eq!(
        chat.see(Policy::TokenBudget, 1_000).unwrap().turns,
        before.turns
    );
}

#[test]
fn a_turn_that_was_rewound_leaves_no_trace() {
    let say = |turns: &[(Role, &str)]| {
        let turns = turns.iter().map(|(role, words)| text(*role, *words));
        chat(turns.collect::<Vec<_>>())
    };
    let mut chat = say(&[
        (Role::User, "hello"),
        (Role::Assistant, "hi"),
        (Role::User, "what is the time?"),
        (Role::Assistant, "late"),
    ]);
    let before = chat.see(Policy::TokenBudget, 1_000).unwrap();
    assert!(chat.rewind(2));
    let seen = chat.see(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(seen.words(), "u1 a2");
    assert_eq!(seen.window.report.omissions, []);
    assert!(!seen.window.report.degraded);
    chat.say(text(Role::User, "what is the day?"));
    let seen = chat.see(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(seen.words(), "u1 a2 u5");
    let report = &seen.window.report;
    assert_eq!((&report.omissions[..], report.degraded), (&[][..], false));
    assert!(
        report.stable_prefix_tokens > 0,
        "what stays was sent before"
    );
    assert!(report.blocks.total() < before.window.report.blocks.total());
    assert!(chat.rewind(0), "also the first user turn");
    chat.say(text(Role::System, "be brief"));
    chat.say(text(Role::User, "hello again"));
    let seen = chat.see(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(seen.words(), "s6 u7");
    assert_eq!(seen.window.report.omissions, []);
}

#[test]
fn a_cut_that_was_made_for_what_is_rewound_is_made_anew() {
    let words = "word ".repeat(40);
    let turns = (0..12).map(|place| match place % 2 {
        0 => text(Role::User, words.as_str()),
        _ => text(Role::Assistant, words.as_str()),
    });
    let mut chat = chat(turns.collect::<Vec<_>>());
    let cut = chat.see(Policy::TokenBudget, 400).unwrap();
    assert!(cut.window.has_new_cut);
    assert!(chat.rewind(4));
    let seen = chat.see(Policy::TokenBudget, 400).unwrap();
    assert_eq!(seen.words(), "u1 a2 u3 a4");
    let mut later = chat.restarted();
    let again = later.see(Policy::TokenBudget, 400).unwrap();
    assert_eq!(again.words(), seen.words(), "also after a restart");
}

#[test]
fn what_a_small_window_did_not_look_at_is_counted_later_also_where_the_bot_spoke_first() {
    let mut chat = Chat::new(Limits {
        max_history_turns: 1_000,
        ..Limits::default()
    });
    chat.say(text(Role::Assistant, "hi"));
    chat.say(text(Role::User, "task"));
    for _ in 0..100 {
        chat.say(long(Role::Assistant, 100));
        chat.say(text(Role::User, "go on"));
    }
    let mut terms = Terms {
        model: 1,
        budget: 150,
        ..Terms::default()
    };
    let seen = chat.see_on(&terms).unwrap();
    assert_eq!(seen.words(), "[elision] u2 [elision] u202");
    terms.budget = 1_000_000;
    let seen = chat.see_on(&terms).unwrap();
    assert_eq!(seen.turns.len(), 202);
    let told = seen.window.turns.iter().map(|turn| turn.tokens);
    assert!(told.eq(seen.turns.iter().map(terms.weigh())));
}

#[test]
fn what_a_small_window_shows_of_long_ago_is_counted() {
    let mut chat = Chat::new(Limits {
        max_history_turns: 1_000,
        ..Limits::default()
    });
    chat.say(long(Role::System, 100));
    chat.say(text(Role::User, "task"));
    let mut pinned = long(Role::User, 100);
    pinned.pinned = true;
    chat.say(pinned);
    for _ in 0..100 {
        chat.say(text(Role::User, "hello"));
        chat.say(text(Role::Assistant, "hi"));
    }
    chat.say(text(Role::User, "now work"));
    for _ in 0..200 {
        chat.say(text(Role::Assistant, "step"));
    }
    let seen = chat.see(Policy::TokenBudget, 400).unwrap();
    let words = seen.words();
    let begin = "s1 u2 u3 [elision] u204 [elision] a";
    assert!(words.starts_with(begin), "{words}");
    for (turn, told) in seen.turns.iter().zip(seen.window.turns.iter()) {
        assert!(weigh(turn) <= told.tokens, "{turn:?}");
    }
}
