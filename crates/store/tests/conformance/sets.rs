//! A change set is written whole or not at all, and only on its expected base.

use memoird_core::change::Change;
use memoird_core::ids::Generation;
use memoird_core::time::Steady;
use memoird_store::{StaleBase, Store};

use crate::chat::{Chat, begun, named};
use crate::kit::*;

for_every_store!(
    second_begin_of_live_session_is_refused,
    reused_generation_id_is_refused,
    stale_revision_is_refused_for_every_change,
    ended_generation_refuses_changes,
    refused_set_leaves_no_trace_in_batch,
    sets_of_a_batch_build_on_each_other,
    session_starts_and_ends_repeatedly_in_a_batch,
    set_built_on_refused_set_is_refused,
    empty_set_is_accepted,
    append_without_turns_keeps_seq,
    set_with_seq_gap_is_refused_alone,
);

fn second_begin_of_live_session_is_refused(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append("u", 2)]);
    let before = known(store, &chat.key);
    let (_, again) = Chat::begin(&chat.key, Generation::new(5, 5), 5);
    must_refuse(store, again);
    assert_eq!(known(store, &chat.key), before);
    // The same session id in another tenant is another session.
    let (_, foreign) = Chat::begin(&key("other", "s"), Generation::new(6, 6), 6);
    must_write(store, [foreign]);
    assert_eq!(known(store, &chat.key), before);
}

fn reused_generation_id_is_refused(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append("u", 2)]);
    for session in ["s", "another"] {
        let again = Chat::begin(&key("t", session), chat.generation(), 3).1;
        must_refuse(store, again.clone());
        chat = chat.reloaded(store);
        // The chat that has the name can continue in the same batch.
        let answers = write(store, &[set([again]), set([chat.append("u", 3)])]);
        assert!(answers[0].is_err() && answers[1].is_ok(), "{answers:?}");
    }
    must_write(store, [chat.end(4)]);
    must_refuse(store, Chat::begin(&chat.key, chat.generation(), 5).1);
    assert_eq!(seqs(store, &chat.key, None), Some(vec![1, 2, 3]));
}

/// One change of every kind, based on the current chat.
fn every_kind(chat: &Chat, at: u64) -> [Change; 4] {
    let (mut one, mut two, mut three) = (chat.clone(), chat.clone(), chat.clone());
    [
        one.append_command(&named("u a", 77, 1), at),
        two.patch(r#"{"stale":true}"#, at),
        three.touch(at),
        chat.end(at),
    ]
}

fn stale_revision_is_refused_for_every_change(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let stale = every_kind(&chat, 50);
    must_write(store, [chat.append("u a", 2)]);
    let mut ahead = chat.clone();
    ahead.touch(3);
    let before = known(store, &chat.key);
    for change in stale.into_iter().chain(every_kind(&ahead, 60)) {
        must_refuse(store, change);
        assert_eq!(known(store, &chat.key), before);
    }
    let (nobody, _) = Chat::begin(&chat.key, Generation::new(8, 8), 1);
    for change in every_kind(&nobody, 70) {
        must_refuse(store, change);
    }
    assert_eq!(known(store, &chat.key), before);
    assert_eq!(seqs(store, &chat.key, None), Some(vec![1, 2]));
}

fn ended_generation_refuses_changes(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append("u a", 2)]);
    must_write(store, [chat.end(3)]);
    let mut after = chat.clone();
    after.touch(4);
    for change in every_kind(&chat, 50)
        .into_iter()
        .chain(every_kind(&after, 60))
    {
        must_refuse(store, change);
    }
    assert!(load(store, &chat.key).is_none());
    assert_eq!(seqs(store, &chat.key, None), Some(vec![1, 2]));
    assert_eq!(
        store.keys(&chat.key, Steady(0)).unwrap(),
        Default::default()
    );
}

