//! Migration between data directories: old, damaged and encrypted journals.
//!
//! The suite for PostgreSQL has the other cases.

use std::path::Path;

use memoird_store::transfer::{
    PageBounds, TableComparison, TransferSource, copy_and_compare, identify,
};
use memoird_store::verify::{TurnCheckCounts, check_journal};
use memoird_store::{DataKey, SqliteTransfer};
use rusqlite::Connection;

use crate::chat::begun;
use crate::faults::open;
use crate::kit::*;

fn source(dir: &Path) -> impl TransferSource {
    SqliteTransfer::source(dir, None).unwrap()
}

fn migrate(from: &Path, to: &Path, key: Option<DataKey>) {
    let mut source = source(from);
    let (id, _) = identify(&mut source).unwrap();
    let mut target = SqliteTransfer::target(to, key, &id).unwrap();
    let compared = copy_and_compare(
        &mut source,
        &mut target,
        PageBounds::default(),
        &mut |_, _| {},
    )
    .unwrap();
    assert!(
        compared.iter().all(TableComparison::is_same),
        "{compared:?}"
    );
}

/// Creates a journal of three turns.
fn talked(dir: &Path) {
    let store = open(dir);
    let mut chat = begun(&store, "chat", 1);
    must_write(&store, [chat.append("u a u", 2)]);
}

fn check(dir: &Path) -> TurnCheckCounts {
    check_journal(&dir.join("journal.db"), None).unwrap().turns
}

#[test]
fn transfer_adds_missing_checksums_and_keeps_damage() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    talked(from.path());
    drop(source(from.path()));
    let connection = Connection::open(from.path().join("journal.db")).unwrap();
    let old = "UPDATE turns SET header = NULL, checksum = NULL WHERE seq = 1";
    connection.execute(old, []).unwrap();
    let damage = "UPDATE turns SET content = x'00' WHERE seq = 2";
    connection.execute(damage, []).unwrap();
    drop(connection);
    let (whole, unchecked, damaged) = (1, 1, 1);
    let before = TurnCheckCounts {
        whole,
        unchecked,
        damaged,
    };
    assert_eq!(check(from.path()), before);
    migrate(from.path(), to.path(), None);
    assert_eq!(check(from.path()), before);
    let (whole, unchecked, damaged) = (2, 0, 1);
    assert_eq!(
        check(to.path()),
        TurnCheckCounts {
            whole,
            unchecked,
            damaged
        }
    );
    let [from, to] = [from, to].map(|dir| known(&open(dir.path()), &key("t", "chat")));
    assert_eq!(from, to);
}

#[cfg(feature = "encryption")]
#[test]
fn transfer_to_target_with_key_encrypts() {
    use memoird_store::{SqliteOptions, SqliteStore, StoreError};
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    talked(from.path());
    let key_one = crate::encryption::key(1);
    migrate(from.path(), to.path(), Some(key_one));
    let open_with = |key| {
        let options = SqliteOptions {
            key,
            ..SqliteOptions::default()
        };
        SqliteStore::open(to.path(), options)
    };
    let refused = open_with(None).expect_err("it is encrypted");
    assert!(matches!(refused, StoreError::Encrypted { .. }), "{refused}");
    let chat = key("t", "chat");
    let there = known(&open_with(Some(key_one)).unwrap(), &chat);
    assert_eq!(there, known(&open(from.path()), &chat));
    // And back: the source is encrypted, the target is not.
    let back = tempfile::tempdir().unwrap();
    let mut source = SqliteTransfer::source(to.path(), Some(key_one)).unwrap();
    let (id, _) = identify(&mut source).unwrap();
    let mut target = SqliteTransfer::target(back.path(), None, &id).unwrap();
    let compared = copy_and_compare(
        &mut source,
        &mut target,
        PageBounds::default(),
        &mut |_, _| {},
    );
    assert!(compared.unwrap().iter().all(TableComparison::is_same));
    drop(target);
    assert_eq!(known(&open(back.path()), &chat), there);
}
