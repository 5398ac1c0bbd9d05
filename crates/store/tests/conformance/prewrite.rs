//! Prewritten turns are invisible until their set is committed, and then no different from others.

use std::sync::atomic::{AtomicU64, Ordering};

use memoird_core::change::{Change, ChangeKind};
use memoird_core::ids::Generation;
use memoird_core::session::AppendCommand;
use memoird_core::time::Steady;
use memoird_store::{PrewritePart, PruneBefore, Store};

use crate::chat::{Chat, begun, command, large};
use crate::kit::*;
use crate::model::MemoryStore;

/// An append of this many turns, each of several pages.
pub(crate) fn many(chat: &mut Chat, turns: usize, at: u64) -> Change {
    let append = AppendCommand {
        turns: (1..=turns).map(|number| large(5_000 + number)).collect(),
        ..command("a")
    };
    chat.append_command(&append, at)
}

/// Returns at most `count` turns of an append, starting at index `from`.
pub(crate) fn prewrite_part(change: &Change, from: usize, count: usize) -> PrewritePart {
    let ChangeKind::Append(appended) = &change.kind else {
        panic!("an append has turns");
    };
    PrewritePart {
        generation: change.generation,
        turns: appended.turns[from..].iter().take(count).cloned().collect(),
    }
}

/// Prewrites turns of an append in the commit of another session. Returns how many were written.
pub(crate) fn prewrite_turns(
    store: &dyn Store,
    change: &Change,
    from: usize,
    count: usize,
) -> usize {
    static NUMBERS: AtomicU64 = AtomicU64::new(1_000);
    let at = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let generation = Generation::new(i64::try_from(at).unwrap(), at.into());
    let (mut chat, begin) = Chat::begin(&key("t", &format!("beside {at}")), generation, at);
    let sets = [set([begin, chat.append("u a", at)])];
    let part = prewrite_part(change, from, count);
    let (answers, turns) = store.commit_and_prewrite(&clock(1), &sets, &part).unwrap();
    assert_eq!(answers, [Ok(())]);
    assert_eq!(seqs(store, &chat.key, None), Some(vec![1, 2]));
    turns
}

/// Returns everything a store returns about a chat.
fn seen(store: &dyn Store, chat: &Chat) -> impl PartialEq + std::fmt::Debug + use<> {
    let turns = store
        .written_after(0, usize::MAX, usize::MAX)
        .unwrap()
        .turns
        .into_iter();
    let of_chat: Vec<_> = turns
        .filter(|turn| turn.generation == chat.generation())
        .map(|turn| (turn.seq, turn.content))
        .collect();
    let page = page(store, &chat.key, None, ALL).map(|page| page.turns);
    (known(store, &chat.key), page, of_chat)
}

fn prewritten_turns_become_visible_with_their_set(store: &dyn Store) {
    let twin = MemoryStore::default();
    let mut chat = begun(store, "s", 1);
    begun(&twin, "s", 1);
    let first = chat.append("u a", 2);
    must_write(store, [first.clone()]);
    must_write(&twin, [first]);
    let append = many(&mut chat, 9, 3);
    let before = seen(&twin, &chat);
    for from in [0, 2, 4, 6] {
        assert_eq!(prewrite_turns(store, &append, from, 2), 2);
        assert_eq!(seen(store, &chat), before, "prewritten turns are invisible");
    }
    for store in [store, &twin] {
        must_write(store, [append.clone()]);
        let more = chat.clone().append("u a", 4);
        must_write(store, [more]);
    }
    chat.append("u a", 4);
    assert_eq!(seen(store, &chat), seen(&twin, &chat));
    for store in [store, &twin] {
        must_write(store, [chat.end(5)]);
    }
    let ended = [store, &twin].map(|store| {
        let wanted = [(chat.key.clone(), chat.generation())];
        let mut records = store.ended(&wanted, usize::MAX).unwrap();
        records.remove(0).turns
    });
    assert_eq!(ended[0].len(), 13);
    assert_eq!(ended[0], ended[1]);
}

fn prewrites_of_abandoned_set_are_no_turns(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let lost = many(&mut chat.clone(), 6, 2);
    prewrite_turns(store, &lost, 0, 4);
    let bytes = store.turn_bytes().unwrap();
    must_write(store, [chat.append("u a", 2)]);
    assert_eq!(seqs(store, &chat.key, None), Some(vec![1, 2]));
    let append = many(&mut chat, 6, 3);
    // Leftovers may have to be removed first.
    let mut turns = 0;
    for _ in 0..3 {
        turns += prewrite_turns(store, &append, turns, 2);
    }
    assert!(turns >= 4, "{turns} turns");
    must_write(store, [append]);
    assert_eq!(seqs(store, &chat.key, None), Some((1..=8).collect()));
    assert!(store.turn_bytes().unwrap() > bytes);
}

fn refused_set_discards_its_prewrites(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let mut stale = many(&mut chat.clone(), 5, 2);
    stale.expected_revision += 1;
    prewrite_turns(store, &stale, 0, 5);
    must_refuse(store, stale);
    let append = many(&mut chat, 5, 3);
    must_write(store, [append]);
    assert_eq!(seqs(store, &chat.key, None), Some((1..=5).collect()));
}

fn prewritten_turns_are_pruned_like_others(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let append = many(&mut chat, 5, 2);
    prewrite_turns(store, &append, 0, 4);
    must_write(store, [append, chat.end(3)]);
    let before = PruneBefore {
        ended: Steady(9),
        keys: Steady(0),
    };
    crate::prune::prune_all(store, before, 2);
    assert_eq!(seqs(store, &chat.key, None), None);
}

crate::kit::for_every_store!(
    prewritten_turns_become_visible_with_their_set,
    prewrites_of_abandoned_set_are_no_turns,
    refused_set_discards_its_prewrites,
    prewritten_turns_are_pruned_like_others,
);
