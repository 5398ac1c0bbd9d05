//! The environment of the process, and the files in which secrets are. The one file of the
//! daemon that reads variables for its configuration.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use memoird_core::config::Environment;
use memoird_core::sha256::Sha256;

/// Reads variables and files, and remembers what was in which files.
#[derive(Debug, Default)]
pub(super) struct ProcessEnvironment {
    files: RefCell<FilesRead>,
}

/// The files that were read for a configuration, or could not be, as they were then. Their content
/// is what tells, because a mounted volume swaps links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilesRead(Vec<(PathBuf, ContentDigest)>);

/// `None` where there was no content: a missing file differs from an empty one.
type ContentDigest = Option<[u8; 32]>;

impl FilesRead {
    /// The same files as they are now.
    pub(crate) fn again(&self) -> Self {
        let paths = self.0.iter().map(|(path, _)| path);
        Self(
            paths
                .map(|path| noted(path, &std::fs::read(path)))
                .collect(),
        )
    }

    /// These, and others.
    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

fn noted(path: &Path, content: &io::Result<Vec<u8>>) -> (PathBuf, ContentDigest) {
    let digest = content.as_ref().ok().map(Sha256::digest);
    (path.to_owned(), digest)
}

impl ProcessEnvironment {
    /// The files that were read, or could not be.
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
