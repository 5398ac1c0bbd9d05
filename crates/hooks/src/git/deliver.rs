//! One batch of ended sessions becomes one commit of one repository, exactly once in
//! effect: what the branch already has is not committed again.
//!
//! Until the branch moves, all that happens is a pack that nobody refers to; a crash
//! leaves that behind at most, and the next delivery starts from the branch again.

use std::collections::{BTreeMap, HashSet};

use gix::ObjectId;
use gix::objs::Kind;
use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use memoird_engine::Ended;

use super::GitConfig;
use super::error::GitError;
use super::lock::{OwnLock, Stop};
use super::pack::Objects;
use super::repo::{Repo, sync_dir};
use super::tree::{Folder, Trees};
use super::{jsonl, markdown, merge, message, names, worktree};

/// How often a branch may move while a commit is built upon it.
const ROUNDS_MAX: u32 = 8;

/// A generation with the names of its files.
pub(super) struct Checkpoint<'a> {
    pub(super) ended: &'a Ended,
    pub(super) folders: [String; 4],
    pub(super) stem: String,
}

/// The content of a generation's files.
#[derive(Clone, Copy)]
struct Blobs {
    markdown: ObjectId,
    lines: ObjectId,
}

impl<'a> Checkpoint<'a> {
    fn new(ended: &'a Ended) -> Self {
        let folders = names::folders(ended.ended_at);
        Self {
            ended,
            folders,
            stem: names::stem(&ended.session, ended.generation),
        }
    }

    /// The name of the readable file.
    pub(super) fn markdown(&self) -> String {
        format!("{}{}", self.stem, names::MARKDOWN)
    }

    /// The name of the file with the turns.
    pub(super) fn lines(&self) -> String {
        format!("{}{}", self.stem, names::LINES)
    }
}

/// Commits what of this the tenant's branch does not have yet.
pub(super) fn deliver(
    config: &GitConfig,
    tenant: &TenantId,
    batch: &[&Ended],
    at: Timestamp,
    stop: &Stop,
) -> Result<(), GitError> {
    let repo = Repo::open_or_create(config, tenant, stop)?;
    let lock = OwnLock::acquire(&repo, stop)?;
    // Sorted, and each generation once.
    let batch: BTreeMap<_, _> = batch
        .iter()
        .map(|ended| (ended.generation, *ended))
        .collect();
    let batch: Vec<Checkpoint<'_>> = batch.into_values().map(Checkpoint::new).collect();
    let mut delivery = Delivery {
        config,
        repo: &repo,
        lock: &lock,
        stop,
        at,
        objects: Objects::new(),
        blobs: vec![None; batch.len()],
        batch,
    };
    delivery.commit()?;
    if let Err(error) = merge::tidy(&repo, stop) {
        tracing::warn!(%error, "packs were not merged");
    }
    Ok(())
}

struct Delivery<'a> {
    config: &'a GitConfig,
    repo: &'a Repo,
    lock: &'a OwnLock,
    stop: &'a Stop,
    at: Timestamp,
    objects: Objects,
    blobs: Vec<Option<Blobs>>,
    batch: Vec<Checkpoint<'a>>,
}

