//! A backup directory: plain files as in a data directory, and a manifest with their hashes.
//!
//! Incoming steps are collected in a separate file. Once it is complete it is renamed, and then its
//! blocks are written to their files. The next backup repeats that if it is interrupted. The
//! directory thus contains the last complete backup at any time. A restore changes nothing in it:
//! it reads blocks that were not written yet from that file.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use memoird_cli::json;
use memoird_proto::v1::backup_response::Step;
use memoird_proto::v1::{BackupFile, BackupManifest, BackupResponse};
use memoird_store::{DirLock, private};
use prost::Message;

use crate::blocks::{self, BLOCK_BYTES, HASH_BYTES};
use crate::data_files::{CONFIG, JOURNAL, MEMORIES, replace};
use crate::exit::{CliError, Exit};

const MANIFEST: &str = "backup.json";
/// Steps of an incomplete backup.
const INCOMING: &str = "incoming";
/// All steps of a complete backup, to be applied.
const CHANGES: &str = "changes";
/// Supported version of the manifest format.
const FORMAT: u32 = 1;
/// Maximum size of a step in bytes. A manifest has 1 GiB for 16 TiB of files.
const STEP_BYTES_MAX: u32 = 1 << 30;

/// A locked backup directory. Dropping it releases the lock.
pub(crate) struct Archive {
    dir: PathBuf,
    _lock: DirLock,
}

/// The steps of an incomplete backup. Dropping it removes them.
pub(crate) struct IncompleteBackup<'a> {
    archive: &'a Archive,
    file: BufWriter<File>,
    /// Bytes of the blocks received so far.
    pub(crate) bytes: u64,
}

impl Archive {
    /// Locks a backup directory, and creates it if it is missing.
    pub(crate) fn open(dir: &Path) -> Result<Self, CliError> {
        private::dirs(dir).map_err(CliError::cannot_create(dir))?;
        if !is_backup(dir) && !is_empty(dir).map_err(failed(dir))? {
            let problem = format!(
                "{} is neither empty nor a backup; use another directory",
                dir.display()
            );
            return Err(CliError::failed(Exit::CannotCreate, problem));
        }
        let lock = DirLock::take(dir)
            .map_err(|error| CliError::failed(Exit::CannotCreate, error.to_string()))?;
        finish(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            _lock: lock,
        })
    }

    /// Hashes the files of the backup, so that blocks damaged on disk are sent again.
    pub(crate) fn have(&self) -> Result<Vec<BackupFile>, CliError> {
        let manifest = manifest(&self.dir)?.unwrap_or_default();
        let mut have = Vec::new();
        for BackupFile { path, .. } in manifest.files {
            let place = place(&self.dir, &path)?;
            if !place.exists() {
                continue;
            }
            let (mut bytes, mut block_hashes) = (0, Vec::new());
            let read = blocks::each(&place, |block| {
                bytes += block.data.len() as u64;
                block_hashes.extend_from_slice(&block.hash);
                Ok::<_, io::Error>(())
            });
            read.map_err(failed(&place))?;
            have.push(BackupFile {
                path,
                bytes,
                block_hashes: block_hashes.into(),
            });
        }
        Ok(have)
    }

    pub(crate) fn receive(&self) -> Result<IncompleteBackup<'_>, CliError> {
        let path = self.dir.join(INCOMING);
        let file = private::file_options()
            .create(true)
            .truncate(true)
            .write(true)
            .open(&path);
        Ok(IncompleteBackup {
            archive: self,
            file: BufWriter::new(file.map_err(failed(&path))?),
            bytes: 0,
        })
    }
}

impl IncompleteBackup<'_> {
    /// Adds a step. The manifest comes last and completes the backup, which replaces the old one.
    pub(crate) fn put(
        &mut self,
        step: &BackupResponse,
    ) -> Result<Option<BackupManifest>, CliError> {
        let dir = &self.archive.dir;
        let incoming = dir.join(INCOMING);
        let written = write_step(&mut self.file, step);
        written.map_err(failed(&incoming))?;
        let manifest = match &step.step {
            Some(Step::Manifest(manifest)) => manifest,
            Some(Step::Block(block)) => {
                self.bytes += block.data.len() as u64;
                return Ok(None);
            }
            None => return Ok(None),
        };
        if manifest.format != FORMAT {
            return Err(bad(dir, "the daemon sends a backup of another format"));
        }
        for file in &manifest.files {
            place(dir, &file.path)?;
        }
        self.file.flush().map_err(failed(&incoming))?;
        self.file.get_ref().sync_all().map_err(failed(&incoming))?;
        fs::rename(&incoming, dir.join(CHANGES)).map_err(failed(&incoming))?;
        sync_dir(dir)?;
        finish(dir)?;
        Ok(Some(manifest.clone()))
    }
}

