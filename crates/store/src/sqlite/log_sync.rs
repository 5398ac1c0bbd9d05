//! When the disk has what was committed.
//!
//! A commit of change sets leaves its pages with the system ([`Writes::Unsynced`]), and
//! [`LogSync::sync`] has the disk write them, for all commits before it at once, while the next
//! transaction is made. A crash of the machine meanwhile undoes whole commits, the last ones. So
//! nothing is told of a commit before: a read waits for what it may have seen. All else that
//! the writer does is synced by SQLite itself.
//!
//! After a sync that failed nobody can say what the disk has, and a second one would succeed
//! whatever it has (<https://wiki.postgresql.org/wiki/Fsync_Errors>). Then nothing is written any
//! more, and the next start finds by SQLite's checksums where the log ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{StoreError, locked};

/// How the writer's transactions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writes {
    /// They are on the disk when they are over.
    Synced,
    /// Once [`LogSync::sync`] has returned.
    Unsynced,
}

/// Counts commits, and knows how many of them the disk has.
#[derive(Debug)]
pub(super) struct LogSync {
    path: PathBuf,
    file: Mutex<Option<File>>,
    begun: AtomicU64,
    ended: AtomicU64,
    synced: AtomicU64,
    has_failed: AtomicBool,
}

/// A commit that is under way, or failed, or is written.
#[derive(Debug)]
pub(super) struct BegunCommit<'a>(&'a LogSync);

impl Drop for BegunCommit<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl LogSync {
    /// Of the journal in this file, none of whose log has to be synced.
    pub(super) fn new(journal: &Path) -> Self {
        Self {
            path: journal.with_extension("db-wal"),
            file: Mutex::default(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Notes a commit before anybody can see it. Only under the writer's lock.
    pub(super) fn begin(&self) -> BegunCommit<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        BegunCommit(self)
    }

    /// How many commits were begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// True when so many commits are over, one way or the other.
    pub(super) fn have_ended(&self, commits: u64) -> bool {
        self.ended.load(Ordering::SeqCst) >= commits
    }

    /// True when the disk has so many commits.
    pub(super) fn has(&self, commits: u64) -> bool {
        self.synced.load(Ordering::SeqCst) >= commits
    }

    /// # Errors
    /// [`StoreError::LogNotSynced`] after a sync that failed.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.has_failed.load(Ordering::SeqCst) {
            false => Ok(()),
            true => Err(StoreError::LogNotSynced {
                detail: "it failed before".to_owned(),
            }),
        }
    }

    /// Returns when the disk has every commit that was over before. Several that call at once share
    /// the work.
    ///
    /// # Errors
    /// [`StoreError::LogNotSynced`], then and ever after.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        let wanted = self.ended.load(Ordering::SeqCst);
        let mut file = locked(&self.file);
        self.check()?;
        if self.has(wanted) {
            return Ok(());
        }
        let ended = self.ended.load(Ordering::SeqCst);
        let synced = match file.take() {
            Some(file) => Ok(file),
            None => File::open(&self.path),
        };
        let synced = synced.and_then(|opened| file.insert(opened).sync_data());
        if let Err(error) = synced {
            self.has_failed.store(true, Ordering::SeqCst);
            return Err(StoreError::LogNotSynced {
                detail: error.to_string(),
            });
        }
        self.synced.store(ended, Ordering::SeqCst);
        Ok(())
    }

    /// From now on the disk refuses to sync.
    #[cfg(test)]
    pub(super) fn break_disk(&self) {
        // A pipe cannot be synced.
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        *locked(&self.file) = Some(std::os::fd::OwnedFd::from(reader).into());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SqliteOptions, SqliteStore};
    use crate::{ClockAnchor, Store, StoreError};
    use memoird_core::time::Steady;

    fn opened(dir: &std::path::Path) -> SqliteStore {
        SqliteStore::open(dir, SqliteOptions::default()).unwrap()
    }

    fn at(steady: u64) -> ClockAnchor {
        ClockAnchor {
            steady: Steady(steady),
            ..ClockAnchor::default()
        }
    }

    #[test]
    fn a_read_gives_what_the_disk_has() {
        let dir = tempfile::tempdir().unwrap();
        let store = opened(dir.path());
        for commits in 1..=2 {
            store.commit(&at(commits), &[]).unwrap();
            assert!(!store.log.has(commits), "nobody asked");
            assert_eq!(store.clock().unwrap(), Some(at(commits)));
            assert!(store.log.has(commits));
        }
    }

    #[test]
    fn a_sync_is_for_all_commits_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = opened(dir.path());
        for steady in 1..=3 {
            store.commit(&at(steady), &[]).unwrap();
        }
        store.sync().unwrap();
        assert!(store.log.has(3));
    }

    #[test]
    fn after_a_failed_sync_nothing_is_told_and_nothing_written() {
        let dir = tempfile::tempdir().unwrap();
        let store = opened(dir.path());
        store.commit(&at(1), &[]).unwrap();
        store.sync().unwrap();
        store.log.break_disk();
        store.commit(&at(2), &[]).unwrap();
        let failed = |error| matches!(error, StoreError::LogNotSynced { .. });
        assert!(store.clock().is_err_and(failed), "the disk may not have it");
        assert!(store.sync().is_err_and(failed));
        assert!(store.commit(&at(3), &[]).is_err_and(failed));
        assert!(store.record_outcomes(&[]).is_err_and(failed));
        drop(store);
        // Here the disk had it.
        assert_eq!(opened(dir.path()).clock().unwrap(), Some(at(2)));
    }

    #[test]
    fn only_change_sets_are_left_to_a_later_sync() {
        let dir = tempfile::tempdir().unwrap();
        let store = opened(dir.path());
        let level = || -> i64 {
            let writer = store.writer();
            let connection = writer.shared_connection();
            let level = connection.pragma_query_value(None, "synchronous", |row| row.get(0));
            level.unwrap()
        };
        const NORMAL: i64 = 1;
        const FULL: i64 = 2;
        assert_eq!(level(), FULL);
        store.commit(&at(1), &[]).unwrap();
        assert_eq!(level(), NORMAL);
        store.record_outcomes(&[]).unwrap();
        assert_eq!(level(), FULL);
    }
}
