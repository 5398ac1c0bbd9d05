//! Questions to a tenant's memories, all answered from one moment.

use std::marker::PhantomData;

use memoird_core::ids::{Generation, LeaseId, MemoryId, SessionId, Subject};
use memoird_core::memory::Memory;
use memoird_core::time::Timestamp;

use super::{
    Counts, DreamRow, Due, EmbeddingCounts, ExtractionCursor, ForgetCounts, ForgetFilter,
    ForgetJob, Lease, ListFilter, ManifestRows, RecallAsk, RecallLists,
};
use crate::StoreError;

/// One moment of a tenant's memories.
#[derive(Debug)]
pub struct MemoryReader<'a> {
    _of: PhantomData<&'a ()>,
}

type Answer<T> = Result<T, StoreError>;

impl MemoryReader<'_> {
    /// One memory, history and expired ones included; `None` when it is not there.
    pub fn get(&self, _id: MemoryId) -> Answer<Option<Memory>> {
        unimplemented!("…")
    }

    /// Memories in the order of their ids, at most so many.
    pub fn list(&self, _: &ListFilter, _limit: usize, _now: Timestamp) -> Answer<Vec<Memory>> {
        unimplemented!("…")
    }

    /// What fits a query, by words and by meaning.
    pub fn recall(&self, _ask: &RecallAsk) -> Answer<RecallLists> {
        unimplemented!("…")
    }

    /// What a subject's manifest is made of: its own memories and those of the team.
    pub fn manifest(&self, _: &Subject, _now: Timestamp, _max: usize) -> Answer<ManifestRows> {
        unimplemented!("…")
    }

    /// What a job that forgets would remove.
    pub fn forget_count(&self, _filter: &ForgetFilter) -> Answer<ForgetCounts> {
        unimplemented!("…")
    }

    /// The jobs that are not done, oldest first: whoever opens the file goes on with them.
    pub fn forget_jobs(&self) -> Answer<Vec<ForgetJob>> {
        unimplemented!("…")
    }

    /// The model whose vectors are used; `None`: none are made.
    pub fn embedding_model(&self) -> Answer<Option<String>> {
        unimplemented!("…")
    }

    /// How far the vectors of a model are.
    pub fn embedding_counts(&self, _model: &str, _now: Timestamp) -> Answer<EmbeddingCounts> {
        unimplemented!("…")
    }

    /// Texts that are due to be embedded by this model, those that wait longest first;
    /// none when the model is not the one whose vectors are used.
    pub fn embeddings_due(&self, _model: &str, _: Timestamp, _max: usize) -> Answer<Vec<Due>> {
        unimplemented!("…")
    }

    /// When the next text is due that is not due yet.
    pub fn embeddings_next_due(&self, _now: Timestamp) -> Answer<Option<Timestamp>> {
        unimplemented!("…")
    }

    /// Another current memory of the same subject and kind that says the same by its vector,
    /// with the same numbers and negations: the nearest. `None` as well when `id` is not
    /// current or has no vector.
    pub fn near_by_cosine(&self, _id: MemoryId, _: f32, _: Timestamp) -> Answer<Option<MemoryId>> {
        unimplemented!("…")
    }

    /// What recalls told a session since then, newest first.
    pub fn echoes(
        &self,
        _session: &SessionId,
        _since: Timestamp,
        _max: usize,
    ) -> Answer<Vec<(MemoryId, String)>> {
        unimplemented!("…")
    }

    /// How far a generation was extracted.
    pub fn cursor(&self, _: &SessionId, _: Generation) -> Answer<ExtractionCursor> {
        unimplemented!("…")
    }

    /// From when on turns of a subject may be extracted; `None`: all.
    pub fn not_before(&self, _subject: &Subject) -> Answer<Option<Timestamp>> {
        unimplemented!("…")
    }

    /// A lease that is not over.
    ///
    /// # Errors
    /// [`memoird_core::CoreError::LeaseLost`] as [`StoreError::Refused`].
    pub fn lease(&self, _id: LeaseId, _now: Timestamp) -> Answer<Lease> {
        unimplemented!("…")
    }

    /// The turns after this one in which the bot itself remembered something, ascending.
    pub fn remembered_seqs(
        &self,
        _session: &SessionId,
        _generation: Generation,
        _after_seq: u64,
    ) -> Answer<Vec<u64>> {
        unimplemented!("…")
    }

    /// Current memories after this one in the order of their ids, with their recalls.
    pub fn dream_page(
        &self,
        _after: Option<MemoryId>,
        _max: usize,
        _now: Timestamp,
    ) -> Answer<Vec<DreamRow>> {
        unimplemented!("…")
    }

    /// When the last dream sweep was done.
    pub fn dream_last_at(&self) -> Answer<Option<Timestamp>> {
        unimplemented!("…")
    }

    /// What is in the file.
    pub fn counts(&self, _now: Timestamp) -> Answer<Counts> {
        unimplemented!("…")
    }
}
