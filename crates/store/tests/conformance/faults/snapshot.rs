//! Copying a journal during writes.

use memoird_store::snapshot;
use memoird_store::verify::check_journal;

use super::*;

#[test]
fn snapshot_is_consistent_during_writes() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    at_rest(dir.path());
    let store = open(dir.path());
    let mut chat = begun(&store, "during", 80);
    let before = live_heads(&store);
    let heads_during = std::cell::Cell::new(0);
    let writing = std::cell::RefCell::new(&mut chat);
    let (from, copied) = (dir.path().join("journal.db"), to.path().join("journal.db"));
    let is_whole = snapshot::copy(&from, &copied, None, || {
        // Written between two steps, through another connection.
        let append = writing.borrow_mut().append("u a", 81 + heads_during.get());
        must_write(&store, [append]);
        heads_during.set(heads_during.get() + 1);
        false
    });
    assert!(is_whole.unwrap() && heads_during.get() > 0);
    let check = check_journal(&copied, None).unwrap();
    assert_eq!(check.damages_total, 0, "{check:?}");
    let copy = open(to.path());
    assert_eq!(
        live_heads(&copy),
        before,
        "nothing of what was written since"
    );
    must_work(&copy);
    assert_eq!(
        seqs(&store, &chat.key, None).unwrap().len() as u64,
        2 * heads_during.get()
    );
}

#[test]
fn cancelled_snapshot_is_incomplete() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    at_rest(dir.path());
    let from = dir.path().join("journal.db");
    let is_whole = snapshot::copy(&from, &to.path().join("journal.db"), None, || true);
    assert!(!is_whole.unwrap());
}
