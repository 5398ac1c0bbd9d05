//! Windows whose oldest turns are replaced by a summary.

use super::*;

const HEAD_TAIL: Policy = Policy::HeadTail { turns: 0 };

fn long_chat(exchanges: usize) -> Chat {
    let mut chat = Chat::new(Limits {
        max_history_turns: 1_000,
        ..Limits::default()
    });
    chat.say(text(Role::System, "be kind"));
    chat.say(text(Role::User, "the task"));
    for _ in 0..exchanges {
        chat.say(text(Role::Assistant, "x".repeat(100)));
        chat.say(text(Role::User, "x".repeat(100)));
    }
    chat
}

#[test]
fn a_summary_stands_behind_the_system_prompt_and_is_acknowledged() {
    let mut chat = long_chat(4);
    assert_eq!(
        chat.see(HEAD_TAIL, 5_000).unwrap().words(),
        "s1 u2 a3 u4 a5 u6 a7 u8 a9 u10"
    );
    assert!(chat.summarize(2));
    chat.show_summary();
    let seen = chat.see(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(seen.words(), "s1 [summary] [acknowledgement] u8 a9 u10");
    let report = &seen.window.report;
    assert!(seen.window.has_new_cut && report.blocks.summary > 0);
    assert_eq!(report.summary, chat.summary);
    let summarized = Omission {
        first_seq: 2,
        last_seq: 7,
        reason: OmissionReason::Summarized,
    };
    assert_eq!(report.omissions, [summarized]);
    let system = weigh(&seen.turns[0]);
    assert_eq!(
        report.stable_prefix_tokens,
        chat.fixed + system,
        "the summary breaks the cache"
    );

    chat.say(text(Role::Assistant, "done"));
    let next = chat.see(HEAD_TAIL, 5_000).unwrap();
    assert!(!next.window.has_new_cut);
    assert_eq!(next.turns[..seen.turns.len()], seen.turns);
    assert_eq!(
        next.window.report.stable_prefix_tokens,
        report.blocks.total()
    );
}

#[test]
fn a_summary_that_is_taken_back_gives_the_turns_back() {
    let mut chat = long_chat(4);
    let before = chat.see(HEAD_TAIL, 5_000).unwrap();
    chat.summarize(1);
    chat.show_summary();
    assert!(
        chat.see(HEAD_TAIL, 5_000)
            .unwrap()
            .words()
            .contains("[summary]")
    );
    chat.summary = None;
    let after = chat.see(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(after.turns, before.turns);
    assert!(after.window.has_new_cut);
}

#[test]
fn system_and_pinned_turns_are_shown_whatever_a_summary_stands_for() {
    let mut chat = long_chat(1);
    chat.say(Turn {
        pinned: true,
        ..text(Role::Assistant, "pinned")
    });
    chat.say(text(Role::System, "from now on be brief"));
    chat.say(text(Role::User, "and then?"));
    chat.say(text(Role::Assistant, "then that"));
    assert!(chat.summarize(0));
    assert_eq!(
        chat.summary.as_ref().map(|summary| summary.through_seq),
        Some(8)
    );
    let seen = chat.see(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(
        seen.words(),
        "s1 [elision] a5 s6 [summary] [acknowledgement]"
    );
}

#[test]
fn a_request_with_a_system_turn_behind_it_is_not_summarized_before_it_is_answered() {
    let mut chat = long_chat(1);
    chat.say(text(Role::System, "it is noon"));
    assert!(chat.summarize(0));
    let through = chat.summary.as_ref().map(|summary| summary.through_seq);
    assert_eq!(through, Some(3));
}

#[test]
fn a_window_that_is_too_small_for_the_summary_goes_without_and_says_so() {
    let mut chat = long_chat(4);
    chat.summarize(1);
    let text = "x".repeat(4_000);
    let summary = Summary {
        text: text.into(),
        ..(**chat.summary.as_ref().unwrap()).clone()
    };
    chat.summary = Some(Arc::new(summary));
    let seen = chat.see(HEAD_TAIL, 200).unwrap();
    assert!(!seen.words().contains("[summary]"), "{}", seen.words());
    assert!(seen.window.report.degraded && seen.window.report.notes[0].contains("summary"));
}

#[test]
fn sliding_windows_show_no_summary() {
    let mut chat = long_chat(4);
    chat.summarize(1);
    let seen = chat.see(Policy::SlidingWindow { turns: 3 }, 5_000).unwrap();
    assert_eq!(seen.words(), "s1 [elision] a9 u10");
}

#[test]
fn results_in_other_words_come_before_any_summary() {
    let mut chat = long_chat(1);
    for place in 0..3 {
        let id = format!("c{place}");
        chat.say(call(&[&id], "{}"));
        chat.say(result(&id, "y".repeat(1_000)));
    }
    chat.say(text(Role::User, "go on"));
    chat.soft_percent = Some(70);
    let whole = chat.clone().see(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(whole.window.report.results_trimmed, 0);
    let budget = whole.window.counted * 10 / 9;
    let seen = chat.see(HEAD_TAIL, budget).unwrap();
    assert_eq!(seen.window.tail_seq, None, "no summary is needed");
    assert_eq!(seen.turns, whole.turns, "and the prefix stays");

    assert!(chat.summarize(1));
    for n in 0..3 {
        chat.say(text(Role::Assistant, "x".repeat(100)));
        chat.say(text(Role::User, format!("go on {n}")));
    }
    let seen = chat.see(HEAD_TAIL, budget).unwrap();
    assert!(
        seen.words().contains("[summary]"),
        "a ready one: {}",
        seen.words()
    );
    let again = chat.see(HEAD_TAIL, budget).unwrap();
    assert!(!again.window.has_new_cut);
}

#[test]
fn a_summary_takes_its_place_when_the_window_would_be_cut() {
    let mut chat = long_chat(8);
    chat.soft_percent = Some(70);
    let before = chat.see(HEAD_TAIL, 640).unwrap();
    assert!(chat.summarize(1));
    let (mut last, mut swapped) = (before, None);
    for n in 0..6 {
        chat.say(text(Role::Assistant, format!("{n} {}", "y".repeat(100))));
        chat.say(text(Role::User, "and then?"));
        let seen = chat.see(HEAD_TAIL, 640).unwrap();
        if seen.words().contains("[summary]") {
            swapped = Some(n);
            assert_eq!(seen.words().matches("[elision]").count(), 0);
            let since: Vec<&Turn> = seen.turns.iter().skip(4).collect();
            let newest = &last.turns[last.turns.len() - since.len() + 2..];
            assert!(since.iter().zip(newest).all(|(now, then)| *now == then));
            break;
        }
        assert_eq!(
            seen.turns[..last.turns.len()],
            last.turns,
            "the prefix stays"
        );
        assert_eq!(seen.window.tail_seq, None, "none is needed");
        last = seen;
    }
    assert!(swapped.is_some_and(|n| n > 0), "{swapped:?}");
}

#[test]
fn a_summary_is_not_stable_once_a_turn_before_it_has_left() {
    // Each turn has 8 bytes. The third turn that counts toward the caps makes the first one leave,
    // and only one of the two system turns is small enough to be retained.
    let mut chat = Chat::new(Limits {
        max_history_bytes: 20,
        ..Limits::default()
    });
    chat.say(text(Role::System, "be kind"));
    chat.say(text(Role::System, "be brief"));
    chat.say(text(Role::Assistant, "hello"));
    chat.say(text(Role::User, "the task"));
    assert!(chat.summarize(0));
    let seen = chat.see(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(seen.words(), "s1 s2 [summary] [acknowledgement] u4");

    chat.say(text(Role::User, "go on"));
    let next = chat.see(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(next.words(), "s1 [summary] [acknowledgement] u4 u5");
    assert_eq!(
        next.window.report.stable_prefix_tokens,
        chat.fixed + weigh(&next.turns[0]),
        "the summary follows another turn now"
    );
}

#[test]
fn a_summary_is_not_stable_where_another_turn_stands_before_it_now() {
    let mut chat = Chat::new(Limits::default());
    chat.say(call(&["x", "y"], "{}"));
    chat.say(text(Role::System, "be kind"));
    chat.say(text(Role::User, "the task"));
    chat.say(text(Role::User, "go on"));
    assert!(chat.summarize(0));
    let seen = chat.see(HEAD_TAIL, 5_000).unwrap();
    assert_eq!(seen.words(), "s2 [summary] [acknowledgement] u4");

    // Its call, which the summary covers, is shown again, before the system turn.
    chat.say(result("x", "late"));
    let next = chat.see(HEAD_TAIL, 5_000).unwrap();
    assert!(next.words().starts_with("a1 t5"), "{}", next.words());
    assert_eq!(next.window.report.stable_prefix_tokens, chat.fixed);
}
