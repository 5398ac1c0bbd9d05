//! New objects, in memory until they are written as packs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use git2::{ObjectType, Oid, Repository};

use super::error::GitError;
use super::lock::CancelSignal;
use super::packs::{self, Deltas};
use super::repo::Repo;

/// Maximum number of objects in memory, and their size in bytes.
const OBJECTS_MAX: usize = 50_000;
const BYTES_MAX: usize = 16 << 20;

/// Takes precedence over the backends for packs and loose objects, which have 1 and 2.
const PRIORITY: i32 = 1_000;

const MODE_FILE: i32 = 0o100_644;
pub(super) const MODE_FOLDER: i32 = 0o040_000;

/// Objects that a delivery or an erasure adds to a repository.
///
/// They are readable at once through this value only. When there are too many for memory, they are
/// written as a pack.
pub(super) struct NewObjects<'a> {
    repo: &'a Repo,
    stop: &'a CancelSignal,
    /// The repository with a backend in memory that receives new objects.
    git: Repository,
    ids: Vec<Oid>,
    bytes: usize,
    deltas: Deltas,
    packs: Vec<PathBuf>,
}

impl<'a> NewObjects<'a> {
    pub(super) fn new(
        repo: &'a Repo,
        deltas: Deltas,
        stop: &'a CancelSignal,
    ) -> Result<Self, GitError> {
        Ok(Self {
            repo,
            stop,
            git: open(repo)?,
            ids: Vec::new(),
            bytes: 0,
            deltas,
            packs: Vec::new(),
        })
    }

    /// Adds an object and returns its id.
    pub(super) fn add(&mut self, kind: ObjectType, content: &[u8]) -> Result<Oid, GitError> {
        let written = self.git.odb().and_then(|odb| odb.write(kind, content));
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
            Some(base) => self.repo.folder(&self.git, base, &folders[..1])?,
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
            let base = base.map(|id| self.git.find_tree(id)).transpose()?;
            let mut tree = self.git.treebuilder(base.as_ref())?;
            for (name, change) in changes {
                match change {
                    Some((id, mode)) => _ = tree.insert(name, id, mode)?,
                    None => tree.remove(name)?,
                }
            }
            let id = tree.write()?;
            Ok((id, self.git.odb()?.read_header(id)?.0))
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

    /// Writes the objects in memory as a pack.
    pub(super) fn flush(&mut self) -> Result<(), GitError> {
        if self.ids.is_empty() {
            return Ok(());
        }
        let pack = packs::write(self.repo, &self.git, &self.ids, self.deltas, self.stop)?;
        self.packs.push(pack);
        self.clear()
    }

    /// Discards the objects in memory.
    pub(super) fn clear(&mut self) -> Result<(), GitError> {
        self.git = open(self.repo)?;
        self.ids.clear();
        self.bytes = 0;
        Ok(())
    }

    /// The packs that were written.
    pub(super) fn packs(&self) -> &[PathBuf] {
        &self.packs
    }

    fn refused(&self, error: &git2::Error) -> GitError {
        self.repo.damaged(&"a new object", error)
    }
}

fn open(repo: &Repo) -> Result<Repository, GitError> {
    let opened = Repository::open_bare(&repo.git_dir).and_then(|git| {
        git.odb()?.add_new_mempack_backend(PRIORITY)?;
        Ok(git)
    });
    opened.map_err(|error| repo.damaged(&"its objects", error))
}
