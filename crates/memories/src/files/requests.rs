//! What is asked of a tenant's memories, and what is answered.

use std::collections::{HashMap, HashSet};

use crate::rules::{Memory, MemoryKind};
use memoird_core::ids::{Generation, LeaseId, MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;

use super::Embedding;

/// Which memories a list holds.
#[derive(Clone, Debug, Default)]
pub struct ListFilter {
    /// Only this subject's own, whoever may recall them.
    pub subject: Option<Subject>,
    /// Only of this kind.
    pub kind: Option<MemoryKind>,
    /// Only with this label.
    pub tag: Option<String>,
    /// Those that are history as well.
    pub include_superseded: bool,
    /// Those whose time is over as well.
    pub include_expired: bool,
    /// Only ids after this one.
    pub after: Option<MemoryId>,
}

/// What a recall looks for. What is found is of the subjects named, or TEAM, and current.
#[derive(Clone, Debug)]
pub struct Search {
    /// The words; empty: no list by words.
    pub query: String,
    /// The query's vector; `None`: no list by meaning.
    pub vector: Option<Embedding>,
    /// Whose private memories are looked at beside those of the team.
    pub subjects: Vec<Subject>,
    /// Only of these kinds; empty: of any.
    pub kinds: Vec<MemoryKind>,
    /// Only with all of these labels.
    pub tags: Vec<String>,
    /// Only observed at this moment or later.
    pub observed_after: Option<Timestamp>,
    /// Only observed before this moment.
    pub observed_before: Option<Timestamp>,
    /// The length of each list.
    pub depth: usize,
    /// The present.
    pub now: Timestamp,
}

/// A memory's place in one list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Which memory.
    pub id: MemoryId,
    /// How well it fits: in one list more is better.
    pub score: f64,
}

/// What a recall found, best first, before the lists are fused.
#[derive(Clone, Debug, Default)]
pub struct RecallLists {
    /// By words.
    pub lexical: Vec<Scored>,
    /// By meaning; the score is the cosine.
    pub vector: Vec<Scored>,
    /// The memories of both lists.
    pub memories: HashMap<MemoryId, Memory>,
    /// Those of them that have a vector of the query's model; empty without a query's vector.
    pub embedded: HashSet<MemoryId>,
}

/// What a manifest is made of.
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

/// Which memories are to be forgotten. History that leads to one of them goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForgetFilter {
    /// One.
    One {
        /// Which.
        id: MemoryId,
        /// It must be this subject's; `None`: anybody's.
        subject: Option<Subject>,
    },
    /// All that is this subject's.
    Subject(Subject),
    /// All that pass, history included.
    Matching {
        /// Only this subject's.
        subject: Option<Subject>,
        /// Only of these kinds; empty: of any.
        kinds: Vec<MemoryKind>,
        /// Only with all of these labels.
        tags: Vec<String>,
        /// Only observed at this moment or later.
        observed_after: Option<Timestamp>,
        /// Only observed before this moment.
        observed_before: Option<Timestamp>,
    },
}

/// What was forgotten, or would be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgetCounts {
    /// Memories that were no history.
    pub memories: u64,
    /// Memories that were history.
    pub superseded: u64,
    /// Vectors.
    pub vectors: u64,
    /// What recalls said of them.
    pub recall_events: u64,
    /// Texts that waited to be embedded.
    pub queued_embeddings: u64,
    /// Extractions whose place was wiped.
    pub cursors: u64,
}

/// A job that forgets, as it stands on disk until it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForgetJob {
    /// Its id.
    pub id: MemoryId,
    /// When it began.
    pub at: Timestamp,
    /// What it did so far.
    pub counts: ForgetCounts,
}

/// How far a model's vectors are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmbeddingCounts {
    /// Memories that may be recalled.
    pub memories: u64,
    /// Of these, those with a vector of the model.
    pub embedded: u64,
    /// Texts that wait, with those that are still to be queued, about.
    pub queued: u64,
    /// Texts that were given up.
    pub failed: u64,
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
    /// Turns from before this moment are not extracted: what they said was forgotten.
    pub not_before: Option<Timestamp>,
}

/// What is in a tenant's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Memories, history included.
    pub memories: u64,
    /// Of these, history.
    pub superseded: u64,
    /// Of these, no history, but expired.
    pub expired: u64,
    /// Subjects that have any.
    pub subjects: u64,
    /// Hits of recalls that are remembered.
    pub recall_events: u64,
    /// The file and its log, in bytes.
    pub file_bytes: u64,
}

/// A memory with what recalls say of it.
#[derive(Clone, Debug, PartialEq)]
pub struct DreamRow {
    /// The memory.
    pub memory: Memory,
    /// When it was last pinned or unpinned; `None`: never, or nobody knows.
    pub pin_changed_at: Option<Timestamp>,
    /// Recalls among the remembered events.
    pub recalls: u64,
    /// Of different queries.
    pub queries: u64,
    /// On different days (UTC).
    pub days: u64,
    /// The last one.
    pub last: Option<Timestamp>,
    /// The mean of the scores.
    pub score_mean: f64,
}
