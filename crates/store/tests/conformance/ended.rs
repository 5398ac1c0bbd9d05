//! Ended generations are returned whole, in the requested order, up to the byte limit.
//!
//! Their rows may be in the indexed tables or in the pending table.

use std::sync::Arc;

use memoird_core::change::EndReason;
use memoird_core::ids::{Generation, HookName, SessionKey};
use memoird_core::outbox::DeliveryState;
use memoird_core::session::AppendCommand;
use memoird_core::time::Steady;
use memoird_store::{
    DeliveryFilter, EndedRecord, PruneBefore, RetainedStore, SqliteOptions, SqliteStore, Store,
};

use crate::chat::{Chat, begun, command};
use crate::faults::{copy, open};
use crate::kit::*;
use crate::model::MemoryStore;
use crate::outbox::{hook, id, outcome, owing, owing_end};

for_every_store!(
    ended_generation_is_returned_with_dropped_turns,
    ended_generations_are_returned_in_requested_order,
    live_or_unknown_generations_are_omitted,
    ended_generations_fill_the_byte_limit_with_at_least_one,
    oversized_ended_generation_returns_newest_turns,
);

fn wanted(chat: &Chat) -> (SessionKey, Generation) {
    (chat.key.clone(), chat.generation())
}

fn ended(store: &dyn Store, chats: &[&Chat], bytes_max: usize) -> Vec<EndedRecord> {
    let wanted: Vec<_> = chats.iter().map(|chat| wanted(chat)).collect();
    store.ended(&wanted, bytes_max).unwrap()
}

fn seqs_of(record: &EndedRecord) -> Vec<u64> {
    record.turns.iter().map(|(seq, _)| *seq).collect()
}

fn bytes_of(record: &EndedRecord) -> usize {
    record.turns.iter().map(|(_, content)| content.len()).sum()
}

/// Regardless of earlier flushes and of rows still in the pending table.
fn ended_generation_is_returned_with_dropped_turns(store: &dyn Store) {
    for turns in 1..=24_u64 {
        let at = turns * 100;
        let mut chat = begun(store, &format!("s{turns}"), at);
        for turn in 1..=turns {
            let subject = memoird_core::ids::Subject::parse(&format!("subject {turn}")).ok();
            let append = AppendCommand {
                subject,
                ..command("u")
            };
            must_write(store, [chat.append_command(&append, at + turn)]);
        }
        if turns % 3 == 0 {
            must_write(
                store,
                [chat.patch(r#"{"a":1}"#, at), chat.patch(r#"{"b":2}"#, at)],
            );
        }
        must_write(store, [owing_end(&chat, at + 50, &["a"])]);
        let records = ended(store, &[&chat], usize::MAX);
        let [record] = &records[..] else {
            panic!("{turns}: {records:?}")
        };
        let mut head = chat.session.head().clone();
        // The end is a change as well.
        head.revision += 1;
        assert_eq!((&record.key, &record.head), (&chat.key, &head));
        assert_eq!((record.at, record.reason), (now(at + 50), EndReason::Ended));
        assert_eq!(seqs_of(record), (1..=turns).collect::<Vec<_>>());
        let journal = page(store, &chat.key, Some(chat.generation()), ALL).unwrap();
        assert_eq!(record.turns, journal.turns);
        let state = (turns % 3 == 0).then(|| chat.session.state());
        assert_eq!(record.state, state);
    }
}

fn ended_generations_are_returned_in_requested_order(store: &dyn Store) {
    let mut chats = vec![owing(store, "s", 10, &["a"])];
    for at in [20, 30, 40] {
        let (mut next, begin) = Chat::begin(&chats[0].key, Generation::new(at, 0), 15);
        must_write(store, [begin, next.append("u a", 16)]);
        must_write(store, [owing_end(&next, 17, &["a"])]);
        chats.push(next);
    }
    chats.push(owing(store, "another", 50, &["a"]));
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1]] {
        let records = ended(store, &order.map(|place: usize| &chats[place]), usize::MAX);
        let found: Vec<_> = records
            .iter()
            .map(|record| record.head.generation)
            .collect();
        assert_eq!(found, order.map(|place: usize| chats[place].generation()));
        assert!(
            records
                .iter()
                .all(|record| record.turns.len() as u64 == record.head.last_seq)
        );
    }
}

