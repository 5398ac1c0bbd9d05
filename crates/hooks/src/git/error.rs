//! Errors of checkpoint repositories, with advice for the operator.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use memoird_engine::HookError;
use thiserror::Error;

/// Why checkpoints could not be written or read.
#[derive(Debug, Error)]
pub enum GitError {
    #[error("cannot {operation} {}: {}", path.display(), describe(source))]
    Io {
        operation: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The repository is damaged, unsupported, or has other files where checkpoints belong.
    ///
    /// An operator has to fix it.
    #[error("{problem}")]
    Unusable {
        /// The problem, and what to do about it.
        problem: String,
    },
    /// Another process holds a lock or moves the branch. A retry may succeed.
    #[error("{problem}")]
    Contended {
        /// The lock or branch, and who holds it.
        problem: String,
    },
    /// The delivery reached its time limit.
    #[error("stopped at the time limit")]
    Stopped,
    /// The repository, branch or checkpoint does not exist.
    #[error("{what} does not exist")]
    Missing {
        /// Its path or id.
        what: String,
    },
}

impl GitError {
    /// A part of the repository at `path` cannot be read.
    pub(super) fn damaged(path: &Path, problem: impl Display) -> Self {
        let advice = "see `git fsck`, or move it away";
        Self::unusable(format!(
            "{} is damaged ({problem}); {advice}",
            path.display()
        ))
    }

    /// libgit2 could not write files to the directory at `path`.
    pub(super) fn not_written(path: &Path, error: &git2::Error) -> Self {
        // libgit2 appends the text of the system's error to its own.
        let known = [
            ("No space left on device", io::ErrorKind::StorageFull),
            ("Disk quota exceeded", io::ErrorKind::QuotaExceeded),
            ("Read-only file system", io::ErrorKind::ReadOnlyFilesystem),
            ("Permission denied", io::ErrorKind::PermissionDenied),
        ];
        let text = error.message();
        let kind = known.iter().find(|(cause, _)| text.contains(cause));
        Self::Io {
            operation: "write",
            path: path.to_owned(),
            source: io::Error::new(kind.map_or(io::ErrorKind::Other, |it| it.1), text),
        }
    }

    pub(super) fn unusable(problem: String) -> Self {
        Self::Unusable { problem }
    }

    pub(super) fn contended(problem: String) -> Self {
        Self::Contended { problem }
    }

    /// A lock file is held by another git process.
    pub(super) fn locked(path: &Path) -> Self {
        let path = path.display();
        Self::contended(format!(
            "{path} is locked by another git; remove it if no git runs"
        ))
    }
}

impl From<GitError> for HookError {
    /// Always retried, because operators repair repositories.
    fn from(error: GitError) -> Self {
        Self::later(error.to_string())
    }
}

/// Adds the operation and the path to an error.
pub(super) trait IoContext<T> {
    fn io_context(self, operation: &'static str, path: &Path) -> Result<T, GitError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn io_context(self, operation: &'static str, path: &Path) -> Result<T, GitError> {
        self.map_err(|source| GitError::Io {
            operation,
            path: path.to_owned(),
            source,
        })
    }
}

fn describe(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::StorageFull => "the disk is full; make room".to_owned(),
        io::ErrorKind::QuotaExceeded => "the quota is used up; make room".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied; check its owner".to_owned(),
        _ => source.to_string(),
    }
}
