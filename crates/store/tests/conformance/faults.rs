//! Faults of disks and operators.
//!
//! The journal on disk opens only if intact, is never made worse, and retains acknowledged commits.

mod compaction;
mod crash;
mod damage;
mod displaced;
mod flush;
mod full;
mod migration;
mod opening;
mod prewrite;
mod snapshot;
mod space;
mod verify;

use std::fs;
use std::path::Path;

use memoird_core::ids::Generation;
use memoird_store::{SqliteOptions, SqliteStore, Store, StoreError};
use rusqlite::Connection;

use crate::chat::{Chat, begun};
use crate::kit::*;

pub(crate) fn open(dir: &Path) -> SqliteStore {
    try_open(dir).unwrap()
}

pub(crate) fn try_open(dir: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(dir, SqliteOptions::default())
}

/// Opens the file without the store.
pub(crate) fn raw(dir: &Path) -> Connection {
    Connection::open(dir.join("journal.db")).unwrap()
}

pub(crate) fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Returns the bytes of the journal and of its log. A missing log counts as empty.
pub(crate) fn bytes(dir: &Path) -> (Vec<u8>, Vec<u8>) {
    let log = fs::read(dir.join("journal.db-wal")).unwrap_or_default();
    (fs::read(dir.join("journal.db")).unwrap_or_default(), log)
}

/// Copies journal and log in their current state, as a power failure would leave them.
pub(crate) fn copy(from: &Path, to: &Path) {
    for file in ["journal.db", "journal.db-wal"] {
        if from.join(file).exists() {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
    }
}

/// Creates a chat with turns, some of which its history dropped.
pub(crate) fn talk(store: &dyn Store, session: &str, at: u64) -> Chat {
    let mut chat = begun(store, session, at);
    for round in 0..40 {
        let turns = chat.append("u a+x t-x a u a a a", at + round);
        must_write(store, [turns, chat.patch(r#"{"a":1}"#, at + round)]);
    }
    chat
}

/// Creates a closed journal: one file of many pages.
pub(crate) fn at_rest(dir: &Path) {
    let store = open(dir);
    for at in 1..8 {
        let chat = talk(&store, &format!("s{at}"), at);
        if at % 3 == 0 {
            must_write(&store, [chat.end(100)]);
        }
    }
}

/// Creates a journal of many pages with a log, as after a crash.
pub(crate) fn after_a_crash(dir: &Path) {
    let living = tempfile::tempdir().unwrap();
    at_rest(living.path());
    let store = open(living.path());
    talk(&store, "in the log", 50);
    copy(living.path(), dir);
    assert!(!bytes(dir).1.is_empty());
}

/// Opening must fail without changing the files. Returns the error.
pub(crate) fn refusal(dir: &Path) -> StoreError {
    let before = bytes(dir);
    let error = try_open(dir).expect_err("it must not open");
    assert!(
        bytes(dir) == before,
        "a refused journal is left as it was: {error}"
    );
    // A second attempt fails the same way, and changes nothing either.
    assert_eq!(try_open(dir).unwrap_err().to_string(), error.to_string());
    assert!(bytes(dir) == before, "the second look changed it: {error}");
    error
}

/// The store must accept a new session and return it.
pub(crate) fn must_work(store: &dyn Store) {
    let (mut chat, begin) = Chat::begin(&key("t", "it works"), Generation::new(999, 999), 999);
    must_write(store, [begin, chat.append("u a", 1_000)]);
    assert_eq!(known(store, &chat.key).unwrap().head, *chat.session.head());
    must_write(store, [chat.end(1_001)]);
}
