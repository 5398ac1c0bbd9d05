//! Reading checkpoints: as many as are asked for, from the newest day on, without looking
//! at what lies behind.

use std::cmp::Reverse;
use std::collections::HashMap;

use git2::{ObjectType, Oid, Tree};
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

/// A folder of the branch: a year, a month, a day.
struct Folder<'a> {
    path: String,
    tree: Tree<'a>,
}

/// A Markdown file in a day's folder.
struct Document {
    name: String,
    generation: Generation,
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

    /// Calls `look` with path and content of what may be wanted, until it is false.
    fn search(
        &self,
        session: Option<&SessionId>,
        generation: Option<Generation>,
        mut look: impl FnMut(&str, &str) -> bool,
    ) -> Result<(), GitError> {
        let name = session.map(names::session);
        let mut days = self.days()?;
        if let Some(generation) = generation {
            // It ended on the day it started, or soon after.
            let started = day_of(generation);
            days.sort_by_key(|day| match day.path >= started {
                true => (0, Ok(day.path.clone())),
                false => (1, Err(Reverse(day.path.clone()))),
            });
        }
        for day in days.into_iter().take(DAYS_MAX) {
            for document in documents(&day, name.as_deref()) {
                if generation.is_some_and(|wanted| wanted != document.generation) {
                    continue;
                }
                let content = self.repo.read(document.id, ObjectType::Blob)?;
                let path = format!("{}/{}", day.path, document.name);
                if !look(&path, &String::from_utf8_lossy(&content)) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// All folders of days, the newest first.
    fn days(&self) -> Result<Vec<Folder<'_>>, GitError> {
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
        let mut folders = vec![Folder {
            path: names::ROOT.to_owned(),
            tree: self.tree(sessions.id())?,
        }];
        for digits in [4, 2, 2] {
            let mut inner = Vec::new();
            for folder in folders {
                for entry in &folder.tree {
                    let name = entry.name_bytes();
                    let is_number = name.len() == digits && name.iter().all(u8::is_ascii_digit);
                    if is_number && entry.kind() == Some(ObjectType::Tree) {
                        let name = String::from_utf8_lossy(name);
                        inner.push(Folder {
                            path: format!("{}/{name}", folder.path),
                            tree: self.tree(entry.id())?,
                        });
                    }
                }
            }
            folders = inner;
        }
        folders.reverse();
        Ok(folders)
    }

    pub(super) fn tree(&self, id: Oid) -> Result<Tree<'_>, GitError> {
        let found = self.repo.git.find_tree(id);
        found.map_err(|error| self.repo.damaged(&id, error))
    }
}

/// The documents of a day, of sessions with this name or of all.
fn documents(day: &Folder<'_>, session: Option<&str>) -> Vec<Document> {
    let mut documents = Vec::new();
    for entry in &day.tree {
        let Ok(name) = str::from_utf8(entry.name_bytes()) else {
            continue;
        };
        let Some((of, generation)) = names::parse(name) else {
            continue;
        };
        let is_file = entry.kind() == Some(ObjectType::Blob);
        if is_file && session.is_none_or(|session| session == of) {
            documents.push(Document {
                name: name.to_owned(),
                generation,
                id: entry.id(),
            });
        }
    }
    documents.sort_unstable_by_key(|document| Reverse(document.generation));
    documents
}

impl std::fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoints")
            .field("git_dir", &self.repo.git_dir)
            .finish_non_exhaustive()
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
