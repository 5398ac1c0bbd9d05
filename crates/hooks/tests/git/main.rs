//! Checkpoints in git, looked at with git itself.

mod commits;
mod kit;
mod packs;
