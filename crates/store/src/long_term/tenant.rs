//! One tenant's memories: one writer, which takes what waits as one transaction, and a few
//! readers, which never wait for it.

use super::{MemoryReader, MemoryWriter};
use crate::StoreError;

/// Something to write. What it refuses ([`StoreError::Refused`]) undoes it and nothing else.
pub type WriteJob = Box<dyn FnOnce(&MemoryWriter<'_>) -> Result<(), StoreError> + Send>;

/// The memories of one tenant.
#[derive(Debug)]
pub struct TenantMemories {}

impl TenantMemories {
    /// Does all jobs in one transaction, each whole or not at all, in their order. The
    /// answers are in the order of the jobs: `Err(Refused)` is of that job only. A job that
    /// panics is undone, and the panic goes on when the others are written.
    ///
    /// # Errors
    /// When the transaction failed: then nothing of any job was written.
    pub fn write(&self, _jobs: Vec<WriteJob>) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        unimplemented!("…")
    }

    /// Looks at one moment.
    ///
    /// # Errors
    /// Those of `look`, and when the file cannot be read.
    pub fn read<T>(
        &self,
        _look: impl FnOnce(&MemoryReader<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        unimplemented!("…")
    }

    /// Moves the log into the file and empties it, so that what was forgotten is gone from
    /// there too. True when the log is empty now; false while somebody reads: try again.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn truncate_log(&self) -> Result<bool, StoreError> {
        unimplemented!("…")
    }
}
