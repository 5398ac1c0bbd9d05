//! A pack that was written before, entry by entry.

use std::ops::Range;
use std::path::{Path, PathBuf};

use gix::ObjectId;
use gix::hash::Kind as HashKind;
use gix::odb::pack::data::entry::Header;
use gix::odb::pack::{data, index};

use super::error::GitError;

/// A pack of memoird's, open: of whole objects, and of deltas that name their base.
pub(super) struct Pack {
    /// Where it is.
    pub(super) path: PathBuf,
    data: data::File,
    /// Its entries, sorted by their place.
    pub(super) entries: Vec<Entry>,
}

/// An entry of a pack.
pub(super) struct Entry {
    /// Which object.
    pub(super) id: ObjectId,
    /// Of its bytes.
    pub(super) crc32: u32,
    /// How large its content is, when it is a tree and no delta.
    pub(super) tree_bytes: Option<u64>,
    base: Option<ObjectId>,
    range: Range<u64>,
}

impl Entry {
    /// True unless it is a delta.
    pub(super) fn is_whole(&self) -> bool {
        self.base.is_none()
    }
}

impl Pack {
    /// Opens a pack; `None` when it is not memoird's.
    pub(super) fn open(pack_dir: &Path, stem: &str) -> Result<Option<Self>, GitError> {
        let path = pack_dir.join(format!("{stem}.pack"));
        let damaged = |error: gix::Error| GitError::damaged(&path, error);
        let index = index::File::at(path.with_extension("idx"), HashKind::Sha1).map_err(damaged)?;
        let data = data::File::at(&path, HashKind::Sha1).map_err(damaged)?;
        let mut entries: Vec<Entry> = Vec::with_capacity(index.num_objects() as usize);
        for entry in index.iter() {
            let Some(crc32) = entry.crc32 else {
                return Ok(None);
            };
            let range = entry.pack_offset..data.pack_end() as u64;
            let (id, tree_bytes, base) = (entry.oid, None, None);
            entries.push(Entry {
                id,
                crc32,
                tree_bytes,
                base,
                range,
            });
        }
        entries.sort_unstable_by_key(|entry| entry.range.start);
        let starts: Vec<u64> = entries
            .iter()
            .skip(1)
            .map(|entry| entry.range.start)
            .collect();
        for (entry, next) in entries.iter_mut().zip(starts) {
            entry.range.end = next;
        }
        for entry in &mut entries {
            let bytes = slice(&data, &entry.range, &path)?;
            let head = data::Entry::from_bytes(bytes, entry.range.start, HashKind::Sha1);
            let head = head.map_err(damaged)?;
            match head.header {
                Header::Tree => entry.tree_bytes = Some(head.decompressed_size),
                Header::Commit | Header::Blob | Header::Tag => {}
                Header::RefDelta { base_id } => entry.base = Some(base_id),
                Header::OfsDelta { .. } => return Ok(None),
            }
        }
        let is_here = |entry: &Entry| entry.base.is_none_or(|base| index.lookup(base).is_some());
        let is_closed = entries.iter().all(is_here);
        Ok(is_closed.then_some(Self {
            path,
            data,
            entries,
        }))
    }

    /// The bytes of an entry, as they were written.
    pub(super) fn bytes(&self, entry: &Entry) -> Result<&[u8], GitError> {
        let bytes = slice(&self.data, &entry.range, &self.path)?;
        match crc32fast::hash(bytes) == entry.crc32 {
            true => Ok(bytes),
            false => Err(GitError::damaged(
                &self.path,
                format!("{} has changed", entry.id),
            )),
        }
    }

    /// The content of an entry that is no delta.
    pub(super) fn content(&self, entry: &Entry) -> Result<Vec<u8>, GitError> {
        let damaged = |error: gix::Error| GitError::damaged(&self.path, error);
        let head = self.data.entry(entry.range.start).map_err(damaged)?;
        let mut content = vec![0; usize::try_from(head.decompressed_size).unwrap_or(0)];
        let mut inflate = gix::zlib::Inflate::default();
        self.data
            .decompress_entry(&head, &mut inflate, &mut content)
            .map_err(damaged)?;
        Ok(content)
    }
}

fn slice<'a>(data: &'a data::File, range: &Range<u64>, path: &Path) -> Result<&'a [u8], GitError> {
    let bytes = data.entry_slice(range.clone());
    bytes.ok_or_else(|| GitError::damaged(path, "it is shorter than its index"))
}
