//! Pruning by age, never of live sessions, in steps of any size.

use memoird_core::ids::{ErasureId, Generation};
use memoird_core::session::AppendCommand;
use memoird_core::time::Steady;
use memoird_store::{EraseTarget, ErasedRows, Erasure, PruneBefore, PruneBounds, Store};

use crate::chat::{Chat, begun, command, large, named};
use crate::faults::open;
use crate::kit::*;

for_every_store!(
    ended_generations_are_pruned_by_end_time,
    live_generations_are_never_pruned,
    keys_are_pruned_by_last_use,
    pruning_in_small_steps_deletes_the_same_and_terminates,
    pruning_a_generation_keeps_its_successor,
    turn_bytes_shrink_with_pruning,
);

const NOTHING: PruneBefore = PruneBefore {
    ended: Steady(0),
    keys: Steady(0),
};

/// Bounds with at most `rows_max` rows, and few pages.
pub(crate) fn rows(rows_max: usize) -> PruneBounds {
    PruneBounds {
        rows_max,
        pages_max: 256,
    }
}

/// Prunes until nothing is left, and returns the number of steps.
pub(crate) fn prune_all(store: &dyn Store, before: PruneBefore, rows_max: usize) -> usize {
    for step in 1..10_000 {
        if !store.prune(before, rows(rows_max)).unwrap().rows {
            return step;
        }
    }
    panic!("pruning {rows_max} rows at a time never comes to an end");
}

