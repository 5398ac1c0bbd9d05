//! Encrypts a plain SQLite file or decrypts an encrypted one, while no process has it open.
//!
//! A conversion can be interrupted at any point and run again. The path refers to the old file
//! until the new one is renamed over it. Then the old file's bytes are overwritten.
//!
//! Until they are, the old file keeps a second name (a hard link). An interrupted conversion is
//! recognized by the names of its files.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use crate::data_key::{FileForm, check_key};
use crate::lock::private;
use crate::sqlite_file::{corrupt, damaged, log_bytes, open, unusable};
use crate::{DataKey, StoreError};

/// Form to convert a file to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConversionTarget {
    Encrypted,
    Plain,
}

/// A completed step of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConversionStep {
    /// The new file is complete under a temporary name.
    Copied,
    /// The old file has a second name.
    OldRenamed,
    /// The new file has replaced the old one.
    Replaced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConversionOutcome {
    Converted,
    /// The file already had the target form.
    AlreadyConverted,
    /// `is_stopped` interrupted the conversion.
    Stopped,
}

/// Suffix of the new file until it replaces the old one.
const NEW: &str = ".converted";
/// Suffix of the old file's second name, until it is overwritten.
const OLD: &str = ".replaced";
/// Bytes overwritten per write.
const WIPE_CHUNK_BYTES: usize = 1 << 20;

/// Rejects a directory with an unfinished conversion, because plaintext may remain in it.
///
/// # Errors
/// [`StoreError::ConversionUnfinished`], or if the directory cannot be read.
pub fn check_finished(dir: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::DirUnusable {
        dir: dir.to_owned(),
        source,
    };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let is_left = |ending: &str| path.to_string_lossy().ends_with(ending);
        if is_left(&format!(".db{NEW}")) || is_left(&format!(".db{OLD}")) {
            return Err(StoreError::ConversionUnfinished { path });
        }
    }
    Ok(())
}

/// Checks that a file can be converted: it is plain, encrypted with this key, or missing.
///
/// # Errors
/// [`StoreError::WrongKey`], [`StoreError::Corrupt`], or if the file cannot be read.
pub fn check_convertible(path: &Path, key: &DataKey) -> Result<(), StoreError> {
    match FileForm::of(path)? {
        FileForm::Empty | FileForm::Plain => Ok(()),
        FileForm::Encrypted(_) => check_key(path, Some(key)),
        FileForm::Unknown => Err(corrupt(path, "it has no SQLite header")),
    }
}

/// Converts a file.
///
/// `is_stopped` is called after each step, so that tests can interrupt the conversion. Killing the
/// process is equally safe.
///
/// # Errors
/// As for [`check_convertible`], or if the file is damaged or in use, or there is no room for a
/// second copy. The file is then unchanged.
pub fn convert(
    path: &Path,
    key: &DataKey,
    target: ConversionTarget,
    is_stopped: impl Fn(ConversionStep) -> bool,
) -> Result<ConversionOutcome, StoreError> {
    let failed = |error| unusable(path, error);
    check_convertible(path, key)?;
    let (new, old) = (with_suffix(path, NEW), with_suffix(path, OLD));
    finish_wiping(path, &old).map_err(failed)?;
    wipe(&new).map_err(failed)?;
    let form = FileForm::of(path)?;
    match (form, target) {
        (FileForm::Plain, ConversionTarget::Encrypted)
        | (FileForm::Encrypted(_), ConversionTarget::Plain) => {}
        _ => return Ok(ConversionOutcome::AlreadyConverted),
    }
    private::file_options()
        .create_new(true)
        .write(true)
        .open(&new)
        .map_err(failed)?;
    copy(path, &new, key, target)?;
    let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all());
    sync(&new).map_err(failed)?;
    if is_stopped(ConversionStep::Copied) {
        return Ok(ConversionOutcome::Stopped);
    }
    fs::hard_link(path, &old).map_err(failed)?;
    let dir = path.parent().unwrap_or(path);
    sync(dir).map_err(failed)?;
    if is_stopped(ConversionStep::OldRenamed) {
        return Ok(ConversionOutcome::Stopped);
    }
    fs::rename(&new, path).map_err(failed)?;
    sync(dir).map_err(failed)?;
    if is_stopped(ConversionStep::Replaced) {
        return Ok(ConversionOutcome::Stopped);
    }
    wipe(&old).map_err(failed)?;
    sync(dir).map_err(failed)?;
    Ok(ConversionOutcome::Converted)
}

/// Overwrites a file with zeros and removes it. A missing file is ignored.
///
/// # Errors
/// If the file cannot be written or removed.
pub fn wipe(path: &Path) -> io::Result<()> {
    let mut file = match File::options().write(true).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let mut left = file.metadata()?.len();
    let zeros = vec![0; WIPE_CHUNK_BYTES];
    while left > 0 {
        let part = usize::try_from(left)
            .unwrap_or(WIPE_CHUNK_BYTES)
            .min(WIPE_CHUNK_BYTES);
        file.write_all(&zeros[..part])?;
        left -= part as u64;
    }
    file.sync_all()?;
    drop(file);
    fs::remove_file(path)
}

