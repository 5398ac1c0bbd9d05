//! Compactions: summaries are stored exactly, and an undo restores the previous one.
//!
//! Turns do not depend on summaries.

use std::sync::Arc;

use memoird_core::change::{Change, ChangeKind, SummaryChange};
use memoird_core::compaction::{
    CompactionStatus, CompletedCall, StandingInstruction, Summary, SummaryBody, UserTurn,
};
use memoird_core::ids::Generation;
use memoird_core::time::{Steady, Timestamp};
use memoird_store::{EndedRecord, PruneBefore, Store};

use crate::chat::{Chat, begun};
use crate::kit::*;
use crate::prune::prune_all;

for_every_store!(
    summary_round_trips_with_every_field,
    status_round_trips_except_running,
    compaction_keeps_turns_keys_and_last_access,
    undo_restores_the_previous_summary,
    reused_summary_number_discards_later_summaries,
    refused_compaction_leaves_no_trace,
    ended_generation_keeps_its_summary,
    summaries_are_deleted_with_their_generation,
);

/// Returns a compaction of the chat. The chat must be reloaded to include it.
pub(crate) fn compact(chat: &Chat, status: CompactionStatus, summary: SummaryChange) -> Change {
    Change {
        generation: chat.generation(),
        expected_revision: chat.session.head().revision,
        kind: ChangeKind::Compact {
            status: Arc::new(status),
            summary,
            cuts: None,
        },
    }
}

/// Returns a summary that differs per number.
pub(crate) fn summary_of(number: u32) -> Summary {
    let seq = u64::from(number) * 10;
    let lines = |what: &str| {
        (0..number % 4)
            .map(|line| format!("{what} {line}"))
            .collect()
    };
    Summary {
        number,
        first_seq: seq - 9,
        through_seq: seq,
        turns: seq - 1,
        made_at: wall(u64::from(number)),
        by: format!("extractive {number}").into(),
        body: SummaryBody {
            open_questions: lines("asked"),
            recent: format!("user: up to {seq}\n"),
            ..SummaryBody::default()
        },
        text: format!("what was said up to {seq}").into(),
    }
}

pub(crate) fn made(number: u32) -> SummaryChange {
    SummaryChange::Made(Arc::new(summary_of(number)))
}

pub(crate) fn status_of(number: u32) -> CompactionStatus {
    let through_seq = u64::from(number) * 10;
    CompactionStatus {
        summaries: number,
        through_seq,
        ..CompactionStatus::default()
    }
}

/// Every field with a distinct value, including the ends of its range.
pub(crate) fn whole_summary() -> Summary {
    let lines = |what: &str| vec![what.to_owned(), String::new(), format!("{what} ü\0\n")];
    Summary {
        number: u32::MAX,
        first_seq: 1,
        through_seq: u64::MAX,
        turns: u64::MAX - 1,
        made_at: Timestamp::new(Timestamp::SECONDS_MAX, 999_999_999).unwrap(),
        by: "openai/gpt \u{1f600}".into(),
        body: SummaryBody {
            standing: vec![
                StandingInstruction {
                    seq: u64::MAX,
                    said_at: i64::MIN,
                    text: "a ü\0\n".into(),
                    score: f32::MIN,
                    count: u32::MAX,
                },
                StandingInstruction {
                    seq: 0,
                    said_at: i64::MAX,
                    text: String::new(),
                    score: f32::EPSILON,
                    count: 0,
                },
            ],
            user_turns: vec![
                UserTurn {
                    seq: u64::MAX - 2,
                    said_at: -1,
                    text: "b\r\n".into(),
                    opens: true,
                },
                UserTurn {
                    seq: 2,
                    said_at: 3,
                    text: String::new(),
                    opens: false,
                },
            ],
            done: vec![CompletedCall {
                seq: u64::MAX - 3,
                text: "pay(c) → ok".into(),
            }],
            open_questions: lines("d"),
            written: "e\r\n\t".into(),
            recent: "f \0".into(),
            until: i64::MAX - 1,
            starts: lines("g"),
            is_answered: true,
            following: 3,
        },
        text: "l\0 \n".into(),
    }
}

pub(crate) fn whole_status() -> CompactionStatus {
    CompactionStatus {
        summaries: u32::MAX,
        through_seq: u64::MAX,
        at_seq: 3,
        failures: 4,
        opened: Some((Steady(5), u64::MAX - 1)),
        last_error: "timeout: nobody answered ü\0".into(),
        running: false,
    }
}

