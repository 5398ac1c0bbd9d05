//! Reading checkpoints, from the newest day on. Older days are not loaded once the limit is
//! reached.

use std::cmp::Reverse;
use std::collections::HashMap;

use git2::{ObjectType, Oid, Tree, TreeWalkMode, TreeWalkResult};
use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::time::Timestamp;
use serde_json::Value;

use super::GitConfig;
use super::error::GitError;
use super::names;
use super::repo::Repo;
use crate::time;

/// Days that are looked at before a search ends: ten years.
const DAYS_MAX: usize = 3_660;

/// The checkpoints of a tenant.
pub struct Checkpoints {
    pub(super) repo: Repo,
}

/// A generation that was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// The readable file, within the branch.
    pub path: String,
    /// The bot's own id of the session.
    pub session: String,
    /// Which life of it.
    pub generation: Generation,
    /// Whose memories its facts became.
    pub subject: Option<String>,
    /// Why it ended, in one word.
    pub reason: String,
    /// When it started.
    pub created_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Turns in the file.
    pub turns: u64,
}

/// The folder of a day.
struct Day {
    path: String,
    id: Oid,
}

impl Checkpoints {
    /// Opens the repository of a tenant.
    ///
    /// # Errors
    /// [`GitError::Missing`] when there is none, and what opening may meet.
    pub fn open(config: &GitConfig, tenant: &TenantId) -> Result<Self, GitError> {
        let repo = Repo::open(config, tenant)?;
        Ok(Self { repo })
    }

    /// The newest checkpoints, at most `limit`, of one session or of all: the newest day
    /// first, and within a day the generation that started last.
    ///
    /// # Errors
    /// When the repository cannot be read.
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

    /// The document of a generation of a session, or of its newest one.
    ///
    /// # Errors
    /// When the repository cannot be read.
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

    /// Looks at every checkpoint of one session, or of all.
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

    /// Calls `look` with path and content of what may be wanted, until it is false.
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
            let tree = self.tree(day.id)?;
            let documents = tree.iter().filter_map(|entry| {
                let name = str::from_utf8(entry.name_bytes()).ok()?;
                let (of, its) = names::parse(name)?;
                let is_wanted = session.as_ref().is_none_or(|session| session == of)
                    && generation.is_none_or(|generation| generation == its)
                    && entry.kind() == Some(ObjectType::Blob);
                is_wanted.then(|| (Reverse(its), name.to_owned(), entry.id()))
            });
            let mut documents: Vec<_> = documents.collect();
            documents.sort_unstable();
            for (_, name, id) in documents {
                let content = self.repo.read(id, ObjectType::Blob)?;
                let path = format!("{}/{name}", day.path);
                if !look(&path, &String::from_utf8_lossy(&content)) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The folders of all days, the newest first.
    fn days(&self) -> Result<Vec<Day>, GitError> {
        let Some(tip) = self.repo.tip()? else {
            return Ok(Vec::new());
        };
        let tree = self.tree(self.repo.commit(tip)?.tree_id())?;
        let Some(sessions) = tree.get_name(names::ROOT) else {
            return Ok(Vec::new());
        };
        if sessions.kind() != Some(ObjectType::Tree) {
            return Err(self.repo.in_the_way(names::ROOT));
        }
        let mut days = Vec::new();
        let years = self.tree(sessions.id())?;
        let walked = years.walk(TreeWalkMode::PreOrder, |above, entry| {
            let name = entry.name_bytes();
            let digits = if above.is_empty() { 4 } else { 2 };
            let is_number = name.len() == digits && name.iter().all(u8::is_ascii_digit);
            if !is_number || entry.kind() != Some(ObjectType::Tree) {
                return TreeWalkResult::Skip;
            }
            if above.len() < "2026/11/".len() {
                return TreeWalkResult::Ok;
            }
            days.push(Day {
                path: format!("{}/{above}{}", names::ROOT, String::from_utf8_lossy(name)),
                id: entry.id(),
            });
            TreeWalkResult::Skip
        });
        walked.map_err(|error| self.repo.damaged(&sessions.id(), error))?;
        days.reverse();
        Ok(days)
    }

    pub(super) fn tree(&self, id: Oid) -> Result<Tree<'_>, GitError> {
        let found = self.repo.git.find_tree(id);
        found.map_err(|error| self.repo.damaged(&id, error))
    }
}

fn day_of(generation: Generation) -> String {
    let ms = generation.to_bytes()[..6]
        .iter()
        .fold(0, |ms, byte| ms << 8 | i64::from(*byte));
    names::folders(Timestamp::from_ms(ms)).join("/")
}

/// What the front matter says; `None` when it is no front matter of memoird's, or that of
/// another session, whose name was cut to the same beginning.
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
