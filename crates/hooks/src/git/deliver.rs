//! Commits a batch of ended sessions to a tenant's repository.
//!
//! The effect is exactly once: sessions already on the branch are not committed again. Until the
//! branch moves, a delivery only writes a pack that no ref points to. A crash leaves at most that
//! pack, and the next delivery starts from the branch again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use git2::{ObjectType, Oid};
use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use memoird_engine::SessionContent;

use super::GitConfig;
use super::erase::MARK;
use super::error::GitError;
use super::lock::{CancelSignal, RepositoryLock};
use super::new_file::NewFile;
use super::objects::NewObjects;
use super::packs::{self, Deltas};
use super::repo::{Repo, sync_dir, write};
use super::{jsonl, markdown, message, names};

/// Maximum number of attempts if the branch moves while a commit is being built.
const ATTEMPTS_MAX: u32 = 8;

/// An ended generation with the names of its files.
struct Checkpoint<'a> {
    ended: &'a SessionContent,
    folders: [String; 6],
    stem: String,
}

impl<'a> Checkpoint<'a> {
    fn new(ended: &'a SessionContent) -> Self {
        Self {
            ended,
            folders: names::folders(ended.ended_at),
            stem: names::stem(&ended.session, ended.generation),
        }
    }

    fn markdown(&self) -> String {
        format!("{}{}", self.stem, names::MARKDOWN)
    }

    fn lines(&self) -> String {
        format!("{}{}", self.stem, names::LINES)
    }
}

/// Commits the sessions of a batch that are not yet on the tenant's branch.
///
/// `is_first` is true if none of them was tried before.
pub(super) fn deliver(
    config: &GitConfig,
    tenant: &TenantId,
    batch: &[&SessionContent],
    at: Timestamp,
    is_first: bool,
    stop: &CancelSignal,
) -> Result<(), GitError> {
    let repo = Repo::open_or_create(config, tenant, stop)?;
    let lock = RepositoryLock::acquire(&repo, stop)?;
    // Sorted and without duplicates.
    let batch: BTreeMap<_, _> = batch
        .iter()
        .map(|ended| (ended.generation, *ended))
        .collect();
    let delivery = Delivery {
        config,
        repo: &repo,
        lock: &lock,
        stop,
        at,
        is_first,
        batch: batch.into_values().map(Checkpoint::new).collect(),
    };
    delivery.commit()
}

struct Delivery<'a> {
    config: &'a GitConfig,
    repo: &'a Repo,
    lock: &'a RepositoryLock,
    stop: &'a CancelSignal,
    at: Timestamp,
    is_first: bool,
    batch: Vec<Checkpoint<'a>>,
}

