//! Erases checkpoints by rewriting the history.
//!
//! Branches and tags are moved to the new history under git's locks, and unreachable objects are
//! deleted. Existing clones keep them.
//!
//! An erasure takes steps of limited size. Deliveries use the repository between them. Before refs
//! move, only unreferenced packs are written, and `progress` saves the replacements of commits. The
//! next step, or a restarted daemon, continues after the last saved commit. A replacement depends
//! only on the commit and the targets, so it stays valid whatever changed in the repository.
//!
//! Refs move once all commits and trees of the new history were read. A marker file requests a
//! sweep as soon as there are new objects, so that unreachable ones are removed even after a crash.
//! The branch of the checkpoints moves last, because targets are found on it.
//!
//! The time is proportional to the commits since the oldest erased one: each contains the id of its
//! parent. Those before it are only compared with their parents.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

use git2::{ErrorCode, ObjectType, Oid};
use memoird_core::ids::{Generation, SessionId};
use memoird_engine::{EraseRequest, EraseTarget, ErasedElsewhere};

use super::GitConfig;
use super::config::EraseMode;
use super::error::{GitError, IoContext};
use super::history::{History, Reader, each_new_object, folder};
use super::lock::{CancelSignal, RepositoryLock};
use super::message;
use super::names;
use super::objects::{MODE_FOLDER, NewObjects};
use super::packs::{self, Deltas};
use super::progress::{self, Progress};
use super::read::Checkpoints;
use super::repo::{Repo, sync_dir, write};
use super::sweep::{Reachable, Swept, sweep};

/// Marker file: packs may have unreachable objects, because of an erasure or a failed delivery.
pub(super) const MARK: &str = "memoird.sweep";
/// Maximum number of commits named in a result. The others are counted.
const NAMED_MAX: usize = 100;
/// New message of a commit that was about one erased session.
const ERASED: &[u8] = b"Erased\n";

/// Limits of the steps of an erasure.
///
/// A step may do a tenth of the rewriting, or a quarter of the sweeping, even if this is more: each
/// one reads the whole history first.
#[derive(Clone, Copy, Debug)]
pub struct EraseStep {
    /// Number of commits after which new objects are written and progress is saved.
    pub commits: usize,
    /// Maximum number of times that progress is saved. At least once.
    pub saves: usize,
    /// Maximum number of objects in swept packs. At least one pack is swept.
    pub swept_objects: usize,
}

impl Default for EraseStep {
    fn default() -> Self {
        Self {
            commits: 1_000,
            saves: 20,
            swept_objects: 200_000,
        }
    }
}

/// Erases the requested checkpoints from the repository of their tenant, if it exists.
///
/// Takes one step.
pub(super) fn erase(
    config: &GitConfig,
    request: &EraseRequest,
    step: EraseStep,
    stop: &CancelSignal,
) -> Result<ErasedElsewhere, GitError> {
    let opened_repo = match Repo::open(config, &request.tenant) {
        Err(GitError::Missing { .. }) => return Ok(ErasedElsewhere::default()),
        opened => opened?,
    };
    let lock = RepositoryLock::acquire(&opened_repo, stop)?;
    let checkpoints = Checkpoints { repo: opened_repo };
    let targets = find_targets(&checkpoints, request)?;
    let repo = &checkpoints.repo;
    let mark = repo.git_dir.join(MARK);
    if targets.generations.is_empty() && !mark.exists() {
        progress::remove_all(repo)?;
        return Ok(ErasedElsewhere::default());
    }
    let has_others = repo.has_work_trees()?;
    let refs = repo.refs()?;
    let rewrite = Rewrite {
        repo,
        stop,
        targets: &targets,
        history: History::collect(repo, refs.iter().map(|(_, id)| *id), stop)?,
        refs,
        last: None,
        replaced: HashMap::new(),
        count: 0,
        new: NewObjects::new(repo, Deltas::Small, stop)?,
    };
    if config.erase == EraseMode::Tombstone || has_others {
        progress::remove_all(repo)?;
        return rewrite.tombstone(config, &lock, has_others);
    }
    let mut progress = Progress::new(repo, &targets.names());
    let erased = rewrite.erase(&lock, &mut progress, step);
    if let Err(GitError::Unusable { .. }) = &erased {
        // Another git may have deleted new objects before refs were moved to them.
        progress.remove()?;
    }
    let erased = erased?;
    if !erased.has_more {
        progress::remove_all(repo)?;
        packs::remove_file(&mark)?;
    }
    Ok(erased)
}

