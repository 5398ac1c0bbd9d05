//! Reads the history of a repository: its commits in order, and what each of them adds.

use std::collections::HashSet;

use git2::{ObjectType, Oid, Tree};

use super::error::GitError;
use super::lock::CancelSignal;
use super::repo::Repo;

/// Number of commits after which a repository is opened again.
///
/// libgit2 caches small objects, and up to 16 MiB of each pack.
const COMMITS_MAX: u32 = 100;

/// Commits that are reachable from given objects.
///
/// Takes about 100 bytes for each while they are collected.
pub(super) struct History {
    /// Parents before children.
    pub(super) commits: Vec<Oid>,
    /// Commits of the given objects, and parents that do not directly precede their child in
    /// `commits`.
    pub(super) branching: HashSet<Oid>,
}

enum Step {
    Visit(Oid),
    /// All ancestors were visited.
    Leave(Oid),
}

impl History {
    /// Collects the commits in depth-first order, starting with the first parent of each.
    pub(super) fn collect(
        repo: &Repo,
        from: impl IntoIterator<Item = Oid>,
        stop: &CancelSignal,
    ) -> Result<Self, GitError> {
        let mut commits = Vec::new();
        let mut branching = HashSet::new();
        let mut visited = HashSet::new();
        let mut reader = Reader::open(repo)?;
        for tip in from.into_iter().filter_map(|id| repo.peeled(id)) {
            branching.insert(tip);
            let mut steps = vec![Step::Visit(tip)];
            while let Some(step) = steps.pop() {
                let id = match step {
                    Step::Visit(id) if visited.insert(id) => id,
                    Step::Visit(_) => continue,
                    Step::Leave(id) => {
                        commits.push(id);
                        continue;
                    }
                };
                stop.check()?;
                reader.renew()?;
                steps.push(Step::Leave(id));
                let commit = reader.repo.commit(id)?;
                let is_chain = commit.parent_count() == 1
                    && !commit.parent_ids().any(|id| visited.contains(&id));
                if !is_chain {
                    branching.extend(commit.parent_ids());
                }
                steps.extend(commit.parent_ids().rev().map(Step::Visit));
            }
        }
        Ok(Self { commits, branching })
    }
}

/// A repository that is read one commit after another.
pub(super) struct Reader {
    pub(super) repo: Repo,
    commits: u32,
}

impl Reader {
    pub(super) fn open(repo: &Repo) -> Result<Self, GitError> {
        let repo = repo.reopened()?;
        Ok(Self { repo, commits: 0 })
    }

    /// Frees what libgit2 caches, from time to time. Must be called for each commit.
    pub(super) fn renew(&mut self) -> Result<(), GitError> {
        self.commits += 1;
        if self.commits >= COMMITS_MAX {
            *self = Self::open(&self.repo)?;
        }
        Ok(())
    }
}

/// Calls `each` with name and id of the trees and blobs that a commit adds to its first parent.
///
/// An object that another path of the parent has may be among them.
pub(super) fn each_new_object(
    repo: &Repo,
    commit: Oid,
    each: &mut impl FnMut(&[u8], Oid) -> Result<(), GitError>,
) -> Result<(), GitError> {
    let commit = repo.commit(commit)?;
    let before = commit.parent_ids().next();
    let before = before.map(|parent| repo.tree_of(parent)).transpose()?;
    each(b"", commit.tree_id())?;
    each_below(repo, commit.tree_id(), before, each)
}

/// Calls `each` for everything below a tree that is not in `before`, its counterpart.
pub(super) fn each_below(
    repo: &Repo,
    tree: Oid,
    before: Option<Oid>,
    each: &mut impl FnMut(&[u8], Oid) -> Result<(), GitError>,
) -> Result<(), GitError> {
    if before == Some(tree) {
        return Ok(());
    }
    let tree = repo.tree(tree)?;
    let before = before.map(|id| repo.tree(id)).transpose()?;
    let known: HashSet<Oid> = before.iter().flatten().map(|entry| entry.id()).collect();
    for entry in tree.iter().filter(|entry| !known.contains(&entry.id())) {
        each(entry.name_bytes(), entry.id())?;
        if entry.kind() == Some(ObjectType::Tree) {
            let counterpart = folder(before.as_ref(), entry.name_bytes());
            each_below(repo, entry.id(), counterpart, each)?;
        }
    }
    Ok(())
}

/// The subtree of this name.
pub(super) fn folder(tree: Option<&Tree<'_>>, name: &[u8]) -> Option<Oid> {
    let entry = tree?.get_name_bytes(name)?;
    (entry.kind() == Some(ObjectType::Tree)).then(|| entry.id())
}
