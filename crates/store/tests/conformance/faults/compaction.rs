//! Summaries on disk survive restarts and crashes, and are deleted with their generation.
//!
//! They never make a session unreadable.

use memoird_core::change::SummaryChange;
use memoird_core::compaction::{CompactionStatus, Summary};
use memoird_core::time::Steady;
use memoird_store::PruneBefore;

use super::*;
use crate::compaction::{compact, made, status_of, summary_of, whole_status, whole_summary};

/// Writes compactions, which must be accepted, and returns the reloaded chat.
fn compacted(store: &dyn Store, mut chat: Chat, numbers: impl IntoIterator<Item = u32>) -> Chat {
    for number in numbers {
        must_write(store, [compact(&chat, status_of(number), made(number))]);
        chat = chat.reloaded(store);
    }
    chat
}

fn seen(store: &dyn Store, chat: &Chat) -> (Option<Summary>, Option<CompactionStatus>) {
    let saved = known(store, &chat.key).unwrap();
    let heads = live_heads(store);
    let head = heads
        .into_iter()
        .find(|(key, _)| *key == chat.key)
        .unwrap()
        .1;
    assert_eq!(head, saved.head);
    let summary = saved.summary.map(|summary| Summary::clone(&summary));
    (
        summary,
        head.compaction
            .map(|status| CompactionStatus::clone(&status)),
    )
}

#[test]
fn summary_survives_restart_and_crash() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut chat = begun(&store, "s", 1);
    must_write(&store, [chat.append("u a", 2)]);
    chat = compacted(&store, chat, 1..=3);
    let whole = SummaryChange::Made(whole_summary().into());
    let runs = CompactionStatus {
        running: true,
        ..whole_status()
    };
    must_write(&store, [compact(&chat, runs, whole)]);
    let crashed = tempfile::tempdir().unwrap();
    copy(dir.path(), crashed.path());
    drop(store);
    for dir in [dir.path(), crashed.path()] {
        for _ in 0..2 {
            let found = seen(&open(dir), &chat);
            assert_eq!(found, (Some(whole_summary()), Some(whole_status())));
        }
        let store = open(dir);
        let mut chat = chat.reloaded(&store);
        let undone = SummaryChange::Undone(whole_summary().number);
        must_write(&store, [compact(&chat, status_of(4), undone)]);
        drop(store);
        let store = open(dir);
        assert_eq!(
            seen(&store, &chat),
            (Some(summary_of(3)), Some(status_of(4)))
        );
        chat = chat.reloaded(&store);
        must_write(&store, [chat.append("u a", 9), chat.end(10)]);
        drop(store);
        let wanted = [(chat.key.clone(), chat.generation())];
        let record = open(dir).ended(&wanted, usize::MAX).unwrap().remove(0);
        assert_eq!(record.summary.as_deref(), Some(&summary_of(3)));
        assert_eq!(record.head.compaction.as_deref(), Some(&status_of(4)));
    }
}

#[test]
fn prune_leaves_no_summary_rows() {
    for rows_max in [1, 2, 5, 1_000] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let mut chat = begun(&store, "s", 1);
        must_write(&store, [chat.append("u a", 2)]);
        chat = compacted(&store, chat, 1..=12);
        let other = compacted(&store, begun(&store, "other", 2), 1..=2);
        must_write(&store, [chat.end(3)]);
        let before = PruneBefore {
            ended: Steady(9),
            keys: Steady(0),
        };
        let steps = crate::prune::prune_all(&store, before, rows_max);
        assert_eq!(steps > 12, rows_max == 1, "{steps} steps");
        assert_eq!(seen(&store, &other).0, Some(summary_of(2)));
        drop(store);
        let journal = raw(dir.path());
        assert_eq!(number(&journal, "SELECT count(*) FROM summaries"), 2);
        assert_eq!(number(&journal, "SELECT count(*) FROM compactions"), 1);
    }
}

/// Empty, no version, a future version, a truncated message, and an invalid timestamp.
const DAMAGES: [&str; 5] = [
    "x''",
    "x'00'",
    "x'02'",
    "x'010aff'",
    "x'0128ffffffffffffffff7f'",
];

#[test]
fn damaged_summary_is_ignored_in_favor_of_the_previous() {
    for damage in DAMAGES {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let mut chat = compacted(&store, begun(&store, "s", 1), 1..=3);
        must_write(&store, [chat.append("u a", 2)]);
        drop(store);
        let hurt = |filter: &str| {
            let sql = format!("UPDATE summaries SET body = {damage} WHERE {filter}");
            raw(dir.path()).execute(&sql, []).unwrap();
        };
        hurt("number = 3");
        assert_eq!(
            seen(&open(dir.path()), &chat),
            (Some(summary_of(2)), Some(status_of(3)))
        );
        hurt("TRUE");
        let store = open(dir.path());
        assert_eq!(seen(&store, &chat), (None, Some(status_of(3))));
        assert_eq!(seqs(&store, &chat.key, None), Some(vec![1, 2]));
        chat = compacted(&store, chat, [4]);
        assert_eq!(seen(&store, &chat).0, Some(summary_of(4)));
        must_write(
            &store,
            [compact(&chat, status_of(4), SummaryChange::Undone(4))],
        );
        let chat = chat.reloaded(&store);
        must_write(&store, [chat.end(5)]);
        let wanted = [(chat.key.clone(), chat.generation())];
        assert_eq!(
            store.ended(&wanted, usize::MAX).unwrap().remove(0).summary,
            None
        );
    }
}

#[test]
fn damaged_compaction_status_is_ignored() {
    // A status has no timestamp.
    for damage in &DAMAGES[..4] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let mut chat = begun(&store, "s", 1);
        must_write(&store, [chat.append("u a", 2)]);
        chat = compacted(&store, chat, 1..=2);
        drop(store);
        let sql = format!("UPDATE compactions SET status = {damage}");
        raw(dir.path()).execute(&sql, []).unwrap();
        let store = open(dir.path());
        assert_eq!(seen(&store, &chat), (Some(summary_of(2)), None));
        let chat = compacted(&store, chat, [1]);
        assert_eq!(
            seen(&store, &chat),
            (Some(summary_of(1)), Some(status_of(1)))
        );
    }
}

#[test]
fn full_disk_refuses_summary_without_trace() {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        pages_max: Some(100),
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(dir.path(), options).unwrap();
    let chat = compacted(&store, begun(&store, "s", 1), [1]);
    let large = Summary {
        text: "x".repeat(1 << 20).into(),
        ..summary_of(2)
    };
    let change = compact(&chat, whole_status(), SummaryChange::Made(large.into()));
    let error = store.commit(&clock(7), &[set([change])]).unwrap_err();
    assert!(matches!(error, StoreError::Full), "{error}");
    assert_eq!(
        seen(&store, &chat),
        (Some(summary_of(1)), Some(status_of(1)))
    );
    let chat = compacted(&store, chat, [2]);
    assert_eq!(
        seen(&store, &chat),
        (Some(summary_of(2)), Some(status_of(2)))
    );
}