/// Scope of the erasure: the requested generations, and older ones found on the branch.
#[derive(Default)]
struct ErasureTargets {
    generations: HashSet<Generation>,
    /// Sessions that are erased completely, as they appear in commit messages.
    sessions: BTreeSet<String>,
}

impl ErasureTargets {
    fn names(&self) -> Vec<String> {
        let mut generations: Vec<Generation> = self.generations.iter().copied().collect();
        generations.sort_unstable();
        let generations = generations.iter().map(ToString::to_string);
        generations.chain(self.sessions.iter().cloned()).collect()
    }
}

fn find_targets(
    checkpoints: &Checkpoints,
    request: &EraseRequest,
) -> Result<ErasureTargets, GitError> {
    let mut covered = ErasureTargets::default();
    let mut take = |generation: Generation, session: &SessionId| {
        covered.generations.insert(generation);
        covered.sessions.insert(message::shortened(session));
    };
    for (generation, session) in request.generations.iter() {
        take(*generation, session);
    }
    match &request.target {
        EraseTarget::Session {
            generation: Some(generation),
            session,
        } => {
            take(*generation, session);
            covered.sessions.clear();
        }
        EraseTarget::Session { session, .. } => {
            checkpoints.each(Some(session), |entry| take(entry.generation, session))?;
            covered.sessions.insert(message::shortened(session));
        }
        EraseTarget::Subject(subject) => checkpoints.each(None, |entry| {
            if entry.subject.as_deref() == Some(subject.as_str())
                && let Ok(session) = SessionId::parse(&entry.session)
            {
                take(entry.generation, &session);
            }
        })?,
    }
    Ok(covered)
}

/// The repository while it is rewritten.
struct Rewrite<'a> {
    repo: &'a Repo,
    stop: &'a CancelSignal,
    targets: &'a ErasureTargets,
    refs: Vec<(String, Oid)>,
    history: History,
    /// The last commit in order, and its replacement.
    last: Option<(Oid, Oid)>,
    /// Replacements of commits that branches meet at.
    replaced: HashMap<Oid, Oid>,
    /// Number of replaced commits.
    count: u64,
    new: NewObjects<'a>,
}

/// A tree of the first parent, and its replacement, if anything is left of it.
type Counterpart = Option<(Oid, Option<Oid>)>;

/// A ref, its target, and the target in the new history.
type Move = (String, Oid, Oid);

