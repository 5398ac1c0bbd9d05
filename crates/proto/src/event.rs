//! Short names of events.

use crate::v1::event::Kind;
use crate::v1::{EndReason, Event};

impl Event {
    /// What happened, in one word: the name of its `kind`, or `expired` or `evicted` for a
    /// generation that ended so. `unknown` for a kind from a later version.
    #[must_use]
    pub fn word(&self) -> &'static str {
        let Some(kind) = &self.kind else {
            return "unknown";
        };
        match kind {
            Kind::Created(_) => "created",
            Kind::Appended(_) => "appended",
            Kind::Rewound(_) => "rewound",
            Kind::TurnUpdated(_) => "turn_updated",
            Kind::Ended(ended) => match ended.reason() {
                EndReason::Expired => "expired",
                EndReason::Evicted => "evicted",
                _ => "ended",
            },
            Kind::Erased(_) => "erased",
            Kind::Compacted(_) => "compacted",
            Kind::CompactionFailed(_) => "compaction_failed",
            Kind::CompactionUndone(_) => "compaction_undone",
            Kind::HookDelivered(_) => "hook_delivered",
            Kind::HookFailed(_) => "hook_failed",
            Kind::Learned(_) => "learned",
            Kind::ExtractionFailed(_) => "extraction_failed",
        }
    }
}
