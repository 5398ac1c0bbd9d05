//! Packs: writes, merges and removes them.
//!
//! A pack is built in a directory of its own and then moved, the index last: git sees a pack once
//! its index exists. Removing one takes the same steps in reverse. A crash between the steps leaves
//! the index in that directory, which names the pack that [`recover`] deletes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use git2::{Config, Indexer, ObjectType, Oid, Repository};

use super::error::{GitError, IoContext};
use super::lock::CancelSignal;
use super::repo::{Repo, sync_dir};

/// Ranges of object counts, and how many packs in a range are merged.
///
/// Git searches every pack, so a repository must not collect one per commit.
const TIERS: [(Range<u64>, usize); 2] = [(0..1_000, 32), (1_000..8_000, 8)];

/// Maximum size in bytes of objects to merge at once, which limits the time.
const MERGED_BYTES_MAX: usize = 64 << 20;

/// Companion files of a pack. The index is first, so that git ignores the pack while it is removed.
const ENDINGS: [&str; 7] = ["idx", "rev", "bitmap", "mtimes", "keep", "promisor", "pack"];

/// First bytes of an index of version 2.
const INDEX_HEAD: &[u8] = b"\xfftOc\0\0\0\x02";

/// Offset of the ids in an index, after 8 bytes of header and 256 counts of 4 bytes.
///
/// The last count is the number of objects.
const IDS_OFFSET: usize = 8 + 256 * 4;

/// Length of a SHA-1 object id, and of the two checksums at the end of an index.
const HASH_BYTES: usize = 20;

/// Bytes per object in an index: id, CRC and offset.
const ROW_BYTES: usize = HASH_BYTES + 4 + 4;

/// Which objects of a pack may be stored as deltas.
#[derive(Clone, Copy)]
pub(super) enum Deltas {
    /// No object. Takes the least CPU time.
    None,
    /// Objects up to 1 MiB. Consecutive trees of a directory then take little space.
    Small,
}

impl Deltas {
    /// Maximum size in bytes of objects that become deltas. The builder holds up to ten at once.
    fn bytes_max(self) -> u32 {
        match self {
            Self::None => 1,
            Self::Small => 1 << 20,
        }
    }
}

/// Writes objects of `source` as a durable pack. Returns its path.
pub(super) fn write(
    repo: &Repo,
    source: &Repo,
    ids: &[Oid],
    deltas: Deltas,
    stop: &CancelSignal,
) -> Result<PathBuf, GitError> {
    let folder = repo.unfinished_dir();
    fs::create_dir_all(&folder).io_context("create", &folder)?;
    let built = build(&folder, &source.git, ids, deltas, stop);
    let name = built.map_err(|error| match stop.check() {
        Err(stopped) => stopped,
        Ok(()) => GitError::not_written(&folder, &error),
    })?;
    let files = ["pack", "idx"].map(|ending| format!("pack-{name}.{ending}"));
    let pack_dir = repo.pack_dir();
    let is_new = files.iter().any(|file| !pack_dir.join(file).exists());
    for file in files.iter().filter(|_| is_new) {
        let (from, to) = (folder.join(file), pack_dir.join(file));
        let synced = File::open(&from).and_then(|file| file.sync_all());
        synced.io_context("write", &from)?;
        fs::rename(&from, &to).io_context("create", &to)?;
    }
    sync_dir(&pack_dir)?;
    fs::remove_dir_all(&folder).io_context("remove", &folder)?;
    Ok(pack_dir.join(&files[0]))
}

