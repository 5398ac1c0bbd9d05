//! Long-term memory at rest: what is written and found is decided here, in statements that two
//! databases understand. [`sqlite`] keeps a file for each tenant, [`postgres`] tables that several
//! daemons share.
//!
//! Rows of one subject are together in every table and index (`no` is partition and number), so
//! that other subjects cost nothing and cannot be met by mistake. Partition 0 has what the whole
//! team may recall.

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
pub use index::Touch;
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

/// The memories of all tenants.
#[derive(Debug)]
pub struct MemoryStore(Place);

#[derive(Debug)]
enum Place {
    Files(sqlite::MemoryFiles),
    #[cfg(feature = "postgres")]
    Postgres(postgres::PostgresMemories),
}

/// The memories of one tenant. Cheap to clone; every clone is the same.
#[derive(Clone, Debug)]
pub struct TenantMemories(TenantPlace);

#[derive(Clone, Debug)]
enum TenantPlace {
    File(Arc<sqlite::TenantFile>),
    #[cfg(feature = "postgres")]
    Postgres(Arc<postgres::PostgresTenant>),
}

/// How tenants' files are kept.
#[derive(Clone, Debug)]
pub struct FilesOptions {
    /// Unused files that stay open. One that is in use is never closed, so
    /// there may be more for as long as more are used at once.
    pub files_open_max: usize,
    /// Reading connections of each file; when all are taken, a call waits for one.
    pub readers_max: usize,
    /// Pages of 4 KiB after which no more are added: SQLite says that the disk is
    /// full. For tests; `None` otherwise.
    pub pages_max: Option<u32>,
    /// What the files are encrypted with; `None`: nothing.
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
    /// Memories in the files of a directory, which is made where it is missing. It is taken for as
    /// long as this lives.
    ///
    /// # Errors
    /// [`StoreError::DirUnusable`], [`StoreError::DirInUse`].
    pub fn open(dir: &Path, options: &FilesOptions) -> Result<Self, StoreError> {
        let files = sqlite::MemoryFiles::open(dir, options)?;
        Ok(Self(Place::Files(files)))
    }

    /// Memories in a database that other daemons may share. Connections run on `runtime`. Blocks,
    /// as do all methods, and must not be called on a thread of that runtime.
    ///
    /// # Errors
    /// When the database cannot be reached, or its tables are too new.
    #[cfg(feature = "postgres")]
    pub fn in_postgres(
        options: memoird_postgres::PgOptions,
        runtime: &tokio::runtime::Handle,
    ) -> Result<Self, StoreError> {
        let memories = postgres::PostgresMemories::open(options, runtime)?;
        Ok(Self(Place::Postgres(memories)))
    }

    /// False where vectors cannot be kept: memories are found by their words only.
    pub fn has_vectors(&self) -> bool {
        match &self.0 {
            Place::Files(_) => true,
            #[cfg(feature = "postgres")]
            Place::Postgres(memories) => memories.has_vectors(),
        }
    }

    /// A tenant's memories; makes a place for them where there is none.
    ///
    /// # Errors
    /// When the place cannot be used, is not this tenant's or too new, or no room is left.
    pub fn tenant(&self, tenant: &TenantId) -> Result<TenantMemories, MemoryError> {
        Ok(TenantMemories(match &self.0 {
            Place::Files(files) => TenantPlace::File(files.tenant(tenant)?),
            #[cfg(feature = "postgres")]
            Place::Postgres(memories) => TenantPlace::Postgres(memories.tenant(tenant)?),
        }))
    }

