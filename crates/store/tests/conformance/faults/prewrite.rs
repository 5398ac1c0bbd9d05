//! Prewriting on disk: after a crash, a set is whole or missing, and leftovers are removed.

use memoird_core::change::{Change, ChangeKind, UpdatedTurn};
use memoird_core::time::{Steady, Timestamp};
use memoird_store::verify::check_journal;
use memoird_store::{PruneBefore, PruneBounds};

use super::crash::with_log_cut_off;
use super::*;
use crate::prewrite::{many, prewrite_part, prewrite_turns};

const TURNS: usize = 12;

fn contents(dir: &Path) -> i64 {
    number(&raw(dir), "SELECT count(*) FROM contents")
}

/// Creates a chat of two turns, its next append, and prewrites half of that.
fn half_ahead(dir: &Path) -> (SqliteStore, Chat, Change) {
    let store = open(dir);
    let mut chat = begun(&store, "s", 1);
    must_write(&store, [chat.append("u a", 2)]);
    let append = many(&mut chat, TURNS, 3);
    for from in [0, 3] {
        assert_eq!(prewrite_turns(&store, &append, from, 3), 3);
    }
    (store, chat, append)
}

fn prune_nothing(store: &SqliteStore) {
    let before = PruneBefore {
        ended: Steady(0),
        keys: Steady(0),
    };
    let bounds = PruneBounds {
        rows_max: 100,
        pages_max: 100,
    };
    store.prune(before, bounds).unwrap();
}

#[test]
fn crash_keeps_prewritten_set_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let (store, chat, append) = half_ahead(dir.path());
    let crashed = tempfile::tempdir().unwrap();
    copy(dir.path(), crashed.path());
    assert_eq!(contents(crashed.path()), 6);
    let recovered = open(crashed.path());
    assert_eq!(seqs(&recovered, &chat.key, None), Some(vec![1, 2]));
    assert_eq!(contents(crashed.path()), 0);
    let again = many(&mut chat.reloaded(&recovered), TURNS, 4);
    prewrite_turns(&recovered, &again, 0, 100);
    must_write(&recovered, [again]);
    must_work(&recovered);

    must_write(&store, [append]);
    let crashed = tempfile::tempdir().unwrap();
    copy(dir.path(), crashed.path());
    let recovered = open(crashed.path());
    let whole = (1..=TURNS as u64 + 2).collect();
    assert_eq!(seqs(&recovered, &chat.key, None), Some(whole));
    assert_eq!(contents(crashed.path()), 6);
    let here = known(&store, &chat.key).unwrap();
    assert_eq!(known(&recovered, &chat.key).unwrap(), here);
    assert_eq!(recovered.turn_counts(), store.turn_counts());
    must_work(&recovered);
}

#[test]
fn truncated_wal_has_prewritten_set_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let (store, chat, append) = half_ahead(dir.path());
    prewrite_turns(&store, &append, 6, 3);
    must_write(&store, [append]);
    let found = with_log_cut_off(dir.path(), |crashed, recovered| {
        let turns = seqs(recovered, &chat.key, None).unwrap_or_default().len();
        assert!([0, 2, TURNS + 2].contains(&turns), "{turns} turns");
        assert_eq!(contents(crashed), if turns > 2 { 9 } else { 0 });
        turns
    });
    assert!(found.is_sorted() && found.contains(&2), "{found:?}");
    assert_eq!(found[40], TURNS + 2);
}

