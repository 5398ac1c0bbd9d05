//! Tests of git checkpoints, verified with the git command.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]

mod bad_days;
mod commits;
mod erasing;
mod erasing_steps;
mod kit;
mod packs;
mod reading;
#[path = "../../../../tests/suite/harness/skip.rs"]
mod skip;
