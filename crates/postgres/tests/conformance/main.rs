//! The suite that every store passes, over a real PostgreSQL, plus tests specific to PostgreSQL.
//!
//! These use several stores over one database, and commits without a reply.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]

#[path = "../../../store/tests/conformance/chat.rs"]
mod chat;
#[path = "../../../store/tests/conformance/compaction.rs"]
mod compaction;
#[path = "../../../store/tests/conformance/cuts.rs"]
mod cuts;
#[path = "../../../store/tests/conformance/ended.rs"]
mod ended;
#[path = "../../../store/tests/conformance/ended_list.rs"]
mod ended_list;
mod ended_plans;
#[path = "../../../store/tests/conformance/erase.rs"]
mod erase;
#[path = "../../../store/tests/conformance/journal.rs"]
mod journal;
#[path = "../../../store/tests/conformance/keys.rs"]
mod keys;
mod kinds;
#[path = "../../../store/tests/conformance/kit.rs"]
mod kit;
mod late;
mod leaders;
mod loads;
mod migrate;
#[path = "../../../store/tests/model/mod.rs"]
mod model;
#[path = "../../../store/tests/conformance/options.rs"]
mod options;
#[path = "../../../store/tests/conformance/outbox.rs"]
mod outbox;
mod proxy;
#[path = "../../../store/tests/conformance/prune.rs"]
mod prune;
#[path = "../../../store/tests/conformance/rewind.rs"]
mod rewind;
#[path = "../../../../tests/suite/harness/seeds.rs"]
mod seeds;
mod server;
#[path = "../../../store/tests/conformance/sessions.rs"]
mod sessions;
#[path = "../../../store/tests/conformance/sets.rs"]
mod sets;
mod start;
mod together;
#[path = "../../../store/tests/conformance/update.rs"]
mod update;
mod verify;
#[path = "../../../store/tests/conformance/walk.rs"]
mod walk;
#[path = "../../../store/tests/conformance/written.rs"]
mod written;

/// Helpers for those tests of the suite that use files.
mod faults {
    use std::fs;
    use std::path::Path;

    use memoird_store::{SqliteOptions, SqliteStore, StoreError};

    pub(crate) fn open(dir: &Path) -> SqliteStore {
        loop {
            match SqliteStore::open(dir, SqliteOptions::default()) {
                // A child process that another test just forked may hold the lock for a moment.
                Err(StoreError::DirInUse { .. }) => std::thread::yield_now(),
                opened => return opened.unwrap(),
            }
        }
    }

    pub(crate) fn bytes(dir: &Path) -> (Vec<u8>, Vec<u8>) {
        let read = |file: &str| fs::read(dir.join(file)).unwrap_or_default();
        (read("journal.db"), read("journal.db-wal"))
    }

    pub(crate) fn copy(from: &Path, to: &Path) {
        for file in ["journal.db", "journal.db-wal"] {
            if from.join(file).exists() {
                fs::copy(from.join(file), to.join(file)).unwrap();
            }
        }
    }
}