/// Writes objects of existing packs as new packs. Returns their paths.
///
/// Blobs go to a pack of their own, without deltas: computing them takes most of the CPU time and
/// saves little space.
pub(super) fn rewrite(
    repo: &Repo,
    source: &Repo,
    ids: &[Oid],
    stop: &CancelSignal,
) -> Result<Vec<PathBuf>, GitError> {
    let is_blob = |id: &Oid| {
        let header = source.git.odb()?.read_header(*id)?;
        Ok::<_, git2::Error>(header.1 == ObjectType::Blob)
    };
    let (mut blobs, mut others) = (Vec::new(), Vec::new());
    for id in ids {
        let is_blob = is_blob(id).map_err(|error| repo.damaged(id, error))?;
        let part = if is_blob { &mut blobs } else { &mut others };
        part.push(*id);
    }
    let parts = [(blobs, Deltas::None), (others, Deltas::Small)];
    let parts = parts.into_iter().filter(|(ids, _)| !ids.is_empty());
    parts
        .map(|(ids, deltas)| write(repo, source, &ids, deltas, stop))
        .collect()
}

/// Writes a pack and its index to `folder`. Returns the hash in their names.
fn build(
    folder: &Path,
    source: &Repository,
    ids: &[Oid],
    deltas: Deltas,
    stop: &CancelSignal,
) -> Result<String, git2::Error> {
    source.set_config(&config(folder, deltas)?)?;
    let mut pack = source.packbuilder()?;
    for id in ids {
        pack.insert_object(*id, None)?;
    }
    let signal = stop.clone();
    pack.set_progress_callback(move |_, _, _| signal.check().is_ok())?;
    let mut indexer = Indexer::new(None, folder, 0o444, false)?;
    let mut problem = None;
    let streamed = pack.foreach(|bytes| {
        let written = indexer.write_all(bytes);
        problem = written.err();
        problem.is_none() && stop.check().is_ok()
    });
    match problem {
        Some(problem) => Err(git2::Error::from_str(&problem.to_string())),
        None => streamed.and_then(|()| indexer.commit()),
    }
}

/// Settings of the pack builder, which reads them from a file only.
///
/// libgit2 1.9 also uses `deltaCacheSize` as the maximum size of objects that become deltas.
fn config(folder: &Path, deltas: Deltas) -> Result<Config, git2::Error> {
    let path = folder.join("config");
    let text = format!("[pack]\n\tdeltaCacheSize = {}\n", deltas.bytes_max());
    fs::write(&path, text).map_err(|error| git2::Error::from_str(&error.to_string()))?;
    Config::open(&path)
}

/// Merges small packs if there are many.
pub(super) fn merge_small(repo: &Repo, stop: &CancelSignal) -> Result<(), GitError> {
    let all = packs_by_size(&repo.pack_dir())?;
    for (objects, count) in TIERS {
        let tier = all.iter().filter(|pack| objects.contains(&pack.objects));
        let tier: Vec<&Path> = tier.map(|pack| &*pack.path).collect();
        if tier.len() >= count {
            return merge(repo, &tier, count / 2, stop);
        }
    }
    Ok(())
}