/// Wipes the replaced file.
///
/// Before the replacement, `old` is a hard link to the current file. Then only the name is removed.
fn finish_wiping(path: &Path, old: &Path) -> io::Result<()> {
    let inode = |path: &Path| match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        data => data.map(|data| Some((data.dev(), data.ino()))),
    };
    match (inode(path)?, inode(old)?) {
        (_, None) => Ok(()),
        (Some(same), Some(other)) if same == other => fs::remove_file(old),
        _ => wipe(old),
    }
}

/// Copies all content of a file to a new one and compares them.
fn copy(from: &Path, to: &Path, key: &DataKey, target: ConversionTarget) -> Result<(), StoreError> {
    let key = Some(key);
    let (from_key, to_key) = match target {
        ConversionTarget::Encrypted => (None, key),
        ConversionTarget::Plain => (key, None),
    };
    let failed = |error| damaged(from, error);
    let connection = open(from, from_key, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    checkpoint_log(&connection, from)?;
    attach(&connection, to, to_key)?;
    connection.execute_batch("PRAGMA foreign_keys = OFF; PRAGMA temp_store = MEMORY;")?;
    // An interrupted copy is repeated, so it needs no durability.
    connection.execute_batch("PRAGMA copy.synchronous = OFF; PRAGMA copy.journal_mode = OFF;")?;
    // Must be set before the first table is created.
    copy_pragma(&connection, "auto_vacuum").map_err(failed)?;
    create_sequences(&connection).map_err(failed)?;
    let export = "SELECT sqlcipher_export('copy')";
    connection
        .query_row(export, [], |_| Ok(()))
        .map_err(failed)?;
    for pragma in ["application_id", "user_version"] {
        copy_pragma(&connection, pragma).map_err(failed)?;
    }
    compare(&connection, from).map_err(failed)??;
    connection.execute_batch("DETACH copy")?;
    connection.close().map_err(|(_, error)| error)?;
    remove_log(from)
}

/// Creates `sqlite_sequence` in the copy if the original has it.
///
/// It stays when the last table with AUTOINCREMENT is dropped. The export copies its rows, but does
/// not create it.
fn create_sequences(connection: &Connection) -> rusqlite::Result<()> {
    let sql = "SELECT EXISTS (SELECT 1 FROM main.sqlite_master WHERE name = 'sqlite_sequence')";
    if connection.query_row(sql, [], |row| row.get(0))? {
        connection.execute_batch(
            "CREATE TABLE copy.numbered (number INTEGER PRIMARY KEY AUTOINCREMENT);
             DROP TABLE copy.numbered;",
        )?;
    }
    Ok(())
}

/// Checkpoints the log into the file.
fn checkpoint_log(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
    let busy = connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    match busy.map_err(|error| damaged(path, error))? {
        0 => Ok(()),
        _ => Err(in_use(path)),
    }
}

/// Removes the log of the old file. SQLite would otherwise apply it to the new one.
fn remove_log(path: &Path) -> Result<(), StoreError> {
    if log_bytes(path) > 0 {
        return Err(in_use(path));
    }
    for ending in ["db-wal", "db-shm"] {
        match fs::remove_file(path.with_extension(ending)) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed.map_err(|error| unusable(path, error))?,
        }
    }
    Ok(())
}

fn attach(connection: &Connection, to: &Path, key: Option<&DataKey>) -> Result<(), StoreError> {
    let path = to.to_str().ok_or_else(|| {
        let problem = "its path is not UTF-8, which SQLite requires";
        unusable(to, io::Error::new(ErrorKind::InvalidInput, problem))
    })?;
    let key = key.map(|key| key.pragma(true)).transpose()?;
    let sql = "ATTACH ?1 AS copy KEY ?2";
    connection.execute(sql, (path, key.unwrap_or_default()))?;
    Ok(())
}

/// Copies the value of a pragma.
fn copy_pragma(connection: &Connection, pragma: &str) -> rusqlite::Result<()> {
    let value: i64 = connection.pragma_query_value(Some("main"), pragma, |row| row.get(0))?;
    connection.pragma_update(Some("copy"), pragma, value)
}

/// Checks that the copy is intact and has the same number of rows in each table.
fn compare(connection: &Connection, from: &Path) -> rusqlite::Result<Result<(), StoreError>> {
    let sql = "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND rootpage > 0";
    let mut statement = connection.prepare(sql)?;
    let tables = statement.query_map([], |row| row.get::<_, String>(0))?;
    for table in tables {
        let table = table?;
        let quoted = table.replace('"', "\"\"");
        let sql = format!(
            "SELECT (SELECT count(*) FROM main.\"{quoted}\") =
                    (SELECT count(*) FROM copy.\"{quoted}\")"
        );
        if !connection.query_row(&sql, [], |row| row.get(0))? {
            return Ok(Err(corrupt(
                from,
                &format!("not all of {table} can be read"),
            )));
        }
    }
    let check = "PRAGMA copy.quick_check(1)";
    let verdict: String = connection.query_row(check, [], |row| row.get(0))?;
    match &*verdict {
        "ok" => Ok(Ok(())),
        verdict => Ok(Err(corrupt(
            from,
            &format!("its copy is damaged: {verdict}"),
        ))),
    }
}

fn in_use(path: &Path) -> StoreError {
    let problem = format!("{} is in use by another process", path.display());
    unusable(path, io::Error::new(ErrorKind::ResourceBusy, problem))
}

/// Appends a suffix to the file name.
fn with_suffix(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