impl Drop for IncompleteBackup<'_> {
    fn drop(&mut self) {
        // Already renamed if the backup is complete.
        let _ = fs::remove_file(self.archive.dir.join(INCOMING));
    }
}

/// A complete backup, for reading.
pub(crate) struct WholeBackup {
    dir: PathBuf,
    pub(crate) manifest: BackupManifest,
    changes: Option<Changes>,
}

/// The steps of a complete backup that an interrupted command has not applied.
struct Changes {
    file: File,
    /// Positions of the steps in the file, by path and offset of their block.
    blocks: HashMap<String, HashMap<u64, u64>>,
    manifest: BackupManifest,
}

/// Opens a complete backup without changing it.
///
/// Rejects pending steps that would remove a database of the backup before them.
pub(crate) fn whole(dir: &Path) -> Result<WholeBackup, CliError> {
    let before = manifest(dir)?;
    let changes = Changes::open(dir)?;
    if let (Some(changes), Some(before)) = (&changes, &before) {
        let has_content = |path: &str| {
            let mut files = changes.manifest.files.iter();
            files.any(|file| file.path == path && file.bytes > 0)
        };
        let files = before.files.iter().map(|file| &*file.path);
        let removed: Vec<&str> = files
            .filter(|path| path.ends_with(".db") && !has_content(path))
            .collect();
        if !removed.is_empty() {
            let problem = format!(
                "it removes {} from the backup; if the daemon has deleted that, run `memoird \
                 backup` to apply it, otherwise restore another backup",
                removed.join(", ")
            );
            return Err(bad(&dir.join(CHANGES), &problem));
        }
    }
    let newest = changes.as_ref().map(|changes| changes.manifest.clone());
    let manifest = newest.or(before).ok_or_else(|| {
        let problem = format!("{} holds no whole backup", dir.display());
        CliError::failed(Exit::NoInput, problem)
    })?;
    Ok(WholeBackup {
        dir: dir.to_owned(),
        manifest,
        changes,
    })
}

impl WholeBackup {
    /// Calls `take` with each block of a file, in order.
    ///
    /// Rejects a file that does not match its hashes.
    pub(crate) fn each_block(
        &self,
        file: &BackupFile,
        mut take: impl FnMut(&[u8]) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let place = place(&self.dir, &file.path)?;
        let damaged = || {
            bad(
                &place,
                "it differs from what was backed up; run `memoird backup` again, or use another \
                 backup",
            )
        };
        let written = match File::open(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.changes.is_some() => None,
            written => Some(written.map_err(failed(&place))?),
        };
        if let (Some(written), None) = (&written, &self.changes) {
            let bytes = written.metadata().map_err(failed(&place))?.len();
            if bytes != file.bytes {
                return Err(damaged());
            }
        }
        let mut hashes = file.block_hashes.chunks(HASH_BYTES);
        let mut offset = 0;
        while offset < file.bytes {
            let bytes = (file.bytes - offset).min(BLOCK_BYTES as u64);
            let pending = match &self.changes {
                Some(changes) => changes.block(&file.path, offset)?,
                None => None,
            };
            let data = match (pending, &written) {
                (Some(data), _) => data,
                (None, Some(written)) => read_at(written, offset, bytes)
                    .map_err(failed(&place))?
                    .into(),
                (None, None) => return Err(damaged()),
            };
            if data.len() as u64 != bytes || hashes.next() != Some(&blocks::hash(&data)) {
                return Err(damaged());
            }
            take(&data)?;
            offset += bytes;
        }
        match hashes.next() {
            Some(_) => Err(damaged()),
            None => Ok(()),
        }
    }
}

