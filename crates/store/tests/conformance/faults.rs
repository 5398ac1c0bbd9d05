//! The journal on disk, and what disks and operators do to it: it is opened only when
//! it is whole, it is never made worse, and what was acknowledged is still in it.

mod ahead;
mod compaction;
mod crash;
mod damage;
mod fold;
mod full;
mod migration;
mod opening;
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

/// Looks into the file past the store.
pub(crate) fn raw(dir: &Path) -> Connection {
    Connection::open(dir.join("journal.db")).unwrap()
}

pub(crate) fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// The bytes of the journal and of its log; no log is as good as an empty one.
pub(crate) fn bytes(dir: &Path) -> (Vec<u8>, Vec<u8>) {
    let log = fs::read(dir.join("journal.db-wal")).unwrap_or_default();
    (fs::read(dir.join("journal.db")).unwrap_or_default(), log)
}

/// Copies journal and log as they are now: what a power cut would leave.
pub(crate) fn copy(from: &Path, to: &Path) {
    for file in ["journal.db", "journal.db-wal"] {
        if from.join(file).exists() {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
    }
}

/// A chat with turns, some of which its history dropped.
pub(crate) fn talk(store: &dyn Store, session: &str, at: u64) -> Chat {
    let mut chat = begun(store, session, at);
    for round in 0..40 {
        let turns = chat.append("u a+x t-x a u a a a", at + round);
        must_write(store, [turns, chat.patch(r#"{"a":1}"#, at + round)]);
    }
    chat
}

/// A journal that was closed in peace: one file of many pages.
pub(crate) fn at_rest(dir: &Path) {
    let store = open(dir);
    for at in 1..8 {
        let chat = talk(&store, &format!("s{at}"), at);
        if at % 3 == 0 {
            must_write(&store, [chat.end(100)]);
        }
    }
}

/// A journal with many pages and a log with some more, as a crash leaves it.
pub(crate) fn after_a_crash(dir: &Path) {
    let living = tempfile::tempdir().unwrap();
    at_rest(living.path());
    let store = open(living.path());
    talk(&store, "in the log", 50);
    copy(living.path(), dir);
    assert!(!bytes(dir).1.is_empty());
}

/// Opening must fail and change nothing; gives why it failed.
pub(crate) fn refusal(dir: &Path) -> StoreError {
    let before = bytes(dir);
    let error = try_open(dir).expect_err("it must not open");
    assert!(
        bytes(dir) == before,
        "a refused journal is left as it was: {error}"
    );
    // Asked again, it says the same and still changes nothing.
    assert_eq!(try_open(dir).unwrap_err().to_string(), error.to_string());
    assert!(bytes(dir) == before, "the second look changed it: {error}");
    error
}

/// It takes a new session, and knows it afterwards.
pub(crate) fn must_work(store: &dyn Store) {
    let (mut chat, begin) = Chat::begin(&key("t", "it works"), Generation::new(999, 999), 999);
    must_write(store, [begin, chat.append("u a", 1_000)]);
    assert_eq!(known(store, &chat.key).unwrap().head, *chat.session.head());
    must_write(store, [chat.end(1_001)]);
}
