//! The error type of the engine's calls.

use memoird_core::CoreError;
use memoird_core::ids::{DeliveryId, ErasureId, Generation, SessionId};
use memoird_store::{StaleBase, StoreError};
use thiserror::Error;

#[derive(Clone, Debug, Error, PartialEq)]
pub enum EngineError {
    /// The command is invalid under the rules of `memoird-core`.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// The session has no live generation.
    #[error("session {session} is not live; the next append starts it")]
    SessionNotFound {
        /// The client's session id.
        session: SessionId,
    },
    /// The live generation has no turn with this seq.
    #[error("session {session} has no turn {seq}")]
    TurnNotFound {
        /// The client's session id.
        session: SessionId,
        seq: u64,
    },
    /// No turn of the live generation has this client-assigned id.
    #[error("session {session} has no turn with client_id {client_id:?}")]
    ClientIdNotFound {
        session: SessionId,
        client_id: String,
    },
    /// Several turns have this client-assigned id.
    #[error(
        "session {session} has several turns with client_id {client_id:?}, for example {first} and \
         {second}; select one by its seq"
    )]
    ClientIdNotUnique {
        session: SessionId,
        client_id: String,
        first: u64,
        second: u64,
    },
    /// The copy requires that its target is absent, but the target is live.
    #[error("session {session} is live; use another target, or allow it to be replaced")]
    TargetLives {
        /// The client's session id.
        session: SessionId,
    },
    /// The source has no turns to copy.
    #[error("session {session} has no turn up to through_seq")]
    CopyEmpty {
        /// The client's session id.
        session: SessionId,
    },
    /// The source exceeds the limits of a copy.
    #[error(
        "session {session} is too large to copy: the limits are {turns_max} turns and {bytes_max} \
         bytes"
    )]
    CopyTooLarge {
        session: SessionId,
        turns_max: usize,
        bytes_max: usize,
    },
    /// The generation never existed, or its retention has ended.
    #[error("session {session} has no such generation, or its retention has ended")]
    GenerationNotFound {
        session: SessionId,
        /// `None` if the call did not name one.
        generation: Option<Generation>,
    },
    /// No delivery has this id: it was dropped, or its retention has ended.
    #[error("no delivery {id}; it was dropped, or its retention has ended")]
    DeliveryNotFound {
        /// The id in the call.
        id: DeliveryId,
    },
    /// The tenant has no erasure with this id.
    #[error("no erasure {id}; it finished long ago, or belongs to another tenant")]
    ErasureNotFound {
        /// The id in the call.
        id: ErasureId,
    },
    /// The tenant's limit on concurrent erasures is reached.
    #[error("too many erasures are in progress; retry when one is done")]
    ErasuresTooMany,
    /// The call needs a journal, but durability is `off`.
    #[error("no journal (durability: off); only the live history can be read")]
    JournalOff,
    /// The journal queue had no room within the configured wait.
    #[error("journal queue is full; retry later")]
    JournalBusy,
    /// A memory limit is reached, and no idle content can be unloaded.
    #[error(
        "memory limit {setting} is reached: {used_bytes} of {limit_bytes} bytes are used; end \
         sessions, or retry later; nothing was changed"
    )]
    MemoryFull {
        /// Configuration path of the limit.
        setting: &'static str,
        used_bytes: u64,
        limit_bytes: u64,
    },
    /// The tenant's or the global limit on turns in the journal is reached.
    #[error(
        "limit journal_bytes ({scope}) is reached: {used_bytes} of {limit_bytes} bytes are used; \
         erase sessions, or ask your operator for a higher limit or a shorter journal.retention"
    )]
    JournalQuota {
        /// `tenant` or `all`.
        scope: &'static str,
        used_bytes: u64,
        limit_bytes: u64,
    },
    #[error("the disk of the journal is full; nothing was changed")]
    JournalFull,
    #[error("the journal cannot be read or written; nothing was changed")]
    JournalFailed {
        /// For the log.
        detail: String,
    },
    /// A call on another thread panicked, or no thread could be started.
    #[error("an internal call failed; see the daemon's log")]
    BlockingCallFailed {
        /// For the log.
        detail: String,
    },
    /// A change that this call was based on could not be written.
    #[error("an earlier change of the session was not written; nothing was changed, retry")]
    SessionReloaded,
    /// A session cap is reached, and every eviction candidate was used or ended in the meantime.
    #[error("the session limit is reached, and no session could be evicted; retry")]
    NoRoomForSession,
    /// Concurrent changes to the session made this call fail repeatedly.
    #[error("too much contention on this session; retry")]
    RetriesExhausted,
    /// Compaction is impossible while a tool call has no result or a reply is streaming.
    #[error("a tool call has no result, or a reply is streaming; append it first")]
    CallPending,
    /// Another compaction of the session is in progress.
    #[error("another compaction of the session is in progress; retry later")]
    CompactionRunning,
    /// No summary could be made. Nothing was changed.
    #[error("no summary could be made ({reason}): {problem}; nothing was changed")]
    CompactionFailed {
        /// Name of the reason in metrics and events.
        reason: &'static str,
        problem: String,
    },
    /// There is no summary to undo.
    #[error("session {session} has no summary")]
    NoSummary {
        /// The client's session id.
        session: SessionId,
    },
    #[error("the daemon is stopping; nothing was changed")]
    Stopping,
}

impl EngineError {
    /// The problem with the details for the log, which clients do not get.
    pub(crate) fn detail(&self) -> String {
        match self {
            Self::JournalFailed { detail } | Self::BlockingCallFailed { detail } => detail.clone(),
            other => other.to_string(),
        }
    }
}

impl From<&StoreError> for EngineError {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::Full => Self::JournalFull,
            other => Self::JournalFailed {
                detail: other.to_string(),
            },
        }
    }
}

impl From<StaleBase> for EngineError {
    fn from(_: StaleBase) -> Self {
        Self::SessionReloaded
    }
}
