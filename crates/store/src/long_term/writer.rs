//! Orders to a tenant's memories, within the transaction of their job.

use std::ops::Deref;

use memoird_core::ids::{Generation, LeaseId, MemoryId, SessionId, Subject};
use memoird_core::memory::{Memory, MemoryLimits, Patch, Pin};
use memoird_core::time::Timestamp;

use super::{
    Embedding, ExtractionCursor, ForgetFilter, ForgetJob, ForgetProgress, Imported, Lease,
    LeaseAsk, MemoryReader, RecallEvent, Remembered, Remembering,
};
use crate::StoreError;

/// The transaction of a job; reads see what it wrote.
#[derive(Debug)]
pub struct MemoryWriter<'a> {
    reader: MemoryReader<'a>,
}

impl<'a> Deref for MemoryWriter<'a> {
    type Target = MemoryReader<'a>;

    fn deref(&self) -> &MemoryReader<'a> {
        &self.reader
    }
}

type Answer<T> = Result<T, StoreError>;

impl MemoryWriter<'_> {
    /// Makes a memory of a fact, or lets one that says it already take it in.
    ///
    /// # Errors
    /// As [`StoreError::Refused`]: `IdempotencyKeyReused`, `MemoryDuplicate`,
    /// `MemoryNotFound`, `MemorySuperseded`, `MemoriesFull`.
    pub fn remember(&self, _: &Remembering, _limits: &MemoryLimits) -> Answer<Remembered> {
        unimplemented!("…")
    }

    /// Changes a memory; with a subject only if it is that subject's.
    ///
    /// # Errors
    /// As [`StoreError::Refused`]: `MemoryNotFound`, `MemorySuperseded`, `MemoryInvalid`.
    pub fn update(
        &self,
        _id: MemoryId,
        _subject: Option<&Subject>,
        _patch: &Patch,
        _at: Timestamp,
        _limits: &MemoryLimits,
    ) -> Answer<Memory> {
        unimplemented!("…")
    }

    /// Takes memories in as they are. Those that are there to the letter are skipped.
    ///
    /// # Errors
    /// As [`StoreError::Refused`]: `MemoryInvalid` when one is there with other content,
    /// `MemoriesFull`.
    pub fn import(&self, _memories: &[Memory], _limits: &MemoryLimits) -> Answer<Imported> {
        unimplemented!("…")
    }

    /// Remembers what a recall gave. Memories that are gone meanwhile are left out.
    pub fn record_recall(&self, _event: &RecallEvent, _limits: &MemoryLimits) -> Answer<()> {
        unimplemented!("…")
    }

    /// Says whose vectors are used from now on; `None`: none. Vectors of another model are
    /// not used any more. True when it changed: then [`Self::backfill`] has work.
    pub fn set_embedding_model(&self, _model: Option<&str>) -> Answer<bool> {
        unimplemented!("…")
    }

    /// Queues memories that have no vector of the model in use, and deletes vectors of
    /// others: looks at so many memories, and gives how many are left to be looked at.
    pub fn backfill(&self, _max: usize, _at: Timestamp) -> Answer<u64> {
        unimplemented!("…")
    }

    /// Begins to index everything anew: [`Self::reindex_step`] does it.
    pub fn reindex_begin(&self) -> Answer<()> {
        unimplemented!("…")
    }

    /// Indexes so many memories anew, and queues them to be embedded again; gives how many
    /// are left. Texts that were given up are tried again.
    pub fn reindex_step(&self, _max: usize, _at: Timestamp) -> Answer<u64> {
        unimplemented!("…")
    }

    /// Stores a vector. False when the text, or the model in use, changed meanwhile: then
    /// it is not stored.
    ///
    /// # Errors
    /// [`StoreError::DimensionMismatch`].
    pub fn embedded(&self, _id: MemoryId, _revision: i64, _: &Embedding) -> Answer<bool> {
        unimplemented!("…")
    }

    /// Says that a text could not be embedded; it is due again then, or given up.
    pub fn embed_failed(
        &self,
        _id: MemoryId,
        _revision: i64,
        _problem: &str,
        _due: Timestamp,
        _give_up: bool,
    ) -> Answer<()> {
        unimplemented!("…")
    }

    /// Lets the newer of two memories of a subject take the place of the older. False when
    /// one of them is not current any more.
    pub fn merge(&self, _older: MemoryId, _newer: MemoryId, _at: Timestamp) -> Answer<bool> {
        unimplemented!("…")
    }

    /// Begins to forget. What is remembered from now on is not touched.
    ///
    /// # Errors
    /// As [`StoreError::Refused`]: `MemoryNotFound`, of one memory.
    pub fn forget_begin(
        &self,
        _job: MemoryId,
        _filter: &ForgetFilter,
        _at: Timestamp,
    ) -> Answer<ForgetJob> {
        unimplemented!("…")
    }

    /// Goes on with a job: removes about so many rows. A job that is not there is done.
    pub fn forget_step(&self, _job: MemoryId, _rows_max: usize) -> Answer<ForgetProgress> {
        unimplemented!("…")
    }

    /// Leases the turns after the cursor. A lease that ran out counts as a failure.
    ///
    /// # Errors
    /// As [`StoreError::Refused`]: `LeaseHeld`.
    pub fn take_lease(&self, _ask: &LeaseAsk) -> Answer<ExtractionCursor> {
        unimplemented!("…")
    }

    /// Ends a lease with success: the cursor stands at its last turn.
    ///
    /// # Errors
    /// As [`StoreError::Refused`]: `LeaseLost`.
    pub fn commit_extraction(&self, _lease: LeaseId, _now: Timestamp) -> Answer<Lease> {
        unimplemented!("…")
    }

    /// Ends a lease without: the cursor stays. Nothing when the lease is not there.
    pub fn fail_extraction(&self, _lease: LeaseId, _now: Timestamp) -> Answer<()> {
        unimplemented!("…")
    }

    /// Moves the cursor on where nothing is to be extracted; never back.
    ///
    /// # Errors
    /// As [`StoreError::Refused`]: `LeaseHeld`.
    pub fn skip_turns(
        &self,
        _session: &SessionId,
        _generation: Generation,
        _subject: &Subject,
        _to_seq: u64,
        _now: Timestamp,
    ) -> Answer<()> {
        unimplemented!("…")
    }

    /// Forgets cursors that nobody moved since then, at most so many; gives how many.
    pub fn prune_cursors(&self, _before: Timestamp, _max: usize) -> Answer<usize> {
        unimplemented!("…")
    }

    /// Pins memories that are not; gives how many.
    pub fn pin(&self, _ids: &[MemoryId], _pin: Pin) -> Answer<usize> {
        unimplemented!("…")
    }

    /// Takes pins of the dream sweep away, never the bot's; gives how many.
    pub fn unpin(&self, _ids: &[MemoryId]) -> Answer<usize> {
        unimplemented!("…")
    }

    /// Says when a dream sweep was done.
    pub fn set_dream_last_at(&self, _at: Timestamp) -> Answer<()> {
        unimplemented!("…")
    }

    /// Removes memories that expired before this moment, with the history that leads to
    /// them, about so many; gives how many.
    pub fn expire_step(&self, _expired_before: Timestamp, _max: usize) -> Answer<usize> {
        unimplemented!("…")
    }
}
