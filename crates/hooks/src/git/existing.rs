//! Packs that are there already, and which of them are written again with the next batch:
//! a repository that gets a commit at a time must not get slower with each, and git looks
//! into every pack.
//!
//! A small pack always goes into the next one; a larger one if the packs before it have at least
//! half of its objects, as `git repack --geometric=2` does it. So there are few packs, and an
//! object is copied a number of times that grows with the logarithm of all objects. Packs
//! that git made are left alone: they have deltas of another kind, or files beside them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use git2::Oid;

use super::error::{Doing, GitError};
use super::pack::{INDEX_HEAD, OFFSET_END, OFS_DELTA, REF_DELTA, TEMPORARY, TREE};

/// Objects up to which a pack always goes into the next one: some sixty commits of one
/// session. As many deltas may stand between the oldest list of a day's files and the
/// newest.
const SMALL_OBJECTS: u64 = 512;

/// Bytes of packs that are written again at once: one delivery has no time for more.
const BYTES_MAX: u64 = 256 << 20;

/// Bytes of the SHA-1 of an object, and of a whole file at its end.
const HASH_BYTES: usize = 20;

/// Where the tables of an index of version 2 begin: after eight bytes of head and 256 counts
/// of four bytes; the last one counts all objects.
const TABLES_OFFSET: usize = 8 + 256 * 4;

/// Bytes of an object in these tables: its id, its checksum and its offset.
const ROW_BYTES: usize = HASH_BYTES + 4 + 4;

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
    /// A folder, whole.
    Folder,
    /// Another object, whole.
    Other,
    /// What makes an object of another one.
    Delta,
}

/// A pack of memoird's: of whole objects, and of deltas that name their base.
pub(super) struct ExistingPack {
    path: PathBuf,
    file: File,
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

/// The packs to write again together with this number of new objects.
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
    let entries = fs::read_dir(pack_dir).doing("read", pack_dir)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: io::Result<BTreeSet<String>> = names.collect();
    let names = names.doing("read", pack_dir)?;
    // One index for many packs would list objects of packs that were merged away.
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
        let files = names.range(stem.to_owned()..);
        let files = files.take_while(|file| file.starts_with(stem)).count();
        if files == 2 && names.contains(&format!("{stem}idx")) {
            let path = pack_dir.join(name);
            let index_bytes = length(&path.with_extension("idx"))?;
            let tables = index_bytes.saturating_sub((TABLES_OFFSET + 2 * HASH_BYTES) as u64);
            found.push(Found {
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
    let metadata = fs::metadata(path).doing("read", path)?;
    Ok(metadata.len())
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
    /// The objects of a pack, whoever wrote it.
    pub(super) fn ids(path: &Path) -> Result<Vec<Oid>, GitError> {
        let index_path = path.with_extension("idx");
        let index = match fs::read(&index_path) {
            // It was never finished, or is being removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            index => index.doing("read", &index_path)?,
        };
        parse_ids(&index).ok_or_else(|| {
            let path = index_path.display();
            GitError::unusable(format!(
                "{path} is no index of version 2; `git repack -a -d`"
            ))
        })
    }

    /// Where its file is.
    pub(super) fn pack_dir(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Reads the index of a pack and the types of its entries; `None` for a pack that memoird
    /// did not write.
    pub(super) fn open(path: PathBuf) -> Result<Option<Self>, GitError> {
        let index_path = path.with_extension("idx");
        let index = fs::read(&index_path).doing("read", &index_path)?;
        let Some(mut entries) = parse_index(&index) else {
            return Ok(None);
        };
        entries.sort_unstable_by_key(|entry| entry.range.start);
        let file = File::open(&path).doing("read", &path)?;
        let mut end = usize::try_from(length(&path)?).unwrap_or(usize::MAX);
        end = end.saturating_sub(HASH_BYTES);
        for entry in entries.iter_mut().rev() {
            entry.range.end = end;
            end = entry.range.start;
            let mut first = [0];
            let read = file.read_exact_at(&mut first, entry.range.start as u64);
            read.doing("read", &path)?;
            entry.content = match first[0] >> 4 & 7 {
                OFS_DELTA => return Ok(None),
                REF_DELTA => Content::Delta,
                TREE => Content::Folder,
                _ => Content::Other,
            };
        }
        Ok(Some(Self {
            path,
            file,
            entries,
        }))
    }

    /// The bytes of an entry, checked.
    pub(super) fn read(&self, entry: &PackEntry) -> Result<Vec<u8>, GitError> {
        let mut bytes = vec![0; entry.range.len()];
        let read = self
            .file
            .read_exact_at(&mut bytes, entry.range.start as u64);
        read.doing("read", &self.path)?;
        match crc32fast::hash(&bytes) == entry.crc32 {
            true => Ok(bytes),
            false => Err(GitError::damaged(
                &self.path,
                format!("{} has changed", entry.id),
            )),
        }
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

/// The ids that an index of version 2 lists.
fn parse_ids(index: &[u8]) -> Option<Vec<Oid>> {
    if !index.starts_with(INDEX_HEAD) {
        return None;
    }
    let count = number(index, TABLES_OFFSET - 4)? as usize;
    let ids = index.get(TABLES_OFFSET..TABLES_OFFSET + count * HASH_BYTES)?;
    let ids = ids.chunks(HASH_BYTES).map(|id| Oid::from_bytes(id).ok());
    ids.collect()
}

/// The entries that an index of version 2 names, without their ends and kinds; `None` for a pack
/// that is larger than those written here.
fn parse_index(index: &[u8]) -> Option<Vec<PackEntry>> {
    let ids = parse_ids(index)?;
    let crcs = TABLES_OFFSET + ids.len() * HASH_BYTES;
    let offsets = crcs + ids.len() * 4;
    let entry = |(row, id)| {
        let offset = number(index, offsets + row * 4).filter(|offset| *offset < OFFSET_END)?;
        let offset = offset as usize;
        Some(PackEntry {
            id,
            crc32: number(index, crcs + row * 4)?,
            content: Content::Other,
            range: offset..offset,
        })
    };
    ids.into_iter().enumerate().map(entry).collect()
}

fn number(index: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*index.get(offset..)?.first_chunk()?))
}
