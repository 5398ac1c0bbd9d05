//! The data files of a daemon: locations, integrity, and leftovers of interrupted commands.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};

use memoird_memories::store::{check_tenant_file, schema_of_version, tenant_files};
use memoird_store::conversion::{check_finished, wipe};
use memoird_store::data_key::check_key;
use memoird_store::verify::{FileCheck, JOURNAL_SCHEMA, check_journal, check_schema};
use memoird_store::{DataKey, StoreError, index_file, private};

/// The journal, in a data directory and in a backup.
pub(crate) const JOURNAL: &str = "journal.db";
/// The directory of the memory files.
pub(crate) const MEMORIES: &str = "memories";
/// The configuration file in a backup.
pub(crate) const CONFIG: &str = "memoird.yaml";
/// Staging directory of a restore. While it exists, the data directory is incomplete.
pub(crate) const RESTORING: &str = "restoring";
/// Copies that are sent to a backup.
const COPIES: &str = "backup.tmp";

/// Replaces a file, which only its owner can read. After a crash it has the old or the new content.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = private::file_options();
    let mut file = options.create(true).truncate(true).write(true).open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[derive(Clone, Debug)]
pub(crate) struct DataFiles {
    /// Directory of the journal.
    pub(crate) data_dir: PathBuf,
    /// Directory with one memory file per tenant.
    pub(crate) memories_dir: PathBuf,
    pub(crate) config: Option<PathBuf>,
    /// Key of the SQLite files. `None` if they are not encrypted.
    pub(crate) key: Option<DataKey>,
}

impl DataFiles {
    pub(crate) fn of_dir(dir: &Path, key: Option<DataKey>) -> Self {
        Self {
            data_dir: dir.to_owned(),
            memories_dir: dir.join(MEMORIES),
            config: None,
            key,
        }
    }

    pub(crate) fn journal(&self) -> Option<PathBuf> {
        Some(self.data_dir.join(JOURNAL)).filter(|path| path.exists())
    }

    /// Paths of the memory files, in order.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub(crate) fn memories(&self) -> io::Result<Vec<PathBuf>> {
        tenant_files(&self.memories_dir)
    }

    /// Directory for copies during a backup.
    pub(crate) fn copies_dir(&self) -> PathBuf {
        self.data_dir.join(COPIES)
    }

    /// Whether a restore is incomplete.
    pub(crate) fn is_restoring(&self) -> bool {
        self.data_dir.join(RESTORING).exists()
    }

    /// Removes the copies of an interrupted backup.
    pub(crate) fn remove_copies(&self) {
        // Fails if there are none, which is fine.
        let _ = fs::remove_dir_all(self.copies_dir());
    }

    /// Overwrites and removes files that can be rebuilt, and copies of an interrupted backup.
    ///
    /// No daemon may use the files.
    ///
    /// # Errors
    /// If a file cannot be written or removed.
    pub(crate) fn wipe_derived(&self) -> io::Result<()> {
        let copies = Self::of_dir(&self.copies_dir(), None);
        for path in copies.journal().into_iter().chain(copies.memories()?) {
            wipe(&path)?;
        }
        self.remove_copies();
        self.wipe_index()
    }

    /// Overwrites and removes the search index of a journal in the directory.
    ///
    /// # Errors
    /// If a file cannot be written or removed.
    pub(crate) fn wipe_index(&self) -> io::Result<()> {
        let index = index_file(&self.data_dir);
        for ending in ["db-shm", "db-wal", "db"] {
            wipe(&index.with_extension(ending))?;
        }
        Ok(())
    }

    /// Gives files created by root to the owner of the data directory, as which the daemon runs.
    ///
    /// # Errors
    /// If a directory cannot be read, or an owner cannot be changed.
    pub(crate) fn give_to_owner(&self) -> io::Result<()> {
        let owner = fs::metadata(&self.data_dir)?;
        if !rustix::process::geteuid().is_root() || owner.uid() == 0 {
            return Ok(());
        }
        let mut paths = vec![self.memories_dir.clone()];
        for dir in [&self.data_dir, &self.memories_dir] {
            match fs::read_dir(dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                entries => {
                    for entry in entries? {
                        paths.push(entry?.path());
                    }
                }
            }
        }
        for path in paths {
            let Ok(found) = fs::symlink_metadata(&path) else {
                continue;
            };
            // A file with several hard links may belong to another user.
            if found.uid() == 0 && (found.is_dir() || found.is_file() && found.nlink() == 1) {
                lchown(&path, Some(owner.uid()), Some(owner.gid()))?;
            }
        }
        Ok(())
    }

    /// Checks that the key fits all files, and that no encryption or decryption was interrupted.
    ///
    /// # Errors
    /// Those of [`check_finished`] and [`check_key`].
    pub(crate) fn check_key(&self) -> Result<(), StoreError> {
        check_finished(&self.data_dir)?;
        check_finished(&self.memories_dir)?;
        let memories = self.memories().map_err(|error| self.unusable(error))?;
        let index = [index_file(&self.data_dir)];
        for path in self.journal().into_iter().chain(index).chain(memories) {
            check_key(&path, self.key.as_ref())?;
        }
        Ok(())
    }

    /// Reads and checks every file, the journal first.
    ///
    /// # Errors
    /// If a file cannot be read for a reason other than damage.
    pub(crate) fn verify(&self) -> Result<Vec<FileCheck>, StoreError> {
        let key = self.key.as_ref();
        let journal_file = self.journal();
        let journal = journal_file.iter().map(|path| check_journal(path, key));
        let memory_files = self.memories().map_err(|error| self.unusable(error))?;
        let memories = memory_files.iter().map(|path| check_tenant_file(path, key));
        journal.chain(memories).collect()
    }

    /// Rejects files with a part of the schema that memoird did not create.
    ///
    /// # Errors
    /// Those of [`check_schema`].
    pub(crate) fn check_schemas(&self) -> Result<(), StoreError> {
        let key = self.key.as_ref();
        if let Some(path) = self.journal() {
            check_schema(&path, key, JOURNAL_SCHEMA)?;
        }
        for path in self.memories().map_err(|error| self.unusable(error))? {
            check_schema(&path, key, schema_of_version)?;
        }
        Ok(())
    }

    fn unusable(&self, source: io::Error) -> StoreError {
        StoreError::DirUnusable {
            dir: self.memories_dir.clone(),
            source,
        }
    }
}
