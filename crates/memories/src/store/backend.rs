//! Storage of memories: files, or a database.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use memoird_store::verify::FileCheck;

use super::sql::{Connection, StoreResult};

/// Storage of all tenants. [`MemoryStore`](super::MemoryStore) describes the methods.
pub(super) trait Backend: Debug + Send + Sync {
    fn has_vectors(&self) -> bool {
        true
    }

    /// The current time, if the storage has a clock that all daemons share.
    fn now(&self) -> Option<Timestamp> {
        None
    }

    fn tenant(&self, tenant: &TenantId) -> StoreResult<Arc<dyn TenantBackend>>;

    fn make_vector_indexes(&self) -> StoreResult<()> {
        Ok(())
    }

    fn tenants(&self) -> StoreResult<Vec<TenantId>>;

    fn tenants_due(
        &self,
        _now: Timestamp,
        _expired_before: Timestamp,
    ) -> StoreResult<Vec<TenantId>> {
        self.tenants()
    }

    /// An empty check of the rows of all tenants, if they are not in files.
    fn shared_rows(&self) -> StoreResult<Option<FileCheck>> {
        Ok(None)
    }

    fn read_learnt(&self) -> StoreResult<Option<u64>>;

    fn write_learnt(&self, number: u64) -> StoreResult<()>;
}

pub(super) type Action<'a> = Box<dyn FnOnce(Connection<'_>) -> StoreResult<()> + 'a>;

/// Storage of one tenant.
pub(super) trait TenantBackend: Debug + Send + Sync {
    /// Path of the file, if there is one.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Runs `action` in a transaction.
    fn transact(&self, action: Action<'_>) -> StoreResult<()>;

    /// Runs `look` on a consistent snapshot.
    fn read(&self, look: Action<'_>) -> StoreResult<()>;

    /// See [`TenantMemories::truncate_log`](super::TenantMemories::truncate_log).
    fn truncate_log(&self) -> StoreResult<bool> {
        Ok(true)
    }
}
