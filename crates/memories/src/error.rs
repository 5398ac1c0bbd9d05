//! Why memories could not be read, written or found.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::CoreError;
use memoird_core::ids::MemoryId;
use memoird_engine::EngineError;
use memoird_store::StoreError;
use thiserror::Error;

/// A call that could not be done. Nothing was changed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum MemoryError {
    /// The rules of sessions refuse it.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// The engine could not read a session or its turns.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A memory, or a fact that should become one, breaks a rule by itself.
    #[error("{field}: {problem}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// The problem, and a correct value.
        problem: String,
    },
    /// No such memory among those that the caller may see.
    #[error("memory {id} is not there (any more)")]
    NotFound {
        /// The id that was asked for.
        id: MemoryId,
    },
    /// Another memory states the same already, and the request refuses duplicates.
    #[error("memory {id} says the same; supersede it, or send near_duplicate MERGE or KEEP")]
    Duplicate {
        /// The one that is there.
        id: MemoryId,
    },
    /// A memory was superseded, and is only history.
    #[error("memory {id} is superseded by {by}; change that one")]
    Superseded {
        /// The one that was asked for.
        id: MemoryId,
        /// The one that took its place.
        by: MemoryId,
    },
    /// The text holds a secret, and the policy is not to keep any.
    #[error(
        "{field} holds what looks like {what}; leave it out (long_term.secrets does not allow it)"
    )]
    SecretFound {
        /// Which field.
        field: &'static str,
        /// What it looks like; never the secret.
        what: &'static str,
    },
    /// A tenant has as many memories as it may.
    #[error("there are {limit} memories already; forget some, or raise long_term.max_memories")]
    Full {
        /// The cap.
        limit: u64,
    },
    /// The turns that a memory is to come from are not there.
    #[error("source: {problem}")]
    SourceNotFound {
        /// The missing turns, and how to help it.
        problem: String,
    },
    /// Another lease of these turns runs.
    #[error("these turns are leased for {seconds_left} s more; commit that lease or wait")]
    LeaseHeld {
        /// How long the lease still runs.
        seconds_left: u64,
    },
    /// The lease is over: its time ran out, or what it covered was forgotten.
    #[error("the lease is over and nothing was stored; lease again")]
    LeaseLost,
    /// A prefix names more subjects than one recall asks.
    #[error("subject_prefix: more than {limit} subjects begin so; send a longer one, or subjects")]
    SubjectsTooMany {
        /// The most of them.
        limit: usize,
    },
    /// No current memory of a subject has this external key.
    #[error("no memory of this subject has external_key {key:?}")]
    KeyNotFound {
        /// The key that was asked for.
        key: String,
    },
    /// What is said of a document breaks a rule by itself.
    #[error("{field}: {problem}")]
    DocumentInvalid {
        /// Which field.
        field: &'static str,
        /// The problem, and a correct value.
        problem: String,
    },
    /// No such document, or it has expired.
    #[error("there is no document {key:?} in this namespace")]
    DocumentNotFound {
        /// Its key.
        key: String,
    },
    /// A document has another version than the caller expects.
    #[error("document {key:?} has version {version} (0: it is not there), not {expected}; read it")]
    StaleVersion {
        /// Its key.
        key: String,
        /// The version that was expected.
        expected: u64,
        /// The one that is there; 0: none.
        version: u64,
    },
    /// A tenant has as many documents, or bytes of them, as it may.
    #[error(
        "there is no room beside the {documents} documents or {bytes} bytes that there may be; \
         delete some, or raise long_term.max_documents or documents_bytes"
    )]
    DocumentsFull {
        /// The cap on their number,
        documents: u64,
        /// and on their bytes.
        bytes: u64,
    },
    /// What a batch reads does not fit into one answer.
    #[error(
        "the documents that are read have more than {limit} bytes together; read fewer at once"
    )]
    DocumentsTooLarge {
        /// The most bytes.
        limit: usize,
    },
    /// One of several was refused, and so none was done.
    #[error("{list}[{index}]: {error}")]
    InList {
        /// The list that it is in.
        list: &'static str,
        /// Which one, from 0.
        index: usize,
        /// Why.
        error: Box<Self>,
    },
    /// The daemon keeps no memories.
    #[error("no memories are kept here")]
    Off,
    /// Too many writes of one tenant wait, or another daemon had for too long what this one needs.
    #[error("too many changes of memories wait; try again")]
    Busy,
    /// The disk is full.
    #[error("no room is left for memories; nothing was changed")]
    DiskFull,
    /// The tenant's memories cannot be read or written.
    #[error("the memories cannot be read or written; nothing was changed")]
    Failed {
        /// What happened, for the log.
        cause: Arc<FileError>,
    },
    /// A database was asked to commit, and its answer was lost.
    #[error(
        "the database's answer was lost: whether this was written is not known. Send it again, with \
         its idempotency_key where it had one"
    )]
    InDoubt {
        /// What happened, for the log.
        detail: String,
    },
    /// A vector has another number of dimensions than those that are stored.
    #[error("a vector of {model} has {found} dimensions where {expected} were expected")]
    DimensionMismatch {
        /// The model that it is from.
        model: String,
        /// How many it has.
        found: usize,
        /// How many the model's vectors have.
        expected: usize,
    },
    /// A recall by meaning was requested, and no embedder is configured.
    #[error("no embedder is configured (long_term.embedder); recall with RECALL_MODE_LEXICAL")]
    NoEmbedder,
    /// No model is configured that extracts.
    #[error("no model is configured (long_term.extraction); lease turns and commit facts instead")]
    NoExtractor,
    /// The model that extracts gave no answer, or none that can be used.
    #[error("the model of long_term.extraction gives no usable answer; try again later")]
    ExtractorFailed {
        /// What happened, for the log.
        detail: String,
        /// When trying again may help.
        after: Duration,
    },
    /// The tenant has used its tokens of the day.
    #[error("extractions have used their {limit} tokens of the day (extraction.tokens_per_day)")]
    ExtractionSpent {
        /// How many there are.
        limit: u64,
    },
    /// Vectors are asked for or given, and the database cannot keep any.
    #[error("the database has no pgvector, so there are no vectors: leave them out, or install it")]
    NoVectors,
    /// The embedder gave no vector in time.
    #[error("the embedder does not answer; recall with RECALL_MODE_LEXICAL, or try again")]
    EmbedderFailed {
        /// What happened, for the log.
        detail: String,
    },
}

