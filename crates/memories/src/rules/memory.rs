//! The types of a memory, and the limits on client input.

use std::time::Duration;

use memoird_core::config::{AsText, Size};
use memoird_core::ids::{Generation, MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Topic of a memory.
///
/// Here and in the enums below, the number of a variant is stored on disk and must never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryKind {
    /// A fact about the subject: role, preferences, circumstances. Always private.
    User = 0,
    /// How the subject wants things done: corrections and confirmations.
    Feedback = 1,
    /// Ongoing work, decisions, dates.
    Project = 2,
    /// Where to find something.
    Reference = 3,
}

/// Which recalls may return a memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Visibility {
    /// Only recalls for its subject.
    #[default]
    Private,
    /// Recalls for any subject of the tenant.
    Team,
}

/// Direction of feedback. Only for [`MemoryKind::Feedback`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Polarity {
    /// "Not like that."
    Correction = 0,
    /// "Yes, like that."
    Confirmation = 1,
}

/// How a memory was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// By the bot, with `Remember`.
    #[default]
    Bot = 0,
    /// By the commit of an extraction.
    Extraction = 1,
    Import = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    /// The bot. Only the bot removes this pin.
    Bot = 0,
    /// A consolidation. Consolidations may also remove this pin.
    Consolidation = 1,
}

/// The turns that a memory comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The bot's own chat id.
    pub session: SessionId,
    /// Generation of the session, if known.
    pub generation: Option<Generation>,
    /// Seqs of the turns, ascending. At most [`MemoryLimits::source_seqs`].
    pub seqs: Vec<u64>,
}

/// A fact in long-term memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    pub id: MemoryId,
    pub subject: Subject,
    pub kind: MemoryKind,
    pub visibility: Visibility,
    /// Only for [`MemoryKind::Feedback`].
    pub polarity: Option<Polarity>,
    pub content: String,
    /// Sorted and deduplicated.
    pub tags: Vec<String>,
    /// From 0 to 1.
    pub importance: f32,
    /// The turns that state it.
    pub source: Option<Source>,
    /// When it was true.
    pub observed_at: Timestamp,
    pub created_at: Timestamp,
    /// Time of the last change, reinforcement or merge.
    pub updated_at: Timestamp,
    /// From this time on, recalls do not return it, and it may be deleted.
    pub expires_at: Option<Timestamp>,
    /// The memory that superseded it. If set, the memory is history and recalls do not return it.
    pub superseded_by: Option<MemoryId>,
    /// Number of times that the fact was stated again.
    pub reinforced: u64,
    /// Number of recalls that returned it.
    pub recalls: u64,
    /// Time of the last recall that returned it.
    pub recalled_at: Option<Timestamp>,
    /// Set if the bot or a consolidation pinned it. Pinned memories come first in the manifest.
    pub pin: Option<Pin>,
    pub origin: Origin,
    /// The bot's own name for it, unique among the current memories of its subject.
    pub external_key: Option<String>,
    /// Metadata of the bot: a JSON object, stored as sent.
    pub metadata: Option<String>,
}

/// Result of remembering a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Stored as a new memory.
    Created = 0,
    /// An identical memory existed, and was reinforced.
    Reinforced = 1,
    /// Merged into a memory that states the same in other words.
    Merged = 2,
    /// Dropped, because a recall had shown it to this session shortly before.
    Recalled = 3,
    /// It replaced the content of the memory with its external key.
    Replaced = 4,
}

/// Limits on client input for memories and documents.
///
/// Limits that an operator or a test may change are fields. The others are constants.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryLimits {
    /// Maximum bytes of a memory's content.
    #[serde(with = "AsText::<Size>")]
    pub content_bytes: usize,
    /// Maximum source turns of a memory.
    #[serde(skip)]
    pub source_seqs: usize,
    /// Maximum memories per tenant, including superseded ones.
    #[serde(rename = "max_memories")]
    pub memories: u64,
    /// Maximum recall events per tenant. Older ones are pruned.
    pub recall_events: u64,
    /// Maximum bytes of a document's value.
    #[serde(with = "AsText::<Size>")]
    pub document_bytes: usize,
    /// Maximum documents per tenant.
    #[serde(rename = "max_documents")]
    pub documents: u64,
    /// Maximum bytes of a tenant's documents: values, keys and namespaces.
    #[serde(with = "AsText::<Size>")]
    pub documents_bytes: usize,
    /// Maximum turns per lease.
    #[serde(skip)]
    pub lease_turns: usize,
    /// Maximum idempotency keys per tenant. Older ones are dropped.
    #[serde(skip)]
    pub idempotency_keys: u64,
    /// Time for which an idempotency key is stored.
    #[serde(skip)]
    pub idempotency_span: Duration,
}

