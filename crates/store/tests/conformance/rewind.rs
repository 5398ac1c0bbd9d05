//! Rewinds: rewound turns stay in the journal, marked, and appear nowhere else.

use std::sync::Arc;

use memoird_core::change::{Change, ChangeKind, SummaryChange};
use memoird_core::idempotency::Keys;
use memoird_core::session::{AppendCommand, RewindCommand, RewindDecision};
use memoird_core::time::Steady;
use memoird_core::{CoreError, seq_ranges::SeqRanges};
use memoird_store::{JournalRange, PruneBefore, Store, encoding};

use crate::chat::{Chat, begun, command, idempotency_key, named};
use crate::compaction::{compact, made, status_of, summary_of};
use crate::cuts::{cuts_of, with_cuts};
use crate::kit::*;
use crate::prune::prune_all;

for_every_store!(
    rewound_turns_stay_in_journal_only,
    rewind_with_stale_revision_is_refused,
    adjacent_rewound_ranges_are_merged,
    history_after_rewound_turns_is_loaded,
    keys_of_rewound_turns_are_marked_even_after_end,
    summaries_of_rewound_turns_are_deleted,
    cuts_and_key_of_rewind_are_stored,
    rewound_turns_are_deleted_with_their_generation,
);

/// The whole journal, including rewound turns.
const WHOLE: JournalRange = JournalRange {
    with_rewound: true,
    ..ALL
};

/// Applies a rewind to a chat and returns its decision.
pub(crate) fn decide(
    chat: &mut Chat,
    after_seq: u64,
    append: AppendCommand,
    at: u64,
) -> Result<RewindDecision, CoreError> {
    let command = RewindCommand { after_seq, append };
    chat.session.rewind(
        &chat.key,
        &command,
        &chat.limits,
        now(at),
        &encoding::seal,
        true,
    )
}

fn rewind(chat: &mut Chat, after_seq: u64, words: &str, at: u64) -> Vec<Change> {
    decide(chat, after_seq, command(words), at).unwrap().changes
}

/// Returns the seqs of the whole journal, and the rewound ones among them.
fn whole(store: &dyn Store, chat: &Chat) -> (Vec<u64>, Vec<u64>) {
    let page = page(store, &chat.key, Some(chat.generation()), WHOLE).unwrap();
    let seqs = page.turns.iter().map(|(seq, _)| *seq).collect();
    (seqs, page.rewound)
}

/// The number of turns varies, so that rewound ones are indexed, in the pending table, or being
/// flushed.
fn rewound_turns_stay_in_journal_only(store: &dyn Store) {
    for (round, turns) in (4..16_u64).enumerate() {
        let at = 10 + 10 * round as u64;
        let mut chat = begun(store, &format!("s{round}"), at);
        for _ in 0..turns {
            must_write(store, [chat.append("u", at)]);
        }
        must_write(store, rewind(&mut chat, turns - 2, "a u", at + 1));
        let stays: Vec<u64> = (1..=turns - 2).chain([turns + 1, turns + 2]).collect();
        let all: Vec<u64> = (1..=turns + 2).collect();
        assert_eq!(seqs(store, &chat.key, None), Some(stays.clone()));
        assert_eq!(whole(store, &chat), (all, vec![turns - 1, turns]));
        let last = JournalRange {
            last: true,
            turns_max: 3,
            ..WHOLE
        };
        let page = page(store, &chat.key, None, last).unwrap();
        assert_eq!((page.rewound, page.more), (vec![turns], true));

        let generation = chat.generation();
        let written = store.written_after(0, usize::MAX, usize::MAX).unwrap();
        let mine: Vec<u64> = written
            .turns
            .iter()
            .filter(|turn| turn.generation == generation)
            .map(|turn| turn.seq)
            .collect();
        assert_eq!(mine, stays, "who follows the journal is not shown them");
        let numbers: Vec<u64> = (1..=written.last_number).collect();
        let found = store.written_at(&numbers).unwrap();
        assert_eq!(found.len(), written.turns.len());

        let stored = known(store, &chat.key).unwrap();
        assert_eq!(stored.head, *chat.session.head());
        let reloaded = chat.reloaded(store);
        assert_eq!(reloaded.kept(), chat.kept());
        must_write(store, [chat.end(at + 2)]);
        let wanted = [(chat.key.clone(), generation)];
        let ended = store.ended(&wanted, usize::MAX).unwrap();
        let given: Vec<u64> = ended[0].turns.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(given, stays, "hooks are not given them");
        assert_eq!(ended[0].rewound_turns, 2);
        let bytes = store.turn_bytes().unwrap();
        assert!(bytes[0].1 > 0, "they count until they are forgotten");
    }
}