fn saved(store: &dyn Store, chat: &Chat) -> Option<Summary> {
    known(store, &chat.key)
        .unwrap()
        .summary
        .map(Arc::unwrap_or_clone)
}

/// Returns the status, which must be the same in all reads of the metadata.
fn status(store: &dyn Store, chat: &Chat) -> Option<CompactionStatus> {
    let loaded = known(store, &chat.key).unwrap().head;
    let mut heads = live_heads(store)
        .into_iter()
        .filter(|(key, _)| *key == chat.key);
    assert_eq!(heads.next().unwrap().1, loaded);
    loaded.compaction.map(Arc::unwrap_or_clone)
}

/// Writes a compaction, which must be accepted.
fn must_compact(store: &dyn Store, chat: &mut Chat, status: CompactionStatus, with: SummaryChange) {
    must_write(store, [compact(chat, status, with)]);
    *chat = chat.reloaded(store);
}

fn ended(store: &dyn Store, chat: &Chat) -> EndedRecord {
    store
        .ended(&[(chat.key.clone(), chat.generation())], usize::MAX)
        .unwrap()
        .remove(0)
}

fn summary_round_trips_with_every_field(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    assert_eq!(saved(store, &chat), None);
    must_write(store, [chat.append("u a u a", 2)]);
    assert_eq!(saved(store, &chat), None);
    for (at, summary) in [(3, summary_of(1)), (4, summary_of(2)), (5, whole_summary())] {
        let with = SummaryChange::Made(Arc::new(summary.clone()));
        must_compact(store, &mut chat, status_of(summary.number), with);
        assert_eq!(saved(store, &chat), Some(summary.clone()));
        // Changes without a summary leave it unchanged.
        must_write(
            store,
            [chat.append("u a", at), chat.touch(at), chat.patch("{}", at)],
        );
        assert_eq!(saved(store, &chat), Some(summary));
    }
}

fn status_round_trips_except_running(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    assert_eq!(status(store, &chat), None);
    for (at, new) in [
        (2, CompactionStatus::default()),
        (9, whole_status()),
        (16, status_of(2)),
    ] {
        must_compact(store, &mut chat, new.clone(), SummaryChange::Stays);
        assert_eq!(status(store, &chat), Some(new.clone()));
        let runs = CompactionStatus {
            running: true,
            ..new.clone()
        };
        must_compact(store, &mut chat, runs, SummaryChange::Stays);
        assert_eq!(status(store, &chat), Some(new.clone()));
        // Flush the status through the pending table.
        for at in at..at + 7 {
            must_write(store, [chat.append("u a", at)]);
            assert_eq!(status(store, &chat), Some(new.clone()));
        }
    }
    assert_eq!(saved(store, &chat), None);
}

