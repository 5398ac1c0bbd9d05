//! A session loads as it was written, and continues as if it had never left memory.

use memoird_core::change::Change;
use memoird_core::history::{LiveSet, Totals};
use memoird_core::ids::{Generation, Subject};
use memoird_core::session::{AppendCommand, Head};
use memoird_core::time::Steady;
use memoird_store::Store;

use crate::chat::{Chat, begun, command, large, named};
use crate::kit::*;

for_every_store!(
    unknown_session_is_none,
    session_round_trips,
    reloaded_session_decides_like_the_one_in_memory,
    ended_session_leaves_only_its_journal,
    new_generation_starts_empty,
    live_heads_returns_live_generations_only,
    live_heads_visitor_may_query_the_store,
    clock_is_that_of_last_commit,
    ids_may_hold_any_characters,
    turn_of_one_mebibyte_round_trips,
    load_is_consistent_during_writes,
);

fn unknown_session_is_none(store: &dyn Store) {
    let key = key("t", "s");
    assert!(load(store, &key).is_none());
    assert!(page(store, &key, None, ALL).is_none());
    assert!(page(store, &key, Some(Generation::new(1, 1)), ALL).is_none());
    assert_eq!(store.keys(&key, Steady(0)).unwrap(), Default::default());
    assert_eq!((live_heads(store), store.clock().unwrap()), (vec![], None));
}

