//! Deletes unreachable objects: rewrites packs without them, and deletes files that git derives.
//!
//! The ids of reachable objects are listed in a file once. Packs are then compared with it in groups,
//! so that memory does not grow with the repository.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use git2::{ObjectType, Oid};

use super::error::{GitError, IoContext};
use super::history::{History, Reader, each_below, each_new_object};
use super::lock::CancelSignal;
use super::packs::{self, remove_file};
use super::repo::{Repo, sync_dir};

/// Maximum number of objects in a rewritten pack, and their size in bytes. Larger packs are split.
const OBJECTS_MAX: usize = 20_000;
const BYTES_MAX: usize = 16 << 20;

/// Number of objects to compare at once with the list. Takes 21 bytes for each.
const COMPARED_MAX: usize = 250_000;

/// Length of an id.
const ID_BYTES: usize = 20;

/// Whether a sweep is complete, or has to be repeated for the remaining packs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Swept {
    Completely,
    Partly,
}

/// Deletes unreachable objects.
///
/// Stops when rewritten packs had `objects_max` objects, or a quarter of the reachable ones if this
/// is more.
///
/// The caller must have exclusive write access to the repository.
pub(super) fn sweep(
    repo: &Repo,
    reachable: &Reachable,
    objects_max: usize,
    stop: &CancelSignal,
) -> Result<Swept, GitError> {
    let pack_dir = repo.pack_dir();
    remove_derived(repo)?;
    let objects_max = objects_max.max(reachable.count / 4).max(1);
    let mut swept = 0;
    let mut group = Vec::new();
    let mut packs = packs::all(&pack_dir)?.into_iter().peekable();
    while let Some(pack) = packs.next() {
        let ids = packs::ids_of(&pack)?;
        group.push((pack, ids));
        let size: usize = group.iter().map(|(_, ids)| ids.len()).sum();
        if size < COMPARED_MAX && packs.peek().is_some() {
            continue;
        }
        let ids = group.iter().flat_map(|(_, ids)| ids.iter().copied());
        let unreachable = reachable.missing(ids.collect(), stop)?;
        for (pack, ids) in group.drain(..) {
            let is_kept = |id: &Oid| unreachable.binary_search(id).is_err();
            let kept: Vec<Oid> = ids.iter().copied().filter(is_kept).collect();
            if kept.len() < ids.len() {
                if swept >= objects_max {
                    return Ok(Swept::Partly);
                }
                rewrite(repo, &kept, stop)?;
                packs::remove(repo, &pack)?;
                swept += ids.len();
            }
        }
    }
    sync_dir(&pack_dir)?;
    let loose = loose(&repo.git_dir.join("objects"))?;
    let ids = loose.iter().map(|(id, _)| *id).collect();
    let unreachable = reachable.missing(ids, stop)?;
    for (id, path) in loose {
        if unreachable.binary_search(&id).is_ok() {
            remove_file(&path)?;
        }
    }
    remove_file(&reachable.path)?;
    Ok(Swept::Completely)
}

/// A file of the ids of reachable objects. Some are repeated.
pub(super) struct Reachable {
    path: PathBuf,
    /// Number of ids in the file.
    count: usize,
}

impl Reachable {
    /// Lists the objects that are reachable from `tips`. Fails if a commit or tree is missing.
    pub(super) fn list(repo: &Repo, tips: &[Oid], stop: &CancelSignal) -> Result<Self, GitError> {
        let path = repo.git_dir.join("memoird.reachable");
        let mut file = BufWriter::new(File::create(&path).io_context("create", &path)?);
        let mut count = 0;
        let mut add = |id: Oid| {
            count += 1;
            file.write_all(id.as_bytes()).io_context("write", &path)
        };
        for tip in tips {
            let mut id = *tip;
            loop {
                add(id)?;
                let object = repo.git.find_object(id, None);
                let object = object.map_err(|error| repo.damaged(&id, error))?;
                match object.kind() {
                    Some(ObjectType::Tag) => {
                        let tagged = object.as_tag().map(git2::Tag::target_id);
                        id = tagged.unwrap_or(id);
                    }
                    Some(ObjectType::Tree) => {
                        each_below(repo, id, None, &mut |_, id| add(id))?;
                        break;
                    }
                    _ => break,
                }
            }
        }
        let mut reader = Reader::open(repo)?;
        for id in History::collect(repo, tips.iter().copied(), stop)?.commits {
            stop.check()?;
            reader.renew()?;
            add(id)?;
            each_new_object(&reader.repo, id, &mut |_, id| add(id))?;
        }
        file.flush().io_context("write", &path)?;
        drop(file);
        Ok(Self { path, count })
    }

    /// The ids that are not in the list, sorted.
    fn missing(&self, mut ids: Vec<Oid>, stop: &CancelSignal) -> Result<Vec<Oid>, GitError> {
        ids.sort_unstable();
        // Several packs may have the same object.
        ids.dedup();
        let mut are_listed = vec![false; ids.len()];
        let file = File::open(&self.path).io_context("open", &self.path)?;
        let mut file = BufReader::new(file);
        let mut id = [0; ID_BYTES];
        loop {
            match file.read_exact(&mut id) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                read => read.io_context("read", &self.path)?,
            }
            stop.check()?;
            if let Ok(index) = ids.binary_search_by(|probe| probe.as_bytes().cmp(&id[..])) {
                are_listed[index] = true;
            }
        }
        let mut listed = are_listed.into_iter();
        ids.retain(|_| listed.next() == Some(false));
        Ok(ids)
    }
}

/// Writes objects of a pack as new packs.
fn rewrite(repo: &Repo, kept: &[Oid], stop: &CancelSignal) -> Result<(), GitError> {
    let damaged = |error: git2::Error| repo.damaged(&"a pack", error);
    let mut left = kept;
    while !left.is_empty() {
        // Opened for each part, because libgit2 caches objects until the repository is closed.
        let source = repo.reopened()?;
        let odb = source.git.odb().map_err(damaged)?;
        let (mut count, mut bytes) = (0, 0);
        for id in left.iter().take(OBJECTS_MAX) {
            count += 1;
            bytes += odb.read_header(*id).map_err(damaged)?.0;
            if bytes >= BYTES_MAX {
                break;
            }
        }
        let (part, after) = left.split_at(count);
        packs::rewrite(repo, &source, part, stop)?;
        left = after;
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

/// Ids and paths of the objects that are not in packs.
fn loose(objects: &Path) -> Result<Vec<(Oid, PathBuf)>, GitError> {
    let mut loose = Vec::new();
    for name in packs::file_names(objects)? {
        let folder = objects.join(&name);
        if name.len() != 2 || !folder.is_dir() {
            continue;
        }
        for rest in packs::file_names(&folder)? {
            let id = Oid::from_str(&format!("{name}{rest}"));
            loose.extend(id.ok().map(|id| (id, folder.join(rest))));
        }
    }
    Ok(loose)
}