impl Rewrite<'_> {
    /// Takes one step.
    fn erase(
        mut self,
        lock: &RepositoryLock,
        progress: &mut Progress<'_>,
        step: EraseStep,
    ) -> Result<ErasedElsewhere, GitError> {
        let (repo, stop) = (self.repo, self.stop);
        if !self.commits(progress, step)? {
            return Ok(ErasedElsewhere {
                has_more: true,
                ..ErasedElsewhere::default()
            });
        }
        let commits = self.count;
        let mark = repo.git_dir.join(MARK);
        if commits == 0 && !mark.exists() {
            return Ok(ErasedElsewhere::default());
        }
        self.mark()?;
        let moves = self.moves()?;
        // libgit2 frees its caches of packs when the repository is closed.
        drop(self);
        let tips: Vec<Oid> = moves.iter().map(|(_, _, to)| *to).collect();
        let reachable = Reachable::list(repo, &tips, stop)?;
        move_refs(repo, lock, &moves)?;
        let swept = sweep(repo, &reachable, step.swept_objects, stop)?;
        Ok(ErasedElsewhere {
            commits,
            has_more: swept == Swept::Partly,
            ..ErasedElsewhere::default()
        })
    }

    /// Requests a sweep.
    fn mark(&self) -> Result<(), GitError> {
        write(&self.repo.git_dir.join(MARK), b"")?;
        sync_dir(&self.repo.git_dir)
    }

    /// Writes the new history. Refs still point to the old one.
    ///
    /// Returns false if the step ended and commits are left.
    fn commits(&mut self, progress: &mut Progress<'_>, step: EraseStep) -> Result<bool, GitError> {
        let commits = std::mem::take(&mut self.history.commits);
        let saved = progress.load(&commits, |id, place| self.replace(id, place))?;
        let (mut done, total) = (saved, commits.len());
        let per_save = step.commits.max(1);
        let saves = step.saves.max(total / per_save / 10);
        for (part, number) in commits[saved..].chunks(per_save).zip(1..) {
            let mut places = Vec::with_capacity(part.len());
            for id in part {
                self.stop.check()?;
                let place = self.rewritten(*id)?;
                if place != *id && self.count == 0 {
                    self.mark()?;
                }
                self.replace(*id, place);
                places.push(place);
            }
            self.new.flush()?;
            done += part.len();
            if done == total {
                break;
            }
            progress.save(part, &places)?;
            if number >= saves {
                let path = self.repo.git_dir.display();
                tracing::info!(%path, saved, done, total, "an erasure rewrote a part of a history");
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the replacement of a commit. Returns the commit itself if it needs none.
    ///
    /// Its parents must have been replaced.
    fn rewritten(&mut self, id: Oid) -> Result<Oid, GitError> {
        let (tree, parents) = tree_and_parents(&self.new.repo, id)?;
        let new_parents: Vec<Oid> = parents.iter().map(|id| self.replacement_of(*id)).collect();
        let counterpart = match (parents.first(), new_parents.first()) {
            (Some(old), Some(new)) => {
                let (old, new) = (self.new.repo.tree_of(*old)?, self.new.repo.tree_of(*new)?);
                Some((old, Some(new)))
            }
            _ => None,
        };
        let new_tree = match self.tree_without(tree, counterpart)? {
            Some(tree) => tree,
            None => self.new.change_tree(None, [])?,
        };
        if new_tree == tree && new_parents == parents {
            return Ok(id);
        }
        match new_parents[..] {
            // The commit had no other changes.
            [parent] if new_tree != tree && self.new.repo.tree_of(parent)? == new_tree => {
                Ok(parent)
            }
            _ => self.commit(id, new_tree, &new_parents),
        }
    }

    /// Records the replacement of the next commit.
    fn replace(&mut self, id: Oid, place: Oid) {
        self.last = Some((id, place));
        if place == id {
            return;
        }
        self.count += 1;
        if self.history.branching.contains(&id) {
            self.replaced.insert(id, place);
        }
    }

    /// The replacement of a commit, or the commit itself.
    fn replacement_of(&self, id: Oid) -> Oid {
        match self.last {
            Some((last, place)) if last == id => place,
            _ => self.replaced.get(&id).copied().unwrap_or(id),
        }
    }

    /// Returns a tree without the erased files, and without subtrees that become empty.
    fn tree_without(&mut self, id: Oid, before: Counterpart) -> Result<Option<Oid>, GitError> {
        match before {
            Some((old, new)) if old == id => return Ok(new),
            _ => {}
        }
        let repo = &self.new.repo;
        let tree = repo.tree(id)?;
        let old = before.map(|(old, _)| repo.tree(old)).transpose()?;
        let new = before.and_then(|(_, new)| new);
        let new = new.map(|new| repo.tree(new)).transpose()?;
        let mut folders = Vec::new();
        let mut changes = Vec::new();
        for entry in &tree {
            let name = entry.name_bytes();
            if entry.kind() == Some(ObjectType::Tree) {
                let before =
                    folder(old.as_ref(), name).map(|old| (old, folder(new.as_ref(), name)));
                folders.push((name.to_owned(), entry.id(), before));
            } else if self.is_covered(name) {
                changes.push((name.to_owned(), None));
            }
        }
        let entries = tree.len();
        drop((tree, old, new));
        for (name, was, before) in folders {
            let is = self.tree_without(was, before)?;
            if is != Some(was) {
                changes.push((name, is.map(|is| (is, MODE_FOLDER))));
            }
        }
        if changes.is_empty() {
            return Ok(Some(id));
        }
        if changes.len() == entries && changes.iter().all(|(_, change)| change.is_none()) {
            return Ok(None);
        }
        let changes = changes.iter().map(|(name, change)| (&**name, *change));
        self.new.change_tree(Some(id), changes).map(Some)
    }

    fn is_covered(&self, name: &[u8]) -> bool {
        let name = str::from_utf8(name).ok().and_then(names::generation);
        name.is_some_and(|generation| self.targets.generations.contains(&generation))
    }

    /// Rewrites a commit with another tree and parents. Drops its signature, which became invalid.
    fn commit(&mut self, id: Oid, tree: Oid, parents: &[Oid]) -> Result<Oid, GitError> {
        let old = self.new.repo.read(id, ObjectType::Commit)?;
        let end = old.windows(2).position(|pair| pair == b"\n\n");
        let (head, rest) = old.split_at(end.map_or(old.len(), |end| end + 1));
        let mut new = format!("tree {tree}\n").into_bytes();
        for parent in parents {
            new.extend_from_slice(format!("parent {parent}\n").as_bytes());
        }
        let mut is_left_out = false;
        for line in head.split_inclusive(|byte| *byte == b'\n') {
            let is_more = line.starts_with(b" ");
            let goes = [&b"tree "[..], b"parent ", b"gpgsig"];
            is_left_out = if is_more {
                is_left_out
            } else {
                goes.iter().any(|field| line.starts_with(field))
            };
            if !is_left_out {
                new.extend_from_slice(line);
            }
        }
        new.push(b'\n');
        let text = rest.strip_prefix(b"\n").unwrap_or(rest);
        new.extend_from_slice(&self.message(text));
        self.new.add(ObjectType::Commit, &new)
    }

    /// Removes completely erased sessions from a commit message.
    fn message(&self, text: &[u8]) -> Vec<u8> {
        let names = |before: &str, line: &[u8]| {
            let mut sessions = self.targets.sessions.iter();
            sessions.any(|name| line.starts_with(format!("{before}{name}: ").as_bytes()))
        };
        if names("Checkpoint ", text) {
            return ERASED.to_vec();
        }
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        lines
            .filter(|line| !names("- ", line))
            .flatten()
            .copied()
            .collect()
    }

    /// Returns all refs with their new targets. The branch of the checkpoints is the last one.
    fn moves(&mut self) -> Result<Vec<Move>, GitError> {
        let mut moves = Vec::new();
        for (name, target) in std::mem::take(&mut self.refs) {
            let place = match self.repo.git.find_object(target, None).map(|it| it.kind()) {
                Ok(Some(ObjectType::Tag)) => self.tag(target)?,
                _ => self.replacement_of(target),
            };
            moves.push((name, target, place));
        }
        self.new.flush()?;
        let branch = self.repo.ref_name();
        moves.sort_by_key(|(name, ..)| *name == branch);
        Ok(moves)
    }

    /// Rewrites an annotated tag if its commit was replaced.
    fn tag(&mut self, id: Oid) -> Result<Oid, GitError> {
        let Some(commit) = self.repo.peeled(id) else {
            return Ok(id);
        };
        let place = self.replacement_of(commit);
        if place == commit {
            return Ok(id);
        }
        let old = self.new.repo.read(id, ObjectType::Tag)?;
        let text = String::from_utf8_lossy(&old);
        let unsigned = text.split("-----BEGIN").next().unwrap_or_default();
        let (from, to) = (format!("object {commit}\n"), format!("object {place}\n"));
        if !unsigned.starts_with(&from) {
            let what = "a tag of a tag cannot be moved; remove it";
            return Err(self.repo.damaged(&id, what));
        }
        let new = unsigned.replacen(&from, &to, 1).into_bytes();
        self.new.add(ObjectType::Tag, &new)
    }

    /// Keeps the history: removes the files with a new commit, and reports who still has them.
    fn tombstone(
        mut self,
        config: &GitConfig,
        lock: &RepositoryLock,
        has_others: bool,
    ) -> Result<ErasedElsewhere, GitError> {
        let mut reader = Reader::open(self.repo)?;
        let mut holding = Vec::new();
        let mut removed = HashSet::new();
        for id in std::mem::take(&mut self.history.commits) {
            self.stop.check()?;
            reader.renew()?;
            let repo = &reader.repo;
            let known = removed.len();
            each_new_object(repo, id, &mut |name, id| {
                if self.is_covered(name) {
                    removed.insert(id);
                }
                Ok(())
            })?;
            if removed.len() > known {
                holding.push(id);
            }
        }
        if let Some(tip) = self.repo.tip()? {
            let tree = self.repo.tree_of(tip)?;
            let new_tree = self.tree_without(tree, None)?;
            if new_tree != Some(tree) {
                let new_tree = match new_tree {
                    Some(tree) => tree,
                    None => self.new.change_tree(None, [])?,
                };
                let at = self.repo.commit(tip)?.time().seconds();
                let who = message::committer(config);
                let body = format!(
                    "tree {new_tree}\nparent {tip}\nauthor {who} {at} +0000\n\
                     committer {who} {at} +0000\n\nErase checkpoints\n"
                );
                let commit = self.new.add(ObjectType::Commit, body.as_bytes())?;
                self.new.flush()?;
                move_ref(self.repo, lock, &self.repo.ref_name(), tip, commit)?;
            }
        }
        let named = holding.iter().take(NAMED_MAX);
        let mut outside: Vec<String> = named
            .map(|id| format!("commit {id} still has it"))
            .collect();
        if holding.len() > NAMED_MAX {
            let more = holding.len() - NAMED_MAX;
            outside.push(format!("{more} more commits still have it"));
        }
        if has_others && !holding.is_empty() {
            outside.push("a work tree may still have its files".to_owned());
        }
        Ok(ErasedElsewhere {
            outside,
            ..ErasedElsewhere::default()
        })
    }
}

fn tree_and_parents(repo: &Repo, id: Oid) -> Result<(Oid, Vec<Oid>), GitError> {
    let commit = repo.commit(id)?;
    Ok((commit.tree_id(), commit.parent_ids().collect()))
}

/// Moves refs to the replacements of their commits, and empties the reflogs.
fn move_refs(repo: &Repo, lock: &RepositoryLock, moves: &[Move]) -> Result<(), GitError> {
    for (name, from, to) in moves.iter().filter(|(_, from, to)| from != to) {
        move_ref(repo, lock, name, *from, *to)?;
    }
    empty_logs(&repo.git_dir.join("logs"))?;
    let mut refs = repo.refs()?;
    let mut expected: Vec<(String, Oid)> = moves
        .iter()
        .map(|(name, _, to)| (name.clone(), *to))
        .collect();
    refs.sort_unstable();
    expected.sort_unstable();
    if refs == expected {
        return Ok(());
    }
    let path = repo.git_dir.display();
    Err(GitError::contended(format!(
        "another git changed refs of {path}"
    )))
}

fn move_ref(
    repo: &Repo,
    lock: &RepositoryLock,
    name: &str,
    from: Oid,
    to: Oid,
) -> Result<(), GitError> {
    let path = repo.git_dir.join(name);
    let held = lock.take(&path, &format!("{to}\n"))?;
    if repo.target(name)? != Some(from) {
        let path = repo.git_dir.display();
        return Err(GitError::contended(format!("{name} of {path} has moved")));
    }
    held.commit()?;
    sync_dir(path.parent().unwrap_or(&path))
}

fn empty_logs(folder: &Path) -> Result<(), GitError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.io_context("read", folder)?,
    };
    for entry in entries {
        let path = entry.io_context("read", folder)?.path();
        if path.is_dir() {
            empty_logs(&path)?;
        } else {
            fs::write(&path, b"").io_context("write", &path)?;
        }
    }
    Ok(())
}

