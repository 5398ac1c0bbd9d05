//! Long-term memory: facts that outlive their session.
//!
//! [`rules`] defines memories as pure functions. [`store`] persists them, in one SQLite file per
//! tenant or in the journal's PostgreSQL database. [`Memories`] serves the calls and runs the
//! workers. The engine owns sessions: this crate reads turns from it, and supplies recalled
//! memories for windows through its `WindowMemories` port.

mod config;
mod counters;
mod embedder;
mod error;
mod extractor;
mod requests;
mod reranker;
pub mod rules;
mod service;
pub mod store;
mod workers;

use memoird_store::lock;

pub use config::{After, ExtractionConfig, MemoriesConfig};
pub use counters::MemorySnapshot;
pub use embedder::{Embedder, Embeddings, Purpose};
pub use error::{FileError, MemoryError};
pub use extractor::{Extractor, ExtractorFuture, ExtractorReply, ExtractorRequest};
pub use requests::{
    Conflict, Conflicts, ExtractedFact, ExtractionLease, ExtractionOutcome, ForgetOutcome,
    ForgetRequest, LearnOutcome, LearnedEntry, ListRequest, MemoryFilter, MemoryPage, MemoryStats,
    RecallHit, RecallMode, RecallOutcome, RecallRequest, RememberOutcome, RememberRequest,
    SubjectPage,
};
pub use reranker::{Reranker, Reranking};
pub use service::{Documents, Facts, Forgetting, Learning, Memories, Recall, RecallForWindow};
pub use workers::Consolidation;
