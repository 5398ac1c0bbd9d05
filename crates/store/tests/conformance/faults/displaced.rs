//! Files that are deleted, moved or replaced while the journal is open: commits fail.

use std::fs;
use std::path::Path;

use memoird_store::{Store, StoreError};

use super::{copy, open, talk};
use crate::kit::*;

/// Opens a journal in `dir`, changes its files, and returns the error of the next commit.
fn commit_after(change: impl FnOnce(&Path)) -> Option<StoreError> {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let store = open(&dir);
    talk(&store, "before", 1);
    assert!(store.check_in_place().is_ok());
    change(&dir);
    let checked = store.check_in_place();
    let committed = store.commit(&clock(2), &[]);
    assert_eq!(checked.is_err(), committed.is_err());
    committed.err()
}

fn is_displaced(error: Option<&StoreError>) -> bool {
    matches!(error, Some(StoreError::Displaced { .. }))
}

#[test]
fn commit_to_unchanged_data_dir_succeeds() {
    assert!(commit_after(|_| {}).is_none());
}

#[test]
fn commit_to_deleted_data_dir_fails() {
    let error = commit_after(|dir| fs::remove_dir_all(dir).unwrap());
    assert!(is_displaced(error.as_ref()));
}

#[test]
fn commit_to_moved_data_dir_fails() {
    let error = commit_after(|dir| fs::rename(dir, dir.with_extension("old")).unwrap());
    assert!(is_displaced(error.as_ref()));
}

#[test]
fn commit_to_replaced_data_dir_fails() {
    let error = commit_after(|dir| {
        let old = dir.with_extension("old");
        fs::rename(dir, &old).unwrap();
        fs::create_dir(dir).unwrap();
        copy(&old, dir);
        fs::copy(old.join("lock"), dir.join("lock")).unwrap();
    });
    assert!(is_displaced(error.as_ref()));
}

#[test]
fn commit_after_deletion_of_one_file_fails() {
    for file in ["journal.db", "journal.db-wal", "lock"] {
        let error = commit_after(|dir| fs::remove_file(dir.join(file)).unwrap());
        assert!(is_displaced(error.as_ref()), "{file}");
    }
}

#[test]
fn commit_after_data_dir_was_moved_back_succeeds() {
    let moved_and_back = |dir: &Path| {
        let old = dir.with_extension("old");
        fs::rename(dir, &old).unwrap();
        fs::rename(&old, dir).unwrap();
    };
    assert!(commit_after(moved_and_back).is_none());
}

/// Whether this process holds a lock on a file, without which another program that closes the
/// database deletes its log.
#[cfg(target_os = "linux")]
fn is_locked(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = fs::metadata(path).unwrap().ino();
    let process = std::process::id();
    let locks = fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_of_file = fields
            .iter()
            .any(|field| field.ends_with(&format!(":{inode}")));
        is_of_file && fields.contains(&"POSIX") && fields.contains(&process.to_string().as_str())
    })
}

#[cfg(target_os = "linux")]
#[test]
fn clearing_pages_keeps_locks_of_the_database() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let store = open(&dir);
    talk(&store, "one", 1);
    assert!(is_locked(&dir.join("journal.db")));
    assert!(!store.clean_pages(1_000).unwrap().log);
    assert!(is_locked(&dir.join("journal.db")));
}
