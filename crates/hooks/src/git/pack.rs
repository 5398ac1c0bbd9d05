//! Packs: all objects of a batch in one file and its index, because a file for each
//! object would cost a thousand times the system calls, and the disk a block each.
//!
//! The formats are those of git's own `gitformat-pack(5)`: packs of version 2 and indexes
//! of version 2. The pack builder of libgit2 compresses better and hashes all of it twice:
//! with it, one commit to a day of 30,000 sessions took some 200 ms of CPU.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use git2::{ObjectType, Oid};
use sha1dc::Hasher;

use super::delta;
use super::error::{Doing, GitError};
use super::existing::{Content, ExistingPack, PackEntry};
use super::lock::Stop;
use super::repo::{Repo, sync_dir};
use super::tree::Trees;

/// How the names of unfinished files begin; `git prune` removes what begins with `tmp_`.
pub(super) const TEMPORARY: &str = "tmp_memoird_";

/// How an index of version 2 begins.
pub(super) const INDEX_HEAD: &[u8] = b"\xfftOc\0\0\0\x02";

/// The type of an entry that is a whole folder.
pub(super) const TREE: u8 = 2;
/// The type of an entry that is a delta and says how far back its base is.
pub(super) const OFS_DELTA: u8 = 6;
/// The type of an entry that is a delta and names its base.
pub(super) const REF_DELTA: u8 = 7;

/// Offsets from here on are in a table of their own, in packs larger than those written here.
pub(super) const OFFSET_END: u32 = 1 << 31;

/// Folders of at least this size, in bytes, are not compressed: the next commit replaces them
/// by deltas, and compressing them would take half of the CPU time of a commit.
const STORED_BYTES_MIN: usize = 256 << 10;

/// Sizes of folders that become deltas, in bytes: smaller ones gain nothing, larger ones take
/// too much memory.
const DELTA_BYTES: RangeInclusive<usize> = 1 << 10..=64 << 20;

/// Folders that a smaller one is compared with.
const BASES_MAX: usize = 4;

/// New objects, in memory.
pub(super) struct Objects {
    known: HashSet<Oid>,
    entries: Vec<PackEntry>,
    body: Vec<u8>,
    folder_bytes: usize,
    encoder: ZlibEncoder<Vec<u8>>,
}

