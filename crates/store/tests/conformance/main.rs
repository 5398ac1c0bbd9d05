//! What every store must do, asked of each of them through the `Store` trait; and what
//! the journal on disk must survive. The engine trusts a store blindly, so whatever it
//! relies on stands here: a store that passes may replace another.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]

mod ahead;
mod chat;
mod compaction;
mod cuts;
#[cfg(feature = "encryption")]
mod encryption;
mod ended;
mod erase;
mod faults;
mod journal;
mod keys;
mod kinds;
mod kit;
mod options;
mod outbox;
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
