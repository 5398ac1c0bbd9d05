//! The types of a memory, and the limits of what clients may store and request.

use std::time::Duration;

use memoird_core::config::{AsText, Size};
use memoird_core::ids::{Generation, MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// What a memory is about. There are no others. Here and in the enumerations below, the
/// number of a value is stored on disk, and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryKind {
    /// Who the subject is: role, preferences, circumstances. Always private.
    User = 0,
    /// How the subject wants things done: corrections and confirmations.
    Feedback = 1,
    /// What goes on: work, decisions, dates.
    Project = 2,
    /// Where to find something.
    Reference = 3,
}

/// Who may recall a memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Visibility {
    /// Its subject only.
    #[default]
    Private,
    /// Any subject of the tenant.
    Team,
}

/// Which way feedback points. Only of [`MemoryKind::Feedback`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Polarity {
    /// "Not like that."
    Correction = 0,
    /// "Yes, like that."
    Confirmation = 1,
}

/// Who made a memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The bot, by `Remember`.
    #[default]
    Bot = 0,
    /// A commit of an extraction.
    Extraction = 1,
    /// An import.
    Import = 2,
}

/// Who pinned a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    /// The bot; only it takes the pin away.
    Bot = 0,
    /// A consolidation, which also takes the pin away.
    Consolidation = 1,
}

/// The turns that a memory comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The bot's own chat id.
    pub session: SessionId,
    /// The generation of the session; `None` where it is not known.
    pub generation: Option<Generation>,
    /// The turns, ascending; at most [`MemoryLimits::source_seqs`].
    pub seqs: Vec<u64>,
}

/// One promoted fact.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// Its id.
    pub id: MemoryId,
    /// Whose it is.
    pub subject: Subject,
    /// What it is about.
    pub kind: MemoryKind,
    /// Who may recall it.
    pub visibility: Visibility,
    /// Which way it points.
    pub polarity: Option<Polarity>,
    /// The fact, in words.
    pub content: String,
    /// Labels, sorted, each once.
    pub tags: Vec<String>,
    /// From 0 to 1.
    pub importance: f32,
    /// Where it comes from.
    pub source: Option<Source>,
    /// When it was so.
    pub observed_at: Timestamp,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed, reinforced or merged into.
    pub updated_at: Timestamp,
    /// From when on it is not recalled, and may be removed.
    pub expires_at: Option<Timestamp>,
    /// The one that took its place: then it is history, and not recalled.
    pub superseded_by: Option<MemoryId>,
    /// How often it was said again.
    pub reinforced: u64,
    /// How often it was recalled.
    pub recalls: u64,
    /// When it was last recalled.
    pub recalled_at: Option<Timestamp>,
    /// Who pinned it: a pinned memory comes first in the manifest.
    pub pin: Option<Pin>,
    /// Who made it.
    pub origin: Origin,
    /// The bot's own name for it among the memories of its subject.
    pub external_key: Option<String>,
    /// What the bot notes of it: a JSON object, as it was sent.
    pub metadata: Option<String>,
}

/// What became of a fact that was to be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is new.
    Created = 0,
    /// It was there to the letter, and counts once more.
    Reinforced = 1,
    /// One that says the same in other letters took it in.
    Merged = 2,
    /// A recall gave it to this session shortly before: nothing changed.
    Recalled = 3,
    /// The memory of its external key is this now.
    Replaced = 4,
}

/// Limits on everything that clients say of memories and documents. Those that an operator or a test may
/// set are fields, the others are constants.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryLimits {
    /// Bytes of one memory's content.
    #[serde(with = "AsText::<Size>")]
    pub content_bytes: usize,
    /// Turns that one memory names as its source.
    #[serde(skip)]
    pub source_seqs: usize,
    /// Memories of one tenant, superseded ones included.
    #[serde(rename = "max_memories")]
    pub memories: u64,
    /// Recall events of one tenant; older ones are pruned.
    pub recall_events: u64,
    /// Bytes of one document's value.
    #[serde(with = "AsText::<Size>")]
    pub document_bytes: usize,
    /// Documents of one tenant,
    #[serde(rename = "max_documents")]
    pub documents: u64,
    /// and bytes of their values, keys and namespaces.
    #[serde(with = "AsText::<Size>")]
    pub documents_bytes: usize,
    /// Turns of one lease.
    #[serde(skip)]
    pub lease_turns: usize,
    /// Idempotency keys of one tenant; older ones are forgotten.
    #[serde(skip)]
    pub idempotency_keys: u64,
    /// How long an idempotency key is remembered.
    #[serde(skip)]
    pub idempotency_span: Duration,
}

impl MemoryLimits {
    /// Tags of one memory.
    pub const TAGS: usize = 32;
    /// Bytes of one tag.
    pub const TAG_BYTES: usize = 128;
    /// Bytes of an external key.
    pub const EXTERNAL_KEY_BYTES: usize = 256;
    /// Bytes of a memory's metadata.
    pub const METADATA_BYTES: usize = 4 << 10;
    /// Memories with metadata, or with a tag, that a recall by these looks at, the newest of each
    /// subject.
    pub const FILTERED_LOOKED_AT: usize = 1 << 16;
    /// Dimensions of a vector that a client makes.
    pub const DIMENSIONS: usize = 4_096;
    /// Subjects that one prefix may name in a recall.
    pub const PREFIXED: usize = 64;
    /// Bytes of a recall's query; a longer one is cut.
    pub const QUERY_BYTES: usize = 4 << 10;
    /// Subjects of one recall.
    pub const SUBJECTS: usize = 16;
    /// Operations on documents that are done together.
    pub const BATCH: usize = 256;
    /// Bytes of the values that these read.
    pub const BATCH_READ_BYTES: usize = 16 << 20;
    /// How long a document lives, where that is said.
    pub const DOCUMENT_TTL: Duration = Duration::from_secs(3_653 * 24 * 60 * 60);
    /// Hits of one recall.
    pub const HITS: usize = 100;
    /// Memories of a subject that are compared with each other, the newest.
    pub const COMPARED: usize = 1_000;
    /// Recalled memories of a session that are known not to be new facts.
    pub const ECHOES: usize = 256;
    /// Lines of a manifest.
    pub const MANIFEST_LINES: usize = 200;
    /// Bytes of a manifest.
    pub const MANIFEST_BYTES: usize = 25_000;
    /// Memories of one commit of an extraction.
    pub const EXTRACTED: usize = 64;
    /// Bytes of the turns of one lease.
    pub const LEASE_BYTES: usize = 256 << 10;
    /// Memories of one import.
    pub const IMPORTED: usize = 500;
    /// How often an imported memory was recalled or reinforced, at most: as much as a number of
    /// JSON holds everywhere.
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
    /// All of them.
    pub const ALL: [Self; 4] = [Self::User, Self::Feedback, Self::Project, Self::Reference];

    /// Its name in manifests, prompts, exports and on the command line.
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
    /// True when a recall may give it at this moment: it is not history and not expired.
    pub fn is_current(&self, now: Timestamp) -> bool {
        self.superseded_by.is_none() && self.expires_at.is_none_or(|expires| now < expires)
    }

    /// True when this subject may recall it.
    pub fn is_visible_to(&self, subject: &Subject) -> bool {
        self.visibility == Visibility::Team || self.subject == *subject
    }
}
