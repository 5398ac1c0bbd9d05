//! Followers of the journal receive every turn of every session once, in order.
//!
//! Pruned turns are omitted.

use memoird_core::time::Steady;
use memoird_store::{GenerationOwner, PruneBefore, Store, WrittenTurn};

use crate::chat::{Chat, begun};
use crate::kit::*;
use crate::prune::prune_all;

for_every_store!(
    turns_are_numbered_in_commit_order,
    written_after_stops_at_its_bounds,
    pruned_turns_are_omitted_and_numbers_not_reused,
);

/// Two chats in alternation: 8 turns, more than fit into the pending table.
fn two_chats(store: &dyn Store) -> [Chat; 2] {
    let mut one = begun(store, "one", 1);
    let mut other = begun(store, "other", 2);
    must_write(store, [one.append("u a", 3)]);
    must_write(store, [other.append("u a u", 4)]);
    must_write(store, [one.append("u a", 5), one.append("u", 6)]);
    [one, other]
}

fn all(store: &dyn Store) -> Vec<WrittenTurn> {
    let written = store.written_after(0, usize::MAX, usize::MAX).unwrap();
    assert_eq!(
        written.turns.last().map_or(0, |turn| turn.number),
        written.last_number
    );
    written.turns
}

fn numbers(turns: &[WrittenTurn]) -> Vec<u64> {
    turns.iter().map(|turn| turn.number).collect()
}

fn turns_are_numbered_in_commit_order(store: &dyn Store) {
    assert!(all(store).is_empty());
    let [one, other] = two_chats(store);
    let turns = all(store);
    assert_eq!(numbers(&turns), (1..=8).collect::<Vec<_>>());
    let order: Vec<_> = turns
        .iter()
        .map(|turn| (turn.generation == one.generation(), turn.seq))
        .collect();
    let (first, second) = (true, false);
    assert_eq!(
        order,
        [
            (first, 1),
            (first, 2),
            (second, 1),
            (second, 2),
            (second, 3),
            (first, 3),
            (first, 4),
            (first, 5)
        ]
    );
    for turn in &turns {
        let chat = if turn.generation == one.generation() {
            &one
        } else {
            &other
        };
        let journal = page(store, &chat.key, None, ALL).unwrap().turns;
        assert!(journal.contains(&(turn.seq, turn.content.clone())));
    }
    let owners = store
        .owners(&[other.generation(), one.generation()])
        .unwrap();
    let owner = |chat: &Chat| GenerationOwner {
        generation: chat.generation(),
        key: chat.key.clone(),
        subject: None,
    };
    assert_eq!(owners, [owner(&other), owner(&one)]);
}

fn written_after_stops_at_its_bounds(store: &dyn Store) {
    two_chats(store);
    let read = |after, turns_max, bytes_max| {
        let written = store.written_after(after, turns_max, bytes_max).unwrap();
        assert_eq!(written.last_number, 8);
        numbers(&written.turns)
    };
    assert_eq!(read(0, 3, usize::MAX), [1, 2, 3]);
    assert_eq!(read(3, 3, usize::MAX), [4, 5, 6]);
    assert_eq!(read(7, 0, 0), [8], "there is always progress");
    assert_eq!(read(0, usize::MAX, 1), [1]);
    for end in [8, 9, u64::MAX] {
        assert!(read(end, usize::MAX, usize::MAX).is_empty(), "{end}");
    }
    let some = store.written_at(&[7, 99, 2]).unwrap();
    assert_eq!(numbers(&some), [7, 2]);
}

fn pruned_turns_are_omitted_and_numbers_not_reused(store: &dyn Store) {
    let [one, mut other] = two_chats(store);
    must_write(store, [one.end(7)]);
    let before = PruneBefore {
        ended: Steady(8),
        keys: Steady(0),
    };
    prune_all(store, before, 100);
    let written = store.written_after(0, usize::MAX, usize::MAX).unwrap();
    assert_eq!(numbers(&written.turns), [3, 4, 5]);
    assert_eq!(written.last_number, 8);
    assert_eq!(numbers(&store.written_at(&[1, 3, 8]).unwrap()), [3]);
    let owners = store
        .owners(&[one.generation(), other.generation()])
        .unwrap();
    assert_eq!(owners.len(), 1);
    assert_eq!(owners[0].key, other.key);
    must_write(store, [other.append("a", 9)]);
    assert_eq!(numbers(&all(store)), [3, 4, 5, 9]);
}
