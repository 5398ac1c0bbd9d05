//! Errors of opening, reading or writing the journal or another SQLite file.

use std::path::PathBuf;

use rusqlite::ErrorCode;
use rusqlite::ffi::SQLITE_IOERR_SHMSIZE;
use thiserror::Error;

/// A store that cannot be opened, read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The data directory cannot be created or written to.
    #[error(
        "data_dir {} cannot be written to ({source}); \
         choose another, or give the user of the daemon write access", dir.display()
    )]
    DirUnusable {
        dir: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Another daemon uses the data directory.
    #[error(
        "data_dir {} is in use by another memoird (it holds {}); \
         stop that one, or choose another data_dir", dir.display(), lock.display()
    )]
    DirInUse {
        dir: PathBuf,
        /// The locked file.
        lock: PathBuf,
    },
    #[error(
        "{} is damaged ({detail}); nothing was changed. \
         Restore it from a backup, or move it and its -wal away to start empty", path.display()
    )]
    Corrupt {
        path: PathBuf,
        /// Problem reported by SQLite.
        detail: String,
    },
    /// The file belongs to another program.
    #[error(
        "{} is not a memoird journal; nothing was changed. Choose another data_dir",
        path.display()
    )]
    NotAJournal {
        /// The file.
        path: PathBuf,
    },
    /// The file has a part of a schema that memoird did not create.
    #[error(
        "{} has a foreign {object}; nothing was changed. Use another backup, or remove it with \
         sqlite3", path.display()
    )]
    ForeignSchema {
        /// The file.
        path: PathBuf,
        /// Kind and name.
        object: String,
    },
    #[error(
        "{} has schema {found}, this memoird knows up to {known}; \
         nothing was changed. Run the newer memoird", path.display()
    )]
    TooNew {
        path: PathBuf,
        found: i64,
        /// Newest schema this build supports.
        known: i64,
    },
    #[error(
        "{} is not encrypted, but server.data_key is set; nothing was changed. Stop the daemon \
         and run `memoird encrypt DIR --config FILE`, or remove server.data_key",
        path.display()
    )]
    NotEncrypted {
        /// The file.
        path: PathBuf,
    },
    #[error(
        "{} is encrypted, and no key is configured; nothing was changed. Set server.data_key; \
         commands read it with --config FILE", path.display()
    )]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    #[error(
        "{} is encrypted, and this memoird was built without the feature `encryption`; nothing \
         was changed. Use a build with it", path.display()
    )]
    EncryptionNotBuilt {
        /// The file.
        path: PathBuf,
    },
    #[error(
        "{} is encrypted with a key other than server.data_key; nothing was changed. Configure \
         the right key", path.display()
    )]
    WrongKey {
        /// The file.
        path: PathBuf,
    },
    /// A conversion between plain and encrypted is running or was interrupted.
    #[error(
        "{} belongs to an unfinished `memoird encrypt` or `memoird decrypt`; wait until it ends, \
         or run it again", path.display()
    )]
    ConversionUnfinished {
        /// Leftover file of the conversion.
        path: PathBuf,
    },
    /// A migration to this target is running or was interrupted.
    #[error("{place} has an unfinished migration; run `memoird migrate` again, or empty {place}")]
    MigrationUnfinished {
        /// Directory or database.
        place: String,
    },
    #[error("{place} already has a journal; nothing was changed. Use an empty target")]
    TargetNotEmpty {
        /// Directory or database.
        place: String,
    },
    /// The target has an unfinished migration from another source.
    #[error(
        "{place} has an unfinished migration of another journal, or of an older state of this \
         one; nothing was changed. Empty {place}, and start again"
    )]
    OtherMigration {
        /// Directory or database.
        place: String,
    },
    /// A file was deleted, moved or replaced while the store had it open. Nothing was written.
    #[error(
        "{} was deleted, moved or replaced while the daemon had it open; move it back, or restore it \
         and restart the daemon", path.display()
    )]
    Displaced {
        /// The file.
        path: PathBuf,
    },
    #[error("no space left in data_dir; free some and retry")]
    Full,
    #[error("turn {seq} of generation {generation} does not decode; it is damaged")]
    TurnDamaged {
        generation: String,
        /// Seq of the turn.
        seq: u64,
    },
    #[error("the journal has a {what} that does not decode; restore it from a backup")]
    RowDamaged { what: &'static str },
    #[error("the database of journal.postgres cannot be reached: {detail}")]
    Unavailable {
        /// What happened.
        detail: String,
    },
    /// The database rejected a statement, or does not meet memoird's requirements.
    #[error("the database of journal.postgres: {detail}")]
    Database {
        /// Problem, and remedy if known.
        detail: String,
    },
    /// A statement waited too long for a lock. Nothing was written.
    #[error("the database of journal.postgres: {detail}")]
    Locked {
        /// Message of the server.
        detail: String,
    },
    /// Any other SQLite error.
    #[error("sqlite: {source}")]
    Sqlite {
        /// Error of rusqlite.
        source: rusqlite::Error,
    },
}

impl From<rusqlite::Error> for StoreError {
    fn from(source: rusqlite::Error) -> Self {
        match source.sqlite_error() {
            Some(error) if error.code == ErrorCode::DiskFull => Self::Full,
            // SQLite reports a full disk this way if the index of a log cannot grow.
            Some(error) if error.extended_code == SQLITE_IOERR_SHMSIZE => Self::Full,
            _ => Self::Sqlite { source },
        }
    }
}
