//! Hooks that run when a session ends: git checkpoints, programs and webhooks.
//!
//! Each implements the engine's port [`Hook`](memoird_engine::Hook).

pub mod exec;
pub mod git;
pub mod payload;
mod spec;
mod text;
mod time;
pub mod webhook;

pub use spec::HookSpec;
