//! Merging packs, so that a repository that gets a commit at a time does not get slower
//! with each: git looks into every pack.
//!
//! Packs belong to a tier by how many objects they hold, each tier sixteen times the one
//! before; sixteen of a tier become one of the next (a log-structured merge with tiers,
//! as in O'Neil et al., "The Log-Structured Merge-Tree", 1996). So an object is copied
//! once for each tier, and its bytes as they are, but for the lists of a day's files,
//! which get deltas. Packs that git made are left alone: they have deltas of another
//! kind, or files beside them.

use std::cmp::Reverse;
use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use gix::ObjectId;
use gix::zlib::Compression;
use gix::zlib::stream::deflate::Compress;

use super::delta;
use super::error::{Doing, GitError};
use super::lock::Stop;
use super::opened::{Entry, Pack};
use super::pack::{NewPack, TEMPORARY, delta_entry};
use super::repo::Repo;

/// Packs of a tier that become one.
const FAN: usize = 16;

/// Bytes of packs that are merged at once: one delivery has no time for more.
const BYTES_MAX: u64 = 1 << 30;

/// Trees that are worth a delta, and those that are not worth the memory.
const TREE_BYTES_MIN: u64 = 1 << 10;
const TREE_BYTES_MAX: u64 = 64 << 20;

/// Trees that a smaller one is compared with.
const BASES_MAX: usize = 4;

/// Merges after one delivery.
const MERGES_MAX: usize = 8;

/// Where an index of version 2 tells how many objects there are.
const COUNT_AT: u64 = 8 + 255 * 4;

/// Merges packs until no tier has too many.
pub(super) fn tidy(repo: &Repo, stop: &Stop) -> Result<(), GitError> {
    let pack_dir = repo.pack_dir();
    for _ in 0..MERGES_MAX {
        let Some(packs) = crowd(&pack_dir)? else {
            break;
        };
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
    for mut found in tiers(pack_dir)?
        .into_values()
        .filter(|found| found.len() >= FAN)
    {
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
        let name = entry
            .doing("read", pack_dir)?
            .file_name()
            .to_string_lossy()
            .into_owned();
        // One index for many packs would miss what is not there any more.
        if name.starts_with("multi-pack-index") {
            return Ok(BTreeMap::new());
        }
        if let Some((stem, ending)) = name.split_once('.').filter(|_| name.starts_with("pack-")) {
            endings
                .entry(stem.to_owned())
                .or_default()
                .insert(ending.to_owned());
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

/// What stands for an object in the merged pack.
enum Source<'a> {
    /// The entry as it is.
    Entry(&'a Pack, &'a Entry),
    /// A delta in its place.
    Delta(Vec<u8>),
}

fn merge(pack_dir: &Path, packs: &[Pack], stop: &Stop) -> Result<(), GitError> {
    let mut chosen: HashMap<ObjectId, Source<'_>> = HashMap::new();
    let mut order = Vec::new();
    let all = packs
        .iter()
        .flat_map(|pack| pack.entries.iter().map(move |entry| (pack, entry)));
    for (pack, entry) in all {
        match chosen.entry(entry.id) {
            MapEntry::Vacant(vacant) => {
                vacant.insert(Source::Entry(pack, entry));
                order.push(entry.id);
            }
            // Deltas lead to earlier packs or to whole objects, so never in a circle.
            MapEntry::Occupied(mut occupied) => match occupied.get() {
                Source::Entry(_, known) if !known.is_whole() && entry.is_whole() => {
                    occupied.insert(Source::Entry(pack, entry));
                }
                _ => {}
            },
        }
    }
    shrink(&mut chosen, stop)?;
    let mut merged = NewPack::create(pack_dir, order.len())?;
    for id in order {
        stop.check()?;
        match chosen.get(&id) {
            Some(Source::Entry(pack, entry)) => merged.put(id, entry.crc32, pack.bytes(entry)?)?,
            Some(Source::Delta(bytes)) => merged.put(id, crc32fast::hash(bytes), bytes)?,
            None => {}
        }
    }
    let merged = merged.finish()?;
    for pack in packs.iter().filter(|pack| pack.path != merged) {
        remove(pack_dir, &pack.path)?;
    }
    Ok(())
}

/// Makes deltas of trees that are much like a larger one. A folder mostly grows, so its
/// newest tree is the largest, and stays whole: that is the one which is read.
fn shrink(chosen: &mut HashMap<ObjectId, Source<'_>>, stop: &Stop) -> Result<(), GitError> {
    let trees = chosen.values().filter_map(|source| match source {
        Source::Entry(pack, entry) => entry.tree_bytes.map(|bytes| (bytes, *pack, *entry)),
        Source::Delta(_) => None,
    });
    let mut trees: Vec<(u64, &Pack, &Entry)> = trees
        .filter(|(bytes, ..)| (TREE_BYTES_MIN..=TREE_BYTES_MAX).contains(bytes))
        .collect();
    trees.sort_unstable_by_key(|(bytes, _, entry)| (Reverse(*bytes), entry.id));
    let mut bases: VecDeque<(ObjectId, Vec<u8>)> = VecDeque::new();
    let mut deflate = Compress::new(Compression::BEST_SPEED);
    for (_, pack, entry) in trees {
        stop.check()?;
        let tree = pack.content(entry)?;
        let delta = bases
            .iter()
            .find_map(|(id, base)| Some((*id, delta::between(base, &tree)?)));
        if let Some((base, delta)) = delta {
            let bytes = delta_entry(base, &delta, &mut deflate).doing("pack", &pack.path)?;
            chosen.insert(entry.id, Source::Delta(bytes));
            continue;
        }
        bases.push_front((entry.id, tree));
        bases.truncate(BASES_MAX);
    }
    Ok(())
}

/// Without its index a pack does not exist; under its new name the index tells, should
/// there be a crash now, which pack is to be removed.
fn remove(pack_dir: &Path, pack: &Path) -> Result<(), GitError> {
    let index = pack.with_extension("idx");
    let name = index
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let doomed = pack_dir.join(format!("{TEMPORARY}{name}"));
    fs::rename(&index, &doomed).doing("remove", &index)?;
    fs::remove_file(pack).doing("remove", pack)?;
    fs::remove_file(&doomed).doing("remove", &doomed)
}
