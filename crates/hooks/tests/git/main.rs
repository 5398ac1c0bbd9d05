//! Checkpoints in git, looked at with git itself.

mod bad_days;
mod commits;
mod kit;
mod packs;
mod reading;
mod worktree;
