//! Packs: all objects of a batch in one file and its index, because a file for each
//! object would cost a thousand times the system calls, and the disk a block each.
//!
//! The formats are those of git's own `gitformat-pack(5)`: packs of version 2 and indexes
//! of version 2. A batch is written as whole objects; deltas come with merging.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use gix::ObjectId;
use gix::hash::{Hasher, Kind as HashKind, hasher};
use gix::objs::Kind;
use gix::zlib::stream::deflate::{Compress, FlushCompress};
use gix::zlib::{Compression, Status};

use super::error::{Doing, GitError};
use super::repo::sync_dir;

/// How the names of unfinished files begin; `git prune` removes what begins with `tmp_`.
pub(super) const TEMPORARY: &str = "tmp_memoird_";

/// The kind of an entry that is a delta and names its base.
const REF_DELTA: usize = 7;

/// Offsets from here on have their place in a table of their own.
const LARGE: u64 = 1 << 31;

/// Objects of a batch, in memory.
pub(super) struct Objects {
    known: HashSet<ObjectId>,
    placed: Vec<Placed>,
    body: Vec<u8>,
    deflate: Compress,
}

/// An entry of a pack.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    /// Which object.
    pub(super) id: ObjectId,
    /// Where its entry begins.
    pub(super) offset: u64,
    /// Of the bytes of its entry.
    pub(super) crc32: u32,
}

impl Objects {
    /// None.
    pub(super) fn new() -> Self {
        Self {
            known: HashSet::new(),
            placed: Vec::new(),
            body: Vec::new(),
            deflate: Compress::new(Compression::BEST_SPEED),
        }
    }

    /// Adds an object, once, and gives its name.
    pub(super) fn add(&mut self, kind: Kind, content: &[u8]) -> io::Result<ObjectId> {
        let id =
            gix::objs::compute_hash(HashKind::Sha1, kind, content).map_err(io::Error::other)?;
        if !self.known.insert(id) {
            return Ok(id);
        }
        let start = self.body.len();
        put_head(&mut self.body, number(kind), content.len());
        deflate(&mut self.deflate, content, &mut self.body)?;
        let crc32 = crc32fast::hash(&self.body[start..]);
        self.placed.push(Placed {
            id,
            offset: start as u64,
            crc32,
        });
        Ok(id)
    }

    /// Writes them as one pack, durable, and forgets their content: what is added from
    /// now on makes another pack. Gives the path of the pack, or `None` without objects.
    pub(super) fn write(&mut self, pack_dir: &Path) -> Result<Option<PathBuf>, GitError> {
        if self.placed.is_empty() {
            return Ok(None);
        }
        let mut pack = NewPack::create(pack_dir, self.placed.len())?;
        let body = std::mem::take(&mut self.body);
        let placed = std::mem::take(&mut self.placed);
        let ends = placed
            .iter()
            .skip(1)
            .map(|next| next.offset)
            .chain([body.len() as u64]);
        for (entry, end) in placed.iter().zip(ends) {
            pack.put(entry.id, entry.crc32, range(&body, entry.offset, end))?;
        }
        pack.finish().map(Some)
    }
}

fn range(bytes: &[u8], start: u64, end: u64) -> &[u8] {
    let place = |offset| usize::try_from(offset).unwrap_or(usize::MAX);
    bytes.get(place(start)..place(end)).unwrap_or_default()
}

/// A pack that is being written, under a name that nobody reads.
pub(super) struct NewPack {
    pack_dir: PathBuf,
    temporary: Temporary,
    out: BufWriter<File>,
    hasher: Hasher,
    offset: u64,
    placed: Vec<Placed>,
}

impl NewPack {
    /// Begins a pack of so many objects.
    pub(super) fn create(pack_dir: &Path, objects: usize) -> Result<Self, GitError> {
        let temporary = Temporary(pack_dir.join(format!("{TEMPORARY}pack")));
        let file = create_read_only(&temporary.0)?;
        let mut pack = Self {
            pack_dir: pack_dir.to_owned(),
            temporary,
            out: BufWriter::with_capacity(1 << 18, file),
            hasher: hasher(HashKind::Sha1),
            offset: 0,
            placed: Vec::with_capacity(objects),
        };
        let objects = u32::try_from(objects).unwrap_or(u32::MAX).to_be_bytes();
        let head = [&b"PACK\0\0\0\x02"[..], &objects].concat();
        pack.write(&head)?;
        Ok(pack)
    }

    /// Appends an entry as it is.
    pub(super) fn put(&mut self, id: ObjectId, crc32: u32, entry: &[u8]) -> Result<(), GitError> {
        self.placed.push(Placed {
            id,
            offset: self.offset,
            crc32,
        });
        self.write(entry)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), GitError> {
        self.hasher.update(bytes);
        self.offset += bytes.len() as u64;
        self.out.write_all(bytes).doing("write", &self.temporary.0)
    }

