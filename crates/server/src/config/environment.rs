//! Environment variables of the process, and files with secrets.
//!
//! No other file of the daemon reads variables for the configuration.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use memoird_core::config::Environment;
use memoird_core::sha256::Sha256;

/// Reads variables and files, and records which files it read.
#[derive(Debug, Default)]
pub(super) struct ProcessEnvironment {
    files: RefCell<FilesRead>,
}

/// The files that were read for a configuration, or could not be, with digests of their content.
///
/// Not the modification times, because a mounted volume replaces links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilesRead(Vec<(PathBuf, ContentDigest)>);

/// `None` for a missing file, which differs from an empty one.
type ContentDigest = Option<[u8; 32]>;

impl FilesRead {
    /// Reads the same files again.
    pub(crate) fn again(&self) -> Self {
        let paths = self.0.iter().map(|(path, _)| path);
        Self(
            paths
                .map(|path| noted(path, &std::fs::read(path)))
                .collect(),
        )
    }

    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

fn noted(path: &Path, content: &io::Result<Vec<u8>>) -> (PathBuf, ContentDigest) {
    let digest = content.as_ref().ok().map(Sha256::digest);
    (path.to_owned(), digest)
}

impl ProcessEnvironment {
    pub(super) fn into_files(self) -> FilesRead {
        self.files.into_inner()
    }
}

impl Environment for ProcessEnvironment {
    #[allow(clippy::disallowed_methods)]
    fn variable(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    fn file(&self, path: &Path) -> io::Result<String> {
        let content = std::fs::read(path);
        self.files.borrow_mut().0.push(noted(path, &content));
        String::from_utf8(content?)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}
