//! Errors of opening, reading or writing the journal or another SQLite file.

use std::path::PathBuf;

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
        "{} is not a journal of memoird; nothing was changed. Choose another data_dir",
        path.display()
    )]
    NotAJournal {
        /// The file.
        path: PathBuf,
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
        "{} is not encrypted, and server.data_key names a key; nothing was changed. \
         Stop the daemon and run `memoird encrypt DIR --config FILE`, or take server.data_key out",
        path.display()
    )]
    NotEncrypted {
        /// The file.
        path: PathBuf,
    },
    #[error(
        "{} is encrypted, and no key is named; nothing was changed. Name its key in \
         server.data_key; a command reads that with --config FILE", path.display()
    )]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    #[error(
        "{} is encrypted, and this memoird was built without the feature `encryption`; \
         nothing was changed. Run one that was built with it", path.display()
    )]
    EncryptionNotBuilt {
        /// The file.
        path: PathBuf,
    },
    #[error(
        "{} is encrypted with another key than that of server.data_key; nothing was changed. \
         Name the right one", path.display()
    )]
    WrongKey {
        /// The file.
        path: PathBuf,
    },
    /// A conversion between plain and encrypted is running or was interrupted.
    #[error(
        "{} is of a `memoird encrypt` or `memoird decrypt` that runs or was cut off; \
         wait for its end, or run it again", path.display()
    )]
    ConversionUnfinished {
        /// Leftover file of the conversion.
        path: PathBuf,
    },
    /// A migration to this target is running or was interrupted.
    #[error(
        "{place} has what `memoird migrate` has carried so far, and not all of it; \
         run that again, or empty {place}"
    )]
    MigrationUnfinished {
        /// Directory or database.
        place: String,
    },
    #[error("{place} has a journal already; nothing was changed. Name an empty place")]
    TargetNotEmpty {
        /// Directory or database.
        place: String,
    },
    /// The target has an unfinished migration from another source.
    #[error(
        "{place} has what `memoird migrate` carried of another journal, or of this one before a \
         daemon served it again; nothing was changed. Empty {place}, and start anew"
    )]
    OtherMigration {
        /// Directory or database.
        place: String,
    },
    #[error("no room is left in data_dir; free some and try again")]
    Full,
    #[error("turn {seq} of generation {generation} does not decode; it is damaged")]
    TurnDamaged {
        generation: String,
        /// Seq of the turn.
        seq: u64,
    },
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
        match source.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => Self::Full,
            _ => Self::Sqlite { source },
        }
    }
}
