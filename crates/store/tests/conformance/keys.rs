//! Idempotency keys belong to a session id, not to a generation.
//!
//! The newest are retained, for a limited time.

use memoird_core::idempotency::{IdempotencyKey, KeyRecord, Keys};
use memoird_core::ids::Generation;
use memoird_core::limits::Limits;
use memoird_core::session::AppendCommand;
use memoird_core::time::Steady;
use memoird_store::Store;

use crate::chat::{Chat, begun, idempotency_key, named};
use crate::kit::*;
use crate::rewind;
use crate::update;

for_every_store!(
    keys_survive_generations,
    keys_are_scoped_to_session,
    patch_key_is_stored_like_append_key,
    keys_of_update_and_end_are_stored_with_them,
    keys_before_since_are_omitted,
    reused_key_refers_to_the_newer_append,
    newest_1024_keys_are_loaded,
    keys_with_equal_time_are_ordered_by_turn,
    sessions_with_keys_are_listed_in_pages,
);

fn find(keys: &Keys, name: u64) -> Option<KeyRecord> {
    let IdempotencyKey { key, content } = idempotency_key(name, 1);
    keys.find(
        IdempotencyKey { key, content },
        &Limits::default(),
        Steady(0),
    )
    .unwrap()
}

fn all(store: &dyn Store, chat: &Chat) -> Keys {
    store.keys(&chat.key, Steady(0)).unwrap()
}

fn keys_survive_generations(store: &dyn Store) {
    let mut first = begun(store, "s", 1);
    must_write(store, [first.append_command(&named("u a", 1, 1), 10)]);
    must_write(store, [first.end(11)]);
    assert!(
        find(&all(store, &first), 1).is_some(),
        "known also while nothing is live"
    );

    let (mut second, begin) = Chat::begin(&first.key, Generation::new(12, 0), 12);
    second.session.set_keys(all(store, &first));
    must_write(
        store,
        [begin, second.append_command(&named("u a u", 2, 1), 20)],
    );
    let keys = all(store, &first);
    let (one, two) = (find(&keys, 1).unwrap(), find(&keys, 2).unwrap());
    assert_eq!(
        (one.generation, one.first_seq, one.last_seq),
        (first.generation(), 1, 2)
    );
    assert_eq!(
        (two.generation, two.first_seq, two.last_seq),
        (second.generation(), 1, 3)
    );
    assert_eq!((one.at, two.at), (Steady(10), Steady(20)));
    assert_eq!(Some(&keys), second.session.keys());
    assert_eq!(
        keys,
        known(store, &first.key).unwrap().keys,
        "a load tells the same"
    );
}

fn keys_are_scoped_to_session(store: &dyn Store) {
    let mut chats =
        [("t", "s", 1), ("t", "r", 2), ("u", "s", 3)].map(|(tenant, session, number)| {
            let (chat, begin) = Chat::begin(&key(tenant, session), Generation::new(1, number), 1);
            must_write(store, [begin]);
            chat
        });
    must_write(store, [chats[0].append_command(&named("u", 1, 1), 2)]);
    must_write(store, [chats[1].append_command(&named("u a", 1, 1), 3)]);
    let [one, two, three] = chats.each_ref().map(|chat| find(&all(store, chat), 1));
    assert_eq!(one.unwrap().last_seq, 1);
    assert_eq!(two.unwrap().last_seq, 2);
    assert_eq!(three, None);
}

fn keys_before_since_are_omitted(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    for at in [10, 20, 30] {
        must_write(store, [chat.append_command(&named("u", at, 1), at)]);
    }
    for (since, expected) in [(0, 3), (10, 3), (11, 2), (30, 1), (31, 0), (u64::MAX, 0)] {
        let keys = store.keys(&chat.key, Steady(since)).unwrap();
        let found = [10, 20, 30]
            .iter()
            .filter(|name| find(&keys, **name).is_some())
            .count();
        assert_eq!(found, expected, "since {since}");
        assert_eq!(
            store.load(&chat.key, Steady(since)).unwrap().unwrap().keys,
            keys
        );
    }
}

fn patch_key_is_stored_like_append_key(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append_command(&named("u a", 1, 1), 10)]);
    let patch = chat.patch_named(r#"{"a":1}"#, Some(idempotency_key(2, 1)), 20);
    must_write(store, [patch]);
    let keys = all(store, &chat);
    let record = find(&keys, 2).expect("it is known");
    assert_eq!(
        (record.generation, record.first_seq, record.last_seq),
        (chat.generation(), 3, 2)
    );
    assert_eq!(Some(&keys), chat.session.keys());
    must_write(store, [chat.end(30)]);
    assert_eq!(find(&all(store, &chat), 2), Some(record));
}

