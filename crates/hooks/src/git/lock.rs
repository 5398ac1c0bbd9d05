//! Locks: one memoird per repository, and git's own locks per file.
//!
//! Daemons exclude each other by an advisory lock on `memoird.lock`, which a crash releases. Git's
//! locks are files, which a crash leaves behind. To recognize its own, memoird first writes the
//! lock's content to `memoird.claim` and then links that file to the lock's path. A lock with the
//! same content as the claim is memoird's.
//!
//! libgit2's transactions do not replace this. Their lock files are empty until the ref moves, so
//! that one left by a crash looks like another git's. They sync refs only with
//! `core.fsyncObjectFiles`, which makes every git command print a warning, and write no reflog
//! entry to the existing log of a bare repository.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

use super::error::{GitError, IoContext};
use super::packs;
use super::repo::{Repo, write};

/// Pause between two attempts to get a lock; up to 200 attempts.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSES_MAX: u32 = 200;

/// Age after which a git lock is stale, because its process must have ended.
const STALE: Duration = Duration::from_secs(10 * 60);

/// Tells blocking work to stop after the future waiting for it was dropped.
#[derive(Clone, Debug)]
pub(super) struct CancelSignal(Weak<()>);

impl CancelSignal {
    /// Returns a guard, and a value that signals when the guard is dropped.
    pub(super) fn on_drop() -> (Arc<()>, Self) {
        let waiting = Arc::new(());
        let stop = Self(Arc::downgrade(&waiting));
        (waiting, stop)
    }

    /// Returns an error if the work has to stop.
    pub(super) fn check(&self) -> Result<(), GitError> {
        match self.0.strong_count() {
            0 => Err(GitError::Stopped),
            _ => Ok(()),
        }
    }
}

/// Exclusive write access to a repository among memoird processes.
pub(super) struct RepositoryLock {
    /// Closing the file releases the lock.
    _file: File,
    /// Current time of the file system's clock.
    now: SystemTime,
    /// The claim file of the git lock being acquired.
    pending: PathBuf,
    stop: CancelSignal,
}

impl RepositoryLock {
    /// Waits for the lock, then cleans up after a crash.
    pub(super) fn acquire(repo: &Repo, stop: &CancelSignal) -> Result<Self, GitError> {
        let path = repo.git_dir.join("memoird.lock");
        let opened = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let file = opened.io_context("open", &path)?;
        lock_file(&file, &path, stop)?;
        // The modification time of a write has the same clock as lock files.
        let mut writer = &file;
        let now = file
            .set_len(0)
            .and_then(|()| writer.write_all(b"memoird\n"))
            .and_then(|()| file.metadata()?.modified())
            .io_context("write", &path)?;
        let pending = repo.git_dir.join("memoird.claim");
        let lock = Self {
            _file: file,
            now,
            pending,
            stop: stop.clone(),
        };
        lock.recover(repo)?;
        Ok(lock)
    }

    /// Acquires git's lock of `path`, waiting for other processes.
    ///
    /// The lock file has the new content of the locked file.
    pub(super) fn take(&self, path: &Path, content: &str) -> Result<GitLock, GitError> {
        let lock_path = path.with_added_extension("lock");
        if let Some(folder) = lock_path.parent() {
            fs::create_dir_all(folder).io_context("create", folder)?;
        }
        packs::remove_file(&self.pending)?;
        write(&self.pending, content.as_bytes())?;
        poll(
            &self.stop,
            || GitError::locked(&lock_path),
            || {
                let linked = match fs::hard_link(&self.pending, &lock_path) {
                    Err(error) if is_unsupported(&error) => create(&lock_path, content),
                    linked => linked,
                };
                match linked {
                    Ok(()) => Ok(true),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        self.remove_stale(&lock_path)?;
                        Ok(false)
                    }
                    Err(error) => Err(error).io_context("create", &lock_path),
                }
            },
        )?;
        Ok(GitLock {
            path: path.to_owned(),
            lock_path,
            is_held: true,
        })
    }

    /// Removes leftovers of a crashed memoird: its git locks and unfinished packs.
    fn recover(&self, repo: &Repo) -> Result<(), GitError> {
        if let Ok(pending) = fs::read(&self.pending) {
            let lock_path = repo.branch_file().with_added_extension("lock");
            if fs::read(&lock_path).is_ok_and(|content| content == pending) {
                tracing::warn!(path = %lock_path.display(), "removing a lock left by a crash");
                fs::remove_file(&lock_path).io_context("remove", &lock_path)?;
            }
            packs::remove_file(&self.pending)?;
        }
        packs::recover(repo)
    }

    fn remove_stale(&self, lock_path: &Path) -> Result<(), GitError> {
        let Ok(made) = fs::metadata(lock_path).and_then(|data| data.modified()) else {
            return Ok(());
        };
        if self.now.duration_since(made).is_ok_and(|age| age > STALE) {
            tracing::warn!(path = %lock_path.display(), "removing a stale lock");
            fs::remove_file(lock_path).io_context("remove", lock_path)?;
        }
        Ok(())
    }
}

impl Drop for RepositoryLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.pending);
    }
}

/// A git lock file. Dropping it releases the lock.
pub(super) struct GitLock {
    path: PathBuf,
    lock_path: PathBuf,
    is_held: bool,
}

impl GitLock {
    /// Replaces the locked file by the lock file.
    pub(super) fn commit(mut self) -> Result<(), GitError> {
        fs::rename(&self.lock_path, &self.path).io_context("write", &self.path)?;
        self.is_held = false;
        Ok(())
    }
}

impl Drop for GitLock {
    fn drop(&mut self) {
        if self.is_held {
            let _ = fs::remove_file(&self.lock_path);
        }
    }
}

/// Waits for the advisory lock of a file or directory. Closing it releases the lock.
pub(super) fn lock_file(file: &File, path: &Path, stop: &CancelSignal) -> Result<(), GitError> {
    let busy = || GitError::contended(format!("{} is held by another memoird", path.display()));
    poll(stop, busy, || match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error).io_context("lock", path),
    })
}

/// Retries until it succeeds, for at most ten seconds.
fn poll(
    stop: &CancelSignal,
    timeout: impl Fn() -> GitError,
    attempt: impl Fn() -> Result<bool, GitError>,
) -> Result<(), GitError> {
    for _ in 0..PAUSES_MAX {
        stop.check()?;
        if attempt()? {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    Err(timeout())
}

/// Without hard links, a lock left by a crash is removed only when it is stale.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied
    )
}

fn create(path: &Path, content: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}
