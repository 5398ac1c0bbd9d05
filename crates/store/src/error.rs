//! Why the journal, in a file or in a database, or another SQLite file cannot be opened, read or
//! written.

use std::path::PathBuf;

use thiserror::Error;

/// A file that cannot be opened, read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The data directory cannot be made or written to.
    #[error(
        "data_dir {} cannot be written to ({source}); \
         choose another, or give the user of the daemon write access", dir.display()
    )]
    DirUnusable {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another daemon has the data directory.
    #[error(
        "data_dir {} is in use by another memoird (it holds {}); \
         stop that one, or choose another data_dir", dir.display(), lock.display()
    )]
    DirInUse {
        /// The directory.
        dir: PathBuf,
        /// The locked file.
        lock: PathBuf,
    },
    /// The file is damaged.
    #[error(
        "{} is damaged ({detail}); nothing was changed. \
         Restore it from a backup, or move it and its -wal away to start empty", path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What SQLite found.
        detail: String,
    },
    /// The file is some other program's.
    #[error(
        "{} is not a journal of memoird; nothing was changed. Choose another data_dir",
        path.display()
    )]
    NotAJournal {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a newer memoird.
    #[error(
        "{} has schema {found}, this memoird knows up to {known}; \
         nothing was changed. Run the newer memoird", path.display()
    )]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest known one.
        known: i64,
    },
    /// There is a key, and the file is plain.
    #[error(
        "{} is not encrypted, and server.data_key names a key; nothing was changed. \
         Stop the daemon and run `memoird encrypt DIR --config FILE`, or take server.data_key out",
        path.display()
    )]
    NotEncrypted {
        /// The file.
        path: PathBuf,
    },
    /// The file is encrypted, and there is no key.
    #[error(
        "{} is encrypted, and no key is named; nothing was changed. Name its key in \
         server.data_key; a command reads that with --config FILE", path.display()
    )]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    /// The file is encrypted, and this build cannot read that.
    #[error(
        "{} is encrypted, and this memoird was built without the feature `encryption`; \
         nothing was changed. Run one that was built with it", path.display()
    )]
    EncryptionNotBuilt {
        /// The file.
        path: PathBuf,
    },
    /// The file is encrypted with another key.
    #[error(
        "{} is encrypted with another key than that of server.data_key; nothing was changed. \
         Name the right one", path.display()
    )]
    WrongKey {
        /// The file.
        path: PathBuf,
    },
    /// A conversion between plain and encrypted was cut off.
    #[error(
        "{} is of a `memoird encrypt` or `memoird decrypt` that runs or was cut off; \
         wait for its end, or run it again", path.display()
    )]
    ConversionUnfinished {
        /// What is left.
        path: PathBuf,
    },
    /// A migration to this place was cut off, or runs.
    #[error(
        "{place} has what `memoird migrate` has carried so far, and not all of it; \
         run that again, or empty {place}"
    )]
    MigrationUnfinished {
        /// The directory or the database.
        place: String,
    },
    /// There is something already where a migration is to go.
    #[error("{place} has a journal already; nothing was changed. Name an empty place")]
    TargetNotEmpty {
        /// The directory or the database.
        place: String,
    },
    /// A migration was cut off there that had another source.
    #[error(
        "{place} has what `memoird migrate` carried of another journal, or of this one before a \
         daemon served it again; nothing was changed. Empty {place}, and start anew"
    )]
    OtherMigration {
        /// The directory or the database.
        place: String,
    },
    /// No room is left.
    #[error("no room is left in data_dir; free some and try again")]
    Full,
    /// A stored turn does not decode.
    #[error("turn {seq} of generation {generation} does not decode; it is damaged")]
    TurnDamaged {
        /// The generation.
        generation: String,
        /// The turn.
        seq: u64,
    },
    /// The database cannot be reached, or has gone away in the middle of a call.
    #[error("the database of journal.postgres cannot be reached: {detail}")]
    Unavailable {
        /// What happened.
        detail: String,
    },
    /// The database does not take what memoird asks of it, or is not what it has to be.
    #[error("the database of journal.postgres: {detail}")]
    Database {
        /// What is wrong, and what to do about it where that is known.
        detail: String,
    },
    /// Somebody else had for too long what a statement needs; nothing was written.
    #[error("the database of journal.postgres: {detail}")]
    Locked {
        /// What the server said.
        detail: String,
    },
    /// Anything else that SQLite says.
    #[error("sqlite: {source}")]
    Sqlite {
        /// What it said.
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