impl Objects {
    /// None.
    pub(super) fn new() -> Self {
        Self {
            known: HashSet::new(),
            entries: Vec::new(),
            body: Vec::new(),
            folder_bytes: 0,
            encoder: ZlibEncoder::new(Vec::new(), Compression::fast()),
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    /// What they take of memory while they become a pack: as they are packed, and their folders
    /// once more, to be compared.
    pub(super) fn bytes(&self) -> usize {
        self.body.len() + self.folder_bytes
    }

    /// Adds an object, once, and returns its id.
    pub(super) fn add(&mut self, kind: ObjectType, content: &[u8]) -> io::Result<Oid> {
        let mut hasher = Hasher::new();
        hasher.update(format!("{kind} {}\0", content.len()).as_bytes());
        hasher.update(content);
        let id = finish(hasher)?;
        if !self.known.insert(id) {
            return Ok(id);
        }
        if kind == ObjectType::Tree {
            self.folder_bytes += content.len();
        }
        let start = self.body.len();
        put_head(&mut self.body, type_number(kind), content.len());
        if kind == ObjectType::Tree && content.len() >= STORED_BYTES_MIN {
            self.body.reserve(content.len() + content.len() / 1_000);
            let mut encoder = ZlibEncoder::new(&mut self.body, Compression::none());
            encoder.write_all(content)?;
            encoder.finish()?;
        } else {
            self.encoder.write_all(content)?;
            self.body
                .extend_from_slice(&self.encoder.reset(Vec::new())?);
        }
        self.entries.push(PackEntry {
            id,
            crc32: crc32fast::hash(&self.body[start..]),
            content: match kind {
                ObjectType::Tree => Content::Folder,
                _ => Content::Other,
            },
            range: start..self.body.len(),
        });
        Ok(id)
    }

    /// Writes them, and all that the packs `old` hold, as one pack, durable. Returns its
    /// path.
    pub(super) fn write(
        &self,
        pack_dir: &Path,
        old: &[ExistingPack],
        trees: &mut Trees<'_>,
        stop: &Stop,
    ) -> Result<PathBuf, GitError> {
        let new = self.entries.iter().map(|entry| (None, entry));
        let old = old.iter().flat_map(|pack| {
            let entries = pack.entries.iter();
            entries.map(move |entry| (Some(pack), entry))
        });
        let all: Vec<(Option<&ExistingPack>, &PackEntry)> = new.chain(old).collect();
        // One entry for each object: a whole one, if there is one. A delta leads to a larger
        // object or to a whole one, so never in a circle.
        let mut chosen: HashMap<Oid, &PackEntry> = HashMap::new();
        for &(_, entry) in &all {
            let known = chosen.entry(entry.id).or_insert(entry);
            if known.content == Content::Delta {
                *known = entry;
            }
        }
        let deltas = deltas(&chosen, trees, stop)?;
        let mut pack = NewPack::create(pack_dir, chosen.len())?;
        for (source, entry) in all {
            stop.check()?;
            if !std::ptr::eq(chosen[&entry.id], entry) {
                continue;
            }
            match (deltas.get(&entry.id), source) {
                (Some(delta), _) => pack.put(entry.id, crc32fast::hash(delta), delta)?,
                (None, Some(old)) => pack.put(entry.id, entry.crc32, &old.read(entry)?)?,
                (None, None) => {
                    pack.put(entry.id, entry.crc32, &self.body[entry.range.clone()])?;
                }
            }
        }
        pack.finish()
    }
}

impl Objects {
    /// Adds an object that the repository has.
    pub(super) fn copy(&mut self, repo: &Repo, id: Oid) -> Result<(), GitError> {
        let damaged = |error: git2::Error| repo.damaged(&id, error);
        let odb = repo.git.odb().map_err(damaged)?;
        let object = odb.read(id).map_err(damaged)?;
        let added = self.add(object.kind(), object.data());
        added.map_err(|error| repo.damaged(&id, error))?;
        Ok(())
    }
}

/// Writes those objects of a pack that are `kept` as a new one, where there are any. A delta stays
/// one as long as its base stays in the pack.
pub(super) fn write_part(
    repo: &Repo,
    old: &ExistingPack,
    kept: &HashSet<Oid>,
    stop: &Stop,
) -> Result<(), GitError> {
    let here: HashSet<Oid> = old.entries.iter().map(|entry| entry.id).collect();
    let mut whole = Vec::new();
    let mut copied = Vec::new();
    for entry in old.entries.iter().filter(|entry| kept.contains(&entry.id)) {
        stop.check()?;
        let base = match entry.content {
            Content::Delta => Some(base_of(&old.read(entry)?, repo, entry.id)?),
            Content::Folder | Content::Other => None,
        };
        match base.is_none_or(|base| kept.contains(&base) && here.contains(&base)) {
            true => copied.push(entry),
            false => whole.push(entry.id),
        }
    }
    if copied.is_empty() && whole.is_empty() {
        return Ok(());
    }
    let mut pack = NewPack::create(old.pack_dir(), copied.len() + whole.len())?;
    for id in whole {
        stop.check()?;
        let mut object = Objects::new();
        object.copy(repo, id)?;
        pack.put(id, crc32fast::hash(&object.body), &object.body)?;
    }
    for entry in copied {
        stop.check()?;
        pack.put(entry.id, entry.crc32, &old.read(entry)?)?;
    }
    pack.finish().map(|_| ())
}

/// The object that a delta names as its base: behind its type and size.
fn base_of(entry: &[u8], repo: &Repo, id: Oid) -> Result<Oid, GitError> {
    let size_bytes = entry.iter().take_while(|byte| **byte & 128 != 0).count() + 1;
    let base = entry.get(size_bytes..size_bytes + 20);
    let base = base.ok_or_else(|| repo.damaged(&id, "is no delta"))?;
    repo.id(base)
}

/// Entries with deltas for folders that are much like a larger one. A folder mostly grows,
/// so its newest list is the largest, and stays whole: that is the one which is read.
fn deltas(
    chosen: &HashMap<Oid, &PackEntry>,
    trees: &mut Trees<'_>,
    stop: &Stop,
) -> Result<HashMap<Oid, Vec<u8>>, GitError> {
    let mut folders = Vec::new();
    for (id, entry) in chosen {
        if entry.content == Content::Folder {
            stop.check()?;
            trees.load(*id)?;
            folders.push((Reverse(trees.bytes(*id).len()), *id));
        }
    }
    folders.retain(|(Reverse(bytes), _)| DELTA_BYTES.contains(bytes));
    folders.sort_unstable();
    let mut deltas = HashMap::new();
    let mut bases: VecDeque<Oid> = VecDeque::new();
    for (_, id) in folders {
        stop.check()?;
        let folder = trees.bytes(id);
        let found = bases
            .iter()
            .find_map(|base| Some((*base, delta::between(trees.bytes(*base), folder)?)));
        if let Some((base, delta)) = found {
            let entry = delta_entry(base, &delta);
            let refused = |error| GitError::damaged(Path::new("a new delta"), error);
            deltas.insert(id, entry.map_err(refused)?);
            continue;
        }
        bases.push_front(id);
        bases.truncate(BASES_MAX);
    }
    Ok(deltas)
}

/// A pack that is being written, under a name that git does not read.
struct NewPack {
    pack_dir: PathBuf,
    temporary: Temporary,
    out: BufWriter<File>,
    hasher: Hasher,
    offset: u64,
    written: Vec<Written>,
}

/// An entry that was written.
struct Written {
    id: Oid,
    crc32: u32,
    offset: u64,
}

impl NewPack {
    /// Begins a pack with this number of objects.
    fn create(pack_dir: &Path, objects: usize) -> Result<Self, GitError> {
        let temporary = Temporary(pack_dir.join(format!("{TEMPORARY}pack")));
        let file = create_read_only(&temporary.0)?;
        let mut pack = Self {
            pack_dir: pack_dir.to_owned(),
            temporary,
            out: BufWriter::with_capacity(1 << 18, file),
            hasher: Hasher::new(),
            offset: 0,
            written: Vec::with_capacity(objects),
        };
        let objects = u32::try_from(objects).unwrap_or(u32::MAX).to_be_bytes();
        pack.write(&[&b"PACK\0\0\0\x02"[..], &objects].concat())?;
        Ok(pack)
    }

    /// Appends an entry.
    fn put(&mut self, id: Oid, crc32: u32, entry: &[u8]) -> Result<(), GitError> {
        let offset = self.offset;
        self.written.push(Written { id, crc32, offset });
        self.write(entry)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), GitError> {
        self.hasher.update(bytes);
        self.offset += bytes.len() as u64;
        self.out.write_all(bytes).doing("write", &self.temporary.0)
    }

    /// Puts pack and index, durable, where git finds them. The index comes last: with it
    /// the pack begins to exist. Returns the path of the pack.
    fn finish(mut self) -> Result<PathBuf, GitError> {
        let path = &self.temporary.0;
        let checksum = finish(self.hasher).doing("write", path)?;
        let written = self.out.write_all(checksum.as_bytes());
        written
            .and_then(|()| self.out.flush())
            .and_then(|()| self.out.get_ref().sync_all())
            .doing("write", path)?;

        let name = format!("pack-{checksum}");
        // So named, it tells after a crash which pack was never finished.
        let index = Temporary(self.pack_dir.join(format!("{TEMPORARY}{name}.idx")));
        let content = index_content(&mut self.written, checksum).doing("write", &index.0)?;
        let mut file = create_read_only(&index.0)?;
        file.write_all(&content)
            .and_then(|()| file.sync_all())
            .doing("write", &index.0)?;

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

/// The hash, or an error for content that was made to have that of other content.
fn finish(hasher: Hasher) -> io::Result<Oid> {
    let digest = hasher.finalize().map_err(io::Error::other)?;
    Oid::from_bytes(digest.as_ref()).map_err(io::Error::other)
}

/// The entry of an object that is `delta` away from the object `base`.
fn delta_entry(base: Oid, delta: &[u8]) -> io::Result<Vec<u8>> {
    let mut entry = Vec::new();
    put_head(&mut entry, REF_DELTA, delta.len());
    entry.extend_from_slice(base.as_bytes());
    let mut encoder = ZlibEncoder::new(entry, Compression::fast());
    encoder.write_all(delta)?;
    encoder.finish()
}

/// The type of an entry with a whole object.
fn type_number(kind: ObjectType) -> u8 {
    match kind {
        ObjectType::Commit => 1,
        ObjectType::Tree => TREE,
        ObjectType::Blob => 3,
        _ => 4,
    }
}

/// Type and size of an entry: 3 bits and 4 bits, then 7 bits a byte, the lowest first.
fn put_head(body: &mut Vec<u8>, number: u8, size: usize) {
    let byte = |bits: usize, more: bool| u8::try_from(bits).unwrap_or(0) | u8::from(more) << 7;
    let mut rest = size >> 4;
    body.push(byte(usize::from(number) << 4 | size & 15, rest > 0));
    while rest > 0 {
        let bits = rest & 127;
        rest >>= 7;
        body.push(byte(bits, rest > 0));
    }
}

/// An index of version 2: how many ids begin with each byte or a smaller one, then ids,
/// checksums and offsets, sorted by id.
fn index_content(written: &mut [Written], pack: Oid) -> io::Result<Vec<u8>> {
    written.sort_unstable_by_key(|entry| entry.id);
    let mut content = Vec::with_capacity(1_100 + written.len() * 28);
    content.extend_from_slice(INDEX_HEAD);
    for first in 0..=255_u8 {
        let count = written.partition_point(|entry| entry.id.as_bytes()[0] <= first);
        content.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
    }
    content.extend(written.iter().flat_map(|entry| entry.id.as_bytes()));
    content.extend(written.iter().flat_map(|entry| entry.crc32.to_be_bytes()));
    for entry in written.iter() {
        let offset = u32::try_from(entry.offset).ok();
        let offset = offset.filter(|offset| *offset < OFFSET_END);
        let offset = offset.ok_or(io::ErrorKind::FileTooLarge)?;
        content.extend_from_slice(&offset.to_be_bytes());
    }
    content.extend_from_slice(pack.as_bytes());
    let mut hasher = Hasher::new();
    hasher.update(&content);
    content.extend_from_slice(finish(hasher)?.as_bytes());
    Ok(content)
}