    /// Makes indexes of the vectors of very large subjects, where a database has them and they are
    /// missing. It may take minutes.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn make_vector_indexes(&self) -> Result<(), MemoryError> {
        match &self.0 {
            Place::Files(_) => Ok(()),
            #[cfg(feature = "postgres")]
            Place::Postgres(memories) => memories.make_indexes(),
        }
    }

    /// The tenants that have a place, in order. One whose file cannot be read is not among
    /// them: the error is returned to calls of that tenant, and to no others.
    ///
    /// # Errors
    /// When the directory, or the database, cannot be read.
    pub fn tenants(&self) -> Result<Vec<TenantId>, MemoryError> {
        match &self.0 {
            Place::Files(files) => files.tenants(),
            #[cfg(feature = "postgres")]
            Place::Postgres(memories) => memories.tenants(),
        }
    }

    /// Those of them that have something to be done at `now`: jobs that forget, texts without a vector, walks
    /// through all memories, documents that expired, and memories that did before `expired_before`. Of files,
    /// which know of themselves only, all of them.
    ///
    /// # Errors
    /// As of [`Self::tenants`].
    pub fn tenants_due(
        &self,
        now: Timestamp,
        expired_before: Timestamp,
    ) -> Result<Vec<TenantId>, MemoryError> {
        #[cfg(not(feature = "postgres"))]
        let _ = (now, expired_before);
        match &self.0 {
            Place::Files(files) => files.tenants(),
            #[cfg(feature = "postgres")]
            Place::Postgres(memories) => memories.tenants_due(now, expired_before),
        }
    }

    /// How far the journal was looked at for facts; `None` where that was never written down, or
    /// cannot be made out.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_learnt(&self) -> Result<Option<u64>, MemoryError> {
        match &self.0 {
            Place::Files(files) => Ok(files.read_learnt()?),
            #[cfg(feature = "postgres")]
            Place::Postgres(memories) => memories.read_learnt(),
        }
    }

    /// Writes it down.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_learnt(&self, number: u64) -> Result<(), MemoryError> {
        match &self.0 {
            Place::Files(files) => Ok(files.write_learnt(number)?),
            #[cfg(feature = "postgres")]
            Place::Postgres(memories) => memories.write_learnt(number),
        }
    }
}

impl TenantMemories {
    /// Does all jobs in one transaction, in their order, each whole or not at all. The
    /// answers are in the order of the jobs: whose manifests a job makes old, or why it was
    /// refused, which undoes that job only. A panic in a job undoes all of them and goes on;
    /// this can be used after it.
    ///
    /// # Errors
    /// When the transaction failed: then nothing of any job was written, unless the answer of a
    /// database was lost.
    pub fn write(
        &self,
        jobs: Vec<WriteJob>,
    ) -> Result<Vec<Result<Touch, MemoryError>>, MemoryError> {
        match &self.0 {
            TenantPlace::File(file) => file.write(jobs),
            #[cfg(feature = "postgres")]
            TenantPlace::Postgres(tenant) => tenant.write(jobs),
        }
    }

    /// Does one job in a transaction of its own, and gives what it gave.
    ///
    /// # Errors
    /// Those of `job`, and when the transaction failed: then nothing was written.
    pub fn write_one<T: Send + 'static>(
        &self,
        job: impl FnOnce(&MemoryWriter<'_>) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let (give, take) = std::sync::mpsc::channel();
        let answers = self.write(vec![Box::new(move |writer| {
            // The receiver is in this function.
            let _ = give.send(job(writer)?);
            Ok(())
        })])?;
        answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        // A job that was done has given something.
        take.recv()
            .map_err(|_| rusqlite::Error::QueryReturnedNoRows.into())
    }

    /// Writes all that `action` writes, or nothing.
    fn transact<T>(
        &self,
        action: impl FnOnce(sql::Connection<'_>) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        match &self.0 {
            TenantPlace::File(file) => file.transact(action),
            #[cfg(feature = "postgres")]
            TenantPlace::Postgres(tenant) => tenant.transact(action),
        }
    }

    /// Looks at one moment.
    ///
    /// # Errors
    /// Those of `look`, and when the memories cannot be read.
    pub fn read<T>(
        &self,
        look: impl FnOnce(&MemoryReader<'_>) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        match &self.0 {
            TenantPlace::File(file) => file.read(look),
            #[cfg(feature = "postgres")]
            TenantPlace::Postgres(tenant) => tenant.read(look),
        }
    }

    /// Moves the log of a file into it and empties it, so that what was forgotten is gone from
    /// there too. True when the log is empty now; false while a reader is open: try again.
    /// A database clears its own pages, by `VACUUM`: there is nothing to try again, so true.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn truncate_log(&self) -> Result<bool, MemoryError> {
        match &self.0 {
            TenantPlace::File(file) => file.truncate_log(),
            #[cfg(feature = "postgres")]
            TenantPlace::Postgres(_) => Ok(true),
        }
    }
}
