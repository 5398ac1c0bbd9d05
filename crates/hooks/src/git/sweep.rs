//! Deletes unreachable objects: rewrites packs without them, and deletes files that git derives.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use git2::{ObjectType, Oid};
use memoird_core::ids::TenantId;

use super::GitConfig;
use super::error::{GitError, IoContext};
use super::lock::CancelSignal;
use super::packs::{self, remove_file};
use super::repo::{Repo, sync_dir};

/// Maximum number of objects in a rewritten pack, and their size in bytes. Larger packs are split.
const OBJECTS_MAX: usize = 20_000;
const BYTES_MAX: usize = 32 << 20;

/// Number of commits after which the repository is opened again.
const COMMITS_MAX: usize = 1_000;

/// Deletes unreachable objects. The caller must have exclusive write access to the repository.
pub(super) fn sweep(
    config: &GitConfig,
    tenant: &TenantId,
    stop: &CancelSignal,
) -> Result<(), GitError> {
    let reachable = reachable(config, tenant, stop)?;
    let repo = Repo::open(config, tenant)?;
    let pack_dir = repo.pack_dir();
    remove_derived(&repo)?;
    for pack in packs::all(&pack_dir)? {
        stop.check()?;
        let ids = packs::ids_of(&pack)?;
        let kept: Vec<Oid> = ids
            .iter()
            .filter(|id| reachable.contains(id))
            .copied()
            .collect();
        if kept.len() < ids.len() {
            rewrite(&repo, &kept, stop)?;
            packs::remove(&repo, &pack)?;
        }
    }
    sync_dir(&pack_dir)?;
    remove_loose(&repo.git_dir.join("objects"), &reachable)
}

/// Writes objects of a pack as new packs.
fn rewrite(repo: &Repo, kept: &[Oid], stop: &CancelSignal) -> Result<(), GitError> {
    let source = repo.reopened()?;
    let damaged = |error: git2::Error| repo.damaged(&"a pack", error);
    let odb = source.odb().map_err(damaged)?;
    let (mut start, mut bytes) = (0, 0);
    for (index, id) in kept.iter().enumerate() {
        bytes += odb.read_header(*id).map_err(damaged)?.0;
        let end = index + 1;
        if end == kept.len() || end - start >= OBJECTS_MAX || bytes >= BYTES_MAX {
            packs::rewrite(repo, &source, &kept[start..end], stop)?;
            (start, bytes) = (end, 0);
        }
    }
    Ok(())
}

fn reachable(
    config: &GitConfig,
    tenant: &TenantId,
    stop: &CancelSignal,
) -> Result<HashSet<Oid>, GitError> {
    let mut reachable = HashSet::new();
    let refs = Repo::open(config, tenant)?.refs()?;
    let mut left: Vec<Oid> = refs.into_iter().map(|(_, target)| target).collect();
    while !left.is_empty() {
        // Opened again from time to time, because libgit2 caches up to 16 MiB of each pack.
        let repo = Repo::open(config, tenant)?;
        for _ in 0..COMMITS_MAX {
            let Some(id) = left.pop() else { break };
            stop.check()?;
            follow(&repo, id, &mut left, &mut reachable)?;
        }
    }
    Ok(reachable)
}

/// Adds an object and everything below it. Parents of commits are added to `left` instead.
fn follow(
    repo: &Repo,
    id: Oid,
    left: &mut Vec<Oid>,
    reachable: &mut HashSet<Oid>,
) -> Result<(), GitError> {
    if reachable.contains(&id) {
        return Ok(());
    }
    let object = repo
        .git
        .find_object(id, None)
        .map_err(|error| repo.damaged(&id, error))?;
    match object.kind() {
        Some(ObjectType::Commit) => {
            let commit = repo.commit(id)?;
            left.extend(commit.parent_ids());
            walk(repo, commit.tree_id(), reachable)?;
        }
        Some(ObjectType::Tag) => left.extend(object.as_tag().map(git2::Tag::target_id)),
        Some(ObjectType::Tree) => walk(repo, id, reachable)?,
        _ => {}
    }
    reachable.insert(id);
    Ok(())
}

/// Adds a tree and everything below it.
fn walk(repo: &Repo, root: Oid, reachable: &mut HashSet<Oid>) -> Result<(), GitError> {
    let mut left = vec![root];
    while let Some(id) = left.pop() {
        if !reachable.insert(id) {
            continue;
        }
        for entry in &repo.tree(id)? {
            if entry.kind() == Some(ObjectType::Tree) {
                left.push(entry.id());
            } else {
                reachable.insert(entry.id());
            }
        }
    }
    Ok(())
}

/// Deletes files that git derives from objects, because they may list deleted ones.
fn remove_derived(repo: &Repo) -> Result<(), GitError> {
    let objects = repo.git_dir.join("objects");
    remove_file(&objects.join("info/commit-graph"))?;
    let graphs = objects.join("info/commit-graphs");
    match fs::remove_dir_all(&graphs) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).io_context("remove", &graphs);
        }
        _ => {}
    }
    let pack_dir = repo.pack_dir();
    for name in packs::file_names(&pack_dir)? {
        // Older versions left the second kind after a crash.
        if name.starts_with("multi-pack-index") || name.starts_with("tmp_memoird_") {
            remove_file(&pack_dir.join(name))?;
        }
    }
    Ok(())
}

fn remove_loose(objects: &Path, reachable: &HashSet<Oid>) -> Result<(), GitError> {
    for folder in fs::read_dir(objects).io_context("read", objects)? {
        let folder = folder.io_context("read", objects)?.path();
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.len() != 2 || !folder.is_dir() {
            continue;
        }
        for file in fs::read_dir(&folder).io_context("read", &folder)? {
            let path = file.io_context("read", &folder)?.path();
            let rest = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let id = Oid::from_str(&format!("{name}{rest}"));
            if id.is_ok_and(|id| !reachable.contains(&id)) {
                remove_file(&path)?;
            }
        }
    }
    Ok(())
}
