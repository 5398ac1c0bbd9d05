//! Existing packs, and which of them are merged into the next one.
//!
//! Git searches every pack, so a repository must not collect one per commit. A small pack is always
//! merged. A larger one is merged if the packs before it have at least half as many objects, like
//! `git repack --geometric=2`. This keeps the number of packs small, and the number of copies per
//! object logarithmic. Packs written by git are not touched: their deltas are of another kind, or
//! they have companion files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use git2::Oid;

use super::error::{GitError, IoContext};
use super::pack::{INDEX_HEAD, OFFSET_END, OFS_DELTA, REF_DELTA, TEMPORARY, TREE};

/// Packs with fewer objects are always merged: about sixty commits of one session.
///
/// This also limits the length of the delta chain from the newest list of a day's files to the
/// oldest.
const SMALL_OBJECTS: u64 = 512;

/// Maximum bytes of packs to merge in one delivery, whose time is limited.
const BYTES_MAX: u64 = 256 << 20;

/// Length of a SHA-1 object id, and of the checksum at the end of a file.
const HASH_BYTES: usize = 20;

/// Offset of the tables in an index of version 2.
///
/// They follow 8 bytes of header and 256 counts of 4 bytes. The last count is the number of
/// objects.
const TABLES_OFFSET: usize = 8 + 256 * 4;

/// Bytes per object in these tables: id, CRC and offset.
const ROW_BYTES: usize = HASH_BYTES + 4 + 4;

pub(super) struct PackEntry {
    pub(super) id: Oid,
    /// Checksum of the entry's bytes in the pack.
    pub(super) crc32: u32,
    pub(super) kind: PackEntryKind,
    /// Byte range in the pack.
    pub(super) range: Range<usize>,
}

/// Kind of a pack entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PackEntryKind {
    /// A complete tree.
    Tree,
    /// Another complete object.
    Other,
    /// A delta against another object.
    Delta,
}

/// A pack written by memoird, with complete objects and deltas of type `REF_DELTA`.
pub(super) struct ExistingPack {
    path: PathBuf,
    file: File,
    /// In pack order.
    pub(super) entries: Vec<PackEntry>,
}

/// A pack with an index and no other companion files.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PackOnDisk {
    objects: u64,
    bytes: u64,
    path: PathBuf,
}

/// Chooses the packs to merge with `new_objects` new objects.
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