fn rewind_with_stale_revision_is_refused(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append("u a u", 2)]);
    let mut behind = chat.clone();
    let stale = rewind(&mut behind, 1, "", 3).remove(0);
    must_write(store, [chat.append("a", 3)]);
    must_refuse(store, stale);
    for (after_seq, through_seq) in [(1, 3), (1, 5), (5, 4)] {
        let mut wrong = rewind(&mut chat.clone(), 1, "", 4).remove(0);
        let ChangeKind::Rewind(rewound) = &mut wrong.kind else {
            panic!("a rewind was expected");
        };
        (rewound.after_seq, rewound.through_seq) = (after_seq, through_seq);
        must_refuse(store, wrong);
    }
    assert_eq!(whole(store, &chat), (vec![1, 2, 3, 4], vec![]));
    let mut ended = chat.clone();
    must_write(store, [chat.end(5)]);
    must_refuse(store, rewind(&mut ended, 1, "", 6).remove(0));
}

/// First and last seq.
type Run = (u64, u64);

fn adjacent_rewound_ranges_are_merged(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let steps: [(u64, &str, &[Run]); 7] = [
        (4, "", &[(5, 5)]),
        (5, "", &[(5, 5)]),
        (3, "", &[(4, 5)]),
        (5, "u a", &[(4, 5)]),
        (6, "u", &[(4, 5), (7, 7)]),
        (8, "", &[(4, 5), (7, 7)]),
        (0, "u", &[(1, 8)]),
    ];
    must_write(store, [chat.append("u a u a u", 2)]);
    for (after_seq, words, runs) in steps {
        must_write(store, rewind(&mut chat, after_seq, words, 3));
        let stored = known(store, &chat.key).unwrap();
        assert_eq!(stored.rewound, SeqRanges::restore(runs.iter().copied()));
        assert_eq!(chat.reloaded(store).kept(), chat.kept(), "{after_seq}");
    }
    assert_eq!(chat.kept(), [9]);
    assert_eq!(whole(store, &chat).1, (1..9).collect::<Vec<_>>());
}

fn history_after_rewound_turns_is_loaded(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    for round in 0..30_u64 {
        must_write(store, [chat.append("u", 2), chat.append("a+x t-x a", 2)]);
        let last_seq = chat.session.head().last_seq;
        must_write(
            store,
            rewind(&mut chat, last_seq - 1 - round % 2 * 2, "a", 3),
        );
        let reloaded = chat.reloaded(store);
        assert_eq!(reloaded.kept(), chat.kept());
        let last_seq = chat.session.head().last_seq;
        assert_eq!(
            reloaded.session.history().live_set(last_seq),
            chat.session.history().live_set(last_seq)
        );
        if round % 3 == 0 {
            chat = reloaded;
        }
        if chat.session.history().totals().turns > 5 {
            must_write(store, rewind(&mut chat, 0, "s u", 4));
        }
    }
}