fn keys_of_update_and_end_are_stored_with_them(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append("u u u", 5)]);
    let stale = chat.clone();
    let named = |name| Some(idempotency_key(name, 1));
    must_write(
        store,
        update::decide(&mut chat, 2, "new", named(1), 10).changes,
    );
    let rewound = rewind::decide(&mut chat, 1, AppendCommand::default(), 15);
    must_write(store, rewound.unwrap().changes);
    // A key is written with its change or not at all.
    for (name, at) in [(2, 20), (3, 21)] {
        let refused = set([stale.clone().end_named(idempotency_key(name, 1), at)]);
        assert!(write(store, &[refused]).iter().all(Result::is_err));
    }
    must_write(store, [chat.end_named(idempotency_key(2, 1), 30)]);
    let keys = all(store, &chat);
    assert_eq!(Some(&keys), chat.session.keys());
    assert_eq!(find(&keys, 3), None);
    for (name, last_seq, at) in [(1, 2, 10), (2, 3, 30)] {
        let record = find(&keys, name).expect("it is known, although the turn was rewound");
        assert_eq!(
            (record.generation, record.first_seq, record.last_seq),
            (chat.generation(), last_seq + 1, last_seq)
        );
        assert_eq!(record.at, Steady(at));
    }
}

fn reused_key_refers_to_the_newer_append(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let day = chat.limits.idempotency_ms;
    must_write(store, [chat.append_command(&named("u", 1, 9), 10)]);
    must_write(store, [chat.append_command(&named("u a", 1, 1), 10 + day)]);
    let record = find(&all(store, &chat), 1).unwrap();
    assert_eq!(
        (record.first_seq, record.last_seq, record.at),
        (2, 3, Steady(10 + day))
    );
}

/// Two more than fit, in one batch. The first three have the same time.
fn newest_1024_keys_are_loaded(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let sets: Vec<_> = (1..=1_026)
        .map(|name| set([chat.append_command(&named("u", name, 1), name.max(3))]))
        .collect();
    assert!(write(store, &sets).iter().all(Result::is_ok));
    let keys = all(store, &chat);
    let missing: Vec<u64> = (1..=1_026)
        .filter(|name| find(&keys, *name).is_none())
        .collect();
    assert_eq!(missing, [1, 2]);
    assert_eq!(
        Some(&keys),
        chat.session.keys(),
        "the rules forget the same ones"
    );
}

/// Which key is dropped first must not depend on the store.
fn keys_with_equal_time_are_ordered_by_turn(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let names = [7, 3, 9, 1, 8, 2];
    for name in names {
        must_write(store, [chat.append_command(&named("u", name, 1), 5)]);
    }
    assert_eq!(Some(&all(store, &chat)), chat.session.keys());

    // In both generations the only append is at time 5, and both have one turn.
    let (mut second, begin) = Chat::begin(&chat.key, Generation::new(6, 0), 5);
    let mut expected = chat.session.take_keys().unwrap();
    must_write(store, [chat.end(5), begin]);
    for name in [6, 4] {
        let change = second.append_command(&named("u", name, 1), 5);
        let (key, record) = match &change.kind {
            memoird_core::change::ChangeKind::Append(appended) => appended.idempotency.unwrap(),
            other => panic!("an append was expected: {other:?}"),
        };
        expected.remember(key, record, &second.limits);
        must_write(store, [change]);
    }
    assert_eq!(all(store, &second), expected);
}

fn sessions_with_keys_are_listed_in_pages(store: &dyn Store) {
    let mut expected = Vec::new();
    for (number, (tenant, session)) in (1..).zip([
        ("u", "a"),
        ("t", "a"),
        ("t", "c"),
        ("t", "without"),
        ("t", "b"),
        ("tt", "z"),
    ]) {
        let key = key(tenant, session);
        let (mut chat, begin) = Chat::begin(&key, Generation::new(1, number), 1);
        must_write(store, [begin]);
        if session == "without" {
            must_write(store, [chat.append("u", 2)]);
            continue;
        }
        for name in 0..3 {
            must_write(store, [chat.append_command(&named("u", name, 1), 2)]);
        }
        expected.push(key);
    }
    expected.sort();
    for page_size in [1, 2, 5, 100] {
        let mut found = Vec::new();
        loop {
            let page = store.keyed_sessions(found.last(), page_size).unwrap();
            if page.is_empty() {
                break;
            }
            assert!(page.len() <= page_size);
            found.extend(page);
        }
        assert_eq!(found, expected, "{page_size} at a time");
    }
}