impl Repo {
    /// All direct refs with their objects, and HEAD if it is detached.
    pub(super) fn refs(&self) -> Result<Vec<(String, Oid)>, GitError> {
        let damaged = |error: git2::Error| self.damaged(&"its refs", error);
        let mut refs = Vec::new();
        for found in self.git.references().map_err(damaged)? {
            let found = found.map_err(damaged)?;
            let name = str::from_utf8(found.name_bytes());
            if let (Ok(name), Some(target)) = (name, found.target()) {
                refs.push((name.to_owned(), target));
            }
        }
        if let Some(target) = self.target("HEAD")? {
            refs.push(("HEAD".to_owned(), target));
        }
        Ok(refs)
    }

    /// The object that a ref points to directly.
    fn target(&self, name: &str) -> Result<Option<Oid>, GitError> {
        match self.git.find_reference(name) {
            Ok(found) => Ok(found.target()),
            Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
            Err(error) => Err(self.damaged(&name, error)),
        }
    }

    /// Peels an object to a commit.
    pub(super) fn peeled(&self, id: Oid) -> Option<Oid> {
        let object = self.git.find_object(id, None).ok()?;
        Some(object.peel_to_commit().ok()?.id())
    }

    /// Whether there are linked work trees (`git worktree add`), an index, a shallow boundary or alternates.
    ///
    /// Then it is unknown which objects are still needed.
    fn has_work_trees(&self) -> Result<bool, GitError> {
        let linked = self.git_dir.join("worktrees");
        let is_linked = match fs::read_dir(&linked) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            entries => entries.io_context("read", &linked)?.next().is_some(),
        };
        let others = ["index", "shallow", "objects/info/alternates"];
        let has = |name: &str| self.git_dir.join(name).exists();
        Ok(is_linked || others.into_iter().any(has))
    }
}
