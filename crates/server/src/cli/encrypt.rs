//! `memoird encrypt` and `memoird decrypt`: convert the SQLite files of an unused data directory.
//!
//! Both can be interrupted at any time and repeated.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use memoird_cli::output;
use memoird_cli::progress::Progress;
use memoird_store::conversion::{ConversionOutcome, ConversionTarget, check_convertible, convert};
use memoird_store::{DataKey, DirLock};
use serde_json::json;

use super::verify::check_restored;
use crate::config;
use crate::data_files::DataFiles;
use crate::exit::{CliError, Exit, of_store};

#[derive(Args)]
pub(crate) struct DataKeyArgs {
    /// Configuration file of an encrypted directory, to read server.data_key from
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Encrypt the SQLite files of a data directory that no daemon is using
///
/// Each file is copied, compared, and replaced by its copy; then the old bytes are overwritten.
/// This needs free space for the largest file. If it is interrupted, run it again: until it is
/// done, no daemon starts on the directory. The search index is removed, and rebuilt at the next
/// start. Backups, and what a file system or a disk retains of deleted files, are not covered.
#[derive(Args)]
pub(crate) struct EncryptArgs {
    /// Data directory
    dir: PathBuf,
    /// Configuration file that names the key as server.data_key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

impl DataKeyArgs {
    /// Reads the key, if a configuration file names one.
    pub(super) fn read(&self) -> Result<Option<DataKey>, CliError> {
        let files = self.config.as_deref().map(config::data_files).transpose()?;
        Ok(files.and_then(|files| files.key))
    }
}

pub(super) fn run(
    args: &EncryptArgs,
    target: ConversionTarget,
    json: bool,
) -> Result<(), CliError> {
    let configured = config::data_files(&args.config)?;
    let Some(key) = configured.key else {
        let problem = format!("{} does not set server.data_key", args.config.display());
        return Err(CliError::failed(Exit::Config, problem));
    };
    let dir = fs::canonicalize(&args.dir).map_err(CliError::no_input(&args.dir))?;
    let files = files_of(&dir, configured);
    check_restored(&files)?;
    let failed = |error| CliError::io(format!("cannot read {}", dir.display()))(error);
    let journal = files.journal();
    let paths: Vec<PathBuf> = journal
        .into_iter()
        .chain(files.memories().map_err(failed)?)
        .collect();
    if paths.is_empty() {
        let problem = format!("{} contains neither a journal nor memories", dir.display());
        return Err(CliError::failed(Exit::NoInput, problem));
    }
    let _data_lock = DirLock::take(&files.data_dir).map_err(of_store)?;
    let _memories_lock = if files.memories_dir.exists() {
        Some(DirLock::take(&files.memories_dir).map_err(of_store)?)
    } else {
        None
    };
    // Check all files first, so that a wrong key changes nothing.
    for path in &paths {
        check_convertible(path, &key).map_err(of_store)?;
    }
    files.wipe_derived().map_err(failed)?;
    let outcome = convert_all(&dir, &paths, &key, target);
    files.give_to_owner().map_err(failed)?;
    let converted = outcome?;
    let unchanged = paths.len() - converted;
    let value = json!({ "converted": converted, "unchanged": unchanged });
    let now = described(target);
    let [converted, unchanged] = [converted, unchanged].map(|count| output::count(count as u64));
    output::print_as(
        json,
        &value,
        &format!("{converted} files {now}, {unchanged} were so"),
    )
}

fn convert_all(
    dir: &Path,
    paths: &[PathBuf],
    key: &DataKey,
    target: ConversionTarget,
) -> Result<usize, CliError> {
    let bytes = |path: &Path| fs::metadata(path).map_or(0, |data| data.len());
    let progress = Progress::new(Some(paths.iter().map(|path| bytes(path)).sum()));
    let mut converted = 0;
    for path in paths {
        let relative = path.strip_prefix(dir).unwrap_or(path);
        let name = output::printable(&relative.display().to_string());
        let size = bytes(path);
        progress.show(|| format!("{name}, {}", output::size(size)));
        let outcome = convert(path, key, target, |_| false).map_err(of_store)?;
        progress.add(size);
        if outcome == ConversionOutcome::Converted {
            converted += 1;
            output::note(&format!(
                "{name}: {}, {}",
                described(target),
                output::size(size)
            ));
        }
    }
    Ok(converted)
}

fn described(target: ConversionTarget) -> &'static str {
    match target {
        ConversionTarget::Encrypted => "encrypted",
        ConversionTarget::Plain => "decrypted",
    }
}

/// Returns the files of a directory. `configured` may name a different place for its memories.
fn files_of(dir: &Path, configured: DataFiles) -> DataFiles {
    let is_its = fs::canonicalize(&configured.data_dir).is_ok_and(|its| its == dir);
    match (is_its, fs::canonicalize(&configured.memories_dir)) {
        (true, Ok(memories_dir)) => DataFiles {
            data_dir: dir.to_owned(),
            memories_dir,
            ..configured
        },
        _ => DataFiles::of_dir(dir, configured.key),
    }
}
