//! Maintenance calls for operators: `Verify` and `Backup`, one at a time.

use std::sync::Arc;
use std::{fmt, io};

use memoird_engine::run_in_background;
use memoird_hooks::git::GitError;
use memoird_memories::store::MemoryStore;
use memoird_proto::v1::{BackupFile, BackupResponse, VerifyResponse};
use memoird_store::{Store, StoreError};
use thiserror::Error;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;
use tonic::{Code, Status};
use tracing::{info, warn};

use super::backup;
use crate::data_files::DataFiles;
use crate::wire::refusal::Refusal;
use crate::wire::{status, to};

/// Capacity of the channel to the client, in blocks.
const BLOCKS_WAITING: usize = 4;
/// A thread of its own: a check takes minutes, and must not delay the exit of the process.
const THREAD: &str = "maintenance";

/// Why files could not be checked or sent.
#[derive(Debug, Error)]
pub(crate) enum MaintenanceError {
    #[error("another Verify or Backup is running; retry when it has ended")]
    Running,
    /// The data directory does not have enough space for copies.
    #[error(
        "not enough space in data_dir for a backup: it needs {needed_bytes} bytes for copies, and \
         {available_bytes} are available"
    )]
    NoRoom {
        /// Size of the copies, plus the space to leave free.
        needed_bytes: u64,
        available_bytes: u64,
    },
    /// The journal is in a database.
    #[error(
        "journal, memories and documents are in the database of journal.postgres; back it up with \
         pg_dump or by archiving its write-ahead log"
    )]
    JournalInDatabase,
    /// A SQLite file cannot be read or copied.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another file cannot be read or written.
    #[error("a file cannot be read or copied: {0}")]
    Io(#[from] io::Error),
    /// The configuration file cannot be read.
    #[error("{problem}")]
    Config {
        /// The problems, as shown to the operator.
        problem: String,
    },
    /// The heads of checkpoint repositories cannot be read.
    #[error("checkpoint repositories: {0}")]
    Checkpoints(#[from] GitError),
    /// The thread did not start, or panicked.
    #[error("it failed; see the daemon's log")]
    ThreadFailed,
    /// The caller is gone, or the daemon is stopping.
    #[error("the caller is gone, or the daemon is stopping")]
    Stopped,
}

impl From<MaintenanceError> for Refusal {
    fn from(error: MaintenanceError) -> Self {
        let (code, reason, retry) = match error {
            MaintenanceError::Running => (Code::Aborted, "MAINTENANCE_RUNNING", status::LATER),
            MaintenanceError::NoRoom { .. } | MaintenanceError::Store(StoreError::Full) => {
                (Code::ResourceExhausted, "BACKUP_NO_ROOM", None)
            }
            MaintenanceError::Config { .. } => (Code::FailedPrecondition, "CONFIG_INVALID", None),
            MaintenanceError::JournalInDatabase => (Code::Unimplemented, "BACKUP_ELSEWHERE", None),
            MaintenanceError::Stopped => return status::stopping(),
            MaintenanceError::Store(_)
            | MaintenanceError::Io(_)
            | MaintenanceError::Checkpoints(_)
            | MaintenanceError::ThreadFailed => (Code::Unavailable, "MAINTENANCE_FAILED", None),
        };
        status::new(code, reason, error.to_string(), retry)
    }
}

#[derive(Clone)]
pub(crate) struct Maintenance {
    files: Arc<DataFiles>,
    /// The journal, if it is not one of the files.
    external_journal: Option<Arc<dyn Store>>,
    memories: Arc<MemoryStore>,
    busy: Arc<Mutex<()>>,
    /// Running backups. Erasures wait for them.
    copies: TaskTracker,
}

impl fmt::Debug for Maintenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Maintenance")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

pub(crate) type BackupSteps = ReceiverStream<Result<BackupResponse, Status>>;

impl Maintenance {
    pub(crate) fn new(
        files: DataFiles,
        external_journal: Option<Arc<dyn Store>>,
        memories: Arc<MemoryStore>,
        copies: TaskTracker,
    ) -> Self {
        Self {
            files: Arc::new(files),
            external_journal,
            memories,
            busy: Arc::default(),
            copies,
        }
    }

    pub(crate) async fn verify(&self) -> Result<VerifyResponse, MaintenanceError> {
        let (files, external_journal) = (Arc::clone(&self.files), self.external_journal.clone());
        let memories = Arc::clone(&self.memories);
        let turn = self.turn()?;
        let checked = run_in_background(THREAD, move || {
            let _turn = turn;
            let journal = external_journal.map_or(Ok(None), |journal| journal.check_turns())?;
            let mut checks = files.verify()?;
            checks.splice(..0, journal.into_iter().chain(memories.check_rows()?));
            Ok::<_, StoreError>(checks)
        });
        let checks = checked.await.ok_or(MaintenanceError::ThreadFailed)??;
        let damages: u64 = checks.iter().map(|check| check.damages_total).sum();
        match damages {
            0 => info!(checked = checks.len(), "the data check found no damage"),
            _ => warn!(damages, "the data check found damage"),
        }
        Ok(to::verified(&checks))
    }

    /// Starts a backup that sends everything not in `have`.
    pub(crate) fn backup(&self, have: Vec<BackupFile>) -> Result<BackupSteps, MaintenanceError> {
        if self.external_journal.is_some() {
            return Err(MaintenanceError::JournalInDatabase);
        }
        let (sender, steps) = mpsc::channel(BLOCKS_WAITING);
        let files = Arc::clone(&self.files);
        let turn = self.turn()?;
        let sending = run_in_background(THREAD, move || {
            let _turn = turn;
            match backup::send(&files, &have, &sender) {
                Ok(()) => info!("a backup was sent"),
                Err(error) => {
                    warn!(%error, "a backup was not sent");
                    // The caller may be gone.
                    let _ = sender.blocking_send(Err(Refusal::from(error).into()));
                }
            }
        });
        self.copies.spawn(sending);
        Ok(ReceiverStream::new(steps))
    }

    fn turn(&self) -> Result<OwnedMutexGuard<()>, MaintenanceError> {
        let busy = Arc::clone(&self.busy).try_lock_owned();
        busy.map_err(|_| MaintenanceError::Running)
    }
}
