//! Requests to a tenant's memories, and their results, as plain data.

use std::collections::HashMap;
use std::sync::Arc;

use memoird_core::idempotency::{Fingerprint, IdempotencyKey};
use memoird_core::ids::{Generation, LeaseId, MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;

use crate::requests::ForgetOutcome;
use crate::rules::fusion::Ranked;
use crate::rules::{Fact, Memory};

/// The lists of a recall, best first, before they are fused.
#[derive(Clone, Debug, Default)]
pub struct RecallLists {
    /// By words.
    pub lexical: Vec<Ranked<MemoryId>>,
    /// By meaning; the score is the cosine.
    pub vector: Vec<Ranked<MemoryId>>,
    /// The memories of both lists, and those that were said right before and after the best.
    pub memories: HashMap<MemoryId, Memory>,
    /// About how many memories were searched.
    pub searched: u64,
    /// How all of them are judged.
    pub scores: HashMap<MemoryId, Scores>,
    /// Two of them that were said one right after the other, the first one first.
    pub said_after: Vec<(MemoryId, MemoryId)>,
}

/// How a memory is judged, whatever found it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// By words; 0: none of the query's is there.
    pub words: f64,
    /// Share of the query's weight that its words cover, from 0 to 1.
    pub coverage: f64,
    /// By meaning; `None` without a vector of the query's model, of the query or of the memory.
    pub cosine: Option<f64>,
    /// How many words it has.
    pub length: usize,
}

/// The memories of a manifest.
#[derive(Clone, Debug, Default)]
pub struct ManifestRows {
    /// Pinned ones first, then by importance, then the newest.
    pub memories: Vec<Memory>,
    /// How many there are in all.
    pub total: u64,
    /// When the first of all of them expires: until then, and until something is written,
    /// the manifest stays as it is.
    pub expires_at: Option<Timestamp>,
}

/// A text that is due to be embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Which memory's.
    pub id: MemoryId,
    /// The text.
    pub content: String,
    /// Changes with the text; give it back with the vector.
    pub revision: i64,
    /// Tries so far.
    pub tries: u32,
}

/// A lease of turns that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// Whose turns.
    pub session: SessionId,
    /// Of which life.
    pub generation: Generation,
    /// Whose memories they become.
    pub subject: Subject,
    /// The turns after this one,
    pub after_seq: u64,
    /// up to this one.
    pub to_seq: u64,
    /// When it is over.
    pub until: Timestamp,
}

/// How far a generation's turns were extracted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtractionCursor {
    /// The last turn that was; 0: none.
    pub seq: u64,
    /// The lease that runs, or ran out and was not counted yet.
    pub lease: Option<Lease>,
    /// Failures since the last success.
    pub failures: u32,
    /// When the last one failed.
    pub failed_at: Option<Timestamp>,
    /// Turns from before this moment are not extracted: their subject was forgotten then.
    pub not_before: Option<Timestamp>,
}

/// A text's vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// The model that made it.
    pub model: Arc<str>,
    /// The vector; its length does not matter, but [`Self::is_measurable`].
    pub values: Vec<f32>,
}

impl Embedding {
    /// True where cosines to this vector can be computed, in its own precision: it is finite, and
    /// the square of its length is neither too small nor too large.
    pub(crate) fn is_measurable(values: &[f32]) -> bool {
        let squares = values.iter().map(|value| value * value);
        squares.sum::<f32>().is_normal()
    }
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

/// The event of a recall.
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
