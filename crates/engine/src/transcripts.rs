//! What was said, whoever said it, in the order in which the journal took it: the port for an
//! index that follows the journal.

use memoird_core::ids::Generation;
use memoird_store::{GenerationOwner, TurnChange, WrittenTurn, WrittenTurns};

use crate::error::EngineError;
use crate::sessions::Sessions;
use crate::tenants::Tenant;

/// The journal as a follower reads it. Cheap to clone. It knows no tenants: whoever shows
/// something of it has to.
#[derive(Clone, Debug)]
pub struct Transcripts {
    sessions: Sessions,
}

impl Transcripts {
    pub(crate) fn new(sessions: Sessions) -> Self {
        Self { sessions }
    }

    /// True where there is a journal to follow.
    pub fn have_journal(&self) -> bool {
        self.sessions.have_journal()
    }

    /// Waits until every change of a tenant that was decided so far is written or refused. Gives
    /// how many batches [`Self::written_beyond`] counts up to the last of them.
    ///
    /// # Errors
    /// With durability `interval`, what the next try to write them fails with.
    pub async fn settled(&self, tenant: &Tenant) -> Result<u64, EngineError> {
        self.sessions.wait_processed_of(tenant).await
    }

    /// Waits until changes are written that come after `seen`, which is what this gave before,
    /// or 0 at first. It counts batches in the order in which they were written: others pass what
    /// is large.
    pub async fn written_beyond(&self, seen: u64) -> u64 {
        self.sessions.wait_batches_beyond(seen).await
    }

    /// Turns of all sessions with numbers above `number`, until so many turns or so many bytes
    /// were read; at least one, where there is one.
    ///
    /// # Errors
    /// [`EngineError::JournalOff`], or a journal that cannot be read.
    pub async fn written_after(
        &self,
        number: u64,
        turns_max: usize,
        bytes_max: usize,
    ) -> Result<WrittenTurns, EngineError> {
        let read = self
            .sessions
            .read_store(move |store| store.written_after(number, turns_max, bytes_max));
        read.await
    }

    /// The turns with these numbers, in their order; without those that are forgotten.
    ///
    /// # Errors
    /// [`EngineError::JournalOff`], or a journal that cannot be read.
    pub async fn written_at(&self, numbers: Vec<u64>) -> Result<Vec<WrittenTurn>, EngineError> {
        let read = self
            .sessions
            .read_store(move |store| store.written_at(&numbers));
        read.await
    }

    /// The turns whose content was replaced after this change, in the order of it, at most so
    /// many.
    ///
    /// # Errors
    /// [`EngineError::JournalOff`], or a journal that cannot be read.
    pub async fn changed_after(
        &self,
        change: u64,
        max: usize,
    ) -> Result<Vec<TurnChange>, EngineError> {
        let read = self
            .sessions
            .read_store(move |store| store.changed_after(change, max));
        read.await
    }

    /// Whose these generations are, in their order; without those that are forgotten.
    ///
    /// # Errors
    /// [`EngineError::JournalOff`], or a journal that cannot be read.
    pub async fn owners(
        &self,
        generations: Vec<Generation>,
    ) -> Result<Vec<GenerationOwner>, EngineError> {
        let read = self
            .sessions
            .read_store(move |store| store.owners(&generations));
        read.await
    }
}
