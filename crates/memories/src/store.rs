//! Storage of long-term memory.
//!
//! The queries are written once, in SQL that both databases understand. [`sqlite`] has one file per
//! tenant, [`postgres`] has tables that several daemons share.
//!
//! All tables and indexes are clustered by subject (`no` is partition and number), so that other
//! subjects cost nothing and cannot be read by mistake. Partition 0 contains the memories visible
//! to the whole team.

mod conflicts;
mod consolidation;
mod documents;
mod embedding;
mod extraction;
mod forget;
mod index;
mod jobs;
mod places;
#[cfg(feature = "postgres")]
mod postgres;
mod reader;
mod recall;
mod remember;
mod requests;
mod row;
mod sql;
mod sqlite;
pub(crate) mod time;
mod transfer;
mod update;
mod vectors;
mod writer;

use std::path::Path;
use std::sync::Arc;

use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use memoird_store::{DataKey, StoreError};

pub use embedding::CLIENTS;
pub use index::TouchedManifests;
pub(crate) use index::is_scattered;
pub use jobs::WriteJob;
pub use reader::MemoryReader;
pub use remember::Prepared;
pub use requests::{
    Due, Embedding, ExtractionCursor, ForgetProgress, Hit, Imported, Lease, ManifestRows,
    RecallEvent, RecallLists, RememberCommand, Scores,
};
pub use sqlite::tenant_files;
pub use transfer::Contents;
pub(crate) use vectors::cosine;
pub use writer::MemoryWriter;

use crate::MemoryError;

/// Memories of all tenants.
#[derive(Debug)]
pub struct MemoryStore(StoreBackend);

#[derive(Debug)]
enum StoreBackend {
    Files(sqlite::MemoryFiles),
    #[cfg(feature = "postgres")]
    Postgres(postgres::PostgresMemories),
}

/// Memories of one tenant. Clones share their state.
#[derive(Clone, Debug)]
pub struct TenantMemories(TenantBackend);

#[derive(Clone, Debug)]
enum TenantBackend {
    File(Arc<sqlite::TenantFile>),
    #[cfg(feature = "postgres")]
    Postgres(Arc<postgres::PostgresTenant>),
}

#[derive(Clone, Debug)]
pub struct FilesOptions {
    /// Maximum unused files that stay open.
    ///
    /// Files in use are never closed, so more may be open at a time.
    pub files_open_max: usize,
    /// Maximum reader connections per file. Further reads wait for one.
    pub readers_max: usize,
    /// Maximum pages of 4 KiB, after which SQLite reports a full disk. For tests; otherwise `None`.
    pub pages_max: Option<u32>,
    /// Encryption key. `None` stores the files unencrypted.
    pub key: Option<DataKey>,
}

impl Default for FilesOptions {
    fn default() -> Self {
        Self {
            files_open_max: 64,
            readers_max: 2,
            pages_max: None,
            key: None,
        }
    }
}

impl MemoryStore {
    /// Opens or creates a directory of memory files, and locks it until the store is dropped.
    ///
    /// # Errors
    /// [`StoreError::DirUnusable`], [`StoreError::DirInUse`].
    pub fn open(dir: &Path, options: &FilesOptions) -> Result<Self, StoreError> {
        let files = sqlite::MemoryFiles::open(dir, options)?;
        Ok(Self(StoreBackend::Files(files)))
    }

    /// Opens memories in a database that other daemons may share.
    ///
    /// Connections run on `runtime`. This and all other methods block, and must not be called on a
    /// thread of that runtime.
    ///
    /// # Errors
    /// If the database cannot be reached, or its schema is too new.
    #[cfg(feature = "postgres")]
    pub fn in_postgres(
        options: memoird_postgres::PgOptions,
        runtime: &tokio::runtime::Handle,
    ) -> Result<Self, StoreError> {
        let memories = postgres::PostgresMemories::open(options, runtime)?;
        Ok(Self(StoreBackend::Postgres(memories)))
    }

    /// Whether vectors can be stored. Without them, recalls are lexical only.
    pub fn has_vectors(&self) -> bool {
        match &self.0 {
            StoreBackend::Files(_) => true,
            #[cfg(feature = "postgres")]
            StoreBackend::Postgres(memories) => memories.has_vectors(),
        }
    }

    /// Opens a tenant's memories, and creates the storage if there is none.
    ///
    /// # Errors
    /// If the storage cannot be used, belongs to another tenant, is too new, or there is no space
    /// left.
    pub fn tenant(&self, tenant: &TenantId) -> Result<TenantMemories, MemoryError> {
        Ok(TenantMemories(match &self.0 {
            StoreBackend::Files(files) => TenantBackend::File(files.tenant(tenant)?),
            #[cfg(feature = "postgres")]
            StoreBackend::Postgres(memories) => TenantBackend::Postgres(memories.tenant(tenant)?),
        }))
    }

