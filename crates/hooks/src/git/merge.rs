//! Merging packs, so that a repository that gets a commit at a time does not get slower
//! with each: git looks into every pack.
//!
//! Packs belong to a tier by how many objects they hold, each tier sixteen times the one
//! before; sixteen of a tier become one of the next (a log-structured merge with tiers,
//! as in O'Neil et al., "The Log-Structured Merge-Tree", 1996). So an object is copied
//! once for each tier, and its bytes as they are: packs of memoird hold whole objects
//! only. Packs that git made are left alone; they have deltas, or files beside them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gix::ObjectId;
use gix::hash::Kind as HashKind;
use gix::odb::pack::{data, index};

use super::error::{Doing, GitError};
use super::lock::Stop;
use super::pack::{NewPack, TEMPORARY};
use super::repo::Repo;

/// Packs of a tier that become one.
const FAN: usize = 16;

/// Bytes of packs that are merged at once: one delivery has no time for more.
const BYTES_MAX: u64 = 1 << 30;

/// Merges after one delivery.
const MERGES_MAX: usize = 8;

/// Where an index of version 2 tells how many objects there are.
const COUNT_AT: u64 = 8 + 255 * 4;

/// Merges packs until no tier has too many.
pub(super) fn tidy(repo: &Repo, stop: &Stop) -> Result<(), GitError> {
    let pack_dir = repo.pack_dir();
    for _ in 0..MERGES_MAX {
        let Some(packs) = crowd(&pack_dir)? else { break };
        stop.check()?;
        merge(&pack_dir, &packs, stop)?;
    }
    Ok(())
}

/// A pack that may be of memoird.
struct Found {
    stem: String,
    bytes: u64,
}

/// The packs of the lowest tier that has too many.
fn crowd(pack_dir: &Path) -> Result<Option<Vec<Pack>>, GitError> {
    for mut found in tiers(pack_dir)?.into_values().filter(|found| found.len() >= FAN) {
        found.sort_by_key(|pack| pack.bytes);
        let mut packs = Vec::with_capacity(FAN);
        let mut bytes = 0;
        for found in found {
            bytes += found.bytes;
            if bytes > BYTES_MAX {
                break;
            }
            packs.extend(Pack::open(pack_dir, &found.stem)?);
            if packs.len() == FAN {
                return Ok(Some(packs));
            }
        }
    }
    Ok(None)
}

/// The packs that have nothing beside them but their index, by tier.
fn tiers(pack_dir: &Path) -> Result<BTreeMap<u32, Vec<Found>>, GitError> {
    let mut endings: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir(pack_dir).doing("read", pack_dir)? {
        let name = entry.doing("read", pack_dir)?.file_name().to_string_lossy().into_owned();
        // One index for many packs would miss what is not there any more.
        if name.starts_with("multi-pack-index") {
            return Ok(BTreeMap::new());
        }
        if let Some((stem, ending)) = name.split_once('.').filter(|_| name.starts_with("pack-")) {
            endings.entry(stem.to_owned()).or_default().insert(ending.to_owned());
        }
    }
    let mut tiers: BTreeMap<u32, Vec<Found>> = BTreeMap::new();
    for (stem, endings) in endings {
        if endings.iter().map(String::as_str).ne(["idx", "pack"]) {
            continue;
        }
        let pack = pack_dir.join(format!("{stem}.pack"));
        let bytes = fs::metadata(&pack).doing("read", &pack)?.len();
        let objects = objects(&pack.with_extension("idx"))?;
        let tier = objects.checked_ilog(16).unwrap_or(0);
        tiers.entry(tier).or_default().push(Found { stem, bytes });
    }
    Ok(tiers)
}

fn objects(index: &Path) -> Result<u32, GitError> {
    let mut count = [0; 4];
    let read = File::open(index).and_then(|mut file| {
        file.seek(SeekFrom::Start(COUNT_AT))?;
        file.read_exact(&mut count)
    });
    read.doing("read", index)?;
    Ok(u32::from_be_bytes(count))
}

/// A pack of whole objects, open.
struct Pack {
    path: PathBuf,
    data: data::File,
    /// Sorted by their place.
    entries: Vec<Entry>,
}

struct Entry {
    id: ObjectId,
    crc32: u32,
    range: std::ops::Range<u64>,
}

impl Pack {
    /// `None` when it is not memoird's.
    fn open(pack_dir: &Path, stem: &str) -> Result<Option<Self>, GitError> {
        let path = pack_dir.join(format!("{stem}.pack"));
        let damaged = |error| GitError::damaged(&path, error);
        let index = index::File::at(path.with_extension("idx"), HashKind::Sha1).map_err(damaged)?;
        let data = data::File::at(&path, HashKind::Sha1).map_err(damaged)?;
        let mut entries: Vec<Entry> = Vec::with_capacity(index.num_objects() as usize);
        for entry in index.iter() {
            let Some(crc32) = entry.crc32 else { return Ok(None) };
            let range = entry.pack_offset..data.pack_end() as u64;
            entries.push(Entry { id: entry.oid, crc32, range });
        }
        entries.sort_unstable_by_key(|entry| entry.range.start);
        let starts: Vec<u64> = entries.iter().skip(1).map(|entry| entry.range.start).collect();
        for (entry, next) in entries.iter_mut().zip(starts) {
            entry.range.end = next;
        }
        let pack = Self { path: path.clone(), data, entries };
        let is_whole = |entry: &Entry| {
            let bytes = pack.bytes(entry)?;
            let head = data::Entry::from_bytes(bytes, entry.range.start, HashKind::Sha1);
            head.map(|head| head.header.is_base()).map_err(damaged)
        };
        for entry in &pack.entries {
            if !is_whole(entry)? {
                return Ok(None);
            }
        }
        Ok(Some(pack))
    }

    fn bytes(&self, entry: &Entry) -> Result<&[u8], GitError> {
        let bytes = self.data.entry_slice(entry.range.clone());
        bytes.ok_or_else(|| GitError::damaged(&self.path, "it is shorter than its index"))
    }
}

fn merge(pack_dir: &Path, packs: &[Pack], stop: &Stop) -> Result<(), GitError> {
    let mut known = HashSet::new();
    let all = packs.iter().flat_map(|pack| pack.entries.iter().map(move |entry| (pack, entry)));
    let all: Vec<(&Pack, &Entry)> = all.filter(|(_, entry)| known.insert(entry.id)).collect();
    let mut merged = NewPack::create(pack_dir, all.len())?;
    for (pack, entry) in all {
        stop.check()?;
        let bytes = pack.bytes(entry)?;
        if crc32fast::hash(bytes) != entry.crc32 {
            return Err(GitError::damaged(&pack.path, format!("{} has changed", entry.id)));
        }
        merged.put(entry.id, entry.crc32, bytes)?;
    }
    let merged = merged.finish()?;
    for pack in packs.iter().filter(|pack| pack.path != merged) {
        remove(pack_dir, &pack.path)?;
    }
    Ok(())
}

/// Without its index a pack does not exist; under its new name the index tells, should
/// there be a crash now, which pack is to be removed.
fn remove(pack_dir: &Path, pack: &Path) -> Result<(), GitError> {
    let index = pack.with_extension("idx");
    let name = index.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let doomed = pack_dir.join(format!("{TEMPORARY}{name}"));
    fs::rename(&index, &doomed).doing("remove", &index)?;
    fs::remove_file(pack).doing("remove", pack)?;
    fs::remove_file(&doomed).doing("remove", &doomed)
}
