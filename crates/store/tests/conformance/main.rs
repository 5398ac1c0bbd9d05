//! Conformance suite for every `Store`, and fault tests of the journal on disk.
//!
//! The engine relies on everything tested here, so a store that passes can replace another.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]

mod chat;
mod compaction;
mod cuts;
#[cfg(feature = "encryption")]
mod encryption;
mod ended;
mod ended_list;
mod erase;
mod faults;
mod journal;
mod keys;
mod kinds;
mod kit;
#[path = "../model/mod.rs"]
mod model;
mod options;
mod outbox;
mod prewrite;
mod prune;
mod rewind;
#[path = "../../../../tests/suite/harness/seeds.rs"]
mod seeds;
mod sessions;
mod sets;
mod transfer;
mod update;
mod walk;
mod written;
