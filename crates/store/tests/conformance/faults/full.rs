//! A full disk: the batch is rejected without a trace, with a clear error.
//!
//! Reads continue, and writes continue once there is room.

use memoird_core::ids::Generation;
use memoird_core::session::AppendCommand;
use memoird_core::time::Steady;
use memoird_store::{PruneBefore, StaleBase};

use super::*;
use crate::chat::{command, large, named};
use crate::prune::prune_all;

fn open_with(dir: &Path, pages: Option<u32>) -> SqliteStore {
    let options = SqliteOptions {
        pages_max: pages,
        ..SqliteOptions::default()
    };
    SqliteStore::open(dir, options).unwrap()
}

fn is_full(outcome: Result<Vec<Result<(), StaleBase>>, StoreError>) {
    match outcome {
        Err(StoreError::Full) => {}
        other => panic!("a full disk was expected: {other:?}"),
    }
}

fn large_append(bytes: usize) -> AppendCommand {
    AppendCommand {
        turns: vec![large(bytes)],
        ..named("", 500, 5)
    }
}

#[test]
fn full_disk_refuses_whole_batch_without_trace() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), Some(100));
    let mut chat = begun(&store, "s", 1);
    must_write(&store, [chat.append("u a", 2)]);
    let seen = |store: &dyn Store| {
        (
            known(store, &chat.key),
            live_heads(store),
            store.clock().unwrap(),
        )
    };
    let before = seen(&store);

    let small = set([chat.clone().append("u", 3)]);
    let begin = |number: u128| Chat::begin(&key("t", "new"), Generation::new(9, number), 4);
    let (mut other, begin_other) = begin(1);
    let alone = set([chat.clone().append_command(&large_append(1 << 20), 3)]);
    let mut next = chat.clone();
    let following = [
        set([next.append("u", 3)]),
        set([next.append_command(&large_append(1 << 20), 3)]),
        set([next.append("a", 3)]),
    ];
    let in_a_set = set([begin_other, other.append_command(&large_append(1 << 20), 4)]);
    let refused = set([begin(2).1, begin(3).1]);
    for sets in [
        vec![alone],
        vec![in_a_set.clone()],
        vec![small.clone(), in_a_set.clone()],
        following.to_vec(),
        vec![refused, small.clone(), in_a_set, small],
    ] {
        is_full(store.commit(&clock(77), &sets));
        assert_eq!(seen(&store), before);
        assert!(load(&store, &other.key).is_none());
        assert_eq!(seqs(&store, &chat.key, None), Some(vec![1, 2]));
    }
    // Small sets still fit.
    let next = chat.clone().append("u", 5);
    must_write(&store, [next]);
    drop(store);

    let store = open_with(dir.path(), None);
    let mut chat = chat.reloaded(&store);
    must_write(&store, [chat.append_command(&large_append(1 << 20), 6)]);
    assert_eq!(seqs(&store, &chat.key, None), Some(vec![1, 2, 3, 4]));
}

#[test]
fn writes_resume_once_prune_frees_space() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), Some(300));
    let mut old = begun(&store, "old", 1);
    must_write(&store, [old.append_command(&large_append(700 << 10), 2)]);
    must_write(&store, [old.end(3)]);
    let mut chat = begun(&store, "s", 4);
    let mut append = || chat.append_command(&large_append(100 << 10), 5);
    let mut waiting = set([append()]);
    let mut written = 0;
    while let Ok(answers) = store.commit(&clock(5), std::slice::from_ref(&waiting)) {
        assert_eq!(answers, [Ok(())]);
        written += 1;
        waiting = set([chat.append_command(
            &AppendCommand {
                turns: vec![large(100 << 10)],
                ..command("")
            },
            5,
        )]);
    }
    assert!(written > 0, "some must have fitted");
    is_full(store.commit(&clock(5), std::slice::from_ref(&waiting)));

    prune_all(
        &store,
        PruneBefore {
            ended: Steady(4),
            keys: Steady(0),
        },
        100,
    );
    assert_eq!(write(&store, &[waiting]), [Ok(())]);
    assert_eq!(known(&store, &chat.key).unwrap().head, *chat.session.head());
    assert_eq!(
        seqs(&store, &chat.key, None),
        Some((1..=written + 1).collect())
    );
}

#[test]
fn full_journal_can_be_reopened() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), Some(60));
    let mut chat = begun(&store, "s", 1);
    let mut at = 2;
    loop {
        let append = [set([chat.clone().append("u a u a u a u a", at)])];
        if store.commit(&clock(at), &append).is_err() {
            is_full(store.commit(&clock(at), &append));
            break;
        }
        chat.append("u a u a u a u a", at);
        at += 1;
    }
    let before = known(&store, &chat.key).unwrap();
    assert_eq!(before.head, *chat.session.head());
    drop(store);
    let store = open_with(dir.path(), Some(60));
    assert_eq!(known(&store, &chat.key).unwrap(), before);
    is_full(store.commit(
        &clock(at),
        &[set([chat.append_command(&large_append(9_000), at)])],
    ));
}
