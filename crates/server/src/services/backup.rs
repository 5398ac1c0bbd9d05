//! Server side of a backup: copies all files, and sends the blocks that the client does not have.
//!
//! Each copy is a snapshot of one file. A copy may refer only to later ones: memories refer to
//! turns, and the journal refers to checkpoints. Memories are therefore copied first, then the
//! journal, and the heads of checkpoint repositories last.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use memoird_hooks::git::branch_tips;
use memoird_proto::v1::backup_response::Step;
use memoird_proto::v1::{BackupBlock, BackupFile, BackupManifest, BackupResponse, CheckpointHead};
use memoird_store::encoding::timestamp_to_proto;
use memoird_store::{private, snapshot};
use tokio::sync::mpsc::Sender;
use tonic::Status;

use super::maintenance::MaintenanceError;
use crate::blocks::{self, HASH_BYTES};
use crate::config;
use crate::data_files::{CONFIG, DataFiles, JOURNAL, MEMORIES};
use crate::process;

/// Version of the manifest.
const FORMAT: u32 = 1;
/// Disk space in bytes to leave free while there are copies.
const FREE_BYTES_MIN: u64 = 64 << 20;

type StepSender = Sender<Result<BackupResponse, Status>>;

/// Path of a file in the backup, and its copy.
type CopiedFile = (String, PathBuf);

/// Removes the copies on drop.
struct BackupCopies<'a> {
    files: &'a DataFiles,
    dir: PathBuf,
}

impl Drop for BackupCopies<'_> {
    fn drop(&mut self) {
        self.files.remove_copies();
    }
}

/// Sends all blocks that are not in `have`, and then the manifest. Blocks.
pub(super) fn send(
    files: &DataFiles,
    have: &[BackupFile],
    to: &StepSender,
) -> Result<(), MaintenanceError> {
    let created_at = process::wall_clock();
    let copies = BackupCopies::begin(files)?;
    let copied = copies.make(to)?;
    let checkpoint_heads = checkpoint_heads(files.config.as_deref())?;
    let have: HashMap<&str, &[u8]> = have
        .iter()
        .map(|file| (&*file.path, &*file.block_hashes))
        .collect();
    let mut sent = Vec::with_capacity(copied.len());
    for (path, copy) in copied {
        let known = have.get(&*path).copied().unwrap_or_default();
        sent.push(send_file(path, &copy, known, to)?);
        // Free the space as early as possible.
        fs::remove_file(&copy)?;
    }
    let manifest = BackupManifest {
        format: FORMAT,
        created_at: Some(timestamp_to_proto(created_at)),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        files: sent,
        checkpoint_heads,
    };
    send_step(Step::Manifest(manifest), to)
}

impl<'a> BackupCopies<'a> {
    /// Creates the directory for copies if there is enough disk space.
    fn begin(files: &'a DataFiles) -> Result<Self, MaintenanceError> {
        let with_log = |path: &Path| {
            let bytes = |path: &Path| fs::metadata(path).map_or(0, |data| data.len());
            bytes(path) + bytes(&path.with_extension("db-wal"))
        };
        let all = files.memories()?.into_iter().chain(files.journal());
        let needed_bytes = all.map(|path| with_log(&path)).sum::<u64>() + FREE_BYTES_MIN;
        files.remove_copies();
        let room = rustix::fs::statvfs(&files.data_dir).map_err(std::io::Error::from)?;
        let available_bytes = room.f_bavail.saturating_mul(room.f_frsize);
        if available_bytes < needed_bytes {
            return Err(MaintenanceError::NoRoom {
                needed_bytes,
                available_bytes,
            });
        }
        let dir = files.copies_dir();
        private::dirs(&dir.join(MEMORIES))?;
        Ok(Self { files, dir })
    }

    fn make(&self, to: &StepSender) -> Result<Vec<CopiedFile>, MaintenanceError> {
        let mut copied = Vec::new();
        for source in self.files.memories()? {
            let Some(name) = source.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            copied.push(self.copy(&source, format!("{MEMORIES}/{name}"), to)?);
        }
        if let Some(journal) = self.files.journal() {
            copied.push(self.copy(&journal, JOURNAL.to_owned(), to)?);
        }
        if let Some(config) = &self.files.config {
            let copy = self.dir.join(CONFIG);
            fs::copy(config, &copy)?;
            copied.push((CONFIG.to_owned(), copy));
        }
        Ok(copied)
    }

    fn copy(
        &self,
        source: &Path,
        path: String,
        to: &StepSender,
    ) -> Result<CopiedFile, MaintenanceError> {
        let copy = self.dir.join(&path);
        if snapshot::copy(source, &copy, self.files.key.as_ref(), || to.is_closed())? {
            Ok((path, copy))
        } else {
            Err(MaintenanceError::Stopped)
        }
    }
}

/// Sends the blocks of a file with hashes other than the `known` ones.
fn send_file(
    path: String,
    copy: &Path,
    known: &[u8],
    to: &StepSender,
) -> Result<BackupFile, MaintenanceError> {
    let mut known = known.chunks(HASH_BYTES);
    let (mut bytes, mut block_hashes) = (0, Vec::new());
    blocks::each(copy, |block| {
        bytes += block.data.len() as u64;
        block_hashes.extend_from_slice(&block.hash);
        if known.next() == Some(&block.hash) {
            return Ok(());
        }
        let block = BackupBlock {
            path: path.clone(),
            offset: block.offset,
            data: block.data.to_vec().into(),
        };
        send_step(Step::Block(block), to)
    })?;
    Ok(BackupFile {
        path,
        bytes,
        block_hashes: block_hashes.into(),
    })
}

fn send_step(step: Step, to: &StepSender) -> Result<(), MaintenanceError> {
    let step = BackupResponse { step: Some(step) };
    let sent = to.blocking_send(Ok(step));
    sent.map_err(|_| MaintenanceError::Stopped)
}

fn checkpoint_heads(config: Option<&Path>) -> Result<Vec<CheckpointHead>, MaintenanceError> {
    let Some(config) = config else {
        // The embedded default has no hooks.
        return Ok(Vec::new());
    };
    let hooks = config::git_hooks(config).map_err(|error| MaintenanceError::Config {
        problem: error.to_string(),
    })?;
    let mut all = Vec::new();
    for hook in &hooks {
        all.extend(branch_tips(hook)?.into_iter().map(|tip| CheckpointHead {
            repository: tip.repository.display().to_string(),
            branch: tip.branch,
            commit: tip.commit,
        }));
    }
    Ok(all)
}