/// Why a tenant's file cannot be used. For the log, never for a client.
#[derive(Debug, Error)]
pub enum FileError {
    /// SQLite or the file system.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file holds the memories of another tenant, or something else.
    #[error(
        "{} does not hold the memories of tenant {tenant}; nothing was changed. \
         Give it its own name back, or move it away", path.display()
    )]
    NotOfTenant {
        /// The file.
        path: PathBuf,
        /// Whose memories were looked for.
        tenant: String,
    },
    /// Readers hold the log, which is emptied later, or others still forget.
    #[error("somebody reads memories, or forgets others: what is left of them is erased later")]
    LogInUse,
}

impl MemoryError {
    /// A field that breaks a rule.
    pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid {
            field,
            problem: problem.into(),
        }
    }

    /// What is said of a document breaks a rule.
    pub(crate) fn document_invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::DocumentInvalid {
            field,
            problem: problem.into(),
        }
    }

    /// The same refusal, of one in a list.
    pub(crate) fn in_list(self, list: &'static str, index: usize) -> Self {
        match self.is_refusal() {
            true => Self::InList {
                list,
                index,
                error: Box::new(self),
            },
            false => self,
        }
    }

    /// The same of a vector that a client made.
    pub(crate) fn of_given_vector(self) -> Self {
        match self {
            Self::DimensionMismatch {
                found, expected, ..
            } => {
                let problem = format!("has {found} dimensions, and all others have {expected}");
                Self::invalid("vector", problem)
            }
            other => other,
        }
    }

    /// True when the rules refuse one write: those beside it in a transaction go on.
    pub(crate) fn is_refusal(&self) -> bool {
        !matches!(
            self,
            Self::Engine(_)
                | Self::Off
                | Self::Busy
                | Self::DiskFull
                | Self::Failed { .. }
                | Self::InDoubt { .. }
                | Self::NoEmbedder
                | Self::NoVectors
                | Self::EmbedderFailed { .. }
                | Self::NoExtractor
                | Self::ExtractorFailed { .. }
                | Self::ExtractionSpent { .. }
        )
    }
}

impl From<FileError> for MemoryError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Store(StoreError::Full) => Self::DiskFull,
            FileError::Store(StoreError::Locked { .. }) => Self::Busy,
            other => Self::Failed {
                cause: Arc::new(other),
            },
        }
    }
}

/// Causes are equal when they say the same.
impl PartialEq for FileError {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl From<rusqlite::Error> for FileError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

impl From<StoreError> for MemoryError {
    fn from(error: StoreError) -> Self {
        FileError::Store(error).into()
    }
}

impl From<rusqlite::Error> for MemoryError {
    fn from(error: rusqlite::Error) -> Self {
        StoreError::from(error).into()
    }
}
