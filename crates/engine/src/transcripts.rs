//! Turns of all tenants in journal order, and the search index.

use memoird_core::ids::{Generation, TenantId};
use memoird_store::{GenerationOwner, SearchIndex, Store, StoreError, WrittenTurn, WrittenTurns};

use crate::error::EngineError;
use crate::sessions::Sessions;
use crate::tenants::Tenant;

/// Read access to the journal for a follower. Cheap to clone.
///
/// Not scoped to a tenant: callers must check the tenant before they return data to a client. Reads
/// fail with [`EngineError::JournalOff`] without a journal.
#[derive(Clone, Debug)]
pub struct Transcripts {
    sessions: Sessions,
}

impl Transcripts {
    pub(crate) fn new(sessions: Sessions) -> Self {
        Self { sessions }
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        self.sessions.store()?.run(None, read).await
    }

    /// Whether there is a journal to follow.
    pub fn have_journal(&self) -> bool {
        self.sessions.have_journal()
    }

    /// Waits until every change of a tenant submitted so far is written or rejected.
    ///
    /// Returns the batch count up to the last of them, as in [`Self::written_beyond`]. With
    /// durability `interval`, fails if the next attempt to write them fails.
    pub async fn settled(&self, tenant: &Tenant) -> Result<u64, EngineError> {
        self.sessions.wait_processed_of(tenant).await
    }

    /// Waits until more than `seen` batches are written, and returns their number.
    ///
    /// Pass the previous return value, or 0 at first. Batches are counted in the order of writing,
    /// because sets may overtake a large one.
    pub async fn written_beyond(&self, seen: u64) -> u64 {
        self.sessions.journal().wait_batches_beyond(seen).await
    }

    /// Reads turns of all sessions with numbers above `number`.
    ///
    /// Stops after `turns_max` turns or `bytes_max` bytes, but returns at least one turn if there
    /// is any.
    pub async fn written_after(
        &self,
        number: u64,
        turns_max: usize,
        bytes_max: usize,
    ) -> Result<WrittenTurns, EngineError> {
        self.read(move |store| store.written_after(number, turns_max, bytes_max))
            .await
    }

    /// Reads the turns with these numbers, in this order. Pruned turns are skipped.
    pub async fn written_at(&self, numbers: Vec<u64>) -> Result<Vec<WrittenTurn>, EngineError> {
        self.read(move |store| store.written_at(&numbers)).await
    }

    /// Runs a call of the search index, for a tenant or, if `None`, for the daemon itself.
    ///
    /// The inner result is that of the call. Fails without a journal that has an index.
    pub async fn on_index<T: Send + 'static>(
        &self,
        tenant: Option<&TenantId>,
        action: impl FnOnce(&dyn SearchIndex) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<Result<T, StoreError>, EngineError> {
        let call = move |store: &dyn Store| Ok(store.search_index().map(action));
        let outcome = self.sessions.store()?.run(tenant, call).await?;
        outcome.ok_or(EngineError::JournalOff)
    }

    /// Reads the owners of these generations, in this order. Pruned generations are skipped.
    pub async fn owners(
        &self,
        generations: Vec<Generation>,
    ) -> Result<Vec<GenerationOwner>, EngineError> {
        self.read(move |store| store.owners(&generations)).await
    }
}
