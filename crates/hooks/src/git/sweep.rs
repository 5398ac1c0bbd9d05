//! Deletes unreachable objects: rewrites packs without them, and deletes files that git derives.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use git2::{ObjectType, Oid};

use super::error::{GitError, IoContext};
use super::existing::ExistingPack;
use super::lock::CancelSignal;
use super::pack::{self, Objects};
use super::repo::{Repo, sync_dir};
use super::tree::{Entries, Trees};

/// Maximum number of objects in a pack rewritten from one of git's, and their memory in bytes.
const OBJECTS_MAX: usize = 20_000;
const BYTES_MAX: usize = 64 << 20;

/// Deletes unreachable objects. The caller must have exclusive write access to the repository.
pub(super) fn sweep(repo: &Repo, stop: &CancelSignal) -> Result<(), GitError> {
    let reachable = reachable(repo, stop)?;
    let pack_dir = repo.pack_dir();
    remove_derived(repo)?;
    for path in packs(&pack_dir)? {
        stop.check()?;
        let ids = ExistingPack::ids(&path)?;
        if ids.iter().all(|id| reachable.contains(id)) {
            continue;
        }
        let kept: Vec<Oid> = ids
            .into_iter()
            .filter(|id| reachable.contains(id))
            .collect();
        match ExistingPack::open(path.clone())? {
            Some(old) => pack::write_part(repo, &old, &reachable, stop)?,
            None => copy_whole(repo, &kept, stop)?,
        }
        remove_pack(&path)?;
    }
    sync_dir(&pack_dir)?;
    remove_loose(&repo.git_dir.join("objects"), &reachable)
}

fn reachable(repo: &Repo, stop: &CancelSignal) -> Result<HashSet<Oid>, GitError> {
    let mut reachable = HashSet::new();
    let mut left: Vec<Oid> = Vec::new();
    for (_, target) in repo.refs()? {
        left.push(target);
    }
    while let Some(id) = left.pop() {
        if !reachable.insert(id) {
            continue;
        }
        stop.check()?;
        let object = repo
            .git
            .find_object(id, None)
            .map_err(|error| repo.damaged(&id, error))?;
        match object.kind() {
            Some(ObjectType::Commit) => {
                let commit = repo.commit(id)?;
                left.extend(commit.parent_ids());
                walk(repo, commit.tree_id(), &mut reachable)?;
            }
            Some(ObjectType::Tag) => {
                let tag = object.as_tag().map(git2::Tag::target_id);
                left.extend(tag);
            }
            Some(ObjectType::Tree) => {
                reachable.remove(&id);
                walk(repo, id, &mut reachable)?;
            }
            _ => {}
        }
    }
    Ok(reachable)
}

/// Adds a tree and everything below it.
fn walk(repo: &Repo, root: Oid, reachable: &mut HashSet<Oid>) -> Result<(), GitError> {
    let mut left = vec![root];
    while let Some(id) = left.pop() {
        if !reachable.insert(id) {
            continue;
        }
        let bytes = repo.read(id, ObjectType::Tree)?;
        for entry in Entries::of(&bytes) {
            let below = repo.id(entry.id)?;
            if entry.is_folder() {
                left.push(below);
            } else {
                reachable.insert(below);
            }
        }
    }
    Ok(())
}

/// Rewrites objects of a pack written by git as packs of complete objects.
fn copy_whole(repo: &Repo, kept: &[Oid], stop: &CancelSignal) -> Result<(), GitError> {
    let mut kept = kept.iter().peekable();
    while kept.peek().is_some() {
        let mut objects = Objects::new();
        while objects.count() < OBJECTS_MAX
            && objects.bytes() < BYTES_MAX
            && let Some(id) = kept.next()
        {
            stop.check()?;
            objects.copy(repo, *id)?;
        }
        objects.write(&repo.pack_dir(), &[], &mut Trees::new(repo), stop)?;
    }
    Ok(())
}

fn packs(pack_dir: &Path) -> Result<Vec<PathBuf>, GitError> {
    let mut packs = Vec::new();
    for entry in fs::read_dir(pack_dir).io_context("read", pack_dir)? {
        let path = entry.io_context("read", pack_dir)?.path();
        if path.extension().is_some_and(|ending| ending == "pack") {
            packs.push(path);
        }
    }
    packs.sort_unstable();
    Ok(packs)
}

/// Deletes a pack and its companion files, the index first, so that git ignores the pack.
fn remove_pack(pack: &Path) -> Result<(), GitError> {
    for ending in ["idx", "rev", "bitmap", "mtimes", "keep", "promisor", "pack"] {
        remove_file(&pack.with_extension(ending))?;
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
    for entry in fs::read_dir(&pack_dir).io_context("read", &pack_dir)? {
        let entry = entry.io_context("read", &pack_dir)?;
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(b"multi-pack-index")
        {
            remove_file(&entry.path())?;
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

fn remove_file(path: &Path) -> Result<(), GitError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).io_context("remove", path)
        }
        _ => Ok(()),
    }
}
