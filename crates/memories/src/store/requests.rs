//! Requests to a tenant's memories and their results, as plain data.

use std::sync::Arc;

use memoird_core::idempotency::{Fingerprint, IdempotencyKey};
use memoird_core::ids::{Generation, LeaseId, MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;

use crate::requests::{ForgetOutcome, RememberRequest};
use crate::rules::{IMPORTANCE_DEFAULT, Memory, NearDuplicate, Origin, Pin};

/// A text that is due to be embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The memory that it belongs to.
    pub id: MemoryId,
    pub content: String,
    /// Changes with the text. Pass it back with the vector.
    pub revision: i64,
    pub tries: u32,
}

/// An active lease of turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    pub session: SessionId,
    pub generation: Generation,
    /// Owner of the extracted memories.
    pub subject: Subject,
    /// The lease starts after this turn.
    pub after_seq: u64,
    /// Last turn of the lease.
    pub to_seq: u64,
    pub until: Timestamp,
}

/// Extraction state of a generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtractionCursor {
    /// Last extracted turn; 0 if none.
    pub seq: u64,
    /// The lease, which may have expired.
    pub lease: Option<Lease>,
    /// Failures since the last success.
    pub failures: u32,
    pub failed_at: Option<Timestamp>,
    /// Turns before this time are not extracted, because their subject was forgotten then.
    pub not_before: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    pub model: Arc<str>,
    /// Of any length for which [`Self::is_measurable`] holds.
    pub values: Vec<f32>,
}

impl Embedding {
    /// Whether cosines to this vector can be computed in `f32`.
    ///
    /// All values must be finite, and the square of its length neither too small nor too large.
    pub(crate) fn is_measurable(values: &[f32]) -> bool {
        let squares = values.iter().map(|value| value * value);
        squares.sum::<f32>().is_normal()
    }
}

/// A fact to store, as the memory that it becomes if no existing one states it.
#[derive(Clone, Debug)]
pub struct RememberCommand {
    /// The validated memory. `updated_at` is the time of the write.
    pub memory: Memory,
    pub supersedes: Option<MemoryId>,
    pub near_duplicate: NearDuplicate,
    pub key: Option<IdempotencyKey>,
    /// Newest turn of the fact's session and generation at that time.
    ///
    /// Extraction skips turns up to the last one from which the bot itself remembered a fact.
    pub at_seq: Option<u64>,
    /// Vector of the content, if already known.
    pub vector: Option<Embedding>,
    /// Minimum cosine of near-duplicates, which must also have almost the same words.
    pub cosine_min: f32,
    /// Number of redacted secrets.
    pub redacted: usize,
}

impl RememberCommand {
    /// A command of a bot, before validation. `at` is the time of the write.
    pub fn new(
        request: RememberRequest,
        subject: Subject,
        id: MemoryId,
        at: Timestamp,
        cosine_min: f32,
    ) -> Self {
        let memory = Memory {
            id,
            subject,
            kind: request.kind,
            visibility: request.visibility,
            polarity: request.polarity,
            content: request.content,
            tags: request.tags,
            importance: request.importance.unwrap_or(IMPORTANCE_DEFAULT),
            source: request.source,
            observed_at: request.observed_at.unwrap_or(at),
            created_at: at,
            updated_at: at,
            expires_at: request.expires_at,
            superseded_by: None,
            reinforced: 0,
            recalls: 0,
            recalled_at: None,
            pin: request.pinned.then_some(Pin::Bot),
            origin: Origin::Bot,
            external_key: request.external_key,
            metadata: request.metadata,
        };
        Self {
            memory,
            supersedes: request.supersedes,
            near_duplicate: request.near_duplicate,
            key: request.key,
            at_seq: None,
            vector: None,
            cosine_min,
            redacted: 0,
        }
    }

    pub(super) fn at(&self) -> Timestamp {
        self.memory.updated_at
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub added: u64,
    pub skipped: u64,
}

/// A memory returned by a recall.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    pub id: MemoryId,
    /// From 1.
    pub rank: u32,
    pub score: f32,
}

#[derive(Clone, Debug)]
pub struct RecallEvent {
    pub at: Timestamp,
    /// The session that received the memories.
    pub session: Option<SessionId>,
    /// Digest of the query. The text is never stored.
    pub query: Fingerprint,
    pub hits: Vec<Hit>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgetProgress {
    /// Rows deleted so far.
    pub counts: ForgetOutcome,
    /// Whether the job has completed and its record was deleted.
    pub is_done: bool,
}
