//! Reads checkpoints, newest day first. Older days are not loaded once the limit is reached.

use std::cmp::Reverse;
use std::collections::HashMap;

use git2::{ObjectType, Oid, TreeWalkMode, TreeWalkResult};
use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::time::Timestamp;
use serde_json::Value;

use super::GitConfig;
use super::error::GitError;
use super::names;
use super::repo::Repo;
use crate::time;

/// Maximum number of days to search: ten years.
const DAYS_MAX: usize = 3_660;

/// The checkpoints of a tenant.
pub struct Checkpoints {
    pub(super) repo: Repo,
}

/// A committed generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// Path of the Markdown file in the branch.
    pub path: String,
    /// The session id chosen by the bot.
    pub session: String,
    pub generation: Generation,
    /// Owner of the memories extracted from it.
    pub subject: Option<String>,
    /// Reason of the end, in one word.
    pub reason: String,
    pub created_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Number of turns in the file.
    pub turns: u64,
}

#[derive(Clone)]
struct Folder {
    path: String,
    id: Oid,
}

impl Checkpoints {
    /// Opens the repository of a tenant.
    ///
    /// # Errors
    /// [`GitError::Missing`] if it does not exist, or another error of opening it.
    pub fn open(config: &GitConfig, tenant: &TenantId) -> Result<Self, GitError> {
        let repo = Repo::open(config, tenant)?;
        Ok(Self { repo })
    }

    /// Returns the newest checkpoints, at most `limit`, of one session or of all.
    ///
    /// Sorted by day, newest first, and within a day by start, newest first.
    ///
    /// # Errors
    /// If the repository cannot be read.
    pub fn list(
        &self,
        limit: usize,
        session: Option<&SessionId>,
    ) -> Result<Vec<CheckpointEntry>, GitError> {
        let mut found = Vec::new();
        self.search(session, None, |path, text| {
            if found.len() < limit {
                found.extend(entry(path, text, session));
            }
            found.len() < limit
        })?;
        Ok(found)
    }

    /// Returns the document of a generation, or of the session's newest one.
    ///
    /// # Errors
    /// If the repository cannot be read.
    pub fn show(
        &self,
        session: &SessionId,
        generation: Option<Generation>,
    ) -> Result<Option<String>, GitError> {
        let mut found = None;
        self.search(Some(session), generation, |path, text| {
            if entry(path, text, Some(session)).is_some() {
                found = Some(text.to_owned());
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// Calls `look` for every checkpoint of one session, or of all.
    pub(super) fn each(
        &self,
        session: Option<&SessionId>,
        mut look: impl FnMut(CheckpointEntry),
    ) -> Result<(), GitError> {
        self.search(session, None, |path, text| {
            if let Some(found) = entry(path, text, session) {
                look(found);
            }
            true
        })
    }

    /// Calls `look` with path and content of each candidate until it returns false.
    fn search(
        &self,
        session: Option<&SessionId>,
        generation: Option<Generation>,
        mut look: impl FnMut(&str, &str) -> bool,
    ) -> Result<(), GitError> {
        let session = session.map(names::session);
        let mut days = self.days()?;
        if let Some(generation) = generation {
            // It ended on the day it started, or soon after.
            let started = day_of(generation);
            let before = days.split_off(days.partition_point(|day| day.path >= started));
            days.reverse();
            days.extend(before);
        }
        for day in days.into_iter().take(DAYS_MAX) {
            let mut documents = Vec::new();
            let mut folders = vec![day.clone()];
            while let Some(folder) = folders.pop() {
                for entry in &self.repo.tree(folder.id)? {
                    let Ok(name) = str::from_utf8(entry.name_bytes()) else {
                        continue;
                    };
                    let (path, id) = (format!("{}/{name}", folder.path), entry.id());
                    if entry.kind() == Some(ObjectType::Tree) {
                        // Hours, and their minutes.
                        let depth = folder.path.len() - day.path.len();
                        let is_time = depth <= "/10".len() && is_number(entry.name_bytes(), 2);
                        folders.extend(is_time.then_some(Folder { path, id }));
                    } else if let Some((of, its)) = names::parse(name)
                        && session.as_ref().is_none_or(|session| session == of)
                        && generation.is_none_or(|generation| generation == its)
                        && entry.kind() == Some(ObjectType::Blob)
                    {
                        documents.push((Reverse(its), path, id));
                    }
                }
            }
            documents.sort_unstable();
            for (_, path, id) in documents {
                let content = self.repo.read(id, ObjectType::Blob)?;
                if !look(&path, &String::from_utf8_lossy(&content)) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The directories of all days, newest first.
    fn days(&self) -> Result<Vec<Folder>, GitError> {
        let Some(tip) = self.repo.tip()? else {
            return Ok(Vec::new());
        };
        let tree = self.repo.tree(self.repo.commit(tip)?.tree_id())?;
        let Some(sessions) = tree.get_name(names::ROOT) else {
            return Ok(Vec::new());
        };
        if sessions.kind() != Some(ObjectType::Tree) {
            return Err(self.repo.in_the_way(names::ROOT));
        }
        let mut days = Vec::new();
        let years = self.repo.tree(sessions.id())?;
        let walked = years.walk(TreeWalkMode::PreOrder, |above, entry| {
            let name = entry.name_bytes();
            let digits = if above.is_empty() { 4 } else { 2 };
            if !is_number(name, digits) || entry.kind() != Some(ObjectType::Tree) {
                return TreeWalkResult::Skip;
            }
            if above.len() < "2026/11/".len() {
                return TreeWalkResult::Ok;
            }
            days.push(Folder {
                path: format!("{}/{above}{}", names::ROOT, String::from_utf8_lossy(name)),
                id: entry.id(),
            });
            TreeWalkResult::Skip
        });
        walked.map_err(|error| self.repo.damaged(&sessions.id(), error))?;
        days.reverse();
        Ok(days)
    }
}

fn is_number(name: &[u8], digits: usize) -> bool {
    name.len() == digits && name.iter().all(u8::is_ascii_digit)
}

fn day_of(generation: Generation) -> String {
    let ms = generation.to_bytes()[..6]
        .iter()
        .fold(0, |ms, byte| ms << 8 | i64::from(*byte));
    names::folders(Timestamp::from_ms(ms))[..4].join("/")
}

/// Parses the front matter.
///
/// `None` if memoird did not write it, or if it belongs to another session with the same truncated
/// name.
fn entry(path: &str, text: &str, session: Option<&SessionId>) -> Option<CheckpointEntry> {
    let mut lines = text.lines();
    lines.next().filter(|line| *line == "---")?;
    let fields: HashMap<&str, Value> = lines
        .take_while(|line| *line != "---")
        .filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name, serde_json::from_str(value).ok()?))
        })
        .collect();
    let string = |name| fields.get(name).and_then(Value::as_str);
    let its = string("session")?;
    if session.is_some_and(|session| session.as_str() != its) {
        return None;
    }
    Some(CheckpointEntry {
        path: path.to_owned(),
        session: its.to_owned(),
        generation: string("generation")?.parse().ok()?,
        subject: string("subject").map(ToOwned::to_owned),
        reason: string("reason").unwrap_or_default().to_owned(),
        created_at: string("created_at").and_then(time::parse),
        ended_at: string("ended_at").and_then(time::parse),
        turns: fields.get("turns").and_then(Value::as_u64).unwrap_or(0),
    })
}
