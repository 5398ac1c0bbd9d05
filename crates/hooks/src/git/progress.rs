//! Progress of rewriting a history, so that the next step or a restarted daemon continues it.
//!
//! The file of an erasure has the replacements of the first commits of the history in blocks. Each
//! is written after its objects are durable, and ends with a digest of the erasure's targets, of
//! everything before, and of the commits that it replaces. A block that is torn, damaged or of
//! another history is thus recognized, and the rewriting continues after the blocks before it. A
//! file contains no names and no content.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use git2::Oid;
use ring::digest;

use super::error::{GitError, IoContext};
use super::packs;
use super::repo::{Repo, sync_dir};

const PREFIX: &str = "memoird.rewrite-";
const COUNT_BYTES: usize = 4;
const ID_BYTES: usize = 20;

type Seal = [u8; digest::SHA256_OUTPUT_LEN];

pub(super) struct Progress<'a> {
    repo: &'a Repo,
    path: PathBuf,
    /// Opened by the first [`Self::save`].
    file: Option<File>,
    /// Size in bytes of the valid blocks.
    size: u64,
    /// Digest at the end of the last valid block. At first, that of the targets.
    seal: Seal,
}

impl<'a> Progress<'a> {
    /// `targets` must contain everything that replacements depend on, except for the commits.
    pub(super) fn new(repo: &'a Repo, targets: &[String]) -> Self {
        let mut digest = digest::Context::new(&digest::SHA256);
        // A version that replaces commits differently must change this.
        digest.update(b"memoird rewrite 1");
        for target in targets {
            digest.update(&target.len().to_be_bytes());
            digest.update(target.as_bytes());
        }
        let seal = seal(digest);
        let name: String = seal[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            repo,
            path: repo.git_dir.join(format!("{PREFIX}{name}")),
            file: None,
            size: 0,
            seal,
        }
    }

    /// Calls `each` with the first commits of `commits` and their saved replacements.
    ///
    /// Returns their number.
    pub(super) fn load(
        &mut self,
        commits: &[Oid],
        mut each: impl FnMut(Oid, Oid),
    ) -> Result<usize, GitError> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            file => file.io_context("open", &self.path)?,
        };
        let mut file = BufReader::new(file);
        let mut rest = commits;
        loop {
            let block = read_block(&mut file, rest.len()).io_context("read", &self.path)?;
            let Some((ids, seal)) = block else {
                break;
            };
            let (old, after) = rest.split_at(ids.len() / ID_BYTES);
            if seal != next_seal(&self.seal, old, &ids) {
                break;
            }
            let new = ids
                .chunks(ID_BYTES)
                .filter_map(|id| Oid::from_bytes(id).ok());
            for (old, new) in old.iter().zip(new) {
                each(*old, new);
            }
            self.seal = seal;
            self.size += (COUNT_BYTES + ids.len() + seal.len()) as u64;
            rest = after;
        }
        Ok(commits.len() - rest.len())
    }

    /// Saves the replacements of the next commits. Their objects must be durable.
    pub(super) fn save(&mut self, old: &[Oid], new: &[Oid]) -> Result<(), GitError> {
        let ids: Vec<u8> = new.iter().flat_map(Oid::as_bytes).copied().collect();
        let seal = next_seal(&self.seal, old, &ids);
        let count = u32::try_from(new.len()).unwrap_or(u32::MAX).to_be_bytes();
        let block = [&count[..], &ids, &seal].concat();
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.open()?,
        };
        let written = file.write_all(&block).and_then(|()| file.sync_data());
        written.io_context("write", &self.path)?;
        self.file = Some(file);
        self.size += block.len() as u64;
        self.seal = seal;
        Ok(())
    }

    /// Opens the file at the end of its valid blocks.
    fn open(&self) -> Result<File, GitError> {
        let mut opened = OpenOptions::new();
        opened.create(true).truncate(false).write(true);
        let file = opened.open(&self.path).and_then(|mut file| {
            file.set_len(self.size)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        });
        let file = file.io_context("open", &self.path)?;
        sync_dir(&self.repo.git_dir)?;
        Ok(file)
    }

    pub(super) fn remove(&self) -> Result<(), GitError> {
        packs::remove_file(&self.path)
    }
}

/// Deletes the progress of all erasures. Their objects must be reachable or deleted.
pub(super) fn remove_all(repo: &Repo) -> Result<(), GitError> {
    for name in packs::file_names(&repo.git_dir)? {
        if name.starts_with(PREFIX) {
            packs::remove_file(&repo.git_dir.join(name))?;
        }
    }
    Ok(())
}

/// Reads the ids of a block and its digest. `None` if it is torn, or has more than `count_max` ids.
fn read_block(file: &mut impl Read, count_max: usize) -> io::Result<Option<(Vec<u8>, Seal)>> {
    let mut count = [0; COUNT_BYTES];
    if !read_all(file, &mut count)? {
        return Ok(None);
    }
    let count = u32::from_be_bytes(count) as usize;
    if count == 0 || count > count_max {
        return Ok(None);
    }
    let (mut ids, mut seal) = (vec![0; count * ID_BYTES], Seal::default());
    let is_whole = read_all(file, &mut ids)? && read_all(file, &mut seal)?;
    Ok(is_whole.then_some((ids, seal)))
}

/// Returns false if the file ends before `bytes` is full.
fn read_all(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

fn next_seal(before: &Seal, old: &[Oid], new: &[u8]) -> Seal {
    let mut digest = digest::Context::new(&digest::SHA256);
    digest.update(before);
    for id in old {
        digest.update(id.as_bytes());
    }
    digest.update(new);
    seal(digest)
}

fn seal(digest: digest::Context) -> Seal {
    let mut seal = Seal::default();
    seal.copy_from_slice(digest.finish().as_ref());
    seal
}
