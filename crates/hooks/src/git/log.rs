//! History of a checkpoint repository, like `git log --stat`.

use memoird_core::time::Timestamp;

use super::error::GitError;
use super::read::Checkpoints;

/// Maximum number of file names per entry. The others are counted.
const FILES_MAX: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Full object id.
    pub id: String,
    pub time: Timestamp,
    pub author: String,
    /// First line of the message.
    pub subject: String,
    /// Rest of the message.
    pub body: String,
    /// Added, changed and removed files; at most 100.
    pub files: Vec<String>,
    /// Total number of these files.
    pub files_changed: usize,
}

impl Checkpoints {
    /// Returns the newest commits of the branch, at most `limit`. Follows first parents only.
    ///
    /// # Errors
    /// If the repository cannot be read.
    pub fn log(&self, limit: usize) -> Result<Vec<LogEntry>, GitError> {
        let repo = &self.repo;
        let mut log = Vec::new();
        let mut next = repo.tip()?;
        while let Some(id) = next.filter(|_| log.len() < limit) {
            let commit = repo.commit(id)?;
            next = commit.parent_ids().next();
            let before = next
                .map(|parent| repo.commit(parent))
                .transpose()?
                .map(|commit| repo.tree(commit.tree_id()))
                .transpose()?;
            let after = repo.tree(commit.tree_id())?;
            let changes = repo
                .git
                .diff_tree_to_tree(before.as_ref(), Some(&after), None)
                .map_err(|error| repo.damaged(&id, error))?;
            let path = |change: git2::DiffDelta<'_>| {
                let path = change.new_file().path_bytes();
                path.map(|path| String::from_utf8_lossy(path).into_owned())
            };
            let message = String::from_utf8_lossy(commit.message_bytes()).into_owned();
            let (subject, body) = message.split_once('\n').unwrap_or((&message, ""));
            log.push(LogEntry {
                id: id.to_string(),
                time: Timestamp::new(commit.time().seconds(), 0).unwrap_or_default(),
                author: String::from_utf8_lossy(commit.author().name_bytes()).into_owned(),
                subject: subject.to_owned(),
                body: body.trim().to_owned(),
                files: changes.deltas().take(FILES_MAX).filter_map(path).collect(),
                files_changed: changes.deltas().len(),
            });
        }
        Ok(log)
    }
}
