//! A wall clock under test control, by starting daemons with libfaketime.
//!
//! libfaketime is Debian's package `faketime`. The monotonic clock is not affected, as with a real
//! step.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Setup, skip};

/// A wall clock that a test can set.
pub(crate) struct Clock {
    dir: TempDir,
    library: PathBuf,
}

impl Clock {
    /// Returns `None` and skips the test if libfaketime is not installed.
    #[track_caller]
    pub(crate) fn new(test: &str) -> Option<Self> {
        let clock = Self::found();
        if clock.is_none() {
            skip(test, "libfaketime");
        }
        clock
    }

    fn found() -> Option<Self> {
        let places = std::fs::read_dir("/usr/lib").ok()?;
        let dirs = places.filter_map(|entry| Some(entry.ok()?.path()));
        let candidates = dirs.map(|dir| dir.join("faketime/libfaketime.so.1"));
        let library = candidates.into_iter().find(|path| path.exists())?;
        let clock = Self {
            dir: tempfile::tempdir().ok()?,
            library,
        };
        clock.set("+0");
        Some(clock)
    }

    /// Sets the offset to the real time, such as `+86400` or `-50y`.
    pub(crate) fn set(&self, offset: &str) {
        // Rename, so that no reader sees a partial file.
        let new = self.dir.path().join("new");
        std::fs::write(&new, offset).expect("written");
        std::fs::rename(&new, self.file()).expect("renamed");
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("offset")
    }

    /// Makes the daemon of this setup use the clock.
    pub(crate) fn applied_to(&self, setup: Setup) -> Setup {
        let text = |path: &Path| path.display().to_string();
        setup
            .env("LD_PRELOAD", &text(&self.library))
            .env("FAKETIME_TIMESTAMP_FILE", &text(&self.file()))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1")
    }
}
