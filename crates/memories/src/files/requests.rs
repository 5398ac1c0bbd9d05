//! What is asked of a tenant's memories, and what is answered.

use std::collections::{HashMap, HashSet};

use memoird_core::ids::{Generation, LeaseId, MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;

use super::Embedding;
use crate::rules::fusion::Ranked;
use crate::rules::{Memory, MemoryKind};

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

/// What a recall found, best first, before the lists are fused.
#[derive(Clone, Debug, Default)]
pub struct RecallLists {
    /// By words.
    pub lexical: Vec<Ranked<MemoryId>>,
    /// By meaning; the score is the cosine.
    pub vector: Vec<Ranked<MemoryId>>,
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