fn live_or_unknown_generations_are_omitted(store: &dyn Store) {
    let first = owing(store, "s", 10, &["a"]);
    let mut living = begun(store, "living", 20);
    must_write(store, [living.append("u a", 21)]);
    let (nobody, _) = Chat::begin(&first.key, Generation::new(99, 99), 1);
    let last = owing(store, "t", 30, &["a"]);
    for chats in [
        [&living, &first, &nobody, &last],
        [&first, &nobody, &living, &last],
    ] {
        let records = ended(store, &chats, usize::MAX);
        let found: Vec<_> = records
            .iter()
            .map(|record| record.head.generation)
            .collect();
        assert_eq!(found, [first.generation(), last.generation()]);
    }
    assert!(ended(store, &[&living, &nobody], usize::MAX).is_empty());
    assert!(ended(store, &[], usize::MAX).is_empty());
    // A generation begun again after it was pruned is live, and not returned.
    must_write(store, [living.end(22)]);
    assert_eq!(ended(store, &[&living], usize::MAX).len(), 1);
}

fn ended_generations_fill_the_byte_limit_with_at_least_one(store: &dyn Store) {
    let all_chats = [10, 20, 30, 40].map(|at| owing(store, &format!("s{at}"), at, &["a"]));
    let chats = all_chats.each_ref();
    let bytes = bytes_of(&ended(store, &chats, usize::MAX)[0]);
    for (bytes_max, count) in [
        (0, 1),
        (1, 1),
        (bytes, 1),
        (bytes + 1, 2),
        (3 * bytes, 3),
        (3 * bytes + 1, 4),
    ] {
        let records = ended(store, &chats, bytes_max);
        assert_eq!(records.len(), count, "{bytes_max} of {bytes}");
        let is_whole = |record: &EndedRecord| record.turns.len() == 3;
        assert!(
            records
                .iter()
                .skip(usize::from(bytes_max < bytes))
                .all(is_whole)
        );
    }
    // One that does not exist does not count as the first.
    let (nobody, _) = Chat::begin(&chats[0].key, Generation::new(99, 99), 1);
    assert_eq!(ended(store, &[&nobody, chats[0]], 0).len(), 1);
}

fn oversized_ended_generation_returns_newest_turns(store: &dyn Store) {
    let mut chat = begun(store, "s", 10);
    // Some in the indexed tables, some in the pending table.
    for at in 11..=22 {
        must_write(store, [chat.append("u", at)]);
    }
    must_write(store, [owing_end(&chat, 30, &["a"])]);
    let whole = ended(store, &[&chat], usize::MAX).remove(0);
    let sizes: Vec<usize> = whole
        .turns
        .iter()
        .map(|(_, content)| content.len())
        .collect();
    for count in 1..=12 {
        let bytes: usize = sizes.iter().rev().take(count).sum();
        for bytes_max in [bytes, bytes + 1] {
            let record = ended(store, &[&chat], bytes_max).remove(0);
            assert_eq!(record.turns, whole.turns[12 - count..], "{bytes_max} bytes");
            assert_eq!(record.head, whole.head);
        }
    }
    for bytes_max in [0, 1] {
        let record = ended(store, &[&chat], bytes_max).remove(0);
        assert_eq!(record.turns, whole.turns[11..], "one turn always");
    }
}

/// A dispatcher may read a due delivery right after its commit.
///
/// If its content were missing then, the delivery would be given up.
#[test]
fn due_delivery_has_its_content_right_after_commit() {
    const BATCHES: u64 = 12;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let set_of = |batch: u64, number: u64| {
        let session = key("t", &format!("{batch}.{number}"));
        let generation = Generation::new(1, u128::from(batch << 32 | number));
        let (mut chat, begin) = Chat::begin(&session, generation, 1);
        let append = chat.append("u", 1);
        set([
            begin,
            append,
            owing_end(&chat, 2, &[&format!("hook-{batch}")]),
        ])
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for batch in 0..BATCHES {
                let sets: Vec<_> = (0..1_000).map(|number| set_of(batch, number)).collect();
                assert!(write(&store, &sets).iter().all(Result::is_ok));
            }
        });
        for batch in 0..BATCHES {
            let hook = hook(&format!("hook-{batch}"));
            let due = loop {
                let found = store.due(&hook, None, Steady(5), 1).unwrap().due;
                if !found.is_empty() {
                    break found;
                }
            };
            let wanted = [(due[0].key.clone(), due[0].id.generation)];
            let records = store.ended(&wanted, usize::MAX).unwrap();
            assert_eq!(records.len(), 1, "batch {batch}: its content is gone");
            assert_eq!(records[0].turns.len(), 1);
        }
    });
}

