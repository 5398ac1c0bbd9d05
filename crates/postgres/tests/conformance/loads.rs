//! Loads that reuse the turns of an earlier version of the session.

use std::sync::Arc;

use memoird_core::idempotency::Keys;
use memoird_core::session::{AppendCommand, SavedSession, Session};
use memoird_core::time::Steady;
use memoird_core::turn::Role;
use memoird_postgres::PgStore;
use memoird_store::{SessionToLoad, Store};

use crate::chat::{Chat, begun, idempotency_key, named};
use crate::kit::*;
use crate::server::database;
use crate::{rewind, update};

/// Loads a session for a caller that has the turns of `known`.
fn load_again(store: &PgStore, known: &Chat, named: Option<u64>) -> SavedSession {
    let wanted = SessionToLoad {
        key: known.key.clone(),
        known: Some(known.session.clone().into_known_turns(u64::MAX)),
        idempotency_key: named.map(|name| idempotency_key(name, 0).key),
    };
    let mut found = None;
    let loaded = store.load_all(&[wanted], Steady(0), &mut |_, loaded| found = Some(loaded));
    loaded.unwrap();
    found.expect("a live session").unwrap()
}

/// Number of turns that the result shares with the earlier version.
fn reused(saved: &SavedSession, known: &Chat) -> usize {
    let is_known = |content: &Arc<[u8]>| {
        let mut all = known.session.history().turns_after(0);
        all.any(|record| Arc::ptr_eq(&record.content, content))
    };
    let turns = saved.turns.iter();
    turns
        .filter(|(record, _)| is_known(&record.content))
        .count()
}

#[test]
fn load_returns_only_turns_that_caller_lacks() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let mut chat = begun(&one, "s", 1);
    must_write(&one, [chat.append("u a u a+x", 2)]);
    let mut twin = chat.reloaded(&other);
    must_write(&other, [twin.append("t-x a", 3)]);
    let saved = load_again(&one, &chat, None);
    assert_eq!((saved.head.last_seq, saved.turns.len()), (6, 6));
    assert_eq!(reused(&saved, &chat), 4);
    // FIFO drops turns at the other daemon.
    must_write(&other, [twin.append("u a", 4)]);
    let saved = load_again(&one, &chat, None);
    assert_eq!(saved.turns.len(), twin.kept().len());
    assert!((1..4).contains(&reused(&saved, &chat)));
    // The next change is based on the loaded version.
    chat.session = Session::restore(saved);
    must_write(&one, [chat.append("u", 5)]);
}

#[test]
fn load_does_not_reuse_turns_that_differ_from_stored_ones() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let mut chat = begun(&one, "s", 1);
    must_write(&one, [chat.append("u a u", 2)]);
    let before = chat.clone();
    // A turn that was never written.
    chat.append("a", 3);
    let mut twin = before.reloaded(&other);
    must_write(&other, [twin.append("u", 3)]);
    let saved = load_again(&one, &chat, None);
    assert_eq!(reused(&saved, &chat), 0);
    assert_eq!(saved.turns[3].0.role, Role::User);
    // An updated turn.
    must_write(&other, update::decide(&mut twin, 2, "b", None, 4).changes);
    let saved = load_again(&one, &before, None);
    assert_eq!(reused(&saved, &before), 0);
    let text = String::from_utf8_lossy(&saved.turns[1].0.content);
    assert!(text.contains('b'), "{text:?}");
}

/// CRCs are linear: with XOR, the same change of two turns would cancel out.
#[test]
fn load_sees_two_updates_with_same_difference() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let mut chat = begun(&one, "s", 1);
    must_write(&one, [chat.append("u u", 2)]);
    let edit = |chat: &mut Chat, texts: [&str; 2]| {
        for (seq, text) in (1..).zip(texts) {
            must_write(&other, update::decide(chat, seq, text, None, 3).changes);
        }
    };
    let mut twin = chat.reloaded(&other);
    edit(&mut twin, ["6", "7"]);
    let known = twin.reloaded(&one);
    edit(&mut twin, ["7", "6"]);
    let saved = load_again(&one, &known, None);
    assert_eq!(reused(&saved, &known), 0);
}

#[test]
fn load_for_caller_with_turns_looks_up_one_key() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let mut chat = begun(&one, "s", 1);
    must_write(&one, [chat.append_command(&named("u", 7, 1), 2)]);
    let mut twin = chat.reloaded(&other);
    must_write(&other, [twin.append_command(&named("a", 8, 1), 3)]);
    must_write(&other, [twin.append_command(&named("u", 9, 1), 4)]);
    let limits = chat.limits.clone();
    let known = |keys: &Keys, name: u64| keys.find(idempotency_key(name, 1), &limits, Steady(4));
    let covers = |keys: &Keys, name: u64| keys.covers(&idempotency_key(name, 1).key);
    let keys = load_again(&one, &chat, Some(8)).keys;
    assert_eq!(known(&keys, 8).unwrap().unwrap().last_seq, 2);
    assert!(covers(&keys, 8) && !covers(&keys, 7) && !covers(&keys, 9));
    let keys = load_again(&one, &chat, Some(10)).keys;
    assert!(covers(&keys, 10) && known(&keys, 10).unwrap().is_none());
    assert!(!covers(&load_again(&one, &chat, None).keys, 10));
    // Its turns were rewound.
    let rewound = rewind::decide(&mut twin, 2, AppendCommand::default(), 5).unwrap();
    must_write(&other, rewound.changes);
    let keys = load_again(&one, &chat, Some(9)).keys;
    assert!(known(&keys, 9).is_err());
    assert!(known(&load_again(&one, &chat, Some(8)).keys, 8).is_ok());
}
