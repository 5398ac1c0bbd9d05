//! The changes of a command as data: the rules decide them, a store writes them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::compaction::{CompactionStatus, Summary};
use crate::history::{LiveSet, Totals};
use crate::idempotency::{Fingerprint, KeyRecord};
use crate::ids::{Generation, HookName, SessionKey, Subject};
use crate::options::SessionOptions;
use crate::seq_ranges::SeqRanges;
use crate::time::{Now, Steady, Timestamp};
use crate::window::SavedCut;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EndReason {
    /// Not used for its TTL.
    Expired,
    /// A cap was reached, and the session was idle the longest.
    Evicted,
    Ended,
    Reset,
    /// The daemon stopped and has no journal.
    Shutdown,
}

impl EndReason {
    pub const ALL: [Self; 5] = [
        Self::Expired,
        Self::Evicted,
        Self::Ended,
        Self::Reset,
        Self::Shutdown,
    ];

    /// Name in configurations, events and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Evicted => "evicted",
            Self::Ended => "ended",
            Self::Reset => "reset",
            Self::Shutdown => "shutdown",
        }
    }
}

/// All changes of one command, written atomically.
#[derive(Clone, Debug, Default)]
pub struct ChangeSet {
    /// The changes in order of application.
    pub changes: Vec<Change>,
}

impl ChangeSet {
    /// Approximate size in bytes, for bounding queues.
    pub fn weight_bytes(&self) -> usize {
        self.changes.iter().map(Change::weight_bytes).sum()
    }
}

#[derive(Clone, Debug)]
pub struct Change {
    pub generation: Generation,
    /// Number of changes that the generation has seen before this one, 0 for a start.
    ///
    /// The store rejects the change if its own count differs.
    pub expected_revision: u64,
    pub kind: ChangeKind,
}

#[derive(Clone, Debug)]
pub enum ChangeKind {
    /// A generation starts. Rejected while another generation of the session is live.
    Begin {
        key: SessionKey,
        created_at: Timestamp,
        /// The same time on the monotonic clock.
        last_access: Steady,
    },
    Append(Box<Appended>),
    Rewind(Box<Rewound>),
    UpdateTurn(Box<UpdatedTurn>),
    PatchState(Box<PatchedState>),
    /// The session's options change. The last access does not.
    SetOptions(Arc<SessionOptions>),
    /// The session was used, and nothing else changed.
    Touch {
        last_access: Steady,
        /// `None` if unchanged.
        cuts: Option<Arc<[SavedCut]>>,
    },
    /// A compaction succeeded, failed or was undone. Turns and last access do not change.
    Compact {
        status: Arc<CompactionStatus>,
        summary: SummaryChange,
        /// `None` if unchanged.
        cuts: Option<Arc<[SavedCut]>>,
    },
    End {
        reason: EndReason,
        at: Now,
        /// Hooks to deliver to, each once.
        owed: Arc<[HookName]>,
        /// Idempotency key and the recorded result.
        idempotency: Option<Box<(Fingerprint, KeyRecord)>>,
    },
}

/// Effect of a change on the session's summary.
#[derive(Clone, Debug)]
pub enum SummaryChange {
    /// Unchanged, because the compaction failed.
    Stays,
    /// A new summary replaces the current one. The store keeps the replaced one for an undo.
    Made(Arc<Summary>),
    /// The summary of this number is deleted, and the one before it becomes current again.
    Undone(u32),
    /// Summaries that cover turns after `after_seq` are deleted.
    ///
    /// The newest remaining one becomes current. The store corrects `through_seq` of the status,
    /// because only it has all summaries.
    Rewound {
        /// Newest turn that remains.
        after_seq: u64,
    },
}

