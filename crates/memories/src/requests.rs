//! Requests and their outcomes, as plain data.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::idempotency::IdempotencyKey;
use memoird_core::ids::{Generation, LeaseId, MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;

use crate::rules::conflicts::Difference;
use crate::rules::consolidation::Evidence;
use crate::rules::documents::DocumentFilter;
use crate::rules::extraction::Judged;
use crate::rules::fusion::ScoreParts;
use crate::rules::{Memory, MemoryKind, NearDuplicate, Outcome, Polarity, Source, Visibility};

/// A fact to be remembered, as a bot says it.
#[derive(Clone, Debug, PartialEq)]
pub struct RememberRequest {
    /// Whose it is; `None`: the subject of the source's session.
    pub subject: Option<Subject>,
    /// What it is about.
    pub kind: MemoryKind,
    /// Who may recall it.
    pub visibility: Visibility,
    /// Which way it points.
    pub polarity: Option<Polarity>,
    /// The fact; empty: the text of the source's turns.
    pub content: String,
    /// Labels.
    pub tags: Vec<String>,
    /// From 0 to 1; `None`: the default.
    pub importance: Option<f32>,
    /// Where it was said.
    pub source: Option<Source>,
    /// When it was so.
    pub observed_at: Option<Timestamp>,
    /// From when on it is not recalled.
    pub expires_at: Option<Timestamp>,
    /// The memory whose place it takes.
    pub supersedes: Option<MemoryId>,
    /// True: it comes first in the manifest.
    pub pinned: bool,
    /// How a fact is handled that a memory states already.
    pub near_duplicate: NearDuplicate,
    /// The same key with the same request is done once.
    pub key: Option<IdempotencyKey>,
    /// The name of the memory that it is from now on.
    pub external_key: Option<String>,
    /// What the bot notes of it: a JSON object.
    pub metadata: Option<String>,
    /// Its vector, where the bot made one.
    pub vector: Vec<f32>,
}

/// What became of a fact.
#[derive(Clone, Debug, PartialEq)]
pub struct RememberOutcome {
    /// The memory that now says it.
    pub memory: Memory,
    /// What became of the fact.
    pub outcome: Outcome,
    /// True when the idempotency key was known: nothing was done, the rest is the earlier
    /// answer.
    pub is_repetition: bool,
    /// What looked like secrets and was taken out.
    pub redacted: usize,
}

/// How a recall searches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecallMode {
    /// Hybrid where an embedder is configured, else lexical.
    #[default]
    Auto,
    /// By words and by meaning.
    Hybrid,
    /// By words.
    Lexical,
    /// By meaning.
    Vector,
}

/// Asks for memories.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecallRequest {
    /// The query, in words.
    pub query: String,
    /// Whose memories; empty: those of the session's subject. Those of the team are always included.
    pub subjects: Vec<Subject>,
    /// Which of them.
    pub kinds: Vec<MemoryKind>,
    /// Only those with all of these labels.
    pub tags: Vec<String>,
    /// Only those observed at or after this moment.
    pub after: Option<Timestamp>,
    /// Only those observed before this moment.
    pub before: Option<Timestamp>,
    /// The most hits; 0: as configured.
    pub limit: usize,
    /// How to search.
    pub mode: RecallMode,
    /// The session that is given the hits.
    pub session: Option<SessionId>,
    /// Only look: the recall leaves no trace.
    pub explain: bool,
    /// True: no reranker is asked.
    pub without_reranker: bool,
    /// Only those whose metadata fit.
    pub metadata: Option<DocumentFilter>,
    /// Also memories of all subjects whose ids begin so; empty: of no others.
    pub subject_prefix: String,
    /// The query's vector, where the bot made one.
    pub vector: Vec<f32>,
    /// Only hits with at least this [relevance](ScoreParts::relevance), from 0 to 1. `None`: in a
    /// window the default floor, elsewhere none.
    pub min_relevance: Option<f64>,
}

/// A memory that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct RecallHit {
    /// The memory.
    pub memory: Memory,
    /// How well it fits.
    pub score: f64,
    /// Its place among those found by words, from 1; 0: not among them.
    pub lexical_rank: u32,
    /// Its place among those found by meaning, from 1; 0: not among them.
    pub vector_rank: u32,
    /// How long ago it was observed.
    pub age: Duration,
    /// What its score is made of.
    pub parts: ScoreParts,
}

/// The memories of a recall, best first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecallOutcome {
    /// The hits.
    pub hits: Vec<RecallHit>,
    /// How it was searched; never [`RecallMode::Auto`] in an answer.
    pub mode: RecallMode,
    /// True when a reranker judged the best of them.
    pub is_reranked: bool,
    /// Why it was not searched as asked, for people; empty when it was.
    pub notes: Vec<String>,
}

/// Two memories of one subject that may contradict each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    /// The one that was observed first.
    pub older: Memory,
    /// The other one.
    pub newer: Memory,
    /// How alike they are, from 0 to 1.
    pub likeness: f64,
    /// In what they differ.
    pub difference: Difference,
}

/// Memories of one subject that may contradict each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conflicts {
    /// The most alike first.
    pub list: Vec<Conflict>,
    /// True when there are more, or older memories that were not looked at.
    pub is_truncated: bool,
}

