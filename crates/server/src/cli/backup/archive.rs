//! A backup directory: plain files as in a data directory, and a manifest with their hashes.
//!
//! Incoming steps are collected in a separate file. Once it is complete it is renamed, and then its
//! blocks are written to their files. The next command repeats that if it is interrupted. The
//! directory thus contains the last complete backup at any time.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memoird_cli::json;
use memoird_proto::v1::backup_response::Step;
use memoird_proto::v1::{BackupFile, BackupManifest, BackupResponse};
use memoird_store::{DirLock, private};
use prost::Message;

use crate::blocks;
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

/// Returns the manifest of a complete backup, after finishing an interrupted one.
pub(crate) fn whole(dir: &Path) -> Result<BackupManifest, CliError> {
    finish(dir)?;
    manifest(dir)?.ok_or_else(|| {
        let problem = format!("{} holds no whole backup", dir.display());
        CliError::failed(Exit::NoInput, problem)
    })
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

/// Applies the steps of an interrupted command.
fn finish(dir: &Path) -> Result<(), CliError> {
    let changes = dir.join(CHANGES);
    let steps = match File::open(&changes) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        steps => steps.map_err(failed(&changes))?,
    };
    private::dirs(&dir.join(MEMORIES)).map_err(failed(dir))?;
    let (mut steps, mut files, mut last) = (BufReader::new(steps), HashMap::new(), None);
    while let Some(step) = read_step(&mut steps).map_err(failed(&changes))? {
        match step.step {
            Some(Step::Block(block)) => {
                let place = place(dir, &block.path)?;
                let file = opened(&mut files, &place)?;
                let written = file.write_all_at(&block.data, block.offset);
                written.map_err(failed(&place))?;
            }
            Some(Step::Manifest(read)) => last = Some(read),
            None => {}
        }
    }
    let manifest = last.ok_or_else(|| bad(&changes, "its end is missing"))?;
    for BackupFile { path, bytes, .. } in &manifest.files {
        let place = place(dir, path)?;
        let file = opened(&mut files, &place)?;
        file.set_len(*bytes).map_err(failed(&place))?;
        file.sync_all().map_err(failed(&place))?;
    }
    remove_others(dir, &manifest).map_err(failed(dir))?;
    sync_dir(&dir.join(MEMORIES))?;
    write_manifest(dir, &manifest)?;
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
    use crate::blocks::{BLOCK_BYTES, HASH_BYTES};

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

    fn take(dir: &Path, steps: &[BackupResponse]) {
        // A process forked by another test holds the lock as well, until it calls exec.
        let archive = loop {
            match Archive::open(dir) {
                Err(error) if error.to_string().contains("in use") => std::thread::yield_now(),
                archive => break archive.expect("an archive"),
            }
        };
        let mut incoming = archive.receive().expect("room");
        for step in steps {
            incoming.put(step).expect("taken");
        }
    }

    /// The files of the directory, which must match the manifest.
    fn content(dir: &Path) -> Vec<(String, Vec<u8>)> {
        let manifest = whole(dir).expect("a whole backup");
        let read = |file: BackupFile| {
            let content = fs::read(dir.join(&file.path)).expect("a file");
            assert_eq!(*file.block_hashes, *hashes(&content), "{}", file.path);
            (file.path, content)
        };
        manifest.files.into_iter().map(read).collect()
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
        let mut collected = Vec::new();
        for step in &new_steps {
            write_step(&mut collected, step).expect("written");
        }
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
            assert_eq!(content(dir.path()), owned(new));
            assert!(!dir.path().join("memories/gone.db").exists());
            assert!(!dir.path().join(CHANGES).exists());
        }
        // The first backup, interrupted: there is none.
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(INCOMING), &collected[..1_000]).expect("written");
        let error = whole(dir.path()).expect_err("no backup");
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