impl MemoryLimits {
    /// Maximum tags per memory.
    pub const TAGS: usize = 32;
    /// Maximum bytes of a tag.
    pub const TAG_BYTES: usize = 128;
    /// Maximum bytes of an external key.
    pub const EXTERNAL_KEY_BYTES: usize = 256;
    /// Maximum bytes of a memory's metadata.
    pub const METADATA_BYTES: usize = 4 << 10;
    /// Maximum memories to check in a recall filtered by metadata or tags: the newest per subject.
    pub const FILTERED_LOOKED_AT: usize = 1 << 16;
    /// Maximum dimension of a vector computed by a client.
    pub const DIMENSIONS: usize = 4_096;
    /// Maximum subjects that a prefix may match in a recall.
    pub const PREFIXED: usize = 64;
    /// Maximum bytes of a recall query. Longer ones are truncated.
    pub const QUERY_BYTES: usize = 4 << 10;
    /// Maximum subjects per recall.
    pub const SUBJECTS: usize = 16;
    /// Maximum document operations per batch.
    pub const BATCH: usize = 256;
    /// Maximum bytes of the values read by a batch.
    pub const BATCH_READ_BYTES: usize = 16 << 20;
    /// Maximum lifetime of a document that has one.
    pub const DOCUMENT_TTL: Duration = Duration::from_secs(3_653 * 24 * 60 * 60);
    /// Maximum hits per recall.
    pub const HITS: usize = 100;
    /// Maximum memories of a subject to compare for conflicts: the newest.
    pub const COMPARED: usize = 1_000;
    /// Maximum recalled memories of a session that are checked for echoes.
    pub const ECHOES: usize = 256;
    /// Maximum lines of a manifest.
    pub const MANIFEST_LINES: usize = 200;
    /// Maximum bytes of a manifest.
    pub const MANIFEST_BYTES: usize = 25_000;
    /// Maximum facts per extraction commit.
    pub const EXTRACTED: usize = 64;
    /// Maximum bytes of the turns of a lease.
    pub const LEASE_BYTES: usize = 256 << 10;
    /// Maximum memories per import.
    pub const IMPORTED: usize = 500;
    /// Maximum recall and reinforcement counts of an imported memory.
    ///
    /// It is the largest count that every JSON parser represents exactly.
    pub const COUNTED: u64 = 1 << 53;
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self {
            content_bytes: 8 << 10,
            source_seqs: 256,
            memories: 1_000_000,
            recall_events: 100_000,
            document_bytes: 4 << 20,
            documents: 1_000_000,
            documents_bytes: 8 << 30,
            lease_turns: 200,
            idempotency_keys: 100_000,
            idempotency_span: Duration::from_secs(24 * 60 * 60),
        }
    }
}

impl MemoryKind {
    pub const ALL: [Self; 4] = [Self::User, Self::Feedback, Self::Project, Self::Reference];

    /// Name in manifests, prompts, exports and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Feedback => "feedback",
            Self::Project => "project",
            Self::Reference => "reference",
        }
    }
}

impl Memory {
    /// Whether recalls may return it at this time: neither superseded nor expired.
    pub fn is_current(&self, now: Timestamp) -> bool {
        self.superseded_by.is_none() && self.expires_at.is_none_or(|expires| now < expires)
    }

    /// Time since it was observed, in milliseconds. 0 if that is in the future.
    pub(crate) fn age_ms(&self, now: Timestamp) -> u64 {
        let age_ms = now.as_ms().saturating_sub(self.observed_at.as_ms());
        u64::try_from(age_ms).unwrap_or(0)
    }

    /// Whether recalls for this subject may return it.
    pub fn is_visible_to(&self, subject: &Subject) -> bool {
        self.visibility == Visibility::Team || self.subject == *subject
    }
}
