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
    #[error("session {session} has no turn whose client_id is {client_id:?}")]
    ClientIdNotFound {
        session: SessionId,
        client_id: String,
    },
    /// Several turns have this client-assigned id.
    #[error(
        "session {session} has several turns whose client_id is {client_id:?}, such as {first} and \
         {second}; name one by its seq"
    )]
    ClientIdNotUnique {
        session: SessionId,
        client_id: String,
        first: u64,
        second: u64,
    },
    /// The copy requires that its target is absent, but the target is live.
    #[error("session {session} lives; name another target, or say that it is not to be absent")]
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
        "session {session} has more turns than one copy takes: {turns_max}, or {bytes_max} bytes"
    )]
    CopyTooLarge {
        session: SessionId,
        turns_max: usize,
        bytes_max: usize,
    },
    /// The generation never existed, or its retention has ended.
    #[error("session {session} has no such generation, or its retention is over")]
    GenerationNotFound {
        session: SessionId,
        /// `None` if the call did not name one.
        generation: Option<Generation>,
    },
    /// No delivery has this id: it was dropped, or its retention has ended.
    #[error("there is no delivery {id}; it was dropped, or its retention is over")]
    DeliveryNotFound {
        /// The id in the call.
        id: DeliveryId,
    },
    /// The tenant has no erasure with this id.
    #[error("there is no erasure {id}; it was done very long ago, or is another tenant's")]
    ErasureNotFound {
        /// The id in the call.
        id: ErasureId,
    },
    /// The tenant's limit on concurrent erasures is reached.
    #[error("too many erasures are under way; try again when one is done")]
    ErasuresTooMany,
    /// The call needs a journal, but durability is `off`.
    #[error("there is no journal (durability: off); only the live history can be read")]
    JournalOff,
    /// The journal queue had no room within the configured wait, or too many reads are queued.
    #[error("too much waits for the journal; try again")]
    JournalBusy,
    /// A memory limit is reached, and no idle content can be unloaded.
    #[error(
        "no memory is left: {used_bytes} of {limit_bytes} bytes ({whose}) are used; end \
         sessions, or try again later; nothing was changed"
    )]
    MemoryFull {
        /// Configuration path of the limit.
        whose: &'static str,
        used_bytes: u64,
        limit_bytes: u64,
    },
    /// The tenant's or the global limit on turns in the journal is reached.
    #[error(
        "the journal has {used_bytes} of {limit_bytes} bytes that it may have (journal_bytes, \
         {whose}); erase sessions, or ask your operator for more room or a shorter journal.retention"
    )]
    JournalQuota {
        /// `tenant` or `all`.
        whose: &'static str,
        used_bytes: u64,
        limit_bytes: u64,
    },
    #[error("no room is left for the journal; nothing was changed")]
    JournalFull,
    #[error("the journal cannot be read or written; nothing was changed")]
    JournalFailed {
        /// For the log.
        detail: String,
    },
    /// A change that this call was based on could not be written.
    #[error("an earlier change of the session was not written; nothing was changed, try again")]
    SessionReloaded,
    /// A session cap is reached, and every eviction candidate was used or ended in the meantime.
    #[error("no room for a session could be made; try again")]
    NoRoomForSession,
    /// Concurrent changes to the session made this call fail repeatedly.
    #[error("others kept changing the session; try again")]
    RetriesExhausted,
    /// Compaction is impossible while a tool call has no result or a reply is streaming.
    #[error("a call waits for its result, or a reply is streaming; append it first")]
    CallPending,
    /// Another compaction of the session is in progress.
    #[error("a compaction of the session is being made; try again")]
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
