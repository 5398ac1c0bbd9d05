//! Continuing a window from the cached front of the previous one.
//!
//! `Chat::build_on` asserts in every test that such a window equals one composed from scratch.

use super::*;

const POLICY: Policy = Policy::HeadTail { turns: 0 };

fn chat(turns: usize) -> Chat {
    let mut chat = Chat::new(Limits::default());
    for index in 0..turns {
        let role = [Role::User, Role::Assistant][index % 2];
        assert!(chat.append(text(role, format!("turn {index}"))));
    }
    chat
}

#[test]
fn next_window_composes_only_new_turns() {
    let mut chat = chat(6);
    for turns in 7..40 {
        let role = [Role::User, Role::Assistant][turns % 2];
        chat.build(POLICY, 10_000).unwrap();
        assert_eq!(chat.windows.kept_turns(), turns - 1);
        assert!(chat.append(text(role, "more")));
    }
}

#[test]
fn call_is_composed_again_until_answered_or_abandoned() {
    let mut chat = chat(3);
    let mut kept_after = |turn: Turn| {
        assert!(chat.append(turn));
        chat.build(POLICY, 10_000).unwrap();
        chat.windows.kept_turns()
    };
    assert_eq!(kept_after(call(&["x", "y"], "{}")), 3);
    assert_eq!(kept_after(result("x", "1")), 3);
    assert_eq!(kept_after(result("y", "2")), 6);
    assert_eq!(kept_after(call(&["z"], "{}")), 6);
    assert_eq!(
        kept_after(text(Role::User, "never mind")),
        9,
        "with an error result"
    );
    // It replaces the error result, so the whole window is composed again.
    assert_eq!(kept_after(result("z", "3")), 9);
    assert_eq!(kept_after(text(Role::Assistant, "fine")), 10);
}

#[test]
fn cached_front_is_released_when_fifo_drops_its_turns() {
    let mut chat = chat(10);
    chat.limits.max_history_turns = 8;
    chat.build(POLICY, 10_000).unwrap();
    assert_eq!(chat.windows.kept_turns(), 10);
    assert!(chat.windows.kept_bytes() > 10 * size_of::<WindowTurn>());
    assert!(chat.append(text(Role::User, "more")));
    chat.windows.release(&chat.history, chat.last_seq);
    assert_eq!(
        (chat.windows.kept_turns(), chat.windows.kept_bytes()),
        (0, 0)
    );
    // After a cut, turns that no window shows may be dropped.
    chat.build(POLICY, 10_000).unwrap();
    let kept = chat.windows.kept_turns();
    assert!(chat.append(text(Role::Assistant, "more")));
    chat.windows.release(&chat.history, chat.last_seq);
    assert_eq!(chat.windows.kept_turns(), kept);
}

#[test]
fn earlier_window_is_unchanged_by_next_one() {
    let mut chat = chat(4);
    let built = chat.build(POLICY, 10_000).unwrap();
    chat.append(text(Role::User, "more"));
    assert_eq!(chat.build(POLICY, 10_000).unwrap().window.turns.len(), 5);
    assert_eq!(built.window.turns.len(), 4);
}