#[test]
fn outbox_survives_crash_and_restart() {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        pending_changes_max: 7,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(dir.path(), options).unwrap();
    let mut chats = Vec::new();
    for at in (10..100).step_by(10) {
        chats.push(owing(&store, &format!("s{at}"), at, &["a", "b"]));
        let done = id(chats[0].generation(), "a");
        store
            .record_outcomes(&[outcome(&done, DeliveryState::Done, at)])
            .unwrap();
        let crashed = tempfile::tempdir().unwrap();
        copy(dir.path(), crashed.path());
        let recovered = open(crashed.path());
        let list = |store: &dyn Store| {
            store
                .deliveries(&DeliveryFilter::default(), None, usize::MAX)
                .unwrap()
        };
        assert_eq!(list(&recovered), list(&store));
        assert_eq!(list(&store).len(), 2 * chats.len());
        let all: Vec<&Chat> = chats.iter().collect();
        let records = ended(&recovered, &all, usize::MAX);
        assert!(records.len() == all.len() && records.iter().all(|r| r.turns.len() == 3));
        drop(recovered);
        assert_eq!(list(&open(crashed.path())), list(&store), "and once more");
    }
}

#[test]
fn retained_content_stays_within_limit() {
    let journal = MemoryStore::default();
    let store = RetainedStore::new().unwrap();
    let owed: [HookName; 2] = [hook("a"), hook("b")];
    let keep = |at: u64, bytes_max| {
        let mut chat = begun(&journal, &format!("s{at}"), at);
        let append = AppendCommand {
            turns: vec![crate::chat::large(2_000)],
            ..command("")
        };
        must_write(&journal, [chat.append_command(&append, at), chat.end(at)]);
        let record = ended(&journal, &[&chat], usize::MAX).remove(0);
        (store.retain_ended(record, &owed, bytes_max).unwrap(), chat)
    };
    let (kept, first) = keep(1, 10_000);
    assert!(kept);
    let record = ended(&store, &[&first], usize::MAX).remove(0);
    assert_eq!(
        (record.key, record.turns.len(), record.at),
        (first.key.clone(), 1, now(1))
    );
    assert_eq!(
        store.due(&hook("b"), None, Steady(1), 9).unwrap().due.len(),
        1
    );
    assert!(keep(2, 10_000).0);
    assert!(!keep(3, 6_000).0, "two of them are owed");
    assert_eq!(
        store
            .deliveries(&DeliveryFilter::default(), None, 9)
            .unwrap()
            .len(),
        4
    );
    // One of two deliveries is done, so the content is still needed.
    let record = |name, state| {
        store
            .record_outcomes(&[outcome(&id(first.generation(), name), state, 5)])
            .unwrap();
    };
    record("a", DeliveryState::Done);
    assert!(!keep(4, 6_100).0);
    record("b", DeliveryState::Dead);
    assert!(!keep(5, 6_100).0, "somebody may retry it");
    record("b", DeliveryState::Done);
    assert!(keep(6, 6_300).0, "nobody is owed the first one");
    store
        .prune(
            PruneBefore {
                ended: Steady(9),
                keys: Steady(9),
            },
            crate::prune::rows(9),
        )
        .unwrap();
    assert_eq!(
        store
            .deliveries(&DeliveryFilter::default(), None, 9)
            .unwrap()
            .len(),
        4
    );
    let shared: Arc<dyn Store> = Arc::new(store);
    assert!(shared.ended(&[wanted(&first)], 9).unwrap().is_empty());
}
