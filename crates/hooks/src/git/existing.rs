//! Packs that are there already, and which of them are written again with the next batch:
//! a repository that gets a commit at a time must not get slower with each, and git looks
//! into every pack.
//!
//! A small pack always goes into the next one; larger ones when what is gathered has half
//! their objects, as `git repack --geometric=2` does it. So there are few packs, and an
//! object is copied a number of times that grows with the logarithm of all objects. Packs
//! that git made are left alone: they have deltas of another kind, or files beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use git2::{ObjectType, Oid};

use super::error::{Doing, GitError};
use super::lock::Stop;
use super::pack::{INDEX_HEAD, OFFSET_END, OFS_DELTA, REF_DELTA, TEMPORARY, type_number};

/// Objects up to which a pack always goes into the next one: some sixty commits of one
/// session. As many deltas may stand between the oldest list of a day's files and the
/// newest.
const SMALL_OBJECTS: u64 = 512;

/// Bytes of packs that are written again at once: one delivery has no time for more.
const BYTES_MAX: u64 = 256 << 20;

/// Where the tables of an index of version 2 begin: after eight bytes of head and the
/// numbers of ids that begin with each byte or a smaller one.
const COUNT_OFFSET: usize = 8 + 255 * 4;
const TABLES_OFFSET: usize = COUNT_OFFSET + 4;

/// Bytes at the end of a pack that are no entry.
const CHECKSUM_BYTES: usize = 20;

/// Bytes that tell the type and the size of an entry, at most.
const HEAD_BYTES_MAX: usize = 10;

/// An entry of a pack.
pub(super) struct PackEntry {
    /// Which object.
    pub(super) id: Oid,
    /// Of its bytes in the pack.
    pub(super) crc32: u32,
    /// What it holds.
    pub(super) content: Content,
    /// Where it is in the pack.
    pub(super) range: Range<usize>,
}

/// What an entry of a pack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A folder of so many bytes.
    Folder(u64),
    /// Another object, whole.
    Other,
    /// What makes an object of another one.
    Delta,
}

/// A pack of memoird's: of whole objects, and of deltas that name their base.
pub(super) struct ExistingPack {
    path: PathBuf,
    /// Its entries, in the order of the pack.
    pub(super) entries: Vec<PackEntry>,
}

/// A file of a pack, with nothing beside it but its index.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    objects: u64,
    bytes: u64,
    path: PathBuf,
}

/// The packs that are to be written again together with so many new objects.
pub(super) fn packs_to_merge(
    pack_dir: &Path,
    new_objects: usize,
) -> Result<Vec<ExistingPack>, GitError> {
    let mut gathered = new_objects as u64;
    let mut bytes = 0;
    let mut packs = Vec::new();
    for found in packs_by_size(pack_dir)? {
        bytes += found.bytes;
        if found.objects >= SMALL_OBJECTS.max(2 * gathered) || bytes > BYTES_MAX {
            break;
        }
        if let Some(pack) = ExistingPack::open(found.path)? {
            gathered += found.objects;
            packs.push(pack);
        }
    }
    Ok(packs)
}

