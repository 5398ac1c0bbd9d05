//! Why a call could not be done.

use memoird_core::CoreError;
use memoird_core::ids::{DeliveryId, ErasureId, Generation, SessionId};
use memoird_store::{Refused, StoreError};
use thiserror::Error;

/// A call that could not be done.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum EngineError {
    /// The rules refuse it.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// There is no live session of this id.
    #[error("session {session} is not live; the next append starts it")]
    SessionNotFound {
        /// The id.
        session: SessionId,
    },
    /// The live generation has no turn of this seq.
    #[error("session {session} has no turn {seq}")]
    TurnNotFound {
        /// The id.
        session: SessionId,
        /// The seq.
        seq: u64,
    },
    /// No turn of the live generation has this id of the client's.
    #[error("session {session} has no turn whose client_id is {client_id:?}")]
    ClientIdNotFound {
        /// The id of the session.
        session: SessionId,
        /// The client's id.
        client_id: String,
    },
    /// Several turns have this id of the client's.
    #[error(
        "session {session} has several turns whose client_id is {client_id:?}, such as {first} and \
         {second}; name one by its seq"
    )]
    ClientIdNotUnique {
        /// The id of the session.
        session: SessionId,
        /// The client's id.
        client_id: String,
        /// The seq of the first.
        first: u64,
        /// The seq of the second.
        second: u64,
    },
    /// A session lives where a copy should be made.
    #[error("session {session} lives; name another target, or say that it is not to be absent")]
    TargetLives {
        /// The id.
        session: SessionId,
    },
    /// There are no turns to be copied.
    #[error("session {session} has no turn up to through_seq")]
    CopyEmpty {
        /// The id.
        session: SessionId,
    },
    /// More turns than a copy may have.
    #[error(
        "session {session} has more turns than one copy takes: {turns_max}, or {bytes_max} bytes"
    )]
    CopyTooLarge {
        /// The id.
        session: SessionId,
        /// Turns of a copy, at most.
        turns_max: usize,
        /// Bytes of a copy, at most.
        bytes_max: usize,
    },
    /// The session has no such generation, or no longer.
    #[error("session {session} has no such generation, or its retention is over")]
    GenerationNotFound {
        /// The id.
        session: SessionId,
        /// The generation, where one was named.
        generation: Option<Generation>,
    },
    /// Nothing of this id is owed.
    #[error("there is no delivery {id}; it was dropped, or its retention is over")]
    DeliveryNotFound {
        /// The id.
        id: DeliveryId,
    },
    /// There is no erasure of this name.
    #[error("there is no erasure {id}; it was done very long ago, or is another tenant's")]
    ErasureNotFound {
        /// The id.
        id: ErasureId,
    },
    /// As many erasures of the tenant are under way as may be.
    #[error("too many erasures are under way; try again when one is done")]
    ErasuresTooMany,
    /// Durability is `off`.
    #[error("there is no journal (durability: off); only the live history can be read")]
    JournalOff,
    /// Too much waits for the disk.
    #[error("too much waits for the journal; try again")]
    JournalBusy,
    /// Clients use as much memory as they may, and nothing of it can leave.
    #[error(
        "no memory is left: {used_bytes} of {limit_bytes} bytes ({whose}) are used; end \
         sessions, or try again later; nothing was changed"
    )]
    MemoryFull {
        /// The limit, by its name in the configuration.
        whose: &'static str,
        /// How much is used.
        used_bytes: u64,
        /// How much may be.
        limit_bytes: u64,
    },
    /// The journal has as many turns of the tenant, or of all, as it may.
    #[error(
        "the journal has {used_bytes} of {limit_bytes} bytes that it may have (journal_bytes, \
         {whose}); erase sessions, or ask your operator for more room or a shorter journal.retention"
    )]
    JournalQuota {
        /// Whose limit it is: `tenant` or `all`.
        whose: &'static str,
        /// What it has.
        used_bytes: u64,
        /// What it may have.
        limit_bytes: u64,
    },
    /// The disk is full.
    #[error("no room is left for the journal; nothing was changed")]
    JournalFull,
    /// The journal cannot be read or written.
    #[error("the journal cannot be read or written; nothing was changed")]
    JournalFailed {
        /// What happened, for the log.
        detail: String,
    },
    /// Something that the call was built on was not written.
    #[error("an earlier change of the session was not written; nothing was changed, try again")]
    SessionReloaded,
    /// A cap is reached, and every session that could make room was used or ended meanwhile.
    #[error("no room for a session could be made; try again")]
    NoRoomForSession,
    /// Others changed the session again and again before this call could.
    #[error("others kept changing the session; try again")]
    RetriesExhausted,
    /// Nothing is summarized while a call waits for its result or a reply is streaming.
    #[error("a call waits for its result, or a reply is streaming; append it first")]
    CallPending,
    /// One compaction at a time.
    #[error("a compaction of the session is being made; try again")]
    CompactionRunning,
    /// There is no summary, and nothing was changed.
    #[error("no summary could be made ({reason}): {problem}; nothing was changed")]
    CompactionFailed {
        /// Its name in metrics and events.
        reason: &'static str,
        /// What happened.
        problem: String,
    },
    /// There is nothing to take back.
    #[error("session {session} has no summary")]
    NoSummary {
        /// The id.
        session: SessionId,
    },
    /// The daemon is stopping.
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

impl From<Refused> for EngineError {
    fn from(_: Refused) -> Self {
        Self::SessionReloaded
    }
}
