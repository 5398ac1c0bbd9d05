//! What outlives a session: memories are promoted, found, handed to models, forgotten.
//!
//! Each tenant's memories are in a file of their own. All its writes go through one lane
//! ([`lane`]), in groups; reads go past it.

mod asks;

use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::{LeaseId, MemoryId, SessionId, Subject, TenantId};
use memoird_core::memory::{Memory, MemoryLimits, Patch};

use crate::embedder::Embedder;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::tenant::Tenant;

pub use asks::{
    ExtractedFact, ExtractionLease, ExtractionOutcome, ForgetAsk, ForgetOutcome, MemoryFilter,
    MemoryPage, MemoryQuery, MemoryStats, RecallAsk, RecallHit, RecallMode, RecallOutcome,
    RememberAsk, RememberOutcome, SourceAsk,
};

/// What an operator decides of memories.
#[derive(Clone, Debug)]
pub struct LongTermConfig {
    /// What clients may keep and ask.
    pub limits: MemoryLimits,
    /// Hits of a recall that names no number.
    pub recall_limit: usize,
    /// Tokens that the block of memories may use of a window.
    pub window_tokens: u64,
    /// From which cosine on two memories say the same; only with an embedder.
    pub near_cosine: f32,
    /// What turns texts into vectors; `None`: recall is lexical only.
    pub embedder: Option<Arc<dyn Embedder>>,
    /// How long a recall waits for the vector of its query before it goes by words only.
    pub query_wait: Duration,
    /// How long a lease of turns runs.
    pub lease: Duration,
    /// How often memories are consolidated; `None`: only when asked.
    pub dream_interval: Option<Duration>,
    /// How long a memory that has expired stays readable by its id.
    pub expired_kept: Duration,
}

impl Default for LongTermConfig {
    fn default() -> Self {
        Self {
            limits: MemoryLimits::default(),
            recall_limit: 8,
            window_tokens: 1_000,
            near_cosine: 0.95,
            embedder: None,
            query_wait: Duration::from_secs(1),
            lease: Duration::from_secs(300),
            dream_interval: Some(Duration::from_secs(24 * 60 * 60)),
            expired_kept: Duration::from_secs(30 * 24 * 60 * 60),
        }
    }
}

impl Engine {
    /// Promotes a fact; answers when it is on the disk.
    ///
    /// # Errors
    /// What the rules refuse, a source that is not there, a disk that cannot be written.
    pub async fn remember(
        &self,
        _tenant: &Arc<Tenant>,
        _ask: RememberAsk,
    ) -> Result<RememberOutcome, EngineError> {
        unimplemented!()
    }

    /// Finds memories.
    ///
    /// # Errors
    /// [`memoird_core::CoreError::MemoryInvalid`], a store that cannot be read.
    pub async fn recall(
        &self,
        _tenant: &Arc<Tenant>,
        _ask: RecallAsk,
    ) -> Result<RecallOutcome, EngineError> {
        unimplemented!()
    }

    /// One memory; with a subject only if that one may see it.
    ///
    /// # Errors
    /// [`memoird_core::CoreError::MemoryNotFound`].
    pub async fn memory(
        &self,
        _tenant: &Arc<Tenant>,
        _id: MemoryId,
        _subject: Option<Subject>,
    ) -> Result<Memory, EngineError> {
        unimplemented!()
    }

    /// A page of memories.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub async fn memories(
        &self,
        _tenant: &Arc<Tenant>,
        _query: MemoryQuery,
    ) -> Result<MemoryPage, EngineError> {
        unimplemented!()
    }

    /// Changes a memory; with a subject only if it is that one's. Says how many secrets were
    /// taken out.
    ///
    /// # Errors
    /// What the rules refuse.
    pub async fn update_memory(
        &self,
        _tenant: &Arc<Tenant>,
        _id: MemoryId,
        _subject: Option<Subject>,
        _patch: Patch,
    ) -> Result<(Memory, usize), EngineError> {
        unimplemented!()
    }

    /// Removes memories; with `dry_run` only counts them.
    ///
    /// # Errors
    /// [`memoird_core::CoreError::MemoryNotFound`] of one id, a disk that cannot be written:
    /// then what is left is removed later.
    pub async fn forget(
        &self,
        _tenant: &Arc<Tenant>,
        _ask: ForgetAsk,
        _dry_run: bool,
    ) -> Result<ForgetOutcome, EngineError> {
        unimplemented!()
    }

    /// What is known of a subject: text, lines, and whether a cap cut it off. 0: no cap but
    /// the limits.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub async fn manifest(
        &self,
        _tenant: &Arc<Tenant>,
        _subject: Subject,
        _lines_max: usize,
        _bytes_max: usize,
    ) -> Result<(Arc<str>, usize, bool), EngineError> {
        unimplemented!()
    }

    /// Hands out the turns in which nobody has looked for facts yet.
    ///
    /// # Errors
    /// [`memoird_core::CoreError::LeaseHeld`], a session that is not there.
    pub async fn lease_extraction(
        &self,
        _tenant: &Arc<Tenant>,
        _session: &SessionId,
        _generation: Option<memoird_core::ids::Generation>,
        _subject: Option<Subject>,
    ) -> Result<ExtractionLease, EngineError> {
        unimplemented!()
    }

    /// Stores what was found, and marks the turns as looked at.
    ///
    /// # Errors
    /// [`memoird_core::CoreError::LeaseLost`], what the rules refuse: then nothing is stored.
    pub async fn commit_extraction(
        &self,
        _tenant: &Arc<Tenant>,
        _lease: LeaseId,
        _facts: Vec<ExtractedFact>,
    ) -> Result<ExtractionOutcome, EngineError> {
        unimplemented!()
    }

    /// Stores memories as they are; says how many are new, and how many were there.
    ///
    /// # Errors
    /// What the rules refuse: then nothing is stored.
    pub async fn import_memories(
        &self,
        _tenant: &Arc<Tenant>,
        _memories: Vec<Memory>,
    ) -> Result<(u64, u64), EngineError> {
        unimplemented!()
    }

    /// Counts.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub async fn memory_stats(&self, _tenant: &Arc<Tenant>) -> Result<MemoryStats, EngineError> {
        unimplemented!()
    }

    /// Builds the indexes anew, in the background; says how many wait for an embedding.
    ///
    /// # Errors
    /// A store that cannot be written.
    pub async fn reindex_memories(&self, _tenant: &Arc<Tenant>) -> Result<u64, EngineError> {
        unimplemented!()
    }

    /// Consolidates the memories of one tenant, or of all; gives a report for each, a JSON
    /// object.
    ///
    /// # Errors
    /// A store that cannot be read or written.
    pub async fn dream(
        &self,
        _tenant: Option<&TenantId>,
        _dry_run: bool,
    ) -> Result<Vec<(TenantId, String)>, EngineError> {
        unimplemented!()
    }
}
