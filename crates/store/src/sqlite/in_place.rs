//! Notices that files of an open journal were deleted, moved or replaced.
//!
//! SQLite keeps writing to the open files. A restart would not find what they contain.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::StoreError;

/// The files of an open journal, by path and identity.
#[derive(Debug)]
pub(super) struct OpenFiles {
    files: Vec<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    /// Device and inode. Empty until the file exists, as the log does from the first commit.
    identity: OnceLock<(u64, u64)>,
}

impl OpenFiles {
    /// Records the files of the journal at `path` and the lock of its directory.
    pub(super) fn new(path: &Path) -> Self {
        let log = PathBuf::from(format!("{}-wal", path.display()));
        let paths = [path.to_owned(), log, path.with_file_name("lock")];
        let file = |path: PathBuf| {
            let identity = OnceLock::new();
            if let Some(found) = identity_of(&path) {
                let _ = identity.set(found);
            }
            OpenFile { path, identity }
        };
        Self {
            files: paths.map(file).into(),
        }
    }

    /// # Errors
    /// [`StoreError::Displaced`].
    pub(super) fn check(&self) -> Result<(), StoreError> {
        for file in &self.files {
            let found = identity_of(&file.path);
            let expected = match found {
                Some(found) => Some(*file.identity.get_or_init(|| found)),
                None => file.identity.get().copied(),
            };
            if found != expected {
                return Err(StoreError::Displaced {
                    path: file.path.clone(),
                });
            }
        }
        Ok(())
    }
}

fn identity_of(path: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}
