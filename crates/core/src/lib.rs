//! The rules of memoird as pure functions.
//!
//! They decide what a command changes in a session: its history, windows, compaction, state and
//! idempotency keys. Time, randomness and limits are arguments. The crate uses no clock, files,
//! locks or wire formats, so the same state and command always yield the same result.

pub mod breaker;
pub mod budget;
pub mod change;
pub mod compaction;
pub mod condense;
pub mod config;
pub mod date;
pub mod embedded_media;
pub mod error;
pub mod hex;
pub mod history;
pub mod idempotency;
pub mod ids;
pub mod json;
pub mod limits;
pub mod nonce;
pub mod options;
pub mod outbox;
pub mod quote;
pub mod recall_tool;
pub mod seq_ranges;
pub mod session;
pub mod sha256;
pub mod state;
pub mod ties;
pub mod time;
pub mod turn;
pub mod window;
pub mod words;

pub use error::CoreError;