/// Merges packs up to the maximum size, if these are at least `count_min`.
fn merge(
    repo: &Repo,
    packs: &[&Path],
    count_min: usize,
    stop: &CancelSignal,
) -> Result<(), GitError> {
    let source = repo.reopened()?;
    let size = |id: &Oid| Ok::<_, git2::Error>(source.git.odb()?.read_header(*id)?.0);
    let (mut old, mut ids, mut bytes) = (Vec::new(), Vec::new(), 0);
    for pack in packs {
        stop.check()?;
        let found = ids_of(pack)?;
        for id in &found {
            bytes += size(id).map_err(|error| repo.damaged(id, error))?;
        }
        if bytes > MERGED_BYTES_MAX {
            break;
        }
        ids.extend(found);
        old.push(*pack);
    }
    if old.len() < count_min {
        return Ok(());
    }
    let merged = rewrite(repo, &source, &ids, stop)?;
    for pack in old {
        if merged.iter().all(|new| new != pack) {
            remove(repo, pack)?;
        }
    }
    Ok(())
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PackOnDisk {
    objects: u64,
    path: PathBuf,
}

/// The packs without companion files other than the index, smallest first.
///
/// Git writes such files for its own packs, and `.keep` files protect packs.
fn packs_by_size(pack_dir: &Path) -> Result<Vec<PackOnDisk>, GitError> {
    let names = file_names(pack_dir)?;
    // A multi-pack index would list objects of packs that were merged away.
    if names
        .iter()
        .any(|name| name.starts_with("multi-pack-index"))
    {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for name in names.iter().filter(|name| name.starts_with("pack-")) {
        let Some(stem) = name.strip_suffix("pack") else {
            continue;
        };
        let files = names
            .range(stem.to_owned()..)
            .take_while(|file| file.starts_with(stem))
            .count();
        if files == 2 && names.contains(&format!("{stem}idx")) {
            let path = pack_dir.join(name);
            let index = path.with_extension("idx");
            let index_bytes = fs::metadata(&index).io_context("read", &index)?.len();
            let rows = index_bytes.saturating_sub((IDS_OFFSET + 2 * HASH_BYTES) as u64);
            found.push(PackOnDisk {
                objects: rows / ROW_BYTES as u64,
                path,
            });
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// All packs, sorted by name.
pub(super) fn all(pack_dir: &Path) -> Result<Vec<PathBuf>, GitError> {
    let names = file_names(pack_dir)?.into_iter();
    let packs = names.filter(|name| name.ends_with(".pack"));
    Ok(packs.map(|name| pack_dir.join(name)).collect())
}

pub(super) fn file_names(folder: &Path) -> Result<BTreeSet<String>, GitError> {
    let entries = fs::read_dir(folder).io_context("read", folder)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: io::Result<_> = names.collect();
    names.io_context("read", folder)
}

/// Ids of the objects in a pack.
pub(super) fn ids_of(pack: &Path) -> Result<Vec<Oid>, GitError> {
    let path = pack.with_extension("idx");
    let index = match fs::read(&path) {
        // The pack was never finished, or is being deleted.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        index => index.io_context("read", &path)?,
    };
    parse_ids(&index).ok_or_else(|| {
        let path = path.display();
        GitError::unusable(format!(
            "{path} is not an index of version 2; run `git repack -a -d`"
        ))
    })
}

fn parse_ids(index: &[u8]) -> Option<Vec<Oid>> {
    let (head, rows) = index.split_at_checked(IDS_OFFSET)?;
    let count = head.last_chunk().filter(|_| head.starts_with(INDEX_HEAD))?;
    let count = u32::from_be_bytes(*count) as usize;
    let ids = rows.get(..count * HASH_BYTES)?.chunks(HASH_BYTES);
    ids.map(|id| Oid::from_bytes(id).ok()).collect()
}

/// Deletes a pack and its companion files.
pub(super) fn remove(repo: &Repo, pack: &Path) -> Result<(), GitError> {
    let folder = repo.unfinished_dir();
    fs::create_dir_all(&folder).io_context("create", &folder)?;
    let index = pack.with_extension("idx");
    let doomed = folder.join(index.file_name().unwrap_or_default());
    match fs::rename(&index, &doomed) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).io_context("remove", &index);
        }
        _ => {}
    }
    for ending in ENDINGS {
        remove_file(&pack.with_extension(ending))?;
    }
    fs::remove_dir_all(&folder).io_context("remove", &folder)
}

/// Deletes packs and files that a crash interrupted while they were created or removed.
///
/// No branch needs them.
pub(super) fn recover(repo: &Repo) -> Result<(), GitError> {
    let folder = repo.unfinished_dir();
    if !folder.exists() {
        return Ok(());
    }
    for name in file_names(&folder)? {
        let index = repo.pack_dir().join(&name);
        if name.ends_with(".idx") && !index.exists() {
            remove_file(&index.with_extension("pack"))?;
        }
    }
    let objects = repo.git_dir.join("objects");
    for name in file_names(&objects)? {
        if name.starts_with("tmp_object") {
            remove_file(&objects.join(name))?;
        }
    }
    fs::remove_dir_all(&folder).io_context("remove", &folder)
}

pub(super) fn remove_file(path: &Path) -> Result<(), GitError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).io_context("remove", path)
        }
        _ => Ok(()),
    }
}
