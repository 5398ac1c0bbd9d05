//! Adds a file to a repository piece by piece, so that a large one is never in memory as a whole.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use git2::{ObjectType, Oid};

use super::error::{GitError, IoContext};
use super::objects::NewObjects;
use super::repo::{Repo, sync_dir};

/// Maximum bytes of a file in memory. A larger file becomes a loose object.
const BYTES_MAX: usize = 2 << 20;

/// Content of a file that is not yet an object.
pub(super) struct NewFile<'a> {
    repo: &'a Repo,
    text: String,
    /// The content so far, and its path, once it is too large for `text`.
    spilled: Option<(File, PathBuf)>,
}

impl<'a> NewFile<'a> {
    pub(super) fn new(repo: &'a Repo) -> Self {
        Self {
            repo,
            text: String::new(),
            spilled: None,
        }
    }

    /// Appends a piece.
    pub(super) fn push(&mut self, piece: &str) -> Result<(), GitError> {
        self.text.push_str(piece);
        if self.text.len() > BYTES_MAX {
            self.spill()?;
        }
        Ok(())
    }

    fn spill(&mut self) -> Result<(), GitError> {
        if self.spilled.is_none() {
            // Deleted at the next delivery after a crash.
            let folder = self.repo.unfinished_dir();
            fs::create_dir_all(&folder).io_context("create", &folder)?;
            let path = folder.join("file");
            let file = File::create(&path).io_context("create", &path)?;
            self.spilled = Some((file, path));
        }
        if let Some((file, path)) = &mut self.spilled {
            let written = file.write_all(self.text.as_bytes());
            written.io_context("write", path)?;
        }
        self.text.clear();
        Ok(())
    }

    /// Creates the object.
    pub(super) fn finish(mut self, objects: &mut NewObjects<'_>) -> Result<Oid, GitError> {
        let Some((mut file, path)) = self.spilled.take() else {
            return objects.add(ObjectType::Blob, self.text.as_bytes());
        };
        let written = file.write_all(self.text.as_bytes());
        written.io_context("write", &path)?;
        drop(file);
        let folder = self.repo.git_dir.join("objects");
        let made = self.repo.git.blob_path(&path);
        let id = made.map_err(|error| GitError::not_written(&folder, &error))?;
        fs::remove_file(&path).io_context("remove", &path)?;
        let name = id.to_string();
        let folder = folder.join(&name[..2]);
        let object = folder.join(&name[2..]);
        // It may be in a pack already.
        if object.exists() {
            let synced = File::open(&object).and_then(|file| file.sync_all());
            synced.io_context("write", &object)?;
            sync_dir(&folder)?;
            objects.add_loose(object);
        }
        Ok(id)
    }
}
