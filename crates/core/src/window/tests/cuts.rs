//! Cuts over a long conversation.

use super::*;

fn exchange(chat: &mut Chat, n: usize) {
    chat.say(text(Role::User, format!("question {n}")));
    chat.say(text(Role::Assistant, format!("answer {n}")));
}

/// The first turn of the tail.
fn first_of_tail(seen: &Seen) -> String {
    seen.words()
        .split(' ')
        .find(|word| !word.contains('[') && *word != "u1")
        .unwrap()
        .to_owned()
}

#[test]
fn when_first_in_first_out_overtakes_the_cut_it_jumps_ahead() {
    let mut chat = Chat::new(Limits {
        max_history_turns: 20,
        ..Limits::default()
    });
    let (mut cuts, mut firsts) = (0, Vec::new());
    for n in 0..100 {
        exchange(&mut chat, n);
        let seen = chat.see(Policy::HeadTail { turns: 0 }, 100_000).unwrap();
        cuts += usize::from(seen.window.has_new_cut);
        firsts.push(first_of_tail(&seen));
        assert!(seen.turns.len() <= 22, "{}", seen.words());
        assert!(n < 10 || seen.turns.len() >= 18, "{n}: {}", seen.words());
    }
    firsts.dedup();
    // 199 turns follow the first one. 20 fit, and then a cut is due every 6.
    assert!((29..=31).contains(&cuts), "{cuts}");
    assert_eq!(firsts.len(), cuts + 1, "and in between nothing moves");
}

#[test]
fn a_cap_on_the_tail_is_kept_with_room_to_grow() {
    let mut chat = Chat::new(Limits::default());
    let mut cuts = 0;
    for n in 0..24 {
        exchange(&mut chat, n);
        let seen = chat.see(Policy::HeadTail { turns: 10 }, 100_000).unwrap();
        cuts += usize::from(seen.window.has_new_cut);
        let tail = seen
            .turns
            .iter()
            .skip(1)
            .filter(|turn| turn.metadata.is_empty())
            .count();
        assert!(tail <= 10, "{}", seen.words());
    }
    assert!(cuts <= 20, "{cuts}");
}

#[test]
fn with_much_more_room_what_was_left_out_comes_back() {
    let mut chat = Chat::new(Limits::default());
    for n in 0..12 {
        exchange(&mut chat, n);
    }
    let small = chat.see(Policy::TokenBudget, 120).unwrap();
    assert!(small.turns.len() < 12);
    let little_more = chat.see(Policy::TokenBudget, 140).unwrap();
    assert_eq!(little_more.turns, small.turns);
    let large = chat.see(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(large.turns.len(), 24, "{}", large.words());
}

#[test]
fn cuts_are_bounded_in_number() {
    let mut chat = Chat::new(Limits::default());
    for n in 0..12 {
        exchange(&mut chat, n);
    }
    for turns in 1..40 {
        chat.see(Policy::HeadTail { turns }, 1_000).unwrap();
    }
    assert!(chat.windows.take_changes().unwrap().len() <= 8);
    assert!(chat.windows.take_changes().is_none(), "once");
}

#[test]
fn what_a_provider_charged_belongs_to_the_last_window_of_its_model_once() {
    let mut chat = Chat::new(Limits::default());
    exchange(&mut chat, 0);
    let seen = chat.see(Policy::TokenBudget, 1_000).unwrap();
    assert_eq!(chat.windows.charged(|model| model == "other"), None);
    let counted = seen.window.report.blocks.total();
    chat.windows.note_sent("m", Policy::TokenBudget, counted);
    assert_eq!(
        chat.windows.charged(|model| model == "m"),
        Some(("m".into(), counted))
    );
    assert_eq!(chat.windows.charged(|model| model == "m"), None);
}

#[test]
fn by_salience_a_window_of_a_long_history_is_not_next_to_nothing() {
    let mut chat = Chat::new(Limits {
        max_history_turns: 10_000,
        ..Limits::default()
    });
    for n in 0..1_500 {
        chat.say(text(Role::User, format!("question {n}")));
        chat.say(call(&["c"], "{}"));
        chat.say(result("c", format!("result {n} {}", "x".repeat(160))));
        chat.say(text(Role::Assistant, format!("answer {n}")));
    }
    let all = chat
        .see(Policy::TokenBudget, 1_000_000)
        .unwrap()
        .window
        .counted;
    for percent in [20, 40] {
        let seen = chat
            .clone()
            .see(Policy::Salience, all * percent / 100)
            .unwrap();
        let least = all * percent / 400;
        assert!(
            seen.window.counted >= least,
            "{percent} %: {} of {all}",
            seen.window.counted
        );
    }
}