/// The packs that have nothing beside them but their index, the smallest first.
fn packs_by_size(pack_dir: &Path) -> Result<Vec<Found>, GitError> {
    let mut endings: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir(pack_dir).doing("read", pack_dir)? {
        let name = entry.doing("read", pack_dir)?.file_name();
        let name = name.to_string_lossy();
        // One index for many packs would miss what is not there any more.
        if name.starts_with("multi-pack-index") {
            return Ok(Vec::new());
        }
        if let Some((stem, ending)) = name.split_once('.').filter(|_| name.starts_with("pack-")) {
            let endings = endings.entry(stem.to_owned()).or_default();
            endings.insert(ending.to_owned());
        }
    }
    let mut found = Vec::new();
    for (stem, endings) in endings {
        if endings.iter().map(String::as_str).eq(["idx", "pack"]) {
            let path = pack_dir.join(format!("{stem}.pack"));
            let bytes = fs::metadata(&path).doing("read", &path)?.len();
            let objects = count(&path.with_extension("idx"))?;
            found.push(Found {
                objects,
                bytes,
                path,
            });
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn count(index: &Path) -> Result<u64, GitError> {
    let mut count = [0; 4];
    let read = File::open(index).and_then(|mut file| {
        file.seek(SeekFrom::Start(COUNT_OFFSET as u64))?;
        file.read_exact(&mut count)
    });
    read.doing("read", index)?;
    Ok(u32::from_be_bytes(count).into())
}

/// Removes packs whose objects are all in the pack `merged`. What cannot be removed costs
/// room only, until it is merged again.
pub(super) fn remove(packs: &[ExistingPack], merged: &Path) {
    for pack in packs.iter().filter(|pack| pack.path != merged) {
        if let Err(error) = pack.remove() {
            tracing::warn!(path = %pack.path.display(), %error, "a pack was not removed");
        }
    }
}

impl ExistingPack {
    /// Reads the index of a pack and the heads of its entries; `None` when it is not
    /// memoird's.
    fn open(path: PathBuf) -> Result<Option<Self>, GitError> {
        let index_path = path.with_extension("idx");
        let index = fs::read(&index_path).doing("read", &index_path)?;
        let Some(mut entries) = parse_index(&index) else {
            return Ok(None);
        };
        entries.sort_unstable_by_key(|entry| entry.range.start);
        let mut file = File::open(&path).doing("read", &path)?;
        let length = file.seek(SeekFrom::End(0)).doing("read", &path)?;
        // The checksum of the pack is at its end.
        let end = usize::try_from(length).unwrap_or(usize::MAX);
        let mut end = end.saturating_sub(CHECKSUM_BYTES);
        for entry in entries.iter_mut().rev() {
            entry.range.end = end;
            end = entry.range.start;
        }
        let mut reader = reader(file, &entries).doing("read", &path)?;
        for entry in &mut entries {
            let mut head = [0; HEAD_BYTES_MAX];
            let head = &mut head[..entry.range.len().min(HEAD_BYTES_MAX)];
            reader.read_exact(head).doing("read", &path)?;
            let rest = entry.range.len() - head.len();
            let skipped = reader.seek_relative(i64::try_from(rest).unwrap_or(i64::MAX));
            skipped.doing("read", &path)?;
            match content(head) {
                Some(content) => entry.content = content,
                None => return Ok(None),
            }
        }
        Ok(Some(Self { path, entries }))
    }

    /// Calls `take` with each entry and its bytes.
    pub(super) fn for_each(
        &self,
        stop: &Stop,
        mut take: impl FnMut(&PackEntry, &[u8]) -> Result<(), GitError>,
    ) -> Result<(), GitError> {
        let path = &self.path;
        let file = File::open(path).and_then(|file| reader(file, &self.entries));
        let mut reader = file.doing("read", path)?;
        let mut bytes = Vec::new();
        for entry in &self.entries {
            stop.check()?;
            bytes.resize(entry.range.len(), 0);
            reader.read_exact(&mut bytes).doing("read", path)?;
            if crc32fast::hash(&bytes) != entry.crc32 {
                let problem = format!("{} has changed", entry.id);
                return Err(GitError::damaged(path, problem));
            }
            take(entry, &bytes)?;
        }
        Ok(())
    }

    /// Without its index a pack does not exist; under its new name the index tells, should
    /// there be a crash now, which pack is to be removed.
    fn remove(&self) -> io::Result<()> {
        let index = self.path.with_extension("idx");
        let name = index.file_name().unwrap_or_default().to_string_lossy();
        let doomed = index.with_file_name(format!("{TEMPORARY}{name}"));
        fs::rename(&index, &doomed)?;
        fs::remove_file(&self.path)?;
        fs::remove_file(&doomed)
    }
}

/// The entries that an index of version 2 names, without their ends and kinds.
fn parse_index(index: &[u8]) -> Option<Vec<PackEntry>> {
    let number = |offset: usize| Some(u32::from_be_bytes(*index.get(offset..)?.first_chunk()?));
    if !index.starts_with(INDEX_HEAD) {
        return None;
    }
    let count = number(COUNT_OFFSET)? as usize;
    let crcs = TABLES_OFFSET + count * 20;
    let offsets = crcs + count * 4;
    let entry = |row: usize| {
        let id = TABLES_OFFSET + row * 20;
        let offset = number(offsets + row * 4).filter(|offset| *offset < OFFSET_END)? as usize;
        Some(PackEntry {
            id: Oid::from_bytes(index.get(id..id + 20)?).ok()?,
            crc32: number(crcs + row * 4)?,
            content: Content::Other,
            range: offset..offset,
        })
    };
    (0..count).map(entry).collect()
}

/// Reads a pack from its first entry on.
fn reader(file: File, entries: &[PackEntry]) -> io::Result<BufReader<File>> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let start = entries.first().map_or(0, |entry| entry.range.start);
    reader.seek(SeekFrom::Start(start as u64))?;
    Ok(reader)
}

/// What an entry holds that begins so; `None` when memoird writes no such entry.
fn content(head: &[u8]) -> Option<Content> {
    let first = *head.first()?;
    let number = first >> 4 & 7;
    if number == REF_DELTA {
        return Some(Content::Delta);
    }
    if number == OFS_DELTA {
        return None;
    }
    if number != type_number(ObjectType::Tree) {
        return Some(Content::Other);
    }
    let mut bytes = u64::from(first & 15);
    let mut is_last = first & 128 == 0;
    for (byte, shift) in head[1..].iter().zip((4..60).step_by(7)) {
        if is_last {
            break;
        }
        bytes |= u64::from(byte & 127) << shift;
        is_last = byte & 128 == 0;
    }
    is_last.then_some(Content::Folder(bytes))
}
