//! New objects, in memory until they are written as packs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use git2::{ObjectType, Oid};

use super::error::GitError;
use super::lock::CancelSignal;
use super::packs::{self, Deltas};
use super::repo::Repo;

/// Maximum number of objects in memory, and their size in bytes. A pack takes as much again.
const OBJECTS_MAX: usize = 10_000;
const BYTES_MAX: usize = 8 << 20;

/// Takes precedence over the backends for packs and loose objects, which have 1 and 2.
const PRIORITY: i32 = 1_000;

const MODE_FILE: i32 = 0o100_644;
pub(super) const MODE_FOLDER: i32 = 0o040_000;

/// Objects that a delivery or an erasure adds to a repository.
///
/// They are readable at once through this value only. When there are too many for memory, they are
/// written as a pack.
pub(super) struct NewObjects<'a> {
    /// The repository with a backend in memory that receives new objects.
    pub(super) repo: Repo,
    stop: &'a CancelSignal,
    ids: Vec<Oid>,
    bytes: usize,
    deltas: Deltas,
    files: Vec<PathBuf>,
}

impl<'a> NewObjects<'a> {
    pub(super) fn new(
        repo: &Repo,
        deltas: Deltas,
        stop: &'a CancelSignal,
    ) -> Result<Self, GitError> {
        Ok(Self {
            repo: open(repo)?,
            stop,
            ids: Vec::new(),
            bytes: 0,
            deltas,
            files: Vec::new(),
        })
    }

    /// Adds an object and returns its id.
    pub(super) fn add(&mut self, kind: ObjectType, content: &[u8]) -> Result<Oid, GitError> {
        let written = self.repo.git.odb().and_then(|odb| odb.write(kind, content));
        let id = written.map_err(|error| self.refused(&error))?;
        self.insert(id, content.len())?;
        Ok(id)
    }

    /// Adds the tree with the entries of `base` and these files in a subdirectory.
    pub(super) fn add_files(
        &mut self,
        base: Option<Oid>,
        folders: &[String],
        files: &BTreeMap<String, Oid>,
    ) -> Result<Oid, GitError> {
        let Some((name, rest)) = folders.split_first() else {
            let files = files
                .iter()
                .map(|(name, id)| (name.as_bytes(), Some((*id, MODE_FILE))));
            return self.change_tree(base, files);
        };
        let known = match base {
            None => None,
            Some(base) => self.repo.folder(base, &folders[..1])?,
        };
        let inner = self.add_files(known, rest, files)?;
        self.change_tree(base, [(name.as_bytes(), Some((inner, MODE_FOLDER)))])
    }

    /// Adds the tree with the entries of `base`, some of them replaced or, if `None`, removed.
    pub(super) fn change_tree<'n>(
        &mut self,
        base: Option<Oid>,
        changes: impl IntoIterator<Item = (&'n [u8], Option<(Oid, i32)>)>,
    ) -> Result<Oid, GitError> {
        let write = || {
            let base = base.map(|id| self.repo.git.find_tree(id)).transpose()?;
            let mut tree = self.repo.git.treebuilder(base.as_ref())?;
            for (name, change) in changes {
                match change {
                    Some((id, mode)) => _ = tree.insert(name, id, mode)?,
                    None => tree.remove(name)?,
                }
            }
            let id = tree.write()?;
            Ok((id, self.repo.git.odb()?.read_header(id)?.0))
        };
        let (id, bytes) = write().map_err(|error| self.refused(&error))?;
        self.insert(id, bytes)?;
        Ok(id)
    }

    /// Records an object that was written to memory.
    fn insert(&mut self, id: Oid, bytes: usize) -> Result<(), GitError> {
        self.ids.push(id);
        self.bytes += bytes;
        if self.ids.len() >= OBJECTS_MAX || self.bytes >= BYTES_MAX {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the objects in memory as a pack, and frees what libgit2 caches.
    pub(super) fn flush(&mut self) -> Result<(), GitError> {
        if !self.ids.is_empty() {
            let pack = packs::write(&self.repo, &self.repo, &self.ids, self.deltas, self.stop)?;
            self.files.push(pack);
        }
        self.clear()
    }

    /// Discards the objects in memory.
    pub(super) fn clear(&mut self) -> Result<(), GitError> {
        self.repo = open(&self.repo)?;
        self.ids.clear();
        self.bytes = 0;
        Ok(())
    }

    /// Records an object that was written to a file of its own.
    pub(super) fn add_loose(&mut self, path: PathBuf) {
        self.files.push(path);
    }

    /// The packs and loose objects that were written.
    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    fn refused(&self, error: &git2::Error) -> GitError {
        self.repo.damaged(&"a new object", error)
    }
}

fn open(repo: &Repo) -> Result<Repo, GitError> {
    let opened = repo.reopened()?;
    let added = opened.git.odb();
    added
        .and_then(|odb| odb.add_new_mempack_backend(PRIORITY).map(drop))
        .map_err(|error| repo.damaged(&"its objects", error))?;
    Ok(opened)
}
