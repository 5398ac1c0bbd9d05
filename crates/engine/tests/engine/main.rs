//! What the engine promises, asked of its public methods: over a journal that can be made
//! to fail or to wait, on a clock that only the tests move, with the store in line, so
//! that what happens in between is chosen and not hoped for.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]

mod bot;
mod cancel;
mod caps;
mod clock;
mod cluster;
mod commits;
mod compaction;
mod durability;
mod erasures;
mod events;
mod failures;
mod hooks;
mod keys;
mod kit;
mod listing;
mod lives;
mod memory;
mod options;
mod parts;
mod readers;
mod recall_tool;
mod reconfigure;
mod record;
mod restart;
mod rewind;
#[path = "../../../../tests/suite/harness/seeds.rs"]
mod seeds;
mod simulation;
mod store;
mod updates;
mod waits;
mod windows;