fn session_round_trips(store: &dyn Store) {
    let mut chat = begun(store, "s", 100);
    let fresh = known(store, &chat.key).unwrap();
    assert_eq!((&fresh.head, fresh.turns.len()), (chat.session.head(), 0));
    assert_eq!((fresh.kept, fresh.state), (LiveSet::default(), None));

    let anna = Subject::parse("anna").unwrap();
    let first = AppendCommand {
        subject: Some(anna.clone()),
        partial: true,
        ..named("s u a+x", 1, 1)
    };
    must_write(store, [chat.append_command(&first, 110)]);
    let saved = known(store, &chat.key).unwrap();
    let expected = Head {
        generation: chat.generation(),
        subject: Some(anna.clone()),
        created_at: wall(100),
        last_access: Steady(110),
        last_seq: 3,
        newest_seq: 3,
        revision: 1,
        state_version: 0,
        totals: Totals {
            turns: 3,
            ..saved.head.totals
        },
        partial: true,
        compaction: None,
        options: None,
    };
    assert_eq!((&saved.head, &saved.head), (&expected, chat.session.head()));
    assert_eq!(
        saved.kept,
        LiveSet {
            anchor: Some(2),
            floor: 1,
            ..LiveSet::default()
        }
    );
    let bytes: usize = saved
        .turns
        .iter()
        .map(|(_, content, ..)| content.len())
        .sum();
    assert_eq!(saved.head.totals.bytes, bytes as u64);
    assert_eq!(Some(&saved.keys), chat.session.keys());

    // Without a new subject the old one stays. The reply is now complete.
    must_write(store, [chat.append("t-x a", 120)]);
    must_write(
        store,
        [
            chat.patch(r#"{"a":"\u0000é"}"#, 130),
            chat.patch(r#"{"b":1.50}"#, 140),
        ],
    );
    must_write(store, [chat.touch(150)]);
    let saved = known(store, &chat.key).unwrap();
    assert_eq!(
        (&saved.head, &saved.head.subject),
        (chat.session.head(), &Some(anna))
    );
    assert_eq!(
        (saved.head.partial, saved.head.last_access),
        (false, Steady(150))
    );
    assert_eq!((saved.head.revision, saved.head.state_version), (5, 2));
    assert_eq!(saved.state, Some(chat.session.state()));
    let in_memory: Vec<_> = chat
        .session
        .history()
        .turns_after(0)
        .map(|turn| (turn.seq, turn.content.clone()))
        .collect();
    let loaded = saved
        .turns
        .into_iter()
        .map(|(seq, content, ..)| (seq, content));
    assert_eq!(loaded.collect::<Vec<_>>(), in_memory);
    assert_eq!(page(store, &chat.key, None, ALL).unwrap().turns, in_memory);
}

/// Covers every kind of turn that may be dropped or retained.
///
/// After each line the session is loaded, and compared with the one in memory on each possible next
/// line.
fn reloaded_session_decides_like_the_one_in_memory(store: &dyn Store) {
    let story = [
        "s",
        "u",
        "a!",
        "a+x",
        "u",
        "t-x",
        "u a",
        "a+y",
        "a+z",
        "u a u a",
        "a+w",
        "u a u a u",
        "a+x+y",
        "t-y",
        "u",
        "u-x",
        "t-w",
        "a+p",
        "t-p!",
        "a u a u",
        "a+z a+z",
        "t-z",
        "t-z",
        "u",
    ];
    let probes = [
        "u",
        "a+x t-x",
        "t-x",
        "t-y",
        "t-z",
        "u-w",
        "a! u!",
        "u a u a u a",
        "t-p",
    ];
    let mut chat = begun(store, "s", 1);
    let mut seen = LiveSet::default();
    for (line, at) in story.iter().zip(2..) {
        if let Ok(decision) = chat.decide(&command(line), at) {
            must_write(store, decision.changes);
        }
        let reloaded = chat.reloaded(store);
        let kept = known(store, &chat.key).unwrap().kept;
        assert_eq!(
            kept,
            chat.session
                .history()
                .live_set(chat.session.head().last_seq),
            "{line}"
        );
        assert_eq!(reloaded.session.head(), chat.session.head(), "{line}");
        assert_eq!(reloaded.kept(), chat.kept(), "{line}");
        for probe in probes {
            let (mut one, mut other) = (chat.clone(), reloaded.clone());
            for round in 0..3 {
                let decided = format!("{:?}", one.decide(&command(probe), 100 + round));
                let again = format!("{:?}", other.decide(&command(probe), 100 + round));
                assert_eq!(decided, again, "{probe} after {line}");
                assert_eq!(one.kept(), other.kept(), "{probe} after {line}");
            }
        }
        seen.anchor = seen.anchor.or(kept.anchor);
        seen.floor = seen.floor.max(kept.floor);
        seen.pinned.extend(kept.pinned);
        seen.holes.extend(kept.holes);
        seen.departed.extend(kept.departed);
        seen.departed_overflow |= kept.departed_overflow;
    }
    let told_all = seen.anchor.is_some()
        && seen.floor > 1
        && seen.departed_overflow
        && !(seen.pinned.is_empty() || seen.holes.is_empty() || seen.departed.is_empty());
    assert!(
        told_all,
        "the story must lead through every field: {seen:?}"
    );
}

fn ended_session_leaves_only_its_journal(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(
        store,
        [
            chat.append("u a u a u a u a", 2),
            chat.patch(r#"{"a":1}"#, 3),
        ],
    );
    must_write(store, [chat.end(4)]);
    assert!(load(store, &chat.key).is_none());
    assert_eq!(live_heads(store), []);
    let all = Some((1..=8).collect::<Vec<u64>>());
    assert_eq!(seqs(store, &chat.key, None), all);
    assert_eq!(seqs(store, &chat.key, Some(chat.generation())), all);
}

fn new_generation_starts_empty(store: &dyn Store) {
    let mut first = begun(store, "s", 1);
    let owned = AppendCommand {
        subject: Some(Subject::parse("anna").unwrap()),
        ..named("u a", 1, 1)
    };
    must_write(
        store,
        [
            first.append_command(&owned, 2),
            first.patch(r#"{"a":1}"#, 3),
        ],
    );
    let (mut second, begin) = Chat::begin(&first.key, Generation::new(9, 9), 9);
    must_write(store, [first.end(9), begin]);
    let saved = known(store, &first.key).unwrap();
    assert_eq!((&saved.head, saved.turns.len()), (second.session.head(), 0));
    assert_eq!((saved.kept, saved.state), (LiveSet::default(), None));
    assert_eq!(
        Some(&saved.keys),
        first.session.keys(),
        "keys belong to the session id"
    );
    must_write(store, [second.append("u", 10)]);
    assert_eq!(seqs(store, &first.key, None), Some(vec![1]));
    assert_eq!(
        seqs(store, &first.key, Some(first.generation())),
        Some(vec![1, 2])
    );
    let subject = |generation| page(store, &first.key, generation, ALL).unwrap().subject;
    assert_eq!(
        subject(Some(first.generation())),
        Subject::parse("anna").ok(),
        "each has its own"
    );
    assert_eq!(subject(None), None);
}

fn live_heads_returns_live_generations_only(store: &dyn Store) {
    let mut chats: Vec<Chat> = (1..=5)
        .map(|at| begun(store, &format!("s{at}"), at))
        .collect();
    let ended = chats.remove(2);
    must_write(store, [ended.end(9)]);
    for (chat, at) in chats.iter_mut().zip(10..) {
        must_write(store, [chat.append("u a", at), chat.touch(at + 1)]);
    }
    let expected: Vec<_> = chats
        .iter()
        .map(|chat| (chat.key.clone(), chat.session.head().clone()))
        .collect();
    assert_eq!(live_heads(store), expected);
}

fn live_heads_visitor_may_query_the_store(store: &dyn Store) {
    for at in 1..=3 {
        begun(store, &format!("s{at}"), at);
    }
    let mut visited = 0;
    let outcome = store.live_heads(&mut |key, head| {
        assert_eq!(known(store, &key).unwrap().head, head);
        visited += 1;
    });
    outcome.unwrap();
    assert_eq!(visited, 3);
}

fn clock_is_that_of_last_commit(store: &dyn Store) {
    assert_eq!(store.clock().unwrap(), None);
    for at in [5, 9, 3] {
        assert_eq!(store.commit(&clock(at), &[]).unwrap(), []);
        assert_eq!(store.clock().unwrap(), Some(clock(at)));
    }
    // The clock advances even if a set is rejected.
    let (chat, _) = Chat::begin(&key("t", "s"), Generation::new(1, 1), 1);
    let nameless = memoird_store::ClockAnchor {
        boot_id: String::new(),
        ..clock(11)
    };
    let answers = store.commit(&nameless, &[set([chat.end(1)])]).unwrap();
    assert!(answers[0].is_err());
    assert_eq!(store.clock().unwrap(), Some(nameless));
}

fn ids_may_hold_any_characters(store: &dyn Store) {
    let long = "x".repeat(256);
    let odd = [
        "a",
        "a/b",
        "../../etc",
        "a\nb",
        "\u{1f600}",
        "a\0",
        "a\0b",
        "\0",
        "'; --",
        "%",
        &long,
    ];
    let keys: Vec<_> = odd
        .iter()
        .flat_map(|tenant| odd.iter().map(|session| key(tenant, session)))
        .collect();
    let mut chats = Vec::new();
    for (key, number) in keys.iter().zip(1..) {
        let (mut chat, begin) = Chat::begin(key, Generation::new(1, number), 1);
        let subject = Subject::parse(key.session.as_str()).unwrap();
        let name = u64::try_from(number).unwrap();
        let append = AppendCommand {
            subject: Some(subject),
            ..named("u", name, 1)
        };
        must_write(store, [begin, chat.append_command(&append, 2)]);
        chats.push(chat);
    }
    for chat in &chats {
        let saved = known(store, &chat.key).unwrap();
        assert_eq!(
            (&saved.head, Some(&saved.keys)),
            (chat.session.head(), chat.session.keys())
        );
        assert_eq!(
            seqs(store, &chat.key, Some(chat.generation())),
            Some(vec![1])
        );
    }
    let shown: Vec<_> = live_heads(store).into_iter().map(|(key, _)| key).collect();
    assert_eq!(shown, {
        let mut keys = keys;
        keys.sort();
        keys
    });
}

fn turn_of_one_mebibyte_round_trips(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let command = AppendCommand {
        turns: vec![large(1 << 20), large(1 << 20)],
        ..command("")
    };
    must_write(store, [chat.append_command(&command, 2)]);
    let in_memory: Vec<_> = chat
        .session
        .history()
        .turns_after(0)
        .map(|turn| (turn.seq, turn.content.clone()))
        .collect();
    assert!(in_memory[1].1.len() > 1 << 20);
    let loaded = known(store, &chat.key).unwrap().turns.into_iter();
    assert!(
        loaded
            .map(|(seq, content, ..)| (seq, content))
            .eq(in_memory.iter().cloned())
    );
    assert!(page(store, &chat.key, None, ALL).unwrap().turns == in_memory);
}

/// Turns and state change in one set.
///
/// A reader that mixed two snapshots would see a history or a state that does not match its
/// metadata.
fn load_is_consistent_during_writes(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let key = chat.key.clone();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for at in 2..150 {
                let both: [Change; 2] = [chat.append("u a", at), chat.patch(r#"{"a":1}"#, at)];
                must_write(store, both);
            }
        });
        let (mut last_seq, mut loads) = (0, 0);
        while !writer.is_finished() {
            loads += 1;
            let saved = if loads % 2 == 0 {
                store.load(&key, Steady(0)).unwrap()
            } else {
                load_known(store, &key)
            };
            let saved = ExpectedSession::from(saved.unwrap());
            let newest = saved.turns.last().map_or(0, |(seq, ..)| *seq);
            assert_eq!((newest, saved.head.revision), (saved.head.last_seq, newest));
            assert_eq!(saved.head.state_version, newest / 2);
            assert!(saved.head.last_seq >= last_seq, "time goes on");
            last_seq = saved.head.last_seq;
            let journal = seqs(store, &key, None).unwrap();
            assert_eq!(journal, (1..=journal.len() as u64).collect::<Vec<_>>());
        }
        writer.join().unwrap();
    });
}