/// The packs without companion files other than the index, smallest first.
fn packs_by_size(pack_dir: &Path) -> Result<Vec<PackOnDisk>, GitError> {
    let entries = fs::read_dir(pack_dir).io_context("read", pack_dir)?;
    let read_names: io::Result<BTreeSet<String>> = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect();
    let names = read_names.io_context("read", pack_dir)?;
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
            let index_bytes = length(&path.with_extension("idx"))?;
            let tables = index_bytes.saturating_sub((TABLES_OFFSET + 2 * HASH_BYTES) as u64);
            found.push(PackOnDisk {
                objects: tables / ROW_BYTES as u64,
                bytes: length(&path)?,
                path,
            });
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn length(path: &Path) -> Result<u64, GitError> {
    let metadata = fs::metadata(path).io_context("read", path)?;
    Ok(metadata.len())
}

/// Deletes packs that were merged. One that cannot be deleted only costs space until later.
pub(super) fn remove(packs: &[ExistingPack], merged: &Path) {
    for pack in packs.iter().filter(|pack| pack.path != merged) {
        if let Err(error) = pack.remove() {
            tracing::warn!(path = %pack.path.display(), %error, "a pack was not removed");
        }
    }
}

impl ExistingPack {
    /// Ids of the objects in a pack, also of one written by git.
    pub(super) fn ids(path: &Path) -> Result<Vec<Oid>, GitError> {
        let index_path = path.with_extension("idx");
        let index = match fs::read(&index_path) {
            // The pack was never finished, or is being deleted.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            index => index.io_context("read", &index_path)?,
        };
        parse_ids(&index).ok_or_else(|| {
            let path = index_path.display();
            GitError::unusable(format!(
                "{path} is not an index of version 2; run `git repack -a -d`"
            ))
        })
    }

    pub(super) fn pack_dir(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Reads the index of a pack and the types of its entries. `None` if git wrote the pack.
    pub(super) fn open(path: PathBuf) -> Result<Option<Self>, GitError> {
        let index_path = path.with_extension("idx");
        let index = fs::read(&index_path).io_context("read", &index_path)?;
        let Some(mut entries) = parse_index(&index) else {
            return Ok(None);
        };
        entries.sort_unstable_by_key(|entry| entry.range.start);
        let file = File::open(&path).io_context("read", &path)?;
        let mut end = usize::try_from(length(&path)?).unwrap_or(usize::MAX);
        end = end.saturating_sub(HASH_BYTES);
        for entry in entries.iter_mut().rev() {
            entry.range.end = end;
            end = entry.range.start;
            let mut first = [0];
            let read = file.read_exact_at(&mut first, entry.range.start as u64);
            read.io_context("read", &path)?;
            entry.kind = match first[0] >> 4 & 7 {
                OFS_DELTA => return Ok(None),
                REF_DELTA => PackEntryKind::Delta,
                TREE => PackEntryKind::Tree,
                _ => PackEntryKind::Other,
            };
        }
        Ok(Some(Self {
            path,
            file,
            entries,
        }))
    }

    /// Reads an entry and verifies its checksum.
    pub(super) fn read(&self, entry: &PackEntry) -> Result<Vec<u8>, GitError> {
        let mut bytes = vec![0; entry.range.len()];
        let read = self
            .file
            .read_exact_at(&mut bytes, entry.range.start as u64);
        read.io_context("read", &self.path)?;
        if crc32fast::hash(&bytes) == entry.crc32 {
            Ok(bytes)
        } else {
            Err(GitError::damaged(
                &self.path,
                format!("{} has changed", entry.id),
            ))
        }
    }

    /// Deletes the pack. Git ignores it once the index is renamed.
    ///
    /// If there is a crash, the renamed index tells which pack to delete.
    fn remove(&self) -> io::Result<()> {
        let index = self.path.with_extension("idx");
        let name = index.file_name().unwrap_or_default().to_string_lossy();
        let doomed = index.with_file_name(format!("{TEMPORARY}{name}"));
        fs::rename(&index, &doomed)?;
        fs::remove_file(&self.path)?;
        fs::remove_file(&doomed)
    }
}

/// The object ids in an index of version 2.
fn parse_ids(index: &[u8]) -> Option<Vec<Oid>> {
    if !index.starts_with(INDEX_HEAD) {
        return None;
    }
    let count = number(index, TABLES_OFFSET - 4)? as usize;
    let ids = index
        .get(TABLES_OFFSET..TABLES_OFFSET + count * HASH_BYTES)?
        .chunks(HASH_BYTES)
        .map(|id| Oid::from_bytes(id).ok());
    ids.collect()
}

/// The entries in an index of version 2, still without their ends and kinds.
///
/// `None` if the pack is larger than those that memoird writes.
fn parse_index(index: &[u8]) -> Option<Vec<PackEntry>> {
    let ids = parse_ids(index)?;
    let crcs = TABLES_OFFSET + ids.len() * HASH_BYTES;
    let offsets = crcs + ids.len() * 4;
    let entry = |(row, id)| {
        let offset =
            number(index, offsets + row * 4).filter(|offset| *offset < OFFSET_END)? as usize;
        Some(PackEntry {
            id,
            crc32: number(index, crcs + row * 4)?,
            kind: PackEntryKind::Other,
            range: offset..offset,
        })
    };
    ids.into_iter().enumerate().map(entry).collect()
}

fn number(index: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*index.get(offset..)?.first_chunk()?))
}