/// Which memories to list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListRequest {
    /// Only of this subject.
    pub subject: Option<Subject>,
    /// Only of this kind.
    pub kind: Option<MemoryKind>,
    /// Only those with this label.
    pub tag: Option<String>,
    /// Also those that are history.
    pub include_history: bool,
    /// Only those whose metadata fit.
    pub metadata: Option<DocumentFilter>,
    /// Only of subjects whose ids begin so.
    pub subject_prefix: String,
    /// Only those behind this one.
    pub after: Option<MemoryId>,
    /// The most memories of one page.
    pub count: usize,
}

/// A page of memories, ordered by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryPage {
    /// The memories.
    pub memories: Vec<Memory>,
    /// Where the next page goes on; `None` on the last one.
    pub next: Option<MemoryId>,
}

/// A page of subjects, ordered by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectPage {
    /// Each with its memories that can be recalled.
    pub subjects: Vec<(Subject, u64)>,
    /// True on all pages but the last.
    pub has_more: bool,
}

/// Which memories: those that fit all that is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryFilter {
    /// Only of this subject.
    pub subject: Option<Subject>,
    /// Only of these kinds; empty: of all.
    pub kinds: Vec<MemoryKind>,
    /// Only those with all of these labels.
    pub tags: Vec<String>,
    /// Only those observed at or after this moment.
    pub after: Option<Timestamp>,
    /// Only those observed before this moment.
    pub before: Option<Timestamp>,
}

/// Which memories to forget.
#[derive(Clone, Debug, PartialEq)]
pub enum ForgetRequest {
    /// One memory, with what it superseded.
    One(MemoryId),
    /// The same, as long as this is what there is to say of its use.
    Unused(Evidence),
    /// All of a subject.
    Subject(Subject),
    /// All that fit.
    Filter(MemoryFilter),
    /// All that came from these.
    Sources(ForgetSources),
}

/// Where memories came from that are to be forgotten, whosever they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForgetSources {
    /// A session, in any of its lives.
    pub session: Option<SessionId>,
    /// Lives of sessions. At most [`ForgetSources::GENERATIONS_MAX`].
    pub generations: Vec<Generation>,
}

impl ForgetSources {
    /// The most generations of one request: they are written down with the job.
    pub const GENERATIONS_MAX: usize = 1_000;
}

/// Counts of removed rows, or in a dry run of those that would be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgetOutcome {
    /// Memories that could be recalled.
    pub memories: u64,
    /// Older versions.
    pub superseded: u64,
    /// Vectors.
    pub vectors: u64,
    /// Recall events.
    pub recall_events: u64,
    /// Texts that waited to be embedded.
    pub queued_embeddings: u64,
    /// Extraction cursors and leases.
    pub cursors: u64,
    /// True when nothing of it is left on the disk's pages either; in a database, as a row.
    pub erased: bool,
}

/// Turns to look for facts in.
#[derive(Clone, Debug, Default)]
pub struct ExtractionLease {
    /// `None` when there is nothing to look at.
    pub lease: Option<LeaseId>,
    /// The turns, encoded as they were when they arrived.
    pub turns: Vec<Arc<[u8]>>,
    /// The manifest of the subject.
    pub manifest: String,
    /// For a model.
    pub prompt: String,
    /// When the lease ends.
    pub expires_at: Timestamp,
    /// Which life of the session the turns are of.
    pub generation: Option<Generation>,
    /// The last turn that was looked at already; 0: none.
    pub cursor_seq: u64,
}

/// A fact that was found in leased turns.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtractedFact {
    /// The fact. Its subject and its source are those of the lease.
    pub fact: RememberRequest,
    /// The turns it was found in; empty: all of the lease.
    pub seqs: Vec<u64>,
}

/// What became of the facts of a lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtractionOutcome {
    /// The last turn that was looked at.
    pub cursor_seq: u64,
    /// For each fact, in their order.
    pub results: Vec<RememberOutcome>,
}

/// Counts of a tenant's memories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Those that can be recalled.
    pub memories: u64,
    /// Those that are history.
    pub superseded: u64,
    /// Subjects that have any.
    pub subjects: u64,
    /// Recall events that are kept.
    pub recall_events: u64,
    /// The embedder's model.
    pub embedding_model: Option<String>,
    /// Memories with a vector of this model.
    pub embedded: u64,
    /// Memories that wait for one.
    pub embedding_queued: u64,
    /// Memories whose embedding was given up.
    pub embedding_failed: u64,
    /// Memories whose words are to be indexed anew: until then they are found by the old index.
    pub words_queued: u64,
    /// The reranker, where one is configured.
    pub reranker: Option<String>,
    /// Documents that are kept.
    pub documents: u64,
    /// Bytes of their values, keys and namespaces.
    pub document_bytes: u64,
    /// Bytes of the file and its log.
    pub file_bytes: u64,
}

/// What a model found in the turns of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LearnOutcome {
    /// Which life of the session.
    pub generation: Option<Generation>,
    /// The turns that were looked at, first and last; `None`: there was nothing to look at.
    pub turns: Option<(u64, u64)>,
    /// The last turn that was looked at, before or now.
    pub cursor_seq: u64,
    /// The model.
    pub by: String,
    /// Tokens of the prompt and of the answer.
    pub tokens: (u64, u64),
    /// Each entry of its answer, in their order.
    pub entries: Vec<LearnedEntry>,
}

/// One entry of a model's answer, and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedEntry {
    /// What it says, and whether it is believed.
    pub judged: Judged,
    /// What became of it, where it is believed; of a dry run what would have.
    pub outcome: Option<RememberOutcome>,
}
