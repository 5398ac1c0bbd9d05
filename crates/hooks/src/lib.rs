//! Hooks that run when a session ends: checkpoints in git, programs, web services. Each
//! implements the engine's port [`Hook`](memoird_engine::Hook).

pub mod exec;
pub mod git;
pub mod payload;
mod spec;
mod text;
mod time;
pub mod webhook;

pub use spec::HookSpec;
