//! Storage of long-term memory.
//!
//! The queries are written once, in SQL that both databases understand. [`sqlite`] has one file per
//! tenant, [`postgres`] has tables that several daemons share.
//!
//! All tables and indexes are clustered by subject (`no` is partition and number), so that other
//! subjects cost nothing and cannot be read by mistake. Partition 0 contains the memories visible
//! to the whole team.

mod backend;
mod batch;
mod checksum;
mod conflicts;
mod consolidation;
mod document_keys;
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
mod vector_index;
mod vectors;
mod verify;
mod word_index;
mod writer;

use std::path::Path;
use std::sync::Arc;

use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use memoird_store::StoreError;
use memoird_store::verify::FileCheck;

pub use batch::FactLookup;
pub use checksum::Damage;
pub use index::Prepared;
pub(crate) use index::is_scattered;
pub use jobs::WriteJob;
pub use reader::MemoryReader;
pub use requests::{
    Due, Embedding, ExtractionCursor, ForgetProgress, Hit, Imported, Lease, RecallEvent,
    RememberCommand,
};
pub use sqlite::{FilesOptions, READERS_KEPT, schema_of_version, tenant_files};
pub use transfer::Contents;
pub use vectors::CLIENTS;
pub(crate) use vectors::cosine;
pub use verify::check_tenant_file;
pub use writer::MemoryWriter;

use self::backend::{Backend, TenantBackend};
use self::checksum::DamageLog;
use self::jobs::do_jobs;
use self::sql::{Connection, StoreResult};
use crate::MemoryError;

/// Memories of all tenants.
#[derive(Debug)]
pub struct MemoryStore(Box<dyn Backend>);

/// Memories of one tenant. Clones share their state.
#[derive(Clone, Debug)]
pub struct TenantMemories(Arc<dyn TenantBackend>);

impl MemoryStore {
    /// Opens or creates a directory of memory files, and locks it until the store is dropped.
    ///
    /// # Errors
    /// [`StoreError::DirUnusable`], [`StoreError::DirInUse`].
    pub fn open(dir: &Path, options: &FilesOptions) -> Result<Self, StoreError> {
        let files = sqlite::MemoryFiles::open(dir, options)?;
        Ok(Self(Box::new(files)))
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
        Ok(Self(Box::new(memories)))
    }

    /// Whether vectors can be stored. Without them, recalls are lexical only.
    pub fn has_vectors(&self) -> bool {
        self.0.has_vectors()
    }

    /// The current time of the database's clock, which all of its daemons share. `None` for files.
    pub fn now(&self) -> Option<Timestamp> {
        self.0.now()
    }

    /// Opens a tenant's memories, and creates the storage if there is none.
    ///
    /// # Errors
    /// If the storage cannot be used, belongs to another tenant, is too new, or there is no space
    /// left.
    pub fn tenant(&self, tenant: &TenantId) -> Result<TenantMemories, MemoryError> {
        self.0.tenant(tenant).map(TenantMemories)
    }

    /// Creates missing indexes for the vectors of very large subjects. May take minutes.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn make_vector_indexes(&self) -> Result<(), MemoryError> {
        self.0.make_vector_indexes()
    }

    /// Lists the tenants that have storage, in order.
    ///
    /// Excludes tenants whose file cannot be read. Calls of such a tenant return the error; calls
    /// of others are not affected.
    ///
    /// # Errors
    /// If the directory or the database cannot be read.
    pub fn tenants(&self) -> Result<Vec<TenantId>, MemoryError> {
        self.0.tenants()
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
        self.0.tenants_due(now, expired_before)
    }

    /// Compares all memories and documents in a database with their checksums.
    ///
    /// `None` for files: see [`check_tenant_file`]. Rows that the server cannot read are reported,
    /// and end the check of their tenant.
    ///
    /// # Errors
    /// If the database cannot be reached.
    pub fn check_rows(&self) -> Result<Option<FileCheck>, StoreError> {
        let Some(mut check) = self.0.shared_rows().map_err(verify::cause)? else {
            return Ok(None);
        };
        for tenant in self.tenants().map_err(verify::cause)? {
            let memories = self.tenant(&tenant).map_err(verify::cause)?;
            let mut positions = verify::Positions::default();
            loop {
                let report = |problem| check.add(format!("tenant {tenant}: {problem}"));
                let batch = memories.read(|reader| reader.check_batch(&mut positions, report));
                match batch.map_err(verify::cause) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error @ StoreError::Database { .. }) => {
                        check.add(format!("tenant {tenant}: {error}"));
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(Some(check))
    }

    /// Journal position up to which extraction is done.
    ///
    /// `None` if it was never stored or is unreadable.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_learnt(&self) -> Result<Option<u64>, MemoryError> {
        self.0.read_learnt()
    }

    /// Stores the journal position up to which extraction is done.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_learnt(&self, number: u64) -> Result<(), MemoryError> {
        self.0.write_learnt(number)
    }
}

impl TenantMemories {
    /// Runs all jobs in order in one transaction. Each job is atomic.
    ///
    /// Returns one result per job: why it was rejected, if it was. A
    /// rejection rolls back only its own job. A panic in a job rolls back all jobs and propagates;
    /// `self` stays usable.
    ///
    /// # Errors
    /// If the transaction failed. Nothing was written then, unless the outcome of a commit is
    /// unknown.
    pub fn write(&self, jobs: Vec<WriteJob>) -> Result<Vec<Result<(), MemoryError>>, MemoryError> {
        self.transact(|connection| do_jobs(connection, self.0.path(), jobs))
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
        let answers = self.write(vec![WriteJob::new(move |writer| {
            // The receiver lives until the end of this function.
            let _ = give.send(job(writer)?);
            Ok(())
        })])?;
        answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        done(take.recv().ok())
    }

    /// Runs `action` in a transaction.
    fn transact<T>(&self, action: impl FnOnce(Connection<'_>) -> StoreResult<T>) -> StoreResult<T> {
        let mut outcome = None;
        self.0.transact(Box::new(|connection| {
            outcome = Some(action(connection)?);
            Ok(())
        }))?;
        done(outcome)
    }

    /// Runs `look` on a consistent snapshot.
    ///
    /// # Errors
    /// Those of `look`, or if the memories cannot be read.
    pub fn read<T>(
        &self,
        look: impl FnOnce(&MemoryReader<'_>) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let mut found = None;
        self.0.read(Box::new(|connection| {
            let damage = DamageLog::default();
            let reader = MemoryReader::new(connection, None, &damage, self.0.path());
            found = Some(look(&reader)?);
            Ok(())
        }))?;
        done(found)
    }

    /// Checkpoints and truncates the WAL of a file, so that no forgotten text is left in it.
    ///
    /// Returns `false` if a reader blocks it; retry later. Always returns `true` for a database,
    /// which clears its own pages by `VACUUM`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn truncate_log(&self) -> Result<bool, MemoryError> {
        self.0.truncate_log()
    }
}

/// Returns the result of an action that has run.
fn done<T>(outcome: Option<T>) -> StoreResult<T> {
    outcome.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
}
