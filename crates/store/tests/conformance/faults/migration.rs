//! Journals of older versions are migrated and keep their content.

use super::*;
use crate::compaction::{compact, made, status_of, summary_of};
use crate::cuts::{cuts_of, with_cuts};
use crate::outbox::{id, owing};

/// SQL that reverts each version, newest first.
const UNDO: [(i64, &str); 11] = [
    (
        12,
        "DROP INDEX generations_listed; DROP INDEX generations_subject",
    ),
    (11, "DROP TABLE copies; DROP TABLE former_subjects"),
    (
        10,
        "CREATE TABLE turn_changes (
             change     INTEGER PRIMARY KEY AUTOINCREMENT,
             generation BLOB    NOT NULL,
             turn       INTEGER NOT NULL
         ) STRICT;
         CREATE INDEX turn_changes_place ON turn_changes (generation)",
    ),
    (
        9,
        "ALTER TABLE turns DROP COLUMN content_id;
         ALTER TABLE progress DROP COLUMN claimed;
         DROP TABLE contents",
    ),
    (8, "DROP TABLE options"),
    (
        7,
        "DROP TABLE rewound; DROP TABLE rewinds; DROP TABLE turn_changes;
         ALTER TABLE generations DROP COLUMN newest_seq;
         ALTER TABLE intake_heads DROP COLUMN newest_seq",
    ),
    (
        6,
        "DROP TABLE erasures; DROP TABLE erasure_generations; DROP TABLE erasure_given",
    ),
    (
        5,
        "ALTER TABLE turns DROP COLUMN header; ALTER TABLE turns DROP COLUMN checksum",
    ),
    (
        4,
        "DROP INDEX generations_age;
         DROP INDEX generations_ended;
         ALTER TABLE generations DROP COLUMN held;
         CREATE INDEX generations_ended ON generations (tenant, session, generation)
             WHERE ended_at IS NOT NULL;
         CREATE INDEX generations_age ON generations (ended_at) WHERE ended_at IS NOT NULL",
    ),
    (3, "DROP TABLE summaries; DROP TABLE compactions"),
    (2, "DROP TABLE windows"),
];

/// Reverts the schema to a version.
fn back_to_version(version: i64, dir: &Path) {
    let journal = raw(dir);
    for (_, undo) in UNDO.iter().filter(|(added_by, _)| *added_by > version) {
        journal.execute_batch(undo).unwrap();
    }
    journal
        .pragma_update(None, "user_version", version)
        .unwrap();
}

#[test]
fn journal_of_older_version_is_migrated_whole() {
    for (version, is_crashed) in (1..=11).flat_map(|version| [(version, false), (version, true)]) {
        let dir = tempfile::tempdir().unwrap();
        if is_crashed {
            after_a_crash(dir.path());
        } else {
            at_rest(dir.path());
        }
        let seen = |store: &dyn Store| {
            let heads = live_heads(store);
            let all = heads
                .iter()
                .map(|(key, _)| (known(store, key), seqs(store, key, None)));
            (all.collect::<Vec<_>>(), store.clock().unwrap())
        };
        // After a crash, the newest turns are in the log and have that version too.
        let before = {
            let twin = tempfile::tempdir().unwrap();
            copy(dir.path(), twin.path());
            seen(&open(twin.path()))
        };
        assert!(before.0.len() > 4);
        back_to_version(version, dir.path());
        let store = open(dir.path());
        assert_eq!(seen(&store), before);
        let key = live_heads(&store)[0].0.clone();
        let (sample, _) = Chat::begin(&key, Generation::new(1, 1), 1);
        let mut chat = sample.reloaded(&store);
        must_write(&store, [with_cuts(chat.touch(5_000), Some(cuts_of(3)))]);
        must_write(&store, [compact(&chat, status_of(1), made(1))]);
        must_work(&store);
        drop(store);
        assert_eq!(number(&raw(dir.path()), "PRAGMA user_version"), 12);
        let known = known(&open(dir.path()), &key).unwrap();
        assert_eq!(known.cuts, cuts_of(3));
        assert_eq!(known.summary.as_deref(), Some(&summary_of(1)));
        assert_eq!(known.head.compaction.as_deref(), Some(&status_of(1)));
    }
}

/// The first journals had no outbox, and the same version 1 as those with one.
#[test]
fn journal_without_outbox_gets_one() {
    for version in 1..=4 {
        let dir = tempfile::tempdir().unwrap();
        at_rest(dir.path());
        back_to_version(version, dir.path());
        raw(dir.path()).execute_batch("DROP TABLE outbox").unwrap();
        let store = open(dir.path());
        let ended = owing(&store, "ended", 9_000, &["git"]);
        must_work(&store);
        drop(store);
        let store = open(dir.path());
        let delivery = store.delivery(&id(ended.generation(), "git")).unwrap();
        assert!(delivery.is_some(), "version {version}");
    }
}

#[test]
fn cuts_survive_reopen_and_are_pruned() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut chat = begun(&store, "s", 1);
    must_write(&store, [with_cuts(chat.append("u a", 2), Some(cuts_of(2)))]);
    must_write(&store, [chat.label("app", "shop")]);
    let crashed = tempfile::tempdir().unwrap();
    copy(dir.path(), crashed.path());
    drop(store);
    for dir in [dir.path(), crashed.path()] {
        for _ in 0..2 {
            assert_eq!(known(&open(dir), &chat.key).unwrap().cuts, cuts_of(2));
        }
    }
    let store = open(dir.path());
    must_write(&store, [chat.end(3)]);
    let before = memoird_store::PruneBefore {
        ended: memoird_core::time::Steady(9),
        keys: memoird_core::time::Steady(0),
    };
    crate::prune::prune_all(&store, before, 1);
    drop(store);
    for table in ["windows", "options"] {
        let rows = number(&raw(dir.path()), &format!("SELECT count(*) FROM {table}"));
        assert_eq!(rows, 0, "{table}");
    }
}

/// Damaged cuts are decided again, and do not block the session.
#[test]
fn damaged_cuts_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut chat = begun(&store, "s", 1);
    must_write(&store, [with_cuts(chat.append("u a", 2), Some(cuts_of(2)))]);
    drop(store);
    raw(dir.path())
        .execute("UPDATE windows SET cuts = x'0aff'", [])
        .unwrap();
    let store = open(dir.path());
    assert_eq!(known(&store, &chat.key).unwrap().cuts, []);
    must_write(&store, [with_cuts(chat.touch(3), Some(cuts_of(1)))]);
    assert_eq!(known(&store, &chat.key).unwrap().cuts, cuts_of(1));
}

#[test]
fn turns_of_older_versions_are_counted_as_unchecked() {
    let dir = tempfile::tempdir().unwrap();
    let mut chat = begun(&open(dir.path()), "s", 1);
    must_write(&open(dir.path()), [chat.append("u a u", 2)]);
    for version in [4, 3] {
        back_to_version(version, dir.path());
        let check =
            memoird_store::verify::check_journal(&dir.path().join("journal.db"), None).unwrap();
        assert_eq!(
            (check.turns.unchecked, check.damages_total),
            (3, 0),
            "{check:?}"
        );
        drop(open(dir.path()));
    }
    let store = open(dir.path());
    must_write(&store, [chat.append("a", 3)]);
    assert_eq!(seqs(&store, &chat.key, None), Some(vec![1, 2, 3, 4]));
    let expected = memoird_store::TurnCounts {
        unchecked: 3,
        damaged: 0,
    };
    assert_eq!(store.turn_counts(), expected);
}