fn ended(store: &dyn Store, session: &str, at: u64) -> Chat {
    let mut chat = begun(store, session, at);
    must_write(
        store,
        [
            chat.append("u a u a u a u a u", at),
            chat.patch(r#"{"a":1}"#, at),
        ],
    );
    must_write(store, [chat.end(at)]);
    chat
}

fn ended_generations_are_pruned_by_end_time(store: &dyn Store) {
    let chats = [10, 20, 30].map(|at| ended(store, &format!("s{at}"), at));
    let left = || {
        chats
            .each_ref()
            .map(|chat| page(store, &chat.key, None, ALL).is_some())
    };
    assert!(!store.prune(NOTHING, rows(100)).unwrap().rows);
    assert_eq!(left(), [true; 3]);
    prune_all(
        store,
        PruneBefore {
            ended: Steady(20),
            ..NOTHING
        },
        100,
    );
    assert_eq!(
        left(),
        [false, true, true],
        "what ended at that very moment stays"
    );
    prune_all(
        store,
        PruneBefore {
            ended: Steady(31),
            ..NOTHING
        },
        100,
    );
    assert_eq!(left(), [false; 3]);
    // No leftover prevents reuse of its id.
    let (mut again, begin) = Chat::begin(&chats[0].key, chats[0].generation(), 40);
    must_write(store, [begin, again.append("u a", 41)]);
    assert_eq!(known(store, &again.key).unwrap().state, None);
    assert_eq!(seqs(store, &again.key, None), Some(vec![1, 2]));
}

fn live_generations_are_never_pruned(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(
        store,
        [
            chat.append("u a u a u a u a", 2),
            chat.patch(r#"{"a":1}"#, 3),
        ],
    );
    let before = known(store, &chat.key);
    prune_all(
        store,
        PruneBefore {
            ended: Steady(u64::MAX),
            keys: Steady(u64::MAX),
        },
        1,
    );
    assert_eq!(known(store, &chat.key), before);
    assert_eq!(seqs(store, &chat.key, None), Some((1..=8).collect()));
}

fn keys_are_pruned_by_last_use(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    for at in 1..=9 {
        must_write(store, [chat.append_command(&named("u", at, 1), at)]);
    }
    let gone = begun(store, "gone", 10);
    must_write(store, [gone.end(10)]);
    let later = store.keys(&chat.key, Steady(6)).unwrap();
    prune_all(
        store,
        PruneBefore {
            keys: Steady(6),
            ..NOTHING
        },
        2,
    );
    assert_eq!(store.keys(&chat.key, Steady(0)).unwrap(), later);
    assert_eq!(
        seqs(store, &chat.key, None),
        Some((1..=9).collect()),
        "their turns stay"
    );
    assert!(page(store, &gone.key, None, ALL).is_some());
}

fn pruning_in_small_steps_deletes_the_same_and_terminates(store: &dyn Store) {
    for (round, rows_max) in [1, 2, 3, 7, 9, 10, 11, 1_000, usize::MAX]
        .into_iter()
        .enumerate()
    {
        let start = 100 * (round as u64 + 1);
        let chats: Vec<_> = (start..start + 3)
            .map(|at| ended(store, &format!("s{at}"), at))
            .collect();
        let mut living = begun(store, &format!("l{start}"), start + 50);
        for at in start..start + 4 {
            must_write(store, [living.append_command(&named("u a", at, 1), at)]);
        }
        let before = PruneBefore {
            ended: Steady(start + 2),
            keys: Steady(start + 2),
        };
        prune_all(store, before, rows_max);
        assert!(
            !store.prune(before, rows(rows_max)).unwrap().rows,
            "nothing is left at {rows_max}"
        );
        let left = chats.iter().map(|chat| seqs(store, &chat.key, None));
        let whole = Some((1..=9).collect::<Vec<u64>>());
        assert_eq!(
            left.collect::<Vec<_>>(),
            [None, None, whole],
            "{rows_max} at a time"
        );
        let keys = store.keys(&living.key, Steady(0)).unwrap();
        assert_eq!(keys, store.keys(&living.key, Steady(start + 2)).unwrap());
        assert_eq!(seqs(store, &living.key, None), Some((1..=8).collect()));
    }
}

fn pruning_a_generation_keeps_its_successor(store: &dyn Store) {
    let first = ended(store, "s", 10);
    let (mut second, begin) = Chat::begin(&first.key, Generation::new(20, 0), 20);
    must_write(store, [begin, second.append("u", 21)]);
    let before = known(store, &first.key);
    prune_all(
        store,
        PruneBefore {
            ended: Steady(50),
            ..NOTHING
        },
        3,
    );
    assert_eq!(known(store, &first.key), before);
    assert!(page(store, &first.key, Some(first.generation()), ALL).is_none());
    assert_eq!(seqs(store, &first.key, None), Some(vec![1]));
}

fn turn_bytes_shrink_with_pruning(store: &dyn Store) {
    assert_eq!(store.turn_bytes().unwrap(), []);
    let chats = [10, 20].map(|at| ended(store, &format!("s{at}"), at));
    let bytes_of = |chat: &Chat| -> u64 {
        let page = page(store, &chat.key, None, ALL);
        let turns = page.into_iter().flat_map(|page| page.turns);
        turns.map(|(_, content)| content.len() as u64).sum()
    };
    let tenant = chats[0].key.tenant.clone();
    let all = chats.iter().map(bytes_of).sum();
    assert_eq!(store.turn_bytes().unwrap(), [(tenant.clone(), all)]);
    let ended = Steady(15);
    prune_all(store, PruneBefore { ended, ..NOTHING }, 100);
    let left = bytes_of(&chats[1]);
    assert!(left < all);
    assert_eq!(store.turn_bytes().unwrap(), [(tenant, left)]);
}

#[test]
fn prune_step_deletes_a_few_megabytes_at_most() {
    let dir = tempfile::tempdir().unwrap();
    check_prune_step_bytes(&open(dir.path()));
}

/// Not applicable to a store in memory.
pub(crate) fn check_prune_step_bytes(store: &dyn Store) {
    const MIB: u64 = 1 << 20;
    let mut chats = [begun(store, "pruned", 1), begun(store, "erased", 2)];
    for chat in &mut chats {
        for _ in 0..12 {
            let append = AppendCommand {
                turns: vec![large(1 << 20)],
                ..command("")
            };
            must_write(store, [chat.append_command(&append, 3)]);
        }
    }
    let bytes = || -> u64 { store.turn_bytes().unwrap().iter().map(|(_, of)| of).sum() };
    let steps = |step: &mut dyn FnMut() -> bool| {
        let (mut steps, mut before, mut has_more) = (0, bytes(), true);
        while has_more {
            has_more = step();
            let after = bytes();
            assert!(before - after <= 6 * MIB, "{before} to {after}");
            (before, steps) = (after, steps + 1);
        }
        steps
    };
    must_write(store, [chats[0].end(4)]);
    let ended = Steady(15);
    let before = PruneBefore { ended, ..NOTHING };
    let pruning = steps(&mut || store.prune(before, rows(1_000)).unwrap().rows);
    assert!((3..=6).contains(&pruning), "{pruning}");
    must_write(store, [chats[1].end(30)]);
    let (key, id) = (&chats[1].key, ErasureId::after(None, 1, 1));
    let target = EraseTarget::Session {
        session: key.session.clone(),
        generation: None,
    };
    let job = Erasure::new(id, key.tenant.clone(), target);
    store.save_erasure(&job).unwrap();
    while !store.collect_erased(id, 1_000).unwrap() {}
    let erasing = steps(&mut || store.erase_rows(id, 1_000).unwrap() == ErasedRows::More);
    assert!((3..=6).contains(&erasing), "{erasing}");
    assert_eq!(bytes(), 0);
}