/// Reads `bytes` bytes, or fewer at the end of the file.
fn read_at(file: &File, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = file;
    file.seek(SeekFrom::Start(offset))?;
    let mut data = Vec::new();
    file.take(bytes).read_to_end(&mut data)?;
    Ok(data)
}

impl Changes {
    /// Reads where the blocks are. `None` if no backup is to be applied.
    fn open(dir: &Path) -> Result<Option<Self>, CliError> {
        let path = dir.join(CHANGES);
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed(&path))?,
        };
        let mut steps = BufReader::new(&file);
        let (mut blocks, mut manifest) = (HashMap::<String, HashMap<u64, u64>>::new(), None);
        let mut position = 0;
        while let Some(step) = read_step(&mut steps).map_err(failed(&path))? {
            let next = steps.stream_position().map_err(failed(&path))?;
            match step.step {
                Some(Step::Block(block)) => {
                    place(dir, &block.path)?;
                    let of_file = blocks.entry(block.path).or_default();
                    of_file.insert(block.offset, position);
                }
                Some(Step::Manifest(read)) => manifest = Some(read),
                None => {}
            }
            position = next;
        }
        let manifest = manifest.ok_or_else(|| bad(&path, "its end is missing"))?;
        for file in &manifest.files {
            place(dir, &file.path)?;
        }
        Ok(Some(Self {
            file,
            blocks,
            manifest,
        }))
    }

    /// Reads a block. `None` if it is unchanged.
    fn block(&self, path: &str, offset: u64) -> Result<Option<Bytes>, CliError> {
        let Some(&position) = self
            .blocks
            .get(path)
            .and_then(|of_file| of_file.get(&offset))
        else {
            return Ok(None);
        };
        let failed = CliError::io("cannot read the changes of the backup");
        let mut file = &self.file;
        let step = file
            .seek(SeekFrom::Start(position))
            .and_then(|_| read_step(&mut file))
            .map_err(failed)?;
        match step.and_then(|step| step.step) {
            Some(Step::Block(block)) => Ok(Some(block.data)),
            _ => Ok(None),
        }
    }
}

/// Resolves the path of a file in a backup.
///
/// Rejects every other path, so that a daemon cannot make the client write elsewhere.
pub(crate) fn place(dir: &Path, path: &str) -> Result<PathBuf, CliError> {
    let is_memories = |name: &str| {
        name.ends_with(".db") && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
    };
    let is_known = path == JOURNAL
        || path == CONFIG
        || path
            .split_once('/')
            .is_some_and(|(parent, name)| parent == MEMORIES && is_memories(name));
    if is_known {
        Ok(dir.join(path))
    } else {
        Err(bad(dir, &format!("{path:?} is not a file of a backup")))
    }
}

/// Applies the steps of an interrupted command, if all of them are there.
fn finish(dir: &Path) -> Result<(), CliError> {
    let Some(changes) = Changes::open(dir)? else {
        return Ok(());
    };
    private::dirs(&dir.join(MEMORIES)).map_err(failed(dir))?;
    let mut files = HashMap::new();
    for (path, blocks) in &changes.blocks {
        let place = place(dir, path)?;
        for &offset in blocks.keys() {
            let file = opened(&mut files, &place)?;
            let data = changes.block(path, offset)?.unwrap_or_default();
            file.write_all_at(&data, offset).map_err(failed(&place))?;
        }
    }
    let manifest = &changes.manifest;
    for BackupFile { path, bytes, .. } in &manifest.files {
        let place = place(dir, path)?;
        let file = opened(&mut files, &place)?;
        file.set_len(*bytes).map_err(failed(&place))?;
        file.sync_all().map_err(failed(&place))?;
    }
    remove_others(dir, manifest).map_err(failed(dir))?;
    sync_dir(&dir.join(MEMORIES))?;
    write_manifest(dir, manifest)?;
    let changes = dir.join(CHANGES);
    fs::remove_file(&changes).map_err(failed(&changes))?;
    sync_dir(dir)
}

fn opened<'a>(
    files: &'a mut HashMap<PathBuf, File>,
    path: &Path,
) -> Result<&'a mut File, CliError> {
    // Keep one file open: blocks arrive file by file, and there may be thousands of tenants.
    if !files.contains_key(path) {
        for (path, file) in files.drain() {
            file.sync_all().map_err(failed(&path))?;
        }
        let file = private::file_options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path);
        files.insert(path.to_owned(), file.map_err(failed(path))?);
    }
    files
        .get_mut(path)
        .ok_or_else(|| bad(path, "it cannot be opened"))
}

