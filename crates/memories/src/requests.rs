//! Requests and outcomes of memory calls, as plain data.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::idempotency::IdempotencyKey;
use memoird_core::ids::{Generation, LeaseId, MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;

use crate::rules::conflicts::Difference;
use crate::rules::consolidation::Evidence;
use crate::rules::documents::DocumentFilter;
use crate::rules::extraction::CheckedEntry;
use crate::rules::fusion::ScoreParts;
use crate::rules::{Memory, MemoryKind, NearDuplicate, Outcome, Polarity, Source, Visibility};

/// A fact to remember, as sent by a bot.
#[derive(Clone, Debug, PartialEq)]
pub struct RememberRequest {
    /// Owner of the memory. `None` for the subject of the source's session.
    pub subject: Option<Subject>,
    pub kind: MemoryKind,
    /// Which recalls may return it.
    pub visibility: Visibility,
    /// Whether the fact is a correction or a confirmation, if it is feedback.
    pub polarity: Option<Polarity>,
    /// The fact. If empty, the text of the source's turns.
    pub content: String,
    pub tags: Vec<String>,
    /// From 0 to 1. `None` for the default.
    pub importance: Option<f32>,
    /// The turns that state the fact.
    pub source: Option<Source>,
    /// When the fact was true.
    pub observed_at: Option<Timestamp>,
    /// From this time on, recalls do not return it.
    pub expires_at: Option<Timestamp>,
    /// The memory to supersede.
    pub supersedes: Option<MemoryId>,
    /// Whether it comes first in the manifest.
    pub pinned: bool,
    /// How to handle a fact that an existing memory already states.
    pub near_duplicate: NearDuplicate,
    /// Idempotency key: an identical request with the same key is applied once.
    pub key: Option<IdempotencyKey>,
    /// The client's own name for the memory.
    pub external_key: Option<String>,
    /// Metadata of the bot, as a JSON object.
    pub metadata: Option<String>,
    /// Vector computed by the bot. Empty if it sent none.
    pub vector: Vec<f32>,
}

impl RememberRequest {
    /// A fact with defaults for all other fields.
    pub fn new(subject: Option<Subject>, kind: MemoryKind, content: impl Into<String>) -> Self {
        Self {
            subject,
            kind,
            visibility: Visibility::Private,
            polarity: None,
            content: content.into(),
            tags: Vec::new(),
            importance: None,
            source: None,
            observed_at: None,
            expires_at: None,
            supersedes: None,
            pinned: false,
            near_duplicate: NearDuplicate::default(),
            key: None,
            external_key: None,
            metadata: None,
            vector: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct RememberOutcome {
    /// The memory that now states the fact.
    pub memory: Memory,
    pub outcome: Outcome,
    /// Whether the idempotency key was already used.
    ///
    /// Nothing was done, and the other fields are those of the original outcome.
    pub is_repetition: bool,
    /// Number of secrets that were redacted.
    pub redacted: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecallMode {
    /// `Hybrid` if an embedder is configured, else `Lexical`.
    #[default]
    Auto,
    /// Lexical and vector search combined.
    Hybrid,
    /// Full-text search by words.
    Lexical,
    /// Similarity of embeddings.
    Vector,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecallRequest {
    pub query: String,
    /// Owners of the memories.
    ///
    /// Empty for the subject of the session. Team memories are always included.
    pub subjects: Vec<Subject>,
    /// Only memories of these kinds. Empty for all.
    pub kinds: Vec<MemoryKind>,
    /// Only memories with all of these tags.
    pub tags: Vec<String>,
    /// Only memories observed at or after this time.
    pub after: Option<Timestamp>,
    /// Only memories observed before this time.
    pub before: Option<Timestamp>,
    /// Maximum number of hits. 0 for the configured default.
    pub limit: usize,
    pub mode: RecallMode,
    /// The session that receives the hits.
    pub session: Option<SessionId>,
    /// Whether to leave no trace of the recall: no event is recorded.
    pub explain: bool,
    pub without_reranker: bool,
    pub metadata: Option<DocumentFilter>,
    /// Also memories of all subjects with this prefix. Empty for none.
    pub subject_prefix: String,
    /// Vector of the query, computed by the bot. Empty if it sent none.
    pub vector: Vec<f32>,
    /// Minimum [relevance](ScoreParts::relevance) of a hit, from 0 to 1.
    ///
    /// `None` applies the default floor in windows, and no minimum elsewhere.
    pub min_relevance: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RecallHit {
    pub memory: Memory,
    /// Fused score, which orders the hits.
    pub score: f64,
    /// Rank in the lexical search, from 1. 0 if the lexical search did not find it.
    pub lexical_rank: u32,
    /// Rank in the vector search, from 1. 0 if the vector search did not find it.
    pub vector_rank: u32,
    /// Time since it was observed.
    pub age: Duration,
    pub parts: ScoreParts,
}

/// Result of a recall, best hits first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecallOutcome {
    pub hits: Vec<RecallHit>,
    /// Mode that was used. Never [`RecallMode::Auto`] in a response.
    pub mode: RecallMode,
    /// Whether a reranker judged the best hits.
    pub is_reranked: bool,
    /// Why the search differs from the request, for people. Empty if it does not.
    pub notes: Vec<String>,
}

/// Two memories of one subject that may contradict each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    /// The memory that was observed first.
    pub older: Memory,
    /// The memory that was observed later.
    pub newer: Memory,
    /// Similarity of the two, from 0 to 1.
    pub likeness: f64,
    pub difference: Difference,
}

/// Possible contradictions among the memories of one subject.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conflicts {
    /// The most similar pairs first.
    pub list: Vec<Conflict>,
    /// Whether there are more pairs.
    pub has_more: bool,
    /// Whether there are older memories that were not compared.
    pub is_incomplete: bool,
}

/// Selects a page of memories. Unset fields do not restrict it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListRequest {
    pub subject: Option<Subject>,
    pub kind: Option<MemoryKind>,
    pub tag: Option<String>,
    /// Whether to include superseded and expired memories.
    pub include_history: bool,
    pub metadata: Option<DocumentFilter>,
    pub subject_prefix: String,
    /// Only memories after this id.
    pub after: Option<MemoryId>,
    /// Maximum number of memories in the page.
    pub count: usize,
}

/// A page of memories, ordered by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryPage {
    pub memories: Vec<Memory>,
    /// Cursor of the next page. `None` on the last page.
    pub next: Option<MemoryId>,
}

/// A page of subjects, ordered by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectPage {
    /// Subjects with their number of current memories.
    pub subjects: Vec<(Subject, u64)>,
    pub has_more: bool,
}

/// Selects the memories that match all conditions that are set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryFilter {
    pub subject: Option<Subject>,
    /// Only memories of these kinds. Empty for all.
    pub kinds: Vec<MemoryKind>,
    /// Only memories with all of these tags.
    pub tags: Vec<String>,
    /// Only memories observed at or after this time.
    pub after: Option<Timestamp>,
    /// Only memories observed before this time.
    pub before: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ForgetRequest {
    /// One memory, with the versions it superseded.
    One(MemoryId),
    /// The same, if its evidence of use is still unchanged.
    Unused(Evidence),
    Subject(Subject),
    Filter(MemoryFilter),
    Sources(ForgetSources),
}

/// Selects memories by source, regardless of the subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForgetSources {
    /// A session, in any of its generations.
    pub session: Option<SessionId>,
    /// Generations of sessions, at most [`ForgetSources::GENERATIONS_MAX`].
    pub generations: Vec<Generation>,
}

