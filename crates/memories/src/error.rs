//! Errors of memory calls and of the files that store memories.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::CoreError;
use memoird_core::ids::MemoryId;
use memoird_engine::EngineError;
use memoird_store::StoreError;
use thiserror::Error;

/// Error of a memory call. Nothing was changed, except possibly for [`InDoubt`](Self::InDoubt).
#[derive(Clone, Debug, Error, PartialEq)]
pub enum MemoryError {
    /// A command violates a session rule.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// A session or its turns could not be read.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A memory, or a fact to be remembered, is invalid by itself.
    #[error("{field}: {problem}")]
    Invalid {
        field: &'static str,
        /// The problem, and the allowed values.
        problem: String,
    },
    /// No such memory is visible to the caller.
    #[error("memory {id} is not there (any more)")]
    NotFound {
        /// The requested id.
        id: MemoryId,
    },
    /// The stored memory does not match its checksum. It can still be forgotten.
    #[error("memory {id} was damaged on disk; forget it, or import it from an export")]
    MemoryDamaged {
        /// The id, as stored.
        id: MemoryId,
    },
    /// The fact duplicates another memory, and the request rejects duplicates.
    #[error("memory {id} says the same; supersede it, or send near_duplicate MERGE or KEEP")]
    Duplicate {
        /// The existing memory.
        id: MemoryId,
    },
    #[error("memory {id} is superseded by {by}; change that one")]
    Superseded {
        /// The requested memory.
        id: MemoryId,
        /// The memory that superseded it.
        by: MemoryId,
    },
    #[error(
        "{field} holds what looks like {what}; leave it out (long_term.secrets does not allow it)"
    )]
    SecretFound {
        field: &'static str,
        /// Kind of secret. Never contains the secret itself.
        what: &'static str,
    },
    #[error("there are {limit} memories already; forget some, or raise long_term.max_memories")]
    Full {
        /// The maximum.
        limit: u64,
    },
    /// The source turns of a memory do not exist.
    #[error("source: {problem}")]
    SourceNotFound {
        /// The missing turns, and how to correct the request.
        problem: String,
    },
    #[error("these turns are leased for {seconds_left} s more; commit that lease or wait")]
    LeaseHeld {
        /// Remaining time of that lease.
        seconds_left: u64,
    },
    /// The lease has expired, or its turns were forgotten, updated or rewound.
    #[error("the lease is over and nothing was stored; lease again")]
    LeaseLost,
    #[error("subject_prefix: more than {limit} subjects begin so; send a longer one, or subjects")]
    SubjectsTooMany {
        /// The maximum.
        limit: usize,
    },
    #[error("no memory of this subject has external_key {key:?}")]
    KeyNotFound {
        /// The requested key.
        key: String,
    },
    /// A document operation is invalid by itself.
    #[error("{field}: {problem}")]
    DocumentInvalid {
        field: &'static str,
        /// The problem, and the allowed values.
        problem: String,
    },
    /// The document does not exist or has expired.
    #[error("there is no document {key:?} in this namespace")]
    DocumentNotFound {
        /// Key of the document.
        key: String,
    },
    /// The stored document does not match its checksum.
    #[error("document {key:?} was damaged on disk; put or delete it, without expected_version")]
    DocumentDamaged {
        /// Key of the document.
        key: String,
    },
    #[error("document {key:?} has version {version} (0: it is not there), not {expected}; read it")]
    StaleVersion {
        key: String,
        /// The version the caller expected.
        expected: u64,
        /// The stored version; 0 if there is no document.
        version: u64,
    },
    #[error(
        "there is no room beside the {documents} documents or {bytes} bytes that there may be; \
         delete some, or raise long_term.max_documents or documents_bytes"
    )]
    DocumentsFull {
        /// Maximum number of documents.
        documents: u64,
        /// Maximum bytes of all documents.
        bytes: u64,
    },
    #[error(
        "the documents that are read have more than {limit} bytes together; read fewer at once"
    )]
    DocumentsTooLarge {
        /// Maximum size in bytes.
        limit: usize,
    },
    /// One item of a list was rejected, so none was applied.
    #[error("{list}[{index}]: {error}")]
    InList {
        /// Name of the list field.
        list: &'static str,
        /// Index of the rejected item, from 0.
        index: usize,
        error: Box<Self>,
    },
    /// Long-term memory is disabled.
    #[error("no memories are kept here")]
    Off,
    /// Too many writes of the tenant are queued, or another daemon holds a lock for too long.
    #[error("too many changes of memories wait; try again")]
    Busy,
    #[error("no room is left for memories; nothing was changed")]
    DiskFull,
    #[error("the memories cannot be read or written; nothing was changed")]
    Failed {
        /// Details for the log.
        cause: Arc<FileError>,
    },
    /// The connection was lost during a commit, so its outcome is unknown.
    #[error(
        "the database's answer was lost: whether this was written is not known. Send it again, with \
         its idempotency_key where it had one"
    )]
    InDoubt {
        /// Details for the log.
        detail: String,
    },
    #[error("a vector of {model} has {found} dimensions where {expected} were expected")]
    DimensionMismatch {
        /// Model of the vector.
        model: String,
        /// Dimension of the vector.
        found: usize,
        /// Dimension of the model's stored vectors.
        expected: usize,
    },
    #[error("no embedder is configured (long_term.embedder); recall with RECALL_MODE_LEXICAL")]
    NoEmbedder,
    /// No extraction model is configured.
    #[error("no model is configured (long_term.extraction); lease turns and commit facts instead")]
    NoExtractor,
    /// The extraction model failed, or returned an unusable reply.
    #[error("the model of long_term.extraction gives no usable answer; try again later")]
    ExtractorFailed {
        /// Details for the log.
        detail: String,
        /// When a retry may succeed.
        after: Duration,
    },
    #[error("extractions have used their {limit} tokens of the day (extraction.tokens_per_day)")]
    ExtractionSpent {
        /// The daily maximum.
        limit: u64,
    },
    #[error("the database has no pgvector, so there are no vectors: leave them out, or install it")]
    NoVectors,
    /// The embedder failed or timed out.
    #[error("the embedder does not answer; recall with RECALL_MODE_LEXICAL, or try again")]
    EmbedderFailed {
        /// Details for the log.
        detail: String,
    },
}

/// Why a tenant's file cannot be used. For the log, never for a client.
#[derive(Debug, Error)]
pub enum FileError {
    /// SQLite or the file system failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file contains the memories of another tenant, or something else.
    #[error(
        "{} does not hold the memories of tenant {tenant}; nothing was changed. \
         Give it its own name back, or move it away", path.display()
    )]
    NotOfTenant {
        path: PathBuf,
        /// The expected tenant.
        tenant: String,
    },
    /// The WAL cannot be truncated yet: it has readers, or another forget is in progress.
    #[error(
        "memories are being read or forgotten by other calls; the remaining bytes are erased later"
    )]
    LogInUse,
}

impl MemoryError {
    pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid {
            field,
            problem: problem.into(),
        }
    }

    pub(crate) fn document_invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::DocumentInvalid {
            field,
            problem: problem.into(),
        }
    }

    /// Adds the position in a list to an error that rejects one item.
    ///
    /// Other errors stay as they are.
    pub(crate) fn in_list(self, list: &'static str, index: usize) -> Self {
        if self.is_refusal() {
            Self::InList {
                list,
                index,
                error: Box::new(self),
            }
        } else {
            self
        }
    }

    /// Turns a dimension mismatch into an error about the field `vector`, which the client sent.
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

    /// Whether the error rejects a single write. The other writes of the transaction continue.
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

/// Causes are equal if their messages are equal.
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