    /// Creates missing indexes for the vectors of very large subjects. May take minutes.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn make_vector_indexes(&self) -> Result<(), MemoryError> {
        match &self.0 {
            StoreBackend::Files(_) => Ok(()),
            #[cfg(feature = "postgres")]
            StoreBackend::Postgres(memories) => memories.make_indexes(),
        }
    }

    /// Lists the tenants that have storage, in order.
    ///
    /// Excludes tenants whose file cannot be read. Calls of such a tenant return the error; calls
    /// of others are not affected.
    ///
    /// # Errors
    /// If the directory or the database cannot be read.
    pub fn tenants(&self) -> Result<Vec<TenantId>, MemoryError> {
        match &self.0 {
            StoreBackend::Files(files) => files.tenants(),
            #[cfg(feature = "postgres")]
            StoreBackend::Postgres(memories) => memories.tenants(),
        }
    }

    /// Lists the tenants with maintenance work at `now`.
    ///
    /// Work is: forget jobs, texts without a vector, walks over all memories, expired documents,
    /// and memories that expired before `expired_before`. With files, returns all tenants, because
    /// only the file itself contains this information.
    ///
    /// # Errors
    /// Those of [`Self::tenants`].
    pub fn tenants_due(
        &self,
        now: Timestamp,
        expired_before: Timestamp,
    ) -> Result<Vec<TenantId>, MemoryError> {
        #[cfg(not(feature = "postgres"))]
        let _ = (now, expired_before);
        match &self.0 {
            StoreBackend::Files(files) => files.tenants(),
            #[cfg(feature = "postgres")]
            StoreBackend::Postgres(memories) => memories.tenants_due(now, expired_before),
        }
    }

    /// Journal position up to which extraction is done.
    ///
    /// `None` if it was never stored or is unreadable.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_learnt(&self) -> Result<Option<u64>, MemoryError> {
        match &self.0 {
            StoreBackend::Files(files) => Ok(files.read_learnt()?),
            #[cfg(feature = "postgres")]
            StoreBackend::Postgres(memories) => memories.read_learnt(),
        }
    }

    /// Stores the journal position up to which extraction is done.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_learnt(&self, number: u64) -> Result<(), MemoryError> {
        match &self.0 {
            StoreBackend::Files(files) => Ok(files.write_learnt(number)?),
            #[cfg(feature = "postgres")]
            StoreBackend::Postgres(memories) => memories.write_learnt(number),
        }
    }
}

impl TenantMemories {
    /// Runs all jobs in order in one transaction. Each job is atomic.
    ///
    /// Returns one result per job: the manifests it invalidated, or why it was rejected. A
    /// rejection rolls back only its own job. A panic in a job rolls back all jobs and propagates;
    /// `self` stays usable.
    ///
    /// # Errors
    /// If the transaction failed. Nothing was written then, unless the outcome of a commit is
    /// unknown.
    pub fn write(
        &self,
        jobs: Vec<WriteJob>,
    ) -> Result<Vec<Result<TouchedManifests, MemoryError>>, MemoryError> {
        match &self.0 {
            TenantBackend::File(file) => file.write(jobs),
            #[cfg(feature = "postgres")]
            TenantBackend::Postgres(tenant) => tenant.write(jobs),
        }
    }

    /// Runs one job in a transaction of its own, and returns its result.
    ///
    /// # Errors
    /// Those of `job`, or if the transaction failed. Nothing was written then.
    pub fn write_one<T: Send + 'static>(
        &self,
        job: impl FnOnce(&MemoryWriter<'_>) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let (give, take) = std::sync::mpsc::channel();
        let answers = self.write(vec![Box::new(move |writer| {
            // The receiver lives until the end of this function.
            let _ = give.send(job(writer)?);
            Ok(())
        })])?;
        answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        // A job that succeeded has sent its result.
        take.recv()
            .map_err(|_| rusqlite::Error::QueryReturnedNoRows.into())
    }

    /// Runs `action` in a transaction.
    fn transact<T>(
        &self,
        action: impl FnOnce(sql::Connection<'_>) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        match &self.0 {
            TenantBackend::File(file) => file.transact(action),
            #[cfg(feature = "postgres")]
            TenantBackend::Postgres(tenant) => tenant.transact(action),
        }
    }

    /// Runs `look` on a consistent snapshot.
    ///
    /// # Errors
    /// Those of `look`, or if the memories cannot be read.
    pub fn read<T>(
        &self,
        look: impl FnOnce(&MemoryReader<'_>) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        match &self.0 {
            TenantBackend::File(file) => file.read(look),
            #[cfg(feature = "postgres")]
            TenantBackend::Postgres(tenant) => tenant.read(look),
        }
    }

    /// Checkpoints and truncates the WAL of a file, so that no forgotten text is left in it.
    ///
    /// Returns `false` if a reader blocks it; retry later. Always returns `true` for a database,
    /// which clears its own pages by `VACUUM`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn truncate_log(&self) -> Result<bool, MemoryError> {
        match &self.0 {
            TenantBackend::File(file) => file.truncate_log(),
            #[cfg(feature = "postgres")]
            TenantBackend::Postgres(_) => Ok(true),
        }
    }
}