/// Rewound turns. They remain in the journal, marked, and their seqs are not reused.
#[derive(Clone, Debug)]
pub struct Rewound {
    /// Scope of the idempotency key, which outlives a generation.
    pub key: SessionKey,
    /// Newest turn that remains.
    pub after_seq: u64,
    /// Last seq assigned before the rewind. Equals `after_seq` if nothing is rewound.
    pub through_seq: u64,
    /// Newest turn after the rewind. Smaller than `after_seq` if that turn was rewound earlier.
    pub newest_seq: u64,
    /// Idempotency key of this rewind and the rewound turns, for detecting a repetition.
    pub taken: Option<(Fingerprint, SeqRanges)>,
    pub kept: LiveSet,
    pub totals: Totals,
    /// Whether a reply is still streaming.
    pub partial: bool,
    pub last_access: Steady,
    /// Idempotency key and the recorded result, if the rewind appends no turns.
    pub idempotency: Option<(Fingerprint, KeyRecord)>,
    /// `None` if unchanged.
    pub cuts: Option<Arc<[SavedCut]>>,
}

/// JSON state of a session after a patch.
#[derive(Clone, Debug)]
pub struct PatchedState {
    /// Scope of the idempotency key, which outlives a generation.
    pub key: SessionKey,
    /// The complete new JSON.
    pub state_json: Arc<str>,
    pub version: u64,
    pub last_access: Steady,
    /// Idempotency key and the recorded result.
    pub idempotency: Option<(Fingerprint, KeyRecord)>,
}

/// A turn with replaced content. The store must delete the previous content.
#[derive(Clone, Debug)]
pub struct UpdatedTurn {
    pub seq: u64,
    /// New content, including the seq.
    pub content: Arc<[u8]>,
    pub bytes_before: usize,
    pub kept: LiveSet,
    pub totals: Totals,
    /// Idempotency key and the recorded result.
    pub idempotency: Option<(Fingerprint, KeyRecord)>,
    /// `None` if unchanged.
    pub cuts: Option<Arc<[SavedCut]>>,
}

/// Turns appended to a generation.
#[derive(Clone, Debug)]
pub struct Appended {
    /// Scope of the idempotency key, which outlives a generation.
    pub key: SessionKey,
    /// Turns with consecutive seqs.
    pub turns: Vec<(u64, Arc<[u8]>)>,
    /// Client ids of the turns that have one, up to the maximum number in an event.
    pub client_ids: Vec<Box<str>>,
    /// Number of turns removed from the history to make room.
    pub dropped_turns: u64,
    pub kept: LiveSet,
    pub totals: Totals,
    /// `None` if unchanged.
    pub subject: Option<Subject>,
    /// The subject that `subject` replaces.
    pub former_subject: Option<Subject>,
    /// Generation that the turns are a copy of.
    pub copied_from: Option<Generation>,
    pub partial: bool,
    pub last_access: Steady,
    /// Idempotency key and the recorded result.
    pub idempotency: Option<(Fingerprint, KeyRecord)>,
    /// `None` if unchanged.
    pub cuts: Option<Arc<[SavedCut]>>,
}

impl Change {
    /// Whether the change creates pending deliveries.
    pub fn owes(&self) -> bool {
        matches!(&self.kind, ChangeKind::End { owed, .. } if !owed.is_empty())
    }

    pub fn has_idempotency_key(&self) -> bool {
        match &self.kind {
            ChangeKind::Append(appended) => appended.idempotency.is_some(),
            ChangeKind::Rewind(rewound) => rewound.idempotency.is_some(),
            ChangeKind::UpdateTurn(updated) => updated.idempotency.is_some(),
            ChangeKind::PatchState(patched) => patched.idempotency.is_some(),
            ChangeKind::End { idempotency, .. } => idempotency.is_some(),
            _ => false,
        }
    }

    fn weight_bytes(&self) -> usize {
        const ROW: usize = 256;
        let content = match &self.kind {
            ChangeKind::Append(appended) => {
                let turns = appended.turns.iter();
                turns.map(|(_, content)| content.len()).sum()
            }
            ChangeKind::UpdateTurn(updated) => updated.content.len(),
            ChangeKind::PatchState(patched) => patched.state_json.len(),
            ChangeKind::SetOptions(options) => options.bytes(),
            ChangeKind::Compact {
                summary: SummaryChange::Made(summary),
                ..
            } => 2 * summary.text.len(),
            _ => 0,
        };
        ROW + content
    }
}
