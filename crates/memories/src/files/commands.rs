//! What is to be written into a tenant's memories, and what became of it.

use std::sync::Arc;

use memoird_core::idempotency::{Fingerprint, IdempotencyKey};
use memoird_core::ids::{MemoryId, SessionId};
use memoird_core::time::Timestamp;

use crate::requests::ForgetOutcome;
use crate::rules::Fact;

/// A text's vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// The model that made it.
    pub model: Arc<str>,
    /// The vector; its length does not matter, but is not zero.
    pub values: Vec<f32>,
}

/// A fact that is to be remembered.
#[derive(Clone, Debug)]
pub struct RememberCommand {
    /// The id of the memory, if it becomes one.
    pub id: MemoryId,
    /// The fact, checked.
    pub fact: Fact,
    /// The present.
    pub at: Timestamp,
    /// By which a repetition is known.
    pub key: Option<IdempotencyKey>,
    /// The newest turn of the fact's session and generation at that time: extraction need
    /// not look at turns in which the bot itself remembers.
    pub at_seq: Option<u64>,
    /// The content's vector, where it is known already.
    pub vector: Option<Embedding>,
    /// From this cosine on, with the same numbers and negations, two contents say the same.
    pub cosine_min: f32,
}

/// What became of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Written.
    pub added: u64,
    /// There already.
    pub skipped: u64,
}

/// One memory that a recall gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// Which.
    pub id: MemoryId,
    /// From 1.
    pub rank: u32,
    /// How well it fitted.
    pub score: f32,
}

/// What a recall gave.
#[derive(Clone, Debug)]
pub struct RecallEvent {
    /// When.
    pub at: Timestamp,
    /// To which session.
    pub session: Option<SessionId>,
    /// A digest of the query, never its text.
    pub query: Fingerprint,
    /// The memories.
    pub hits: Vec<Hit>,
}

/// How far a job that forgets has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgetProgress {
    /// All that it has done so far.
    pub counts: ForgetOutcome,
    /// True when nothing is left of it, the job included.
    pub is_done: bool,
}
