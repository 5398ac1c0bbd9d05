//! Continuing a window from the cached front of the previous one.
//!
//! `Chat::see_on` asserts in every test that such a window equals one composed from scratch.

use super::*;

const POLICY: Policy = Policy::HeadTail { turns: 0 };

fn chat(turns: usize) -> Chat {
    let mut chat = Chat::new(Limits::default());
    for place in 0..turns {
        let role = [Role::User, Role::Assistant][place % 2];
        assert!(chat.say(text(role, format!("turn {place}"))));
    }
    chat
}

#[test]
fn only_what_came_since_is_put_together() {
    let mut chat = chat(6);
    for turns in 7..40 {
        let role = [Role::User, Role::Assistant][turns % 2];
        chat.see(POLICY, 10_000).unwrap();
        assert_eq!(chat.windows.kept_turns(), turns - 1);
        assert!(chat.say(text(role, "more")));
    }
}

#[test]
fn a_call_is_put_together_again_until_it_is_answered_or_abandoned() {
    let mut chat = chat(3);
    let mut kept = |turn: Turn| {
        assert!(chat.say(turn));
        chat.see(POLICY, 10_000).unwrap();
        chat.windows.kept_turns()
    };
    assert_eq!(kept(call(&["x", "y"], "{}")), 3);
    assert_eq!(kept(result("x", "1")), 3);
    assert_eq!(kept(result("y", "2")), 6);
    assert_eq!(kept(call(&["z"], "{}")), 6);
    assert_eq!(
        kept(text(Role::User, "never mind")),
        9,
        "with an error result"
    );
    // It replaces the error result, so the whole window is composed again.
    assert_eq!(kept(result("z", "3")), 9);
    assert_eq!(kept(text(Role::Assistant, "fine")), 10);
}

#[test]
fn turns_that_leave_do_not_stay_in_memory() {
    let mut chat = chat(10);
    chat.limits.max_history_turns = 8;
    chat.see(POLICY, 10_000).unwrap();
    assert_eq!(chat.windows.kept_turns(), 10);
    assert!(chat.windows.kept_bytes() > 10 * size_of::<WindowTurn>());
    assert!(chat.say(text(Role::User, "more")));
    chat.windows.release(&chat.history, chat.last_seq);
    assert_eq!(
        (chat.windows.kept_turns(), chat.windows.kept_bytes()),
        (0, 0)
    );
    // After a cut, turns that no window shows may be dropped.
    chat.see(POLICY, 10_000).unwrap();
    let kept = chat.windows.kept_turns();
    assert!(chat.say(text(Role::Assistant, "more")));
    chat.windows.release(&chat.history, chat.last_seq);
    assert_eq!(chat.windows.kept_turns(), kept);
}

#[test]
fn a_window_that_is_still_used_does_not_change() {
    let mut chat = chat(4);
    let seen = chat.see(POLICY, 10_000).unwrap();
    chat.say(text(Role::User, "more"));
    assert_eq!(chat.see(POLICY, 10_000).unwrap().window.turns.len(), 5);
    assert_eq!(seen.window.turns.len(), 4);
}
