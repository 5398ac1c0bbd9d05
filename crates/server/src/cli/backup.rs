//! `memoird backup` and `memoird restore`: copy all data of a daemon to a directory and back.

pub(crate) mod archive;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use memoird_cli::connect::ClientArgs;
use memoird_cli::progress::Progress;
use memoird_cli::{clock, json, output, transcript};
use memoird_proto::v1::{BackupFile, BackupRequest};
use memoird_store::{DirLock, private};
use serde_json::json;

use self::archive::{Archive, WholeBackup, failed, is_empty, sync_dir};
use super::encrypt::DataKeyArgs;
use super::verify;
use crate::data_files::{CONFIG, DataFiles, JOURNAL, MEMORIES, RESTORING};
use crate::exit::{CliError, Exit, of_store};

#[derive(Args)]
pub(crate) struct BackupArgs {
    /// Directory for the backup: empty, or with an earlier backup, which is updated with what
    /// changed
    dest: PathBuf,
}

#[derive(Args)]
pub(crate) struct RestoreArgs {
    /// Directory written by `memoird backup`
    src: PathBuf,
    /// Data directory to create; must be empty or not exist
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    key: DataKeyArgs,
}

/// Copies all data of the daemon.
///
/// The manifest is held in memory: 64 MiB for 1 TiB of files.
pub(super) async fn backup(client: &ClientArgs, args: BackupArgs) -> Result<(), CliError> {
    let target = client.target()?;
    // Hashing an existing backup takes minutes. Keep Ctrl-C working in the meantime.
    let open = move || {
        let archive = Archive::open(&args.dest)?;
        let have = archive.have()?;
        Ok::<_, CliError>((archive, have))
    };
    let (archive, have) = output::blocking(open).await?;
    let request = BackupRequest { have };
    let mut steps = target.done(target.admin().backup(request).await)?;
    let progress = Progress::new(None);
    let mut incoming = archive.receive()?;
    let manifest = loop {
        let step = steps.message().await;
        let Some(step) = step.map_err(|status| target.explain(status))? else {
            let problem = "the daemon ended before the backup was complete; nothing was changed";
            return Err(CliError::failed(Exit::Unavailable, problem));
        };
        if let Some(manifest) = incoming.put(&step)? {
            break manifest;
        }
        let bytes = incoming.bytes;
        progress.show(|| format!("{} copied", output::size(bytes)));
    };
    drop(progress);
    let bytes: u64 = manifest.files.iter().map(|file| file.bytes).sum();
    let value = json!({
        "files": manifest.files.len(),
        "bytes": bytes,
        "bytes_copied": incoming.bytes,
        "checkpoint_heads": json::all(&manifest.checkpoint_heads),
    });
    let files = output::count(manifest.files.len() as u64);
    let (bytes, copied) = (output::size(bytes), output::size(incoming.bytes));
    let text = format!("{files} files, {bytes}; copied {copied}");
    output::print_as(client.json, &value, &text)
}

/// Restores a backup into a data directory, and verifies it. The backup is not changed.
pub(super) fn restore(args: &RestoreArgs, json: bool) -> Result<(), CliError> {
    let backup = archive::whole(&args.src)?;
    let manifest = &backup.manifest;
    let key = args.key.read()?;
    DataFiles::of_dir(&args.src, key)
        .check_key()
        .map_err(of_store)?;
    let lock = begin(&args.data)?;
    let staged = args.data.join(RESTORING);
    private::dirs(&staged.join(MEMORIES)).map_err(failed(&staged))?;
    let bytes = manifest.files.iter().map(|file| file.bytes).sum();
    let progress = Progress::new(Some(bytes));
    for file in &manifest.files {
        copy(
            &backup,
            &archive::place(&staged, &file.path)?,
            file,
            &progress,
        )?;
    }
    drop(progress);
    DataFiles::of_dir(&staged, key)
        .check_schemas()
        .map_err(of_store)?;
    sync_dir(&staged.join(MEMORIES))?;
    sync_dir(&staged)?;
    // A daemon does not start while the staging directory exists.
    for name in [MEMORIES, CONFIG, JOURNAL] {
        let (from, to) = (staged.join(name), args.data.join(name));
        match fs::rename(&from, &to) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            moved => moved.map_err(failed(&to))?,
        }
    }
    sync_dir(&args.data)?;
    fs::remove_dir(&staged).map_err(failed(&staged))?;
    sync_dir(&args.data)?;
    let given = DataFiles::of_dir(&args.data, None).give_to_owner();
    given.map_err(failed(&args.data))?;
    drop(lock);
    for head in &manifest.checkpoint_heads {
        output::note(&format!(
            "{} was at {} on branch {}",
            head.repository, head.commit, head.branch
        ));
    }
    if let Some(at) = &manifest.created_at {
        let at = clock::written(Some(at), transcript::TO_THE_SECOND);
        output::note(&format!("restored as of {at} UTC"));
    }
    if manifest.files.iter().any(|file| file.path != CONFIG) {
        verify::report(&verify::check(&args.data, key)?, json)
    } else {
        // The daemon had neither a journal nor memories.
        Ok(())
    }
}

/// Locks a directory that is empty, or from which it removes an interrupted restore.
fn begin(dir: &Path) -> Result<DirLock, CliError> {
    let lock = DirLock::take(dir)
        .map_err(|error| CliError::failed(Exit::CannotCreate, error.to_string()))?;
    let staged = dir.join(RESTORING);
    if staged.exists() {
        for name in [CONFIG, JOURNAL] {
            remove(&dir.join(name), fs::remove_file(dir.join(name)))?;
        }
        for path in [dir.join(MEMORIES), staged] {
            remove(&path, fs::remove_dir_all(&path))?;
        }
    }
    if is_empty(dir).map_err(failed(dir))? {
        return Ok(lock);
    }
    let problem = format!("{} is not empty; use another directory", dir.display());
    Err(CliError::failed(Exit::CannotCreate, problem))
}

fn remove(path: &Path, removed: std::io::Result<()>) -> Result<(), CliError> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed(path)),
    }
}

/// Copies a file and checks its blocks against the manifest.
fn copy(
    backup: &WholeBackup,
    to: &Path,
    file: &BackupFile,
    progress: &Progress,
) -> Result<(), CliError> {
    let mut copy: File = private::file_options()
        .create_new(true)
        .write(true)
        .open(to)
        .map_err(failed(to))?;
    backup.each_block(file, |data| {
        progress.add(data.len() as u64);
        progress.show(|| output::printable(&file.path));
        copy.write_all(data).map_err(failed(to))
    })?;
    copy.sync_all().map_err(failed(to))
}
