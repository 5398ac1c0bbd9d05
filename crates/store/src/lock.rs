//! One daemon per data directory: the lock goes with the process, however it dies.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::StoreError;

/// Holds a data directory until it is dropped.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

impl DirLock {
    /// Makes the directory where it is missing, and takes it.
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
        let file = private::file_options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let file = file.map_err(unusable)?;
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

/// Conversations are private: files made here only the daemon's
/// user reads. SQLite gives its other files the rights of the first.
pub mod private {
    use std::fs::{DirBuilder, OpenOptions};
    use std::io;
    #[cfg(unix)]
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    use std::path::Path;

    /// Makes a directory with all above it, where it is missing.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn dirs(dir: &Path) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        builder.mode(0o700);
        builder.create(dir)
    }

    /// Options for a file that may have to be made.
    pub fn file_options() -> OpenOptions {
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        options.mode(0o600);
        options
    }
}
