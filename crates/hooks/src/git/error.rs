//! What may go wrong with a repository, in words that say what to do about it.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use memoird_engine::HookError;
use thiserror::Error;

/// Why checkpoints could not be written or read.
#[derive(Debug, Error)]
pub enum GitError {
    /// The operating system refused something.
    #[error("cannot {doing} {}: {}", path.display(), describe(source))]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why it was refused.
        source: io::Error,
    },
    /// The repository is not one that memoird can write to: it is damaged, of another kind, or
    /// has something else where checkpoints belong. Somebody has to change it.
    #[error("{problem}")]
    Unusable {
        /// The problem, and what to do about it.
        problem: String,
    },
    /// Another process holds a lock, or moves the branch. It may be over at the next attempt.
    #[error("{problem}")]
    Contended {
        /// The resource, and its holder.
        problem: String,
    },
    /// The time limit of the delivery was reached.
    #[error("stopped at the time limit")]
    Stopped,
    /// There is no such repository, branch or checkpoint.
    #[error("{what} does not exist")]
    Missing {
        /// What was looked for.
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

    pub(super) fn unusable(problem: String) -> Self {
        Self::Unusable { problem }
    }

    pub(super) fn contended(problem: String) -> Self {
        Self::Contended { problem }
    }

    /// A lock file that a git process of somebody else holds.
    pub(super) fn locked(path: &Path) -> Self {
        let path = path.display();
        Self::contended(format!(
            "{path} is locked by another git; remove it if no git runs"
        ))
    }
}

impl From<GitError> for HookError {
    /// All of it may be over the next time: people repair repositories.
    fn from(error: GitError) -> Self {
        Self::later(error.to_string())
    }
}

/// Adds the operation and the path to an error.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, GitError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, GitError> {
        self.map_err(|source| GitError::Io {
            doing,
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