fn keys_of_rewound_turns_are_marked_even_after_end(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    for name in 1..=9 {
        must_write(store, [chat.append_command(&named("u", name, 1), 2)]);
    }
    let popped = decide(&mut chat, 6, named("", 10, 1), 3).unwrap();
    must_write(store, popped.changes);
    let taken = |name| {
        let key = idempotency_key(name, 1).key;
        store.rewound_by(chat.generation(), &key).unwrap()
    };
    assert_eq!(taken(10), SeqRanges::restore([(7, 9)]));
    assert_eq!(taken(9), SeqRanges::default(), "an append takes none");
    let find = |keys: &Keys, name: u64| {
        keys.find(idempotency_key(name, 1), &chat.limits, Steady(3))
            .map(|record| record.is_some())
    };
    let check = |keys: &Keys| {
        for name in 1..=10 {
            let expected = match name {
                7..=9 => Err(CoreError::IdempotencyKeyRewound),
                _ => Ok(true),
            };
            assert_eq!(find(keys, name), expected, "key {name}");
        }
    };
    check(chat.session.keys().unwrap());
    check(&store.keys(&chat.key, Steady(0)).unwrap());
    check(&known(store, &chat.key).unwrap().keys);
    must_write(store, [chat.end(4)]);
    check(&store.keys(&chat.key, Steady(0)).unwrap());
}

fn summaries_of_rewound_turns_are_deleted(store: &dyn Store) {
    for (after_seq, standing) in [(40, 3), (30, 3), (29, 2), (20, 2), (12, 1), (9, 0)] {
        let mut chat = begun(store, &format!("s{after_seq}"), 50 - after_seq);
        for _ in 0..20 {
            must_write(store, [chat.append("u a", 50)]);
        }
        for number in 1..=3 {
            must_write(store, [compact(&chat, status_of(number), made(number))]);
            chat = chat.reloaded(store);
        }
        let decision = decide(&mut chat, after_seq, command("u"), 51).unwrap();
        assert_eq!(decision.must_reload, standing < 3);
        must_write(store, decision.changes);
        let stored = known(store, &chat.key).unwrap();
        let number = stored.summary.as_ref().map_or(0, |summary| summary.number);
        assert_eq!(number, standing, "after {after_seq}");
        let status = stored.head.compaction.unwrap();
        let through = match standing {
            0 => 0,
            number => summary_of(number).through_seq,
        };
        assert_eq!((status.through_seq, status.summaries), (through, 3));
        let heads = live_heads(store);
        let head = heads.iter().find(|(key, _)| *key == chat.key).unwrap();
        assert_eq!(head.1.compaction.as_ref().unwrap().through_seq, through);
        chat = chat.reloaded(store);
        must_write(store, [compact(&chat, status_of(4), made(4))]);
        must_write(
            store,
            [compact(
                &chat.reloaded(store),
                status_of(4),
                SummaryChange::Undone(4),
            )],
        );
        let stored = known(store, &chat.key).unwrap();
        assert_eq!(stored.summary.map_or(0, |summary| summary.number), standing);
    }
}

fn cuts_and_key_of_rewind_are_stored(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append("u a u a", 2)]);
    must_write(store, [with_cuts(chat.touch(3), Some(cuts_of(2)))]);
    let mut chat = chat.reloaded(store);
    let mut decision = decide(&mut chat, 2, named("", 7, 1), 4).unwrap();
    let change = decision.changes.pop().unwrap();
    assert!(change.has_idempotency_key());
    let ChangeKind::Rewind(rewound) = &change.kind else {
        panic!("a rewind was expected");
    };
    assert_eq!(rewound.cuts, Some(Arc::default()), "they were for more");
    must_write(store, [change]);
    assert_eq!(known(store, &chat.key).unwrap().cuts, []);
    let keys = store.keys(&chat.key, Steady(0)).unwrap();
    let record = keys.find(idempotency_key(7, 1), &chat.limits, Steady(4));
    assert_eq!(record, Ok(Some(decision.record)));
    assert_eq!(store.keyed_sessions(None, 9).unwrap(), [chat.key]);
}

fn rewound_turns_are_deleted_with_their_generation(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append("u a u a", 2)]);
    let popped = decide(&mut chat, 1, named("", 1, 1), 3).unwrap();
    must_write(store, popped.changes);
    must_write(store, [chat.end(4)]);
    let before = PruneBefore {
        ended: Steady(9),
        keys: Steady(9),
    };
    prune_all(store, before, 2);
    assert!(page(store, &chat.key, Some(chat.generation()), WHOLE).is_none());
    let key = idempotency_key(1, 1).key;
    let taken = store.rewound_by(chat.generation(), &key).unwrap();
    assert!(taken.is_empty());
}
