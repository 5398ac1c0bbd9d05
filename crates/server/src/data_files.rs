//! The files of a daemon: where they are, whether they are whole, and what a command that was
//! cut off left among them.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};

use memoird_memories::store::tenant_files;
use memoird_search::index_file;
use memoird_store::conversion::{check_finished, wipe};
use memoird_store::data_key::check_key;
use memoird_store::verify::{FileCheck, check_file, check_journal};
use memoird_store::{DataKey, StoreError};

/// The journal in a data directory and in a backup.
pub(crate) const JOURNAL: &str = "journal.db";
/// The files of memories there.
pub(crate) const MEMORIES: &str = "memories";
/// The configuration in a backup.
pub(crate) const CONFIG: &str = "memoird.yaml";
/// What a restore has copied so far. As long as it is there, the directory is not whole.
pub(crate) const RESTORING: &str = "restoring";
/// Copies that are sent to a backup.
const COPIES: &str = "backup.tmp";

/// Where the files of a daemon are.
#[derive(Clone, Debug)]
pub(crate) struct DataFiles {
    /// The directory of the journal.
    pub(crate) data_dir: PathBuf,
    /// The directory with a file for each tenant's memories.
    pub(crate) memories_dir: PathBuf,
    /// The configuration, where there is a file of it.
    pub(crate) config: Option<PathBuf>,
    /// What the SQLite files are encrypted with; `None`: nothing.
    pub(crate) key: Option<DataKey>,
}

impl DataFiles {
    /// Those of a data directory, or of a backup.
    pub(crate) fn of_dir(dir: &Path, key: Option<DataKey>) -> Self {
        Self {
            data_dir: dir.to_owned(),
            memories_dir: dir.join(MEMORIES),
            config: None,
            key,
        }
    }

    /// The journal, where there is one.
    pub(crate) fn journal(&self) -> Option<PathBuf> {
        Some(self.data_dir.join(JOURNAL)).filter(|path| path.exists())
    }

    /// The files of memories, in order.
    ///
    /// # Errors
    /// When their directory cannot be read.
    pub(crate) fn memories(&self) -> io::Result<Vec<PathBuf>> {
        tenant_files(&self.memories_dir)
    }

    /// Where copies for a backup are made.
    pub(crate) fn copies_dir(&self) -> PathBuf {
        self.data_dir.join(COPIES)
    }

    /// True while a restore is not finished.
    pub(crate) fn is_restoring(&self) -> bool {
        self.data_dir.join(RESTORING).exists()
    }

    /// Removes the copies of a backup that was cut off.
    pub(crate) fn remove_copies(&self) {
        // Without them there is nothing to remove.
        let _ = fs::remove_dir_all(self.copies_dir());
    }

    /// Removes what a daemon makes anew of the journal, and the copies of a backup that was cut
    /// off. What they held is overwritten. Nobody may use the files.
    ///
    /// # Errors
    /// When one cannot be written or removed.
    pub(crate) fn wipe_derived(&self) -> io::Result<()> {
        let copies = Self::of_dir(&self.copies_dir(), None);
        for path in copies.journal().into_iter().chain(copies.memories()?) {
            wipe(&path)?;
        }
        self.remove_copies();
        let index = index_file(&self.data_dir);
        for ending in ["db-shm", "db-wal", "db"] {
            wipe(&index.with_extension(ending))?;
        }
        Ok(())
    }

    /// Gives what root has just made here to whom the data directory belongs: that is whose daemon is
    /// to use it.
    ///
    /// # Errors
    /// When a directory cannot be read, or a file in it not be given away.
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
            // A file with another name may be somebody else's.
            if found.uid() == 0 && (found.is_dir() || found.is_file() && found.nlink() == 1) {
                lchown(&path, Some(owner.uid()), Some(owner.gid()))?;
            }
        }
        Ok(())
    }

    /// Refuses files that the key does not fit, before anything opens one; and a directory in
    /// which only some of them were encrypted or decrypted so far.
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

    /// Checks every file: the journal first. Reads all of them.
    ///
    /// # Errors
    /// When one cannot be read for another reason than that it is damaged.
    pub(crate) fn verify(&self) -> Result<Vec<FileCheck>, StoreError> {
        let key = self.key.as_ref();
        let journal = self.journal();
        let journal = journal.iter().map(|path| check_journal(path, key));
        let memories = self.memories().map_err(|error| self.unusable(error))?;
        let memories = memories.iter().map(|path| check_file(path, key));
        journal.chain(memories).collect()
    }

    fn unusable(&self, source: io::Error) -> StoreError {
        StoreError::DirUnusable {
            dir: self.memories_dir.clone(),
            source,
        }
    }
}
