//! The lock that limits a data directory to one daemon. It is released however the process ends.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::StoreError;

/// Holds the lock of a data directory until it is dropped.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

impl DirLock {
    /// Creates the directory if needed and locks it.
    ///
    /// # Errors
    /// [`StoreError::DirUnusable`], [`StoreError::DirInUse`].
    pub fn take(dir: &Path) -> Result<Self, StoreError> {
        let unusable = |source| StoreError::DirUnusable {
            dir: dir.to_owned(),
            source,
        };
        private::dirs(dir).map_err(unusable)?;
        let path = dir.join("lock");
        let opened = private::file_options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let file = opened.map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StoreError::DirInUse {
                dir: dir.to_owned(),
                lock: path,
            }),
            Err(TryLockError::Error(source)) => Err(unusable(source)),
        }
    }
}

/// Files and directories that only the daemon's user can read, because transcripts are private.
///
/// SQLite gives its `-wal` and `-shm` files the permissions of the main file.
pub mod private {
    use std::fs::{DirBuilder, OpenOptions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    use std::path::Path;

    /// Creates a directory and its parents if they are missing.
    ///
    /// # Errors
    /// If the operating system refuses it.
    pub fn dirs(dir: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)
    }

    /// Options for opening a file that may have to be created.
    pub fn file_options() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.mode(0o600);
        options
    }
}