/// Removes files of deleted tenants, and what SQLite left when the backup was opened.
fn remove_others(dir: &Path, manifest: &BackupManifest) -> io::Result<()> {
    let is_wanted = |path: &str| manifest.files.iter().any(|file| file.path == path);
    for (parent, prefix) in [(dir.to_owned(), ""), (dir.join(MEMORIES), "memories/")] {
        for entry in fs::read_dir(parent)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_file = name.ends_with(".db") && !is_wanted(&format!("{prefix}{name}"));
            if is_file || name.ends_with(".db-wal") || name.ends_with(".db-shm") {
                fs::remove_file(path)?;
            }
        }
    }
    Ok(())
}

fn write_manifest(dir: &Path, manifest: &BackupManifest) -> Result<(), CliError> {
    let path = dir.join(MANIFEST);
    let text = format!("{:#}\n", json::of(manifest));
    replace(&path, text.as_bytes()).map_err(failed(&path))?;
    sync_dir(dir)
}

fn manifest(dir: &Path) -> Result<Option<BackupManifest>, CliError> {
    let path = dir.join(MANIFEST);
    let text = match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(failed(&path))?,
    };
    let manifest: BackupManifest =
        json::read(&text, &["format", "files"]).map_err(|error| bad(&path, &error.to_string()))?;
    match manifest.format {
        FORMAT => Ok(Some(manifest)),
        other => Err(bad(&path, &format!("unknown format {other}"))),
    }
}

fn write_step(file: &mut impl Write, step: &BackupResponse) -> io::Result<()> {
    let step = step.encode_to_vec();
    let length = u32::try_from(step.len()).map_err(io::Error::other)?;
    file.write_all(&length.to_le_bytes())?;
    file.write_all(&step)
}

fn read_step(file: &mut impl Read) -> io::Result<Option<BackupResponse>> {
    let mut header = [0; 4];
    match file.read_exact(&mut header) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_le_bytes(header);
    if length > STEP_BYTES_MAX {
        return Err(io::Error::other("a step is too long"));
    }
    let mut encoded = vec![0; length as usize];
    file.read_exact(&mut encoded)?;
    let step = BackupResponse::decode(&*encoded).map_err(io::Error::other)?;
    Ok(Some(step))
}

fn is_backup(dir: &Path) -> bool {
    [MANIFEST, CHANGES, INCOMING]
        .iter()
        .any(|name| dir.join(name).exists())
}

