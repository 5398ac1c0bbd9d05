//! The history of a repository of checkpoints, as `git log --stat` shows it.

use std::collections::HashMap;

use gix::ObjectId;
use gix::objs::{CommitRef, Kind};
use memoird_core::time::Timestamp;

use super::error::GitError;
use super::read::Checkpoints;
use super::tree::entries;

/// Names of changed files that a commit is told with; the others are counted.
const FILES_MAX: usize = 100;

/// Folders within folders that are looked into.
const DEPTH_MAX: u32 = 32;

/// A commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its id, whole.
    pub id: String,
    /// When it was committed.
    pub time: Timestamp,
    /// The author's name.
    pub author: String,
    /// The first line of its message.
    pub subject: String,
    /// The other lines.
    pub body: String,
    /// Files that it added, changed or removed; the first hundred.
    pub files: Vec<String>,
    /// How many there are.
    pub files_changed: usize,
}

#[derive(Default)]
struct Changes {
    files: Vec<String>,
    count: usize,
}

impl Checkpoints {
    /// The newest commits of the branch, at most `limit`. Of a merge, the first parent
    /// is followed.
    ///
    /// # Errors
    /// When the repository cannot be read.
    pub fn log(&self, limit: usize) -> Result<Vec<LogEntry>, GitError> {
        let mut log = Vec::new();
        let mut next = self.repo.tip()?;
        while let Some(id) = next.filter(|_| log.len() < limit) {
            let content = self.repo.read(id, Kind::Commit)?;
            let damaged = |error: gix::Error| self.repo.damaged(&id, error);
            let commit = CommitRef::from_bytes(&content, gix::hash::Kind::Sha1).map_err(damaged)?;
            next = commit.parents().next();
            let before = next.map(|parent| self.repo.tree_of(parent)).transpose()?;
            let mut changes = Changes::default();
            self.compare(before, Some(commit.tree()), "", 0, &mut changes)?;
            let author = commit.author().map_err(damaged)?;
            let message = commit.message.to_string();
            let (subject, body) = message.split_once('\n').unwrap_or((&message, ""));
            let seconds = commit.committer().map_err(damaged)?.seconds();
            log.push(LogEntry {
                id: id.to_hex().to_string(),
                time: Timestamp::new(seconds, 0).unwrap_or_default(),
                author: author.name.to_string(),
                subject: subject.to_owned(),
                body: body.trim().to_owned(),
                files: changes.files,
                files_changed: changes.count,
            });
        }
        Ok(log)
    }

    /// Adds what two trees differ in.
    fn compare(
        &self,
        before: Option<ObjectId>,
        after: Option<ObjectId>,
        path: &str,
        depth: u32,
        changes: &mut Changes,
    ) -> Result<(), GitError> {
        if before == after || depth > DEPTH_MAX {
            return Ok(());
        }
        let read =
            |id: Option<ObjectId>| id.map_or(Ok(Vec::new()), |id| self.repo.read(id, Kind::Tree));
        let [old, new] = [read(before)?, read(after)?];
        let damaged = |error| self.repo.damaged(&path, error);
        let mut known = HashMap::new();
        for entry in entries(&old) {
            let entry = entry.map_err(damaged)?;
            known.insert(entry.filename, (entry.oid.to_owned(), entry.mode));
        }
        let tree = |found: Option<(ObjectId, bool)>| found.filter(|it| it.1).map(|it| it.0);
        let mut pairs = Vec::new();
        for entry in entries(&new) {
            let entry = entry.map_err(damaged)?;
            let was = known.remove(entry.filename);
            let is = (entry.oid.to_owned(), entry.mode);
            if was != Some(is) {
                let was = was.map(|(id, mode)| (id, mode.is_tree()));
                pairs.push((entry.filename, was, Some((is.0, is.1.is_tree()))));
            }
        }
        let gone = known.into_iter();
        pairs.extend(gone.map(|(name, (id, mode))| (name, Some((id, mode.is_tree())), None)));
        pairs.sort_unstable_by_key(|(name, ..)| *name);
        for (name, was, is) in pairs {
            let path = format!("{path}{name}");
            if was.into_iter().chain(is).any(|(_, is_tree)| !is_tree) {
                changes.count += 1;
                if changes.files.len() < FILES_MAX {
                    changes.files.push(path.clone());
                }
            }
            self.compare(tree(was), tree(is), &format!("{path}/"), depth + 1, changes)?;
        }
        Ok(())
    }
}
