//! Long-term memory: what outlives a session. Facts are promoted, found again, handed to
//! models, and forgotten.
//!
//! [`rules`] decides what a memory is, [`store`] keeps memories, in a SQLite file for each tenant or
//! in the database of the journal, and [`Memories`] serves calls and runs the workers. Sessions are
//! the engine's: memories read turns from it, and give it the memories of a window through its port.

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

use memoird_store::locked;

pub use config::{After, ExtractionConfig, MemoriesConfig};
pub use counters::MemorySnapshot;
pub use embedder::{Embedder, Embeddings, Purpose};
pub use error::{FileError, MemoryError};
pub use extractor::{Extractor, ExtractorAnswer, ExtractorFuture, ExtractorRequest};
pub use requests::{
    Conflict, Conflicts, ExtractedFact, ExtractionLease, ExtractionOutcome, ForgetOutcome,
    ForgetRequest, LearnOutcome, LearnedEntry, ListRequest, MemoryFilter, MemoryPage, MemoryStats,
    RecallHit, RecallMode, RecallOutcome, RecallRequest, RememberOutcome, RememberRequest,
    SubjectPage,
};
pub use reranker::{Reranker, Reranking};
pub use service::{Memories, RecallForWindow};
