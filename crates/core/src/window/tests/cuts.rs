//! Cuts over a long conversation.

use super::*;

fn exchange(chat: &mut Chat, n: usize) {
    chat.append(text(Role::User, format!("question {n}")));
    chat.append(text(Role::Assistant, format!("answer {n}")));
}

/// The first turn of the tail.
fn first_of_tail(built: &BuiltWindow) -> String {
    built
        .words()
        .split(' ')
        .find(|word| !word.contains('[') && *word != "u1")
        .unwrap()
        .to_owned()
}

#[test]
fn cut_jumps_ahead_when_fifo_drops_turns_past_it() {
    let mut chat = Chat::new(Limits {
        max_history_turns: 20,
        ..Limits::default()
    });
    let (mut cuts, mut firsts) = (0, Vec::new());
    for n in 0..100 {
        exchange(&mut chat, n);
        let built = chat.build(Policy::HeadTail { turns: 0 }, 100_000).unwrap();
        cuts += usize::from(built.window.has_new_cut);
        firsts.push(first_of_tail(&built));
        assert!(built.turns.len() <= 22, "{}", built.words());
        assert!(n < 10 || built.turns.len() >= 18, "{n}: {}", built.words());
    }
    firsts.dedup();
    // 199 turns follow the first one. 20 fit, and then a cut is due every 6.
    assert!((29..=31).contains(&cuts), "{cuts}");
    assert_eq!(firsts.len(), cuts + 1, "the tail moves only at cuts");
}

#[test]
fn tail_stays_within_turn_cap_with_bounded_cuts() {
    let mut chat = Chat::new(Limits::default());
    let mut cuts = 0;
    for n in 0..24 {
        exchange(&mut chat, n);
        let built = chat.build(Policy::HeadTail { turns: 10 }, 100_000).unwrap();
        cuts += usize::from(built.window.has_new_cut);
        let tail = built
            .turns
            .iter()
            .skip(1)
            .filter(|turn| turn.metadata.is_empty())
            .count();
        assert!(tail <= 10, "{}", built.words());
    }
    assert!(cuts <= 20, "{cuts}");
}

#[test]
fn much_larger_budget_restores_omitted_turns() {
    let mut chat = Chat::new(Limits::default());
    for n in 0..12 {
        exchange(&mut chat, n);
    }
    let small = chat.build(Policy::TokenBudget, 120).unwrap();
    assert!(small.turns.len() < 12);
    let slightly_larger = chat.build(Policy::TokenBudget, 140).unwrap();
    assert_eq!(slightly_larger.turns, small.turns);
    let large = chat.build(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(large.turns.len(), 24, "{}", large.words());
}

#[test]
fn number_of_stored_cuts_is_bounded() {
    let mut chat = Chat::new(Limits::default());
    for n in 0..12 {
        exchange(&mut chat, n);
    }
    for turns in 1..40 {
        chat.build(Policy::HeadTail { turns }, 1_000).unwrap();
    }
    assert!(chat.windows.take_changes().unwrap().len() <= 8);
    assert!(
        chat.windows.take_changes().is_none(),
        "changes are returned once"
    );
}

#[test]
fn shared_window_continues_after_load() {
    let mut chat = Chat::new(Limits::default());
    chat.is_shared = true;
    exchange(&mut chat, 0);
    chat.build(Policy::TokenBudget, 1_000).unwrap();
    let mut loaded = chat.restarted();
    let next = [&mut chat, &mut loaded].map(|chat| {
        exchange(chat, 1);
        let built = chat.build(Policy::TokenBudget, 1_000).unwrap();
        let report = built.window.report;
        (report.stable_prefix_tokens, built.window.cache_breakpoints)
    });
    assert_eq!(next[0], next[1]);
    assert!(next[0].0 > chat.fixed);
    // Without other processes, windows without a cut are not stored.
    let mut alone = Chat::new(Limits::default());
    exchange(&mut alone, 0);
    alone.build(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(alone.windows.take_changes(), None);
}

#[test]
fn window_that_is_taken_back_leaves_the_one_before_it() {
    let mut chat = Chat::new(Limits::default());
    exchange(&mut chat, 0);
    chat.build(Policy::TokenBudget, 1_000).unwrap();
    exchange(&mut chat, 1);
    let stable = |chat: &mut Chat| {
        let built = chat.build(Policy::TokenBudget, 1_000).unwrap();
        built.window.report.stable_prefix_tokens
    };
    let first = stable(&mut chat);
    chat.windows.take_back("m", Policy::TokenBudget);
    assert!(first > 0);
    assert_eq!(stable(&mut chat), first);
}

#[test]
fn charge_applies_once_to_last_window_of_its_model() {
    let mut chat = Chat::new(Limits::default());
    exchange(&mut chat, 0);
    let built = chat.build(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(chat.windows.charged(|model| model == "other"), None);
    let counted = built.window.report.blocks.total();
    chat.windows.note_sent("m", Policy::TokenBudget, counted);
    assert_eq!(
        chat.windows.charged(|model| model == "m"),
        Some(("m".into(), counted))
    );
    assert_eq!(chat.windows.charged(|model| model == "m"), None);
}

#[test]
fn salience_window_of_long_history_fills_quarter_of_budget() {
    let mut chat = Chat::new(Limits {
        max_history_turns: 10_000,
        ..Limits::default()
    });
    for n in 0..1_500 {
        chat.append(text(Role::User, format!("question {n}")));
        chat.append(call(&["c"], "{}"));
        chat.append(result("c", format!("result {n} {}", "x".repeat(160))));
        chat.append(text(Role::Assistant, format!("answer {n}")));
    }
    let all = chat
        .build(Policy::TokenBudget, 1_000_000)
        .unwrap()
        .window
        .counted;
    for percent in [20, 40] {
        let built = chat
            .clone()
            .build(Policy::Salience, all * percent / 100)
            .unwrap();
        let counted_min = all * percent / 400;
        assert!(
            built.window.counted >= counted_min,
            "{percent} %: {} of {all}",
            built.window.counted
        );
    }
}