/// Whether a directory contains nothing but a lock file and `lost+found`.
pub(crate) fn is_empty(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name != "lock" && name != "lost+found" {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(crate) fn sync_dir(dir: &Path) -> Result<(), CliError> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(failed(dir))
}

pub(crate) fn failed(path: &Path) -> impl Fn(io::Error) -> CliError {
    CliError::io(format!("cannot read or write {}", path.display()))
}

pub(crate) fn bad(path: &Path, problem: &str) -> CliError {
    CliError::failed(Exit::Data, format!("{}: {problem}", path.display()))
}

#[cfg(test)]
mod tests {
    use memoird_core::sha256::Sha256;
    use memoird_proto::v1::BackupBlock;

    use super::*;

    fn hashes(content: &[u8]) -> Vec<u8> {
        let blocks = content.chunks(BLOCK_BYTES);
        blocks
            .flat_map(|block| Sha256::digest(block)[..HASH_BYTES].to_vec())
            .collect()
    }

    fn step(step: Step) -> BackupResponse {
        BackupResponse { step: Some(step) }
    }

    /// All steps of a backup of these files.
    fn steps(files: &[(&str, &[u8])]) -> Vec<BackupResponse> {
        let mut steps = Vec::new();
        for (path, content) in files {
            for (number, data) in content.chunks(BLOCK_BYTES).enumerate() {
                steps.push(step(Step::Block(BackupBlock {
                    path: (*path).to_owned(),
                    offset: (number * BLOCK_BYTES) as u64,
                    data: data.to_vec().into(),
                })));
            }
        }
        let file = |(path, content): &(&str, &[u8])| BackupFile {
            path: (*path).to_owned(),
            bytes: content.len() as u64,
            block_hashes: hashes(content).into(),
        };
        steps.push(step(Step::Manifest(BackupManifest {
            format: FORMAT,
            files: files.iter().map(file).collect(),
            ..BackupManifest::default()
        })));
        steps
    }

    fn opened_archive(dir: &Path) -> Archive {
        // A process forked by another test holds the lock as well, until it calls exec.
        loop {
            match Archive::open(dir) {
                Err(error) if error.to_string().contains("in use") => std::thread::yield_now(),
                archive => break archive.expect("an archive"),
            }
        }
    }

    fn take(dir: &Path, steps: &[BackupResponse]) {
        let archive = opened_archive(dir);
        let mut incoming = archive.receive().expect("room");
        for step in steps {
            incoming.put(step).expect("taken");
        }
    }

    /// The files of the backup, which match its manifest.
    fn content(dir: &Path) -> Vec<(String, Vec<u8>)> {
        let backup = whole(dir).expect("a whole backup");
        let read = |file: &BackupFile| {
            let mut content = Vec::new();
            let read = backup.each_block(file, |block| {
                content.extend_from_slice(block);
                Ok(())
            });
            read.expect("its content");
            (file.path.clone(), content)
        };
        backup.manifest.files.iter().map(read).collect()
    }

    /// Paths and bytes of everything in the directory.
    fn bytes_of(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        for dir in [dir, &dir.join(MEMORIES)] {
            for entry in fs::read_dir(dir).expect("a directory") {
                let path = entry.expect("an entry").path();
                found.push((path.clone(), fs::read(path).unwrap_or_default()));
            }
        }
        found.sort();
        found
    }

    fn encoded(steps: &[BackupResponse]) -> Vec<u8> {
        let mut encoded = Vec::new();
        for step in steps {
            write_step(&mut encoded, step).expect("written");
        }
        encoded
    }

    #[test]
    fn restore_reads_interrupted_backup_without_changing_it() {
        let old_journal = vec![1; 3 * BLOCK_BYTES + 17];
        let mut new_journal = old_journal.clone();
        new_journal[BLOCK_BYTES..2 * BLOCK_BYTES].fill(2);
        new_journal.extend([3; BLOCK_BYTES]);
        let old: &[(&str, &[u8])] = &[("journal.db", &old_journal), ("memories/a.db", b"a")];
        let new: &[(&str, &[u8])] = &[
            ("journal.db", &new_journal),
            ("memories/a.db", b"b"),
            ("memories/new.db", b"new"),
        ];
        let mut changes = steps(new);
        // The daemon sends only blocks that differ.
        changes.retain(|step| match &step.step {
            Some(Step::Block(block)) => block.path != JOURNAL || block.offset > 0,
            _ => true,
        });
        for written in [0, BLOCK_BYTES, 2 * BLOCK_BYTES] {
            let dir = tempfile::tempdir().expect("a directory");
            take(dir.path(), &steps(old));
            fs::write(dir.path().join(CHANGES), encoded(&changes)).expect("written");
            let journal = File::options().write(true).open(dir.path().join(JOURNAL));
            journal
                .expect("open")
                .write_all_at(&new_journal[..written], 0)
                .expect("written");
            let before = bytes_of(dir.path());
            let found = content(dir.path());
            assert!(bytes_of(dir.path()) == before, "the backup was changed");
            let read = found.iter().map(|(path, content)| (&**path, &**content));
            assert!(read.eq(new.iter().copied()), "{written}");
            // The next backup applies them.
            take(dir.path(), &changes);
            assert!(!dir.path().join(CHANGES).exists());
            assert!(content(dir.path()) == found);
        }
    }

    #[test]
    fn changes_that_remove_data_are_refused_unchanged() {
        let old: &[(&str, &[u8])] = &[("journal.db", b"journal"), ("memories/a.db", b"a")];
        let whole_changes = encoded(&steps(old));
        for (changes, problem) in [
            (encoded(&steps(&[])), "it removes journal.db, memories/a.db"),
            (encoded(&steps(&old[1..])), "it removes journal.db from"),
            (encoded(&steps(&old[..1])), "it removes memories/a.db from"),
            (
                encoded(&steps(&[("journal.db", b""), old[1]])),
                "it removes journal.db from",
            ),
            (
                whole_changes[..whole_changes.len() - 1].to_vec(),
                "cannot read",
            ),
            (encoded(&steps(old)[..2]), "its end is missing"),
            (Vec::new(), "its end is missing"),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            take(dir.path(), &steps(old));
            fs::write(dir.path().join(CHANGES), changes).expect("written");
            let before = bytes_of(dir.path());
            let error = whole(dir.path()).err().expect("refused").to_string();
            assert!(error.contains(problem), "{problem}: {error}");
            assert!(bytes_of(dir.path()) == before, "{problem}");
        }
    }

    #[test]
    fn incomplete_changes_are_not_applied() {
        let old: &[(&str, &[u8])] = &[("journal.db", b"journal")];
        let dir = tempfile::tempdir().expect("a directory");
        take(dir.path(), &steps(old));
        let changes = encoded(&steps(&[("journal.db", b"another")])[..1]);
        fs::write(dir.path().join(CHANGES), changes).expect("written");
        let before = bytes_of(dir.path());
        let error = finish(dir.path()).expect_err("refused").to_string();
        assert!(error.contains("its end is missing"), "{error}");
        assert!(bytes_of(dir.path()) == before, "it was applied");
    }

    #[test]
    fn killed_backup_leaves_old_or_new_one() {
        let old_journal = vec![1; 3 * BLOCK_BYTES + 17];
        let new_journal = vec![2; 2 * BLOCK_BYTES + 5];
        let old: &[(&str, &[u8])] = &[("journal.db", &old_journal), ("memories/gone.db", b"gone")];
        let new: &[(&str, &[u8])] = &[("journal.db", &new_journal), ("memories/new.db", b"new")];
        let owned = |files: &[(&str, &[u8])]| {
            let files = files.iter();
            files
                .map(|(path, content)| ((*path).to_owned(), content.to_vec()))
                .collect::<Vec<_>>()
        };
        let new_steps = steps(new);
        let collected = encoded(&new_steps);
        // Interrupted while receiving: the old backup stays.
        for length in [0, 1, 1_000, collected.len() - 1] {
            let dir = tempfile::tempdir().expect("a directory");
            take(dir.path(), &steps(old));
            fs::write(dir.path().join(INCOMING), &collected[..length]).expect("written");
            assert_eq!(content(dir.path()), owned(old));
            // The next backup succeeds.
            take(dir.path(), &new_steps);
            assert_eq!(content(dir.path()), owned(new));
        }
        // Interrupted while applying: the new backup is completed.
        for written in 0..4 {
            let dir = tempfile::tempdir().expect("a directory");
            take(dir.path(), &steps(old));
            fs::write(dir.path().join(CHANGES), &collected).expect("written");
            let half = &new_journal[..(written * 100_000).min(new_journal.len())];
            let journal = File::options().write(true).open(dir.path().join(JOURNAL));
            journal
                .expect("open")
                .write_all_at(half, 0)
                .expect("written");
            drop(opened_archive(dir.path()));
            assert_eq!(content(dir.path()), owned(new));
            assert!(!dir.path().join("memories/gone.db").exists());
            assert!(!dir.path().join(CHANGES).exists());
        }
        // The first backup, interrupted: there is none.
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(INCOMING), &collected[..1_000]).expect("written");
        let error = whole(dir.path()).err().expect("no backup");
        assert!(error.to_string().contains("no whole backup"), "{error}");
    }

    #[test]
    fn paths_outside_of_directory_are_rejected() {
        let dir = Path::new("/backup");
        for path in [
            "/etc/passwd",
            "../journal.db",
            "memories/../journal.db",
            "memories/a/b.db",
            "memories/.db",
            "memories",
            "backup.json",
            "memories/x",
            "",
        ] {
            assert!(place(dir, path).is_err(), "{path}");
        }
        for path in ["journal.db", "memoird.yaml", "memories/a%2Fb.db"] {
            assert_eq!(place(dir, path).expect("known"), dir.join(path));
        }
    }

    #[test]
    fn directory_with_other_files_is_unchanged() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("letter.txt"), "dear").expect("written");
        let error = Archive::open(dir.path()).err().expect("refused");
        assert!(error.to_string().contains("neither empty nor a backup"));
    }
}