fn compaction_keeps_turns_keys_and_last_access(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    for at in 2..6 {
        must_write(
            store,
            [chat.append_command(&crate::chat::named("u a", at, 1), at)],
        );
    }
    must_write(store, [chat.patch(r#"{"a":1}"#, 6)]);
    let mut before = known(store, &chat.key).unwrap();
    let all = seqs(store, &chat.key, None);
    must_compact(store, &mut chat, status_of(1), made(1));
    before.head.revision += 1;
    before.head.compaction = Some(Arc::new(status_of(1)));
    before.summary = Some(Arc::new(summary_of(1)));
    assert_eq!(known(store, &chat.key).unwrap(), before);
    assert_eq!(seqs(store, &chat.key, None), all);
}

fn undo_restores_the_previous_summary(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    for number in 1..=3 {
        must_compact(store, &mut chat, status_of(number), made(number));
    }
    must_compact(store, &mut chat, status_of(4), SummaryChange::Stays);
    for number in (1..=3).rev() {
        assert_eq!(saved(store, &chat), Some(summary_of(number)));
        let undone = CompactionStatus {
            at_seq: 9,
            ..status_of(3)
        };
        must_compact(
            store,
            &mut chat,
            undone.clone(),
            SummaryChange::Undone(number),
        );
        assert_eq!(status(store, &chat), Some(undone));
    }
    assert_eq!(saved(store, &chat), None);
    // Undoing a missing summary has no effect.
    must_compact(store, &mut chat, status_of(3), SummaryChange::Undone(2));
    must_compact(store, &mut chat, status_of(4), made(4));
    assert_eq!(saved(store, &chat), Some(summary_of(4)));
    // Made and undone in one set.
    let status = || status_of(5);
    let make = compact(&chat, status(), made(5));
    let mut undo = compact(&chat, status(), SummaryChange::Undone(4));
    undo.expected_revision += 1;
    must_write(store, [make, undo]);
    assert_eq!(saved(store, &chat), Some(summary_of(5)));
    chat = chat.reloaded(store);
    must_compact(store, &mut chat, status(), SummaryChange::Undone(5));
    assert_eq!(saved(store, &chat), None);
}

/// Happens if the status, which counts them, was lost.
fn reused_summary_number_discards_later_summaries(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    for number in 1..=4 {
        must_compact(store, &mut chat, status_of(number), made(number));
    }
    let again = Summary {
        text: "another".into(),
        ..summary_of(2)
    };
    let with = SummaryChange::Made(Arc::new(again.clone()));
    must_compact(store, &mut chat, status_of(2), with);
    assert_eq!(saved(store, &chat), Some(again));
    must_compact(store, &mut chat, status_of(2), SummaryChange::Undone(2));
    assert_eq!(saved(store, &chat), Some(summary_of(1)));
}

fn refused_compaction_leaves_no_trace(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let nobody = Chat::begin(&key("t", "nobody"), Generation::new(7, 7), 1).0;
    must_refuse(store, compact(&nobody, status_of(1), made(1)));
    let early = chat.clone();
    must_write(store, [chat.append("u a", 2)]);
    must_compact(store, &mut chat, status_of(1), made(1));
    let before = known(store, &chat.key);
    let mut late = chat.clone();
    late.touch(3);
    for stale in [&early, &late] {
        for with in [made(2), SummaryChange::Undone(1), SummaryChange::Stays] {
            must_refuse(store, compact(stale, whole_status(), with));
            assert_eq!(known(store, &chat.key), before);
        }
    }
    // Valid by itself, but its set is not.
    for with in [made(2), SummaryChange::Undone(1)] {
        let right = compact(&chat, whole_status(), with);
        let wrong = early.clone().touch(5);
        assert!(write(store, &[set([right, wrong])])[0].is_err());
        assert_eq!(known(store, &chat.key), before);
        assert_eq!(status(store, &chat), Some(status_of(1)));
    }
    must_write(store, [chat.touch(6), chat.end(7)]);
    must_refuse(store, compact(&chat, status_of(2), made(2)));
    assert_eq!(ended(store, &chat).summary.as_deref(), Some(&summary_of(1)));
}

fn ended_generation_keeps_its_summary(store: &dyn Store) {
    let without = begun(store, "without", 1);
    must_write(store, [without.end(2)]);
    assert_eq!(ended(store, &without).summary, None);
    for turns in 0..8_u64 {
        let mut chat = begun(store, &format!("s{turns}"), 10 * turns + 10);
        must_compact(store, &mut chat, status_of(1), made(1));
        must_compact(store, &mut chat, whole_status(), made(2));
        for at in 0..turns {
            must_write(store, [chat.append("u a", 10 * turns + at)]);
        }
        must_write(store, [chat.end(100)]);
        let record = ended(store, &chat);
        assert_eq!(record.summary.as_deref(), Some(&summary_of(2)), "{turns}");
        assert_eq!(record.head.compaction.as_deref(), Some(&whole_status()));
        assert_eq!(record.turns.len() as u64, 2 * turns);
    }
}

fn summaries_are_deleted_with_their_generation(store: &dyn Store) {
    let mut first = begun(store, "s", 10);
    for number in 1..=9 {
        must_compact(store, &mut first, status_of(number), made(number));
    }
    let (mut second, begin) = Chat::begin(&first.key, Generation::new(20, 20), 20);
    must_write(store, [first.end(20), begin]);
    assert_eq!(
        (saved(store, &second), status(store, &second)),
        (None, None)
    );
    must_compact(store, &mut second, status_of(1), made(1));
    assert_eq!(
        ended(store, &first).summary.as_deref(),
        Some(&summary_of(9))
    );
    prune_all(
        store,
        PruneBefore {
            ended: Steady(30),
            keys: Steady(0),
        },
        2,
    );
    assert_eq!(saved(store, &second), Some(summary_of(1)));
    assert_eq!(status(store, &second), Some(status_of(1)));
    must_write(store, [second.end(31)]);
    prune_all(
        store,
        PruneBefore {
            ended: Steady(40),
            keys: Steady(0),
        },
        1,
    );
    // No leftover prevents reuse of their ids.
    for forgotten in [&first, &second] {
        let (again, begin) = Chat::begin(&first.key, forgotten.generation(), 50);
        must_write(store, [begin]);
        assert_eq!((saved(store, &again), status(store, &again)), (None, None));
        must_write(store, [again.end(51)]);
        assert_eq!(ended(store, &again).summary, None);
    }
}
