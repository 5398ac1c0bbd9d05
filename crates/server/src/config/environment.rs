//! The environment of the process, and the files in which secrets are. The one file of the
//! daemon that reads variables for its configuration.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use memoird_core::config::Environment;

/// Reads variables and files, and remembers which files.
#[derive(Debug, Default)]
pub(super) struct ProcessEnvironment {
    files: RefCell<Vec<PathBuf>>,
}

impl ProcessEnvironment {
    /// The files that were read, or could not be.
    pub(super) fn into_files(self) -> Vec<PathBuf> {
        self.files.into_inner()
    }
}

impl Environment for ProcessEnvironment {
    #[allow(clippy::disallowed_methods)]
    fn variable(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    fn file(&self, path: &Path) -> io::Result<String> {
        self.files.borrow_mut().push(path.to_owned());
        std::fs::read_to_string(path)
    }
}
