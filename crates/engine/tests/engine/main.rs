//! Tests of the engine's public API.
//!
//! The journal can fail or block on demand and the clock is under test control. The store runs
//! inline by default, so tests choose interleavings instead of hoping for them.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]

mod affinity;
mod bot;
mod cancel;
mod clock;
mod cluster;
mod cluster_keys;
mod commits;
mod compaction;
mod durability;
mod ended_list;
mod erasures;
mod events;
mod evict;
mod failures;
mod hooks;
mod keys;
mod kit;
mod large_appends;
mod late_repeats;
mod lifecycle;
mod listing;
mod memory;
#[path = "../../../store/tests/model/mod.rs"]
mod model;
mod options;
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
mod uncommitted;
mod updates;
mod windows;
