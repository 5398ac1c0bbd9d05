//! Which turns a compaction summarizes: the oldest exchanges, up to a boundary at which no
//! unit is torn apart.

/// What a span is chosen for.
#[derive(Clone, Copy)]
pub struct SpanAsk<'a> {
    /// Exchanges to keep as they were said; 0: none.
    pub keep_exchanges: u32,
    /// True where fewer are kept when so many exceed what follows.
    pub may_keep_fewer: bool,
    /// Tokens that the kept turns may have.
    pub tail_tokens_max: u64,
    /// How many the kept turns may be.
    pub tail_turns_max: u64,
    /// Their encoded bytes.
    pub tail_bytes_max: u64,
    /// Where the last summary ends; 0 without one.
    pub after_seq: u64,
    /// The tokens of a turn.
    pub tokens: &'a dyn Fn(u64, u32) -> u64,
}

/// The turns that a compaction summarizes: all from `first_seq` to `through_seq` but those
/// that windows show apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub first_seq: u64,
    /// The last.
    pub through_seq: u64,
    /// Tokens of the turns behind it.
    pub tail_tokens: u64,
}