fn refused_set_leaves_no_trace_in_batch(store: &dyn Store) {
    let mut victim = begun(store, "victim", 1);
    must_write(store, [victim.append("u a", 2)]);
    let (mut left, mut right) = (begun(store, "left", 3), begun(store, "right", 4));
    let before = known(store, &victim.key);

    // All its changes are valid except the last one, which is stale.
    let stale = right.clone().touch(5);
    let first = set([right.touch(5)]);
    let (mut fresh, begin) = Chat::begin(&key("t", "fresh"), Generation::new(7, 7), 7);
    let append = fresh.append_command(&named("u a", 5, 5), 8);
    let patched = victim.clone().patch(r#"{"a":1}"#, 8);
    let mut doomed = victim.clone();
    doomed.patch("{}", 8);
    let refused = set([
        patched,
        doomed.end(9),
        begin,
        append,
        fresh.patch("{}", 9),
        stale,
    ]);
    let last = set([left.append("u a", 10), left.patch(r#"{"b":2}"#, 10)]);
    let answers = write(store, &[first, refused, last]);
    assert_eq!(
        answers,
        [
            Ok(()),
            Err(StaleBase {
                generation: right.generation()
            }),
            Ok(())
        ]
    );

    assert_eq!(known(store, &victim.key), before);
    assert!(load(store, &fresh.key).is_none());
    assert!(page(store, &fresh.key, None, ALL).is_none());
    assert_eq!(
        store.keys(&fresh.key, Steady(0)).unwrap(),
        Default::default()
    );
    for chat in [&left, &right] {
        assert_eq!(known(store, &chat.key).unwrap().head, *chat.session.head());
    }
    // The generation it would have begun can begin now.
    must_write(store, [Chat::begin(&fresh.key, fresh.generation(), 11).1]);
}

fn sets_of_a_batch_build_on_each_other(store: &dyn Store) {
    let (mut first, begin) = Chat::begin(&key("t", "s"), Generation::new(1, 1), 1);
    let (mut second, begin_again) = Chat::begin(&first.key, Generation::new(2, 2), 2);
    let sets = [
        set([begin]),
        set([first.append("u a", 1)]),
        set([first.append("u", 1), first.touch(1)]),
        set([first.end(2), begin_again]),
        set([second.append("u a", 2)]),
    ];
    assert_eq!(write(store, &sets), [Ok(()); 5]);
    assert_eq!(
        known(store, &first.key).unwrap().head,
        *second.session.head()
    );
    assert_eq!(
        seqs(store, &first.key, Some(first.generation())),
        Some(vec![1, 2, 3])
    );
}

fn session_starts_and_ends_repeatedly_in_a_batch(store: &dyn Store) {
    let key = key("t", "s");
    let live = Generation::new(1, 2);
    let chats = [3, 1, 2].map(|name| Chat::begin(&key, Generation::new(1, name), 1));
    let sets = chats.clone().map(|(mut chat, begin)| {
        let append = chat.append("u a", 2);
        if chat.generation() == live {
            set([begin, append])
        } else {
            set([begin, append, chat.end(3)])
        }
    });
    assert_eq!(write(store, &sets), [Ok(()); 3]);
    for (chat, _) in &chats {
        assert_eq!(seqs(store, &key, Some(chat.generation())), Some(vec![1, 2]));
    }
    assert_eq!(known(store, &key).unwrap().head.generation, live);
}

fn set_built_on_refused_set_is_refused(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let (_, twice) = Chat::begin(&chat.key, Generation::new(9, 9), 2);
    let before = known(store, &chat.key);
    let sets = [
        set([chat.append("u a", 2), twice]),
        set([chat.append("u", 3)]),
        set([chat.touch(4), chat.end(4)]),
    ];
    assert!(write(store, &sets).iter().all(Result::is_err));
    assert_eq!(known(store, &chat.key), before);
    assert_eq!(seqs(store, &chat.key, None), Some(vec![]));
}

fn empty_set_is_accepted(store: &dyn Store) {
    let (_, begin) = Chat::begin(&key("t", "s"), Generation::new(1, 1), 1);
    assert_eq!(write(store, &[set([]), set([begin]), set([])]), [Ok(()); 3]);
    assert_eq!(live_heads(store).len(), 1);
}

/// The engine rejects such an append.
///
/// A store that restarted seqs for it would reject every later batch with it.
fn append_without_turns_keeps_seq(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(
        store,
        [
            chat.append("u a", 2),
            chat.append("", 3),
            chat.append("u", 4),
        ],
    );
    must_write(store, [chat.append("", 5)]);
    assert_eq!(known(store, &chat.key).unwrap().head, *chat.session.head());
    assert_eq!(seqs(store, &chat.key, None), Some(vec![1, 2, 3]));
}

/// The revision matches, but the seqs do not. Such a set must not fail the others.
fn set_with_seq_gap_is_refused_alone(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append("u a", 2)]);
    let before = known(store, &chat.key);
    let mut other = begun(store, "other", 3);
    // A twin of the generation with as many changes but different turns.
    for words in ["u", "u a u"] {
        let (mut twin, _) = Chat::begin(&chat.key, chat.generation(), 1);
        twin.append(words, 4);
        let sets = [set([twin.append("u", 5)]), set([other.append("u", 5)])];
        assert_eq!(
            write(store, &sets),
            [
                Err(StaleBase {
                    generation: chat.generation()
                }),
                Ok(())
            ]
        );
        assert_eq!(known(store, &chat.key), before);
    }
    must_write(store, [chat.append("u", 6)]);
}
