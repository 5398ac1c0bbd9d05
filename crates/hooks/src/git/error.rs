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
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it was refused.
        source: io::Error,
    },
    /// Something else stands where the repository should be.
    #[error("{} is no git repository ({problem}); move it away, or repair it", path.display())]
    NoRepository {
        /// Where the repository should be.
        path: PathBuf,
        /// What was found.
        problem: String,
    },
    /// The repository keeps its data in a way that memoird does not write.
    #[error("{} uses {feature}, which checkpoints do not support; convert it", path.display())]
    Unsupported {
        /// The repository.
        path: PathBuf,
        /// What it uses.
        feature: &'static str,
    },
    /// The repository has a part that cannot be read.
    #[error("{} is damaged ({problem}); see `git fsck`, or move it away", path.display())]
    Damaged {
        /// The repository.
        path: PathBuf,
        /// What cannot be read.
        problem: String,
    },
    /// Somebody committed something else where checkpoints have their place.
    #[error("{name} on branch {branch} is not what checkpoints need there; rename it")]
    InTheWay {
        /// The path within the branch.
        name: String,
        /// The branch.
        branch: String,
    },
    /// A person's git holds a lock.
    #[error("{} is locked by another git; remove it if no git runs", path.display())]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// Another memoird writes to the repository.
    #[error("{} is held by another memoird", path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
    },
    /// The branch moved each time a commit was ready.
    #[error("branch {branch} of {} moves faster than it can be built upon", path.display())]
    Moving {
        /// The repository.
        path: PathBuf,
        /// The branch.
        branch: String,
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
    pub(super) fn damaged(path: &Path, problem: impl Display) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }
}

impl From<GitError> for HookError {
    /// All of it may be over the next time: people repair repositories.
    fn from(error: GitError) -> Self {
        Self::later(error.to_string())
    }
}

/// Says what was done to which path.
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