impl Delivery<'_> {
    fn commit(&mut self) -> Result<(), GitError> {
        for _ in 0..ROUNDS_MAX {
            let tip = self.repo.tip()?;
            let base = tip.map(|tip| self.repo.tree_of(tip)).transpose()?;
            let mut trees = Trees::new(self.repo);
            let missing = self.missing(base, &mut trees)?;
            if missing.is_empty() {
                return self.check_out();
            }
            let commit = self.build(tip, base, &missing, &mut trees)?;
            let pack = self.objects.write(&self.repo.pack_dir())?;
            self.stop.check()?;
            let is_there = || pack.as_ref().is_none_or(|pack| pack.exists());
            if self.advance(tip, commit, is_there)? {
                return Ok(());
            }
            // A person's git may have thrown the pack away with the commit unborn.
            if !is_there() {
                self.objects = Objects::new();
                self.blobs.fill(None);
            }
        }
        let (path, branch) = (self.repo.git_dir.clone(), self.repo.branch.clone());
        Err(GitError::Moving { path, branch })
    }

    /// Places in the batch that the tree does not have.
    fn missing(
        &self,
        base: Option<ObjectId>,
        trees: &mut Trees<'_>,
    ) -> Result<Vec<usize>, GitError> {
        let Some(base) = base else {
            return Ok((0..self.batch.len()).collect());
        };
        let mut days: BTreeMap<&[String; 4], Vec<(usize, String)>> = BTreeMap::new();
        for (place, checkpoint) in self.batch.iter().enumerate() {
            let day = days.entry(&checkpoint.folders).or_default();
            day.push((place, checkpoint.markdown()));
        }
        let mut missing = Vec::new();
        for (folders, files) in days {
            let wanted: HashSet<&str> = files.iter().map(|(_, name)| name.as_str()).collect();
            let present = match trees.folder(base, folders)? {
                None => HashSet::new(),
                Some(day) => trees.present(day, &wanted)?,
            };
            let absent = files
                .iter()
                .filter(|(_, name)| !present.contains(name.as_str()));
            missing.extend(absent.map(|(place, _)| *place));
        }
        missing.sort_unstable();
        Ok(missing)
    }

    /// Makes the objects of a commit upon `tip`.
    fn build(
        &mut self,
        tip: Option<ObjectId>,
        base: Option<ObjectId>,
        missing: &[usize],
        trees: &mut Trees<'_>,
    ) -> Result<ObjectId, GitError> {
        let mut root = Folder::default();
        for &place in missing {
            self.stop.check()?;
            let blobs = self.blobs_of(place)?;
            let checkpoint = &self.batch[place];
            root.put(&checkpoint.folders, checkpoint.markdown(), blobs.markdown);
            root.put(&checkpoint.folders, checkpoint.lines(), blobs.lines);
        }
        let tree = trees.with(base, &root, &mut self.objects)?;
        let new: Vec<&Ended> = missing
            .iter()
            .map(|&place| self.batch[place].ended)
            .collect();
        let commit = message::commit(self.config, tree, tip, &new, self.at);
        self.add(Kind::Commit, commit.as_bytes())
    }

    fn blobs_of(&mut self, place: usize) -> Result<Blobs, GitError> {
        if let Some(blobs) = self.blobs[place] {
            return Ok(blobs);
        }
        let ended = self.batch[place].ended;
        let markdown = self.add(Kind::Blob, markdown::document(ended).as_bytes())?;
        let lines = self.add(Kind::Blob, jsonl::lines(ended).as_bytes())?;
        let blobs = Blobs { markdown, lines };
        self.blobs[place] = Some(blobs);
        Ok(blobs)
    }

    fn add(&mut self, kind: Kind, content: &[u8]) -> Result<ObjectId, GitError> {
        let added = self.objects.add(kind, content);
        added.map_err(|error| self.repo.damaged(&"a new object", error))
    }

    /// Moves the branch from `tip` to `commit`. False when it is no longer at `tip`.
    fn advance(
        &self,
        tip: Option<ObjectId>,
        commit: ObjectId,
        is_there: impl Fn() -> bool,
    ) -> Result<bool, GitError> {
        let line = format!("{}\n", commit.to_hex());
        let files = worktree::Checkout::begin(self.repo, self.lock, &line)?;
        let branch = self.repo.branch_file();
        let lock = self.lock.take(&branch, &line)?;
        if self.repo.tip()? != tip || !is_there() {
            return Ok(false);
        }
        lock.commit()?;
        let folder = branch.parent().unwrap_or(&branch);
        sync_dir(folder)?;
        worktree::log(self.repo, self.config, tip, commit, self.at);
        if let Some(files) = files {
            files.finish(&self.batch);
        }
        Ok(true)
    }

    /// Nothing to commit; a crash may have come before the files were written.
    fn check_out(&self) -> Result<(), GitError> {
        if let Some(files) = worktree::Checkout::begin(self.repo, self.lock, "memoird\n")? {
            files.finish(&self.batch);
        }
        Ok(())
    }
}