impl ForgetSources {
    /// Maximum number of generations per request. They are stored with the job.
    pub const GENERATIONS_MAX: usize = 1_000;
}

/// Number of removed rows. In a dry run, of rows that would be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgetOutcome {
    /// Current memories.
    pub memories: u64,
    /// Superseded versions.
    pub superseded: u64,
    pub vectors: u64,
    pub recall_events: u64,
    /// Texts queued for embedding.
    pub queued_embeddings: u64,
    /// Extraction cursors and leases.
    pub cursors: u64,
    /// Whether no trace is left on the disk's pages either. In a database, whether no row is left.
    pub erased: bool,
}

/// Turns leased for extraction.
#[derive(Clone, Debug, Default)]
pub struct ExtractionLease {
    /// `None` if there are no unread turns.
    pub lease: Option<LeaseId>,
    /// The turns, in the encoding they were appended with.
    pub turns: Vec<Arc<[u8]>>,
    pub manifest: String,
    pub prompt: String,
    pub expires_at: Timestamp,
    pub generation: Option<Generation>,
    /// Last turn that was already extracted; 0 if none.
    pub cursor_seq: u64,
}

/// A fact extracted from leased turns.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtractedFact {
    /// The fact. Its subject and source come from the lease.
    pub fact: RememberRequest,
    /// Seqs of the turns that state it. Empty for all turns of the lease.
    pub seqs: Vec<u64>,
}

/// Result of committing the facts of a lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtractionOutcome {
    /// Last extracted turn after the commit.
    pub cursor_seq: u64,
    /// One outcome per fact, in order.
    pub results: Vec<RememberOutcome>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Current memories.
    pub memories: u64,
    /// Superseded and expired memories.
    pub superseded: u64,
    pub subjects: u64,
    pub recall_events: u64,
    pub embedding_model: Option<String>,
    /// Memories with a vector of this model.
    pub embedded: u64,
    pub embedding_queued: u64,
    /// Memories that will not be embedded, after too many failures.
    pub embedding_failed: u64,
    /// Memories queued for reindexing of their words. Until then the old index finds them.
    pub words_queued: u64,
    pub reranker: Option<String>,
    pub documents: u64,
    /// Bytes of their values, keys and namespaces.
    pub document_bytes: u64,
    /// Bytes of the file and its WAL.
    pub file_bytes: u64,
}

/// Facts that the extraction model found in the turns of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LearnOutcome {
    pub generation: Option<Generation>,
    /// First and last seq of the extracted turns. `None` if there were no unread turns.
    pub turns: Option<(u64, u64)>,
    /// Last extracted turn, of this call or an earlier one.
    pub cursor_seq: u64,
    /// Name of the model.
    pub by: String,
    /// Tokens of the prompt and of the reply.
    pub tokens: (u64, u64),
    /// Entries of the reply, in order.
    pub entries: Vec<LearnedEntry>,
}

/// One entry of a model's reply, and its outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedEntry {
    /// The entry, and whether it passed validation.
    pub judged: CheckedEntry,
    /// Outcome if it passed validation. In a dry run, the outcome it would have had.
    pub outcome: Option<RememberOutcome>,
}
