//! Compaction: when and which oldest exchanges of a session become a summary, and its validation.
//!
//! A summary replaces all turns up to `through_seq`, except pinned turns and system turns. It does
//! not remove them: they stay in the history until it drops them first in, first out (FIFO), and in
//! the journal until its retention. So no summarizer can lose data.
//!
//! Summaries are cumulative: each is part of the input of the next, and at most one is current.
//!
//! A window shows a new summary from its next cut on, so that the prefix changes only once. After
//! `CompactSession` it shows the summary at once.
//!
//! A session for which no window was ever requested is not compacted automatically: its summary
//! would never be read, and a model's summary costs money.

mod calls;
mod changes;
pub mod check;
mod details;
mod merge;
mod openings;
mod policy;
pub mod prompt;
mod span;
mod standing;
mod status;
mod summary;
pub mod transcript;

use serde::{Deserialize, Serialize};

pub use calls::is_change;
pub use changes::{CompletedCall, changes};
pub use merge::{ModelSections, SummaryCandidates, SummaryRoom, merge};
pub(crate) use openings::Openings;
pub use policy::{CompactionPolicy, SessionBreaker, SummaryBudget, SummaryTokens};
pub use span::TurnSpan;
pub(crate) use span::{TailLimits, before, choose, is_apart, is_summarized, is_waiting};
pub use standing::StandingInstruction;
pub use status::{CompactionStatus, Failure};
pub use summary::{CoveredTurns, Summary, SummaryBody, UserTurn, acknowledgement};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub enum Trigger {
    /// A window reached the soft watermark.
    Preemptive,
    /// A window reached the hard watermark, or leaves out turns that no summary covers.
    Reactive,
    /// FIFO is about to drop turns that no summary covers.
    History,
    /// A call requested it.
    Command,
}

impl Trigger {
    pub const ALL: [Self; 4] = [
        Self::Preemptive,
        Self::Reactive,
        Self::History,
        Self::Command,
    ];

    /// Name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Preemptive => "preemptive",
            Self::Reactive => "reactive",
            Self::History => "history",
            Self::Command => "command",
        }
    }
}
