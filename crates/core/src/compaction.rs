//! Compaction: when the oldest exchanges of a session become a summary, which of them, and
//! whether a summary may be believed.
//!
//! A summary stands for all turns up to `through_seq` that windows do not show apart. The
//! turns themselves stay where they are: in the history as long as first in, first out keeps
//! them, in the journal until its retention. So whatever a summarizer does, nothing is lost.
//!
//! Summaries are cumulative: the last one is part of the input of the next one, and there is
//! always one at most.

pub mod check;
pub mod identifiers;
pub mod notes;
pub mod probe;
pub mod prompt;
mod span;
mod status;
mod summary;
pub mod transcript;

pub use span::Span;
pub(crate) use span::{Keep, choose, is_apart, is_waiting};
pub use status::{BreakerView, CompactionStatus, Failure};
pub use summary::{Body, Summary, acknowledgement};

/// What an operator decides of compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionPolicy {
    /// False: nothing is compacted unless a call asks for it.
    pub enabled: bool,
    /// A compaction is asked for when a window uses so much of its budget, in percent: 1 to 99.
    pub soft_watermark_percent: u8,
    /// Above so much a window makes a cut for itself, in percent: more than the soft one.
    pub hard_watermark_percent: u8,
    /// A compaction leaves at most so much in use, in percent: less than the soft watermark.
    pub floor_percent: u8,
    /// Exchanges that stay as they were said, unless they alone exceed the floor. At least 1.
    pub keep_exchanges: u32,
    /// Turns from one compaction to the next, at least.
    pub turns_between_min: u64,
    /// How long one waits for a pending call or a streaming reply, in milliseconds.
    pub defer_ms_max: u64,
    /// Tokens of a summary, at most; less where the floor leaves less.
    pub summary_tokens_max: u64,
    /// Identifiers of the span's last turns that a summary may lose, in percent.
    pub lost_identifiers_percent_max: u8,
    /// How many failures in a row open a session's breaker, how many turns and how many
    /// milliseconds it stays open.
    pub failures_max: u32,
    /// See `failures_max`.
    pub open_turns: u64,
    /// See `failures_max`.
    pub open_ms: u64,
}

impl Default for CompactionPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            soft_watermark_percent: 70,
            hard_watermark_percent: 95,
            floor_percent: 50,
            keep_exchanges: 5,
            turns_between_min: 5,
            defer_ms_max: 10 * 60 * 1_000,
            summary_tokens_max: 2_400,
            lost_identifiers_percent_max: 10,
            failures_max: 3,
            open_turns: 5,
            open_ms: 5 * 60 * 1_000,
        }
    }
}

/// Why a compaction is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// A window reached the soft watermark.
    Preemptive,
    /// A window reached the hard one, or leaves turns out that no summary holds.
    Reactive,
    /// First in, first out is about to drop turns that no summary holds.
    History,
    /// A call asked for it.
    Command,
}

impl Trigger {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Preemptive,
        Self::Reactive,
        Self::History,
        Self::Command,
    ];

    /// Its name in metrics, events and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Preemptive => "preemptive",
            Self::Reactive => "reactive",
            Self::History => "history",
            Self::Command => "command",
        }
    }
}
