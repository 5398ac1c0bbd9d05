//! What a command changes, as data: the rules decide it, a store writes it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::compaction::{CompactionStatus, Summary};
use crate::idempotency::{Fingerprint, KeyRecord};
use crate::ids::{Generation, HookName, SessionKey, Subject};
use crate::options::SessionOptions;
use crate::seq_ranges::SeqRanges;
use crate::time::{Now, Steady, Timestamp};
use crate::window::SavedCut;

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EndReason {
    /// Nothing touched it for its TTL.
    Expired,
    /// A cap was reached and it was the oldest-idle session.
    Evicted,
    /// Its bot ended it.
    Ended,
    /// Its bot reset it.
    Reset,
    /// The daemon stopped and keeps no journal.
    Shutdown,
}

impl EndReason {
    /// Every reason.
    pub const ALL: [Self; 5] = [
        Self::Expired,
        Self::Evicted,
        Self::Ended,
        Self::Reset,
        Self::Shutdown,
    ];

    /// Its name in configurations, events and metrics.
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

/// All that one command changes; written whole or not at all.
#[derive(Clone, Debug, Default)]
pub struct ChangeSet {
    /// The changes, in the order in which they must be made.
    pub changes: Vec<Change>,
}

impl ChangeSet {
    /// Roughly the bytes it holds, for bounding queues.
    pub fn weight_bytes(&self) -> usize {
        self.changes.iter().map(Change::weight_bytes).sum()
    }
}

/// One change of one generation.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which generation.
    pub generation: Generation,
    /// How many changes the generation has seen: a store refuses a change that was built on
    /// anything else. 0 for a start.
    pub expected_revision: u64,
    /// What changes.
    pub kind: ChangeKind,
}

/// What changes.
#[derive(Clone, Debug)]
pub enum ChangeKind {
    /// A generation starts; refused while another one of the session is live.
    Begin {
        /// Whose it is.
        key: SessionKey,
        /// When it started, on the wall clock.
        created_at: Timestamp,
        /// The same moment, for measuring idle times.
        last_access: Steady,
    },
    /// Turns are added.
    Append(Box<Appended>),
    /// Its newest turns are taken back.
    Rewind(Box<Rewound>),
    /// A turn says something else from now on.
    UpdateTurn(Box<UpdatedTurn>),
    /// The session's JSON changes.
    PatchState(Box<Patched>),
    /// What its bot decided about it changes; the last access stays.
    SetOptions(Arc<SessionOptions>),
    /// The session was used, and nothing else changed.
    Touch {
        /// When.
        last_access: Steady,
        /// The cuts of its windows, where they changed.
        cuts: Option<Arc<[SavedCut]>>,
    },
    /// Its compaction succeeded, failed or was undone; the turns and the last access stay.
    Compact {
        /// The status of its compaction from now on.
        status: Arc<CompactionStatus>,
        /// What becomes of its summary.
        summary: SummaryChange,
        /// The cuts of its windows, where they changed.
        cuts: Option<Arc<[SavedCut]>>,
    },
    /// The generation ends.
    End {
        /// Why.
        reason: EndReason,
        /// When.
        at: Now,
        /// The hooks that are owed a delivery, each once.
        owed: Arc<[HookName]>,
    },
}

/// What becomes of a session's summary.
#[derive(Clone, Debug)]
pub enum SummaryChange {
    /// It stays: a compaction failed.
    Stays,
    /// This one replaces it; the store keeps the last one for an undo.
    Made(Arc<Summary>),
    /// The one of this number is forgotten, and the one before it stands again.
    Undone(u32),
    /// Those that stand for a turn after this one are forgotten, and the newest of the others stands
    /// again. The store corrects the `through_seq` of the status, because only it knows them all.
    Rewound {
        /// The newest turn that stays.
        after_seq: u64,
    },
}