    /// Puts pack and index, durable, where git finds them. The index comes last: with it
    /// the pack begins to exist. Gives the path of the pack.
    pub(super) fn finish(mut self) -> Result<PathBuf, GitError> {
        let path = &self.temporary.0;
        let hasher = std::mem::replace(&mut self.hasher, hasher(HashKind::Sha1));
        let checksum = hasher
            .try_finalize()
            .map_err(|error| GitError::damaged(path, error))?;
        self.out
            .write_all(checksum.as_slice())
            .doing("write", path)?;
        self.out.flush().doing("write", path)?;
        self.out.get_ref().sync_all().doing("write", path)?;

        let name = format!("pack-{}", checksum.to_hex());
        // So named, it tells after a crash which pack was never finished.
        let index = Temporary(self.pack_dir.join(format!("{TEMPORARY}{name}.idx")));
        let mut file = create_read_only(&index.0)?;
        let content = index_content(&mut self.placed, checksum);
        let content = content.map_err(|error| GitError::damaged(path, error))?;
        file.write_all(&content).doing("write", &index.0)?;
        file.sync_all().doing("write", &index.0)?;

        let [pack_path, index_path] =
            ["pack", "idx"].map(|ending| self.pack_dir.join(format!("{name}.{ending}")));
        if !(index_path.exists() && pack_path.exists()) {
            fs::rename(path, &pack_path).doing("create", &pack_path)?;
            fs::rename(&index.0, &index_path).doing("create", &index_path)?;
        }
        sync_dir(&self.pack_dir)?;
        Ok(pack_path)
    }
}

/// A file that is removed unless it was moved elsewhere.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn create_read_only(path: &Path) -> Result<File, GitError> {
    // What a crash left cannot be opened for writing again.
    let _ = fs::remove_file(path);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o444);
    options.open(path).doing("create", path)
}

/// The entry of an object that is `delta` away from the object `base`.
pub(super) fn delta_entry(
    base: ObjectId,
    delta: &[u8],
    compress: &mut Compress,
) -> io::Result<Vec<u8>> {
    let mut entry = Vec::new();
    put_head(&mut entry, REF_DELTA, delta.len());
    entry.extend_from_slice(base.as_slice());
    deflate(compress, delta, &mut entry)?;
    Ok(entry)
}

/// The number of a kind in the head of an entry.
fn number(kind: Kind) -> usize {
    match kind {
        Kind::Commit => 1,
        Kind::Tree => 2,
        Kind::Blob => 3,
        Kind::Tag => 4,
    }
}

/// Kind and size of an entry: 3 bits and 4 bits, then 7 bits a byte, the lowest first.
fn put_head(body: &mut Vec<u8>, number: usize, size: usize) {
    let byte = |bits: usize, more: bool| u8::try_from(bits).unwrap_or(0) | u8::from(more) << 7;
    let mut rest = size >> 4;
    body.push(byte(number << 4 | size & 15, rest > 0));
    while rest > 0 {
        let bits = rest & 127;
        rest >>= 7;
        body.push(byte(bits, rest > 0));
    }
}

/// Appends a zlib stream of `content` to `body`.
fn deflate(compress: &mut Compress, content: &[u8], body: &mut Vec<u8>) -> io::Result<()> {
    compress.reset();
    let start = body.len();
    loop {
        let [read, written] = [compress.total_in(), compress.total_out()]
            .map(|total| usize::try_from(total).unwrap_or(usize::MAX));
        // Mostly enough at once; the loop is for what does not get smaller.
        body.resize(start + written + (content.len() - read) / 2 + 64, 0);
        let room = &mut body[start + written..];
        let status = compress.compress(&content[read..], room, FlushCompress::Finish);
        if status.map_err(io::Error::other)? == Status::StreamEnd {
            let written = usize::try_from(compress.total_out()).unwrap_or(usize::MAX);
            body.truncate(start + written);
            return Ok(());
        }
    }
}

/// An index of version 2: how many ids begin with each byte or a smaller one, then ids,
/// checksums and offsets, sorted by id.
fn index_content(placed: &mut [Placed], pack: ObjectId) -> Result<Vec<u8>, gix::Error> {
    placed.sort_unstable_by_key(|entry| entry.id);
    let mut content = Vec::with_capacity(1_100 + placed.len() * 28);
    content.extend_from_slice(b"\xfftOc\0\0\0\x02");
    let mut counted = 0;
    for first in 0..=255_u8 {
        counted += placed[counted..]
            .iter()
            .take_while(|e| e.id.as_slice()[0] == first)
            .count();
        content.extend_from_slice(&u32::try_from(counted).unwrap_or(u32::MAX).to_be_bytes());
    }
    content.extend(placed.iter().flat_map(|entry| entry.id.as_slice()));
    content.extend(placed.iter().flat_map(|entry| entry.crc32.to_be_bytes()));
    let mut large = Vec::new();
    for entry in placed.iter() {
        let small = u32::try_from(entry.offset)
            .ok()
            .filter(|_| entry.offset < LARGE);
        let number = small.unwrap_or_else(|| {
            large.extend_from_slice(&entry.offset.to_be_bytes());
            u32::try_from(large.len() / 8 - 1).unwrap_or(0) | 1 << 31
        });
        content.extend_from_slice(&number.to_be_bytes());
    }
    content.extend_from_slice(&large);
    content.extend_from_slice(pack.as_slice());
    let mut hasher = hasher(HashKind::Sha1);
    hasher.update(&content);
    content.extend_from_slice(hasher.try_finalize()?.as_slice());
    Ok(content)
}
