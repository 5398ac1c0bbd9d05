//! One daemon per data directory: the lock goes with the process, however it dies.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::StoreError;

/// Holds a data directory until it is dropped.
#[derive(Debug)]
pub(crate) struct DirLock {
    _file: File,
}

impl DirLock {
    /// Makes the directory where it is missing, and takes it.
    pub(crate) fn take(dir: &Path) -> Result<Self, StoreError> {
        let unusable = |source| StoreError::DirUnusable { dir: dir.to_owned(), source };
        std::fs::create_dir_all(dir).map_err(unusable)?;
        let path = dir.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => {
                Err(StoreError::DirInUse { dir: dir.to_owned(), lock: path })
            }
            Err(TryLockError::Error(source)) => Err(unusable(source)),
        }
    }
}