impl Delivery<'_> {
    fn commit(&self) -> Result<(), GitError> {
        for _ in 0..ATTEMPTS_MAX {
            let tip = self.repo.tip()?;
            let base = tip
                .map(|tip| self.repo.commit(tip))
                .transpose()?
                .map(|commit| commit.tree_id());
            let missing = self.missing(base)?;
            if missing.is_empty() {
                return Ok(());
            }
            let mut objects = NewObjects::new(self.repo, Deltas::None, self.stop)?;
            let built = self.build(tip, base, &missing, &mut objects);
            match built.and_then(|commit| self.advance(tip, commit, objects.files())) {
                Ok(true) => {
                    self.merge_packs();
                    return Ok(());
                }
                Ok(false) => {}
                Err(error) => {
                    if !objects.files().is_empty() {
                        self.mark();
                    }
                    return Err(error);
                }
            }
        }
        self.mark();
        Err(GitError::contended(format!(
            "branch {} of {} moved during every attempt to commit",
            self.repo.branch,
            self.repo.git_dir.display()
        )))
    }

    /// Merges small packs, unless this is a retry, which may have no time for it.
    fn merge_packs(&self) {
        if !self.is_first {
            return;
        }
        match packs::merge_small(self.repo, self.stop) {
            Err(GitError::Stopped) | Ok(()) => {}
            Err(error) => tracing::warn!(%error, "packs were not merged"),
        }
    }

    /// Marks the repository for a sweep, because there are objects that no ref leads to.
    ///
    /// Sessions of this batch may be erased before the next attempt.
    fn mark(&self) {
        if let Err(error) = write(&self.repo.git_dir.join(MARK), b"") {
            tracing::warn!(%error, "could not mark the repository for a sweep after a failed \
                delivery");
        }
    }

    /// The checkpoints of the batch that the tree does not have.
    fn missing(&self, base: Option<Oid>) -> Result<Vec<&Checkpoint<'_>>, GitError> {
        let mut missing: Vec<&Checkpoint<'_>> = self.batch.iter().collect();
        let Some(base) = base else {
            return Ok(missing);
        };
        // Older versions wrote to the directory of the hour, or of the day.
        let places = self.batch.iter();
        let places: BTreeSet<&[String]> = places
            .flat_map(|it| [&it.folders[..], &it.folders[..5], &it.folders[..4]])
            .collect();
        for folders in places {
            let Some(place) = self.repo.folder(base, folders)? else {
                continue;
            };
            let place = self.repo.tree(place)?;
            let mut present = HashSet::new();
            for checkpoint in missing.iter().filter(|it| it.folders.starts_with(folders)) {
                let name = checkpoint.markdown();
                match place.get_name(&name).map(|entry| entry.kind()) {
                    None => {}
                    Some(Some(ObjectType::Blob)) => _ = present.insert(checkpoint.ended.generation),
                    Some(_) => return Err(self.repo.in_the_way(&name)),
                }
            }
            missing.retain(|it| !present.contains(&it.ended.generation));
        }
        Ok(missing)
    }

    /// Writes the objects of a commit to packs. Returns the commit.
    fn build(
        &self,
        tip: Option<Oid>,
        base: Option<Oid>,
        missing: &[&Checkpoint<'_>],
        objects: &mut NewObjects<'_>,
    ) -> Result<Oid, GitError> {
        let mut minutes: BTreeMap<&[String; 6], BTreeMap<String, Oid>> = BTreeMap::new();
        for checkpoint in missing {
            self.stop.check()?;
            let minute = minutes.entry(&checkpoint.folders).or_default();
            let mut file = NewFile::new(self.repo);
            markdown::write_document(checkpoint.ended, &mut |piece| file.push(piece))?;
            minute.insert(checkpoint.markdown(), file.finish(objects)?);
            let mut file = NewFile::new(self.repo);
            jsonl::write_lines(checkpoint.ended, &mut |line| file.push(line))?;
            minute.insert(checkpoint.lines(), file.finish(objects)?);
        }
        let mut grown = base;
        for (folders, files) in minutes {
            grown = Some(objects.add_files(grown, folders, &files)?);
        }
        let new: Vec<&SessionContent> = missing.iter().map(|it| it.ended).collect();
        // Always set: a commit has at least one session.
        let tree = grown.unwrap_or(Oid::ZERO_SHA1);
        let commit = message::commit(self.config, tree, tip, &new, self.at);
        let commit = objects.add(ObjectType::Commit, commit.as_bytes())?;
        objects.flush()?;
        Ok(commit)
    }

    /// Moves the branch from `tip` to `commit`.
    ///
    /// Returns false if it is no longer at `tip`, or if a user's git has pruned one of the new files
    /// as unreachable.
    fn advance(&self, tip: Option<Oid>, commit: Oid, files: &[PathBuf]) -> Result<bool, GitError> {
        self.stop.check()?;
        let branch = self.repo.branch_file();
        let lock = self.lock.take(&branch, &format!("{commit}\n"))?;
        if self.repo.tip()? != tip || !files.iter().all(|file| file.exists()) {
            return Ok(false);
        }
        lock.commit()?;
        sync_dir(branch.parent().unwrap_or(&branch))?;
        self.log(tip, commit);
        Ok(true)
    }

    /// Writes a reflog entry if the branch has a log, which bare repositories do not by default.
    fn log(&self, tip: Option<Oid>, commit: Oid) {
        let old = tip.unwrap_or(Oid::ZERO_SHA1);
        let at = self.at.seconds();
        let who = message::committer(self.config);
        let line = format!("{old} {commit} {who} {at} +0000\tcommit: checkpoints\n");
        let path = self.repo.git_dir.join("logs").join(self.repo.ref_name());
        let file = OpenOptions::new().append(true).open(&path);
        match file.and_then(|mut file| file.write_all(line.as_bytes())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "the reflog was not written");
            }
            _ => {}
        }
    }
}