/// Turns that are taken back. They stay in the journal, marked, and their seqs are not given
/// again.
#[derive(Clone, Debug)]
pub struct Rewound {
    /// Whose they are; idempotency keys outlive a generation.
    pub key: SessionKey,
    /// The newest turn that stays.
    pub after_seq: u64,
    /// The last seq that was given; the same where nothing is taken back.
    pub through_seq: u64,
    /// The newest turn then: before `after_seq` where that one was taken back earlier.
    pub newest_seq: u64,
    /// The name of this rewind, and which turns it takes, for its repetition.
    pub taken: Option<(Fingerprint, SeqRanges)>,
    /// The turns that the history keeps.
    pub kept: LiveSet,
    /// Number and size of those turns.
    pub totals: Totals,
    /// True while a reply is still streaming.
    pub partial: bool,
    /// When.
    pub last_access: Steady,
    /// The name of this rewind, and what to answer when it comes again, where it adds no turns.
    pub idempotency: Option<(Fingerprint, KeyRecord)>,
    /// The cuts of its windows, where they changed.
    pub cuts: Option<Arc<[SavedCut]>>,
}

/// The JSON of a session after a patch.
#[derive(Clone, Debug)]
pub struct Patched {
    /// Whose it is; idempotency keys outlive a generation.
    pub key: SessionKey,
    /// The whole new JSON.
    pub state_json: Arc<str>,
    /// Its version.
    pub version: u64,
    /// When.
    pub last_access: Steady,
    /// The name of this patch, and what to answer when it comes again.
    pub idempotency: Option<(Fingerprint, KeyRecord)>,
}

/// A turn that says something else: what it said before is to leave the store.
#[derive(Clone, Debug)]
pub struct UpdatedTurn {
    /// Which turn.
    pub seq: u64,
    /// Its new content, with its seq.
    pub content: Arc<[u8]>,
    /// Bytes of the content before.
    pub bytes_before: usize,
    /// The turns that the history keeps.
    pub kept: LiveSet,
    /// Number and size of those turns.
    pub totals: Totals,
    /// The cuts of its windows, where they changed.
    pub cuts: Option<Arc<[SavedCut]>>,
}

/// Turns that are added to a generation.
#[derive(Clone, Debug)]
pub struct Appended {
    /// Whose it is; idempotency keys outlive a generation.
    pub key: SessionKey,
    /// The turns with their seqs, which follow each other.
    pub turns: Vec<(u64, Arc<[u8]>)>,
    /// The client's own ids of those that have one, as many as an event tells.
    pub client_ids: Vec<Box<str>>,
    /// The turns that the history keeps after them.
    pub kept: LiveSet,
    /// Number and size of those turns.
    pub totals: Totals,
    /// The subject, where the bot names one.
    pub subject: Option<Subject>,
    /// True while a reply is still streaming.
    pub partial: bool,
    /// When.
    pub last_access: Steady,
    /// The name of this append, and what to answer when it comes again.
    pub idempotency: Option<(Fingerprint, KeyRecord)>,
    /// The cuts of its windows, where they changed.
    pub cuts: Option<Arc<[SavedCut]>>,
}

/// Which turns of a generation its history keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveSet {
    /// The first user turn, held apart.
    pub anchor: Option<u64>,
    /// From here on all turns are kept, but for the `holes`.
    pub floor: u64,
    /// Pinned turns before the floor, ascending.
    pub pinned: Vec<u64>,
    /// System turns from before the anchor that have left, ascending.
    pub preamble: Vec<u64>,
    /// Turns after the floor that left with their unit, ascending.
    pub holes: Vec<u64>,
    /// Calls that left without a result, oldest first.
    pub departed: Vec<Box<str>>,
    /// True when `departed` had to forget some.
    pub departed_overflow: bool,
}

/// Number and size of the turns of a history, the anchor included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Turns.
    pub turns: u64,
    /// Their encoded bytes.
    pub bytes: u64,
    /// Their tokens, estimated.
    pub tokens: u64,
}

impl Totals {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            turns: self.turns + other.turns,
            bytes: self.bytes + other.bytes,
            tokens: self.tokens + other.tokens,
        }
    }

    /// These totals less `other`, which must be part of them.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            turns: self.turns - other.turns,
            bytes: self.bytes - other.bytes,
            tokens: self.tokens - other.tokens,
        }
    }
}

impl Change {
    /// True when hooks are owed something once it is written.
    pub fn owes(&self) -> bool {
        matches!(&self.kind, ChangeKind::End { owed, .. } if !owed.is_empty())
    }

    /// True when an idempotency key is kept with it.
    pub fn has_idempotency_key(&self) -> bool {
        match &self.kind {
            ChangeKind::Append(appended) => appended.idempotency.is_some(),
            ChangeKind::Rewind(rewound) => rewound.idempotency.is_some(),
            ChangeKind::PatchState(patched) => patched.idempotency.is_some(),
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