#[test]
fn abandoned_prewrites_are_removed_by_prune_erase_or_next_set() {
    let leaves: [fn(&SqliteStore, &mut Chat); 3] = [
        |store, _| prune_nothing(store),
        |store, _| assert!(!store.clean_pages(1_000).unwrap().log),
        |store, chat| {
            let append = many(chat, TURNS, 5);
            assert_eq!(prewrite_turns(store, &append, 0, 3), 0);
        },
    ];
    for leave in leaves {
        let dir = tempfile::tempdir().unwrap();
        let (store, chat, _) = half_ahead(dir.path());
        let mut chat = chat.reloaded(&store);
        // The prewritten set is given up.
        must_write(&store, [chat.append("u a", 4)]);
        assert_eq!(contents(dir.path()), 6);
        leave(&store, &mut chat);
        assert_eq!(contents(dir.path()), 0);
        let mut chat = chat.reloaded(&store);
        let append = many(&mut chat, TURNS, 6);
        assert_eq!(prewrite_turns(&store, &append, 0, 5), 5);
        must_write(&store, [append]);
        assert_eq!(contents(dir.path()), 5);
        let check = check_journal(&dir.path().join("journal.db"), None).unwrap();
        assert_eq!((check.damages_total, check.turns.damaged), (0, 0));
    }
}

#[test]
fn prewrites_stay_when_nothing_is_added() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _, append) = half_ahead(dir.path());
    assert_eq!(prewrite_turns(&store, &append, 6, 0), 0);
    assert_eq!(prewrite_turns(&store, &append, 6, 1), 1);
    must_write(&store, [append]);
    let sql = "SELECT count(*) FROM turns WHERE content_id IS NOT NULL";
    assert_eq!(
        (number(&raw(dir.path()), sql), contents(dir.path())),
        (7, 7)
    );
}

#[test]
fn prune_keeps_prewrites_of_pending_set() {
    let dir = tempfile::tempdir().unwrap();
    let (store, chat, append) = half_ahead(dir.path());
    prune_nothing(&store);
    assert_eq!(contents(dir.path()), 6);
    must_write(&store, [append]);
    let whole = (1..=TURNS as u64 + 2).collect();
    assert_eq!(seqs(&store, &chat.key, None), Some(whole));
}

#[test]
fn prewritten_contents_are_deleted_with_their_turns() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut chat, append) = half_ahead(dir.path());
    must_write(&store, [append]);
    let content =
        memoird_store::encoding::seal(&crate::chat::large(7_000), 4, Timestamp::from_ms(5));
    let replaced = Change {
        generation: chat.generation(),
        expected_revision: chat.session.head().revision,
        kind: ChangeKind::UpdateTurn(Box::new(UpdatedTurn {
            seq: 4,
            content: content.clone(),
            bytes_before: 0,
            kept: known(&store, &chat.key).unwrap().kept,
            totals: chat.session.head().totals,
            idempotency: None,
            cuts: None,
        })),
    };
    must_write(&store, [replaced]);
    assert_eq!(contents(dir.path()), 5);
    let journal = page(&store, &chat.key, None, ALL).unwrap();
    assert_eq!(journal.turns[3], (4, content));
    chat = chat.reloaded(&store);
    must_write(&store, [chat.end(9)]);
    let before = PruneBefore {
        ended: Steady(99),
        keys: Steady(0),
    };
    crate::prune::prune_all(&store, before, 2);
    assert_eq!(contents(dir.path()), 0);
}

#[test]
fn missing_content_damages_only_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let (store, chat, append) = half_ahead(dir.path());
    must_write(&store, [append]);
    drop(store);
    raw(dir.path())
        .execute("DELETE FROM contents WHERE id = 2", [])
        .unwrap();
    let store = open(dir.path());
    let journal = page(&store, &chat.key, None, ALL).unwrap();
    assert_eq!(journal.turns.len(), TURNS + 2);
    assert_eq!(store.turn_counts().damaged, 1);
}

#[test]
fn full_disk_refuses_prewrite_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        pages_max: Some(120),
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(dir.path(), options).unwrap();
    let mut chat = begun(&store, "s", 1);
    let append = many(&mut chat.clone(), 200, 2);
    let part = prewrite_part(&append, 0, 200);
    let error = store
        .commit_and_prewrite(&clock(1), &[], &part)
        .unwrap_err();
    assert!(matches!(error, StoreError::Full), "{error}");
    assert_eq!(contents(dir.path()), 0);
    must_write(&store, [chat.append("u a", 2)]);
    assert_eq!(seqs(&store, &chat.key, None), Some(vec![1, 2]));
}
