//! The files that people see, in a repository with `worktree: true`.
//!
//! They are a copy: the branch has moved when they are written, and whatever goes wrong
//! with them is only told. What a person has at their path, or in the index, is theirs
//! and stays.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use gix::ObjectId;
use gix::bstr::ByteSlice;
use gix::index::entry::{Flags, Mode, Stat};
use gix::objs::Kind;
use memoird_core::time::Timestamp;

use super::GitConfig;
use super::deliver::Checkpoint;
use super::error::{Doing, GitError};
use super::lock::{GitLock, OwnLock};
use super::repo::Repo;
use super::tree::{Trees, entries};

/// The right to change the index, and with it the files.
pub(super) struct Checkout<'a> {
    repo: &'a Repo,
    work_dir: &'a Path,
    _lock: GitLock,
}

impl<'a> Checkout<'a> {
    /// Takes the right where it is needed: `None` in a bare repository, and when another
    /// branch is checked out.
    pub(super) fn begin(
        repo: &'a Repo,
        lock: &OwnLock,
        line: &str,
    ) -> Result<Option<Self>, GitError> {
        let Some(work_dir) = repo.work_dir.as_deref().filter(|_| repo.is_checked_out()) else {
            return Ok(None);
        };
        let lock = lock.take(&repo.git_dir.join("index"), line)?;
        // It may have been changed while the lock was waited for.
        Ok(repo.is_checked_out().then_some(Self {
            repo,
            work_dir,
            _lock: lock,
        }))
    }

    /// Writes the files of these checkpoints, as the branch has them, and adds them to
    /// the index.
    pub(super) fn finish(self, batch: &[Checkpoint<'_>]) {
        if let Err(error) = self.try_finish(batch) {
            tracing::warn!(%error, "files of checkpoints were not written; see `git status`");
        }
    }

    fn try_finish(&self, batch: &[Checkpoint<'_>]) -> Result<(), GitError> {
        let path = self.repo.git_dir.join("index");
        let damaged = |error: gix::Error| GitError::damaged(&path, error);
        let kind = gix::hash::Kind::Sha1;
        let index = gix::index::File::at_or_default(&path, kind, false, Default::default());
        let mut index = index.map_err(damaged)?;
        let Some(tip) = self.repo.tip()? else {
            return Ok(());
        };
        let tree = self.repo.tree_of(tip)?;
        let mut trees = Trees::new(self.repo);
        let mut news = Vec::new();
        for (folders, names) in days(batch) {
            let Some(day) = trees.folder(tree, folders)? else {
                continue;
            };
            if self.is_blocked(folders, &index)? {
                tracing::warn!(
                    folder = folders.join("/"),
                    "something is in the way of files"
                );
                continue;
            }
            for entry in entries(trees.bytes(day)?) {
                let entry = entry.map_err(damaged)?;
                let Ok(name) = str::from_utf8(entry.filename) else {
                    continue;
                };
                let path = format!("{}/{name}", folders.join("/"));
                let is_new = names
                    .binary_search_by(|known| known.as_str().cmp(name))
                    .is_ok();
                if is_new && index.entry_by_path(path.as_bytes().as_bstr()).is_none() {
                    news.push((path, entry.oid.to_owned()));
                }
            }
        }
        if news.is_empty() {
            return Ok(());
        }
        for (path, id) in news {
            let stat = self.write(&path, id)?;
            let path = path.as_bytes().as_bstr();
            index.dangerously_push_entry(stat, id, Flags::empty(), Mode::FILE, path);
        }
        index.sort_entries();
        // It says what folders were like before.
        index.remove_tree();
        let mut content = Vec::new();
        index
            .write_to(&mut content, Default::default())
            .map_err(damaged)?;
        let new = self.repo.git_dir.join("memoird.index");
        super::repo::write(&new, &content)?;
        fs::rename(&new, &path).doing("write", &path)
    }

    /// True when a person has something else where a folder belongs: a file, or a link
    /// that leads out of the work tree.
    fn is_blocked(&self, folders: &[String], index: &gix::index::File) -> Result<bool, GitError> {
        let mut path = self.work_dir.to_owned();
        for depth in 0..folders.len() {
            path.push(&folders[depth]);
            let name = folders[..=depth].join("/");
            if index.entry_by_path(name.as_bytes().as_bstr()).is_some() {
                return Ok(true);
            }
            match fs::symlink_metadata(&path) {
                Ok(found) if !found.is_dir() => return Ok(true),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir(&path).doing("create", &path)?;
                }
                Err(error) => return Err(error).doing("read", &path),
            }
        }
        Ok(false)
    }

    /// Writes a file unless there is one, and gives what the index knows of it: nothing
    /// when its content is a person's.
    fn write(&self, name: &str, id: ObjectId) -> Result<Stat, GitError> {
        let path = self.work_dir.join(name);
        let content = self.repo.read(id, Kind::Blob)?;
        let temporary = self.repo.git_dir.join("memoird.file");
        fs::write(&temporary, &content).doing("write", &temporary)?;
        // Appears whole, and never instead of another file.
        let linked = fs::hard_link(&temporary, &path);
        let _ = fs::remove_file(&temporary);
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let is_file = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
                if !is_file || !fs::read(&path).is_ok_and(|found| found == content) {
                    tracing::warn!(path = %path.display(), "a person's file is left as it is");
                    return Ok(Stat::default());
                }
            }
            linked => linked.doing("create", &path)?,
        }
        let found = gix::index::fs::Metadata::from_path_no_follow(&path).doing("read", &path)?;
        Ok(Stat::from_fs(&found).unwrap_or_default())
    }
}

/// The names of the files by the day of their folders, sorted.
fn days<'a>(batch: &'a [Checkpoint<'_>]) -> Vec<(&'a [String; 4], Vec<String>)> {
    let mut days = std::collections::BTreeMap::<_, Vec<String>>::new();
    for checkpoint in batch {
        let names = days.entry(&checkpoint.folders).or_default();
        names.extend([checkpoint.markdown(), checkpoint.lines()]);
    }
    days.values_mut().for_each(|names| names.sort_unstable());
    days.into_iter().collect()
}

/// Notes a move of the branch where git would: in the logs that there are, and in those
/// of a repository with a work tree.
pub(super) fn log(
    repo: &Repo,
    config: &GitConfig,
    tip: Option<ObjectId>,
    commit: ObjectId,
    at: Timestamp,
) {
    let old = tip.unwrap_or_else(|| ObjectId::null(gix::hash::Kind::Sha1));
    let who = format!(
        "{} <{}> {} +0000",
        config.author_name,
        config.author_email,
        at.seconds()
    );
    let line = format!(
        "{} {} {who}\tcommit: checkpoints\n",
        old.to_hex(),
        commit.to_hex()
    );
    let logs = repo.git_dir.join("logs");
    let mut paths: Vec<PathBuf> = vec![logs.join("refs/heads").join(&repo.branch)];
    if repo.is_checked_out() {
        paths.push(logs.join("HEAD"));
    }
    for path in paths {
        if let Err(error) = append(&path, &line, repo.work_dir.is_some()) {
            tracing::warn!(path = %path.display(), %error, "the reflog was not written");
        }
    }
}

fn append(path: &Path, line: &str, create: bool) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|_| create) {
        fs::create_dir_all(folder)?;
    }
    match OpenOptions::new().append(true).create(create).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        file => file?.write_all(line.as_bytes()),
    }
}
