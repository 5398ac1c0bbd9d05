//! Stored form of the decisions about a session's windows.
//!
//! Reduced turns themselves are not stored. They are rebuilt from the decisions.

use std::collections::{BTreeMap, BTreeSet};

use memoird_core::compaction::Summary;
use memoird_core::window::{
    CachedPlan, Cut, CutKey, Policy, ReducedTurn, SavedCut, SavedWindow, ScaleId, SentWindow,
    Shortening, WindowTokens,
};
use prost::{Enumeration, Message};

#[derive(Clone, PartialEq, Message)]
struct Row {
    #[prost(message, repeated, tag = "1")]
    cuts: Vec<CutRow>,
}

/// Tag 8 is reserved: it was the length of an excerpt.
#[derive(Clone, PartialEq, Message)]
struct CutRow {
    #[prost(string, tag = "1")]
    model: String,
    #[prost(enumeration = "PolicyRow", tag = "2")]
    policy: i32,
    #[prost(uint32, tag = "3")]
    turns: u32,
    #[prost(uint64, tag = "4")]
    seq: u64,
    #[prost(uint64, repeated, tag = "5")]
    kept: Vec<u64>,
    /// First and last seq of each run, flattened.
    #[prost(uint64, repeated, tag = "6")]
    holes: Vec<u64>,
    #[prost(message, repeated, tag = "7")]
    reduced: Vec<ReducedRow>,
    #[prost(uint64, tag = "9")]
    budget: u64,
    #[prost(uint64, tag = "10")]
    made_at: u64,
    #[prost(uint32, tag = "11")]
    summary: u32,
    #[prost(uint64, tag = "12")]
    through_seq: u64,
    #[prost(message, optional, tag = "13")]
    last: Option<WindowRow>,
}

/// The last window of a cut, in a journal that several daemons share.
#[derive(Clone, Copy, PartialEq, Message)]
struct WindowRow {
    #[prost(message, optional, tag = "1")]
    sent: Option<SentRow>,
    #[prost(uint32, tag = "2")]
    newest: u32,
    #[prost(uint32, tag = "3")]
    due: u32,
    #[prost(message, optional, tag = "4")]
    tokens: Option<TokensRow>,
    #[prost(uint64, optional, tag = "5")]
    tail_seq: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct SentRow {
    #[prost(uint64, tag = "1")]
    last_seq: u64,
    #[prost(fixed64, tag = "2")]
    fixed_digest: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct TokensRow {
    #[prost(fixed64, tag = "1")]
    scale: u64,
    #[prost(uint64, tag = "2")]
    budget: u64,
    #[prost(uint64, tag = "3")]
    fixed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
enum PolicyRow {
    Unknown = 0,
    SlidingWindow = 1,
    HeadTail = 2,
    TokenBudget = 3,
    Salience = 4,
}

#[derive(Clone, PartialEq, Message)]
struct ReducedRow {
    #[prost(uint64, tag = "1")]
    seq: u64,
    /// Index of the result within the turn.
    #[prost(uint64, tag = "2")]
    place: u64,
    /// Id of the later call that supersedes the result. `None` if the result is trimmed.
    #[prost(string, optional, tag = "3")]
    superseded_by: Option<String>,
    /// Bytes kept of a trimmed result.
    #[prost(uint32, tag = "4")]
    bytes: u32,
    /// Set only in rows written before trims had a single size. Added to `bytes`.
    #[prost(uint32, tag = "5")]
    tail_bytes: u32,
}

/// Encodes cuts, without the rendered turns.
pub fn encode(cuts: &[SavedCut]) -> Vec<u8> {
    Row {
        cuts: cuts.iter().map(cut_row).collect(),
    }
    .encode_to_vec()
}

/// Decodes cuts. `None` if the row is damaged.
pub fn decode(row: &[u8]) -> Option<Vec<SavedCut>> {
    let row = Row::decode(row).ok()?;
    // A cut with an unknown policy, written by a newer memoird, is dropped and decided again.
    Some(row.cuts.into_iter().filter_map(saved_cut).collect())
}

/// Returns the distinct numbers of the summaries that these cuts show, except the newest summary.
pub fn earlier_summaries(cuts: &[SavedCut], newest: Option<&Summary>) -> impl Iterator<Item = u32> {
    let newest = newest.map_or(0, |summary| summary.number);
    let shown = cuts.iter().map(|saved| saved.cut.summary);
    let earlier: BTreeSet<u32> = shown
        .filter(|&number| 0 < number && number < newest)
        .collect();
    earlier.into_iter()
}

fn cut_row(SavedCut { key, cut, last }: &SavedCut) -> CutRow {
    let (policy, turns) = match key.policy {
        Policy::SlidingWindow { turns } => (PolicyRow::SlidingWindow, turns),
        Policy::HeadTail { turns } => (PolicyRow::HeadTail, turns),
        Policy::TokenBudget => (PolicyRow::TokenBudget, 0),
        Policy::Salience => (PolicyRow::Salience, 0),
    };
    let reduced = cut.reduced.iter().flat_map(|(&seq, reduced)| {
        reduced
            .results
            .iter()
            .map(move |(place, how)| reduced_row(seq, *place, how))
    });
    CutRow {
        model: key.model.to_string(),
        policy: policy.into(),
        turns,
        seq: cut.seq,
        kept: cut.kept.clone(),
        holes: cut
            .holes
            .iter()
            .flat_map(|&(first, last)| [first, last])
            .collect(),
        reduced: reduced.collect(),
        budget: cut.budget,
        made_at: cut.made_at,
        summary: cut.summary,
        through_seq: cut.through_seq,
        last: last.map(window_row),
    }
}

fn window_row(last: SavedWindow) -> WindowRow {
    WindowRow {
        sent: last.sent.map(|sent| SentRow {
            last_seq: sent.last_seq,
            fixed_digest: sent.fixed_digest,
        }),
        newest: last.newest,
        due: last.due,
        tokens: last.tokens.map(|tokens| TokensRow {
            scale: tokens.scale.0,
            budget: tokens.budget,
            fixed: tokens.fixed,
        }),
        tail_seq: last.tail_seq,
    }
}

fn saved_window(row: WindowRow) -> SavedWindow {
    SavedWindow {
        sent: row.sent.map(|sent| SentWindow {
            last_seq: sent.last_seq,
            fixed_digest: sent.fixed_digest,
        }),
        newest: row.newest,
        due: row.due,
        tokens: row.tokens.map(|tokens| WindowTokens {
            scale: ScaleId(tokens.scale),
            budget: tokens.budget,
            fixed: tokens.fixed,
        }),
        tail_seq: row.tail_seq,
    }
}

fn reduced_row(seq: u64, place: usize, how: &Shortening) -> ReducedRow {
    let (superseded_by, bytes) = match how {
        Shortening::Superseded { by } => (Some(by.to_string()), 0),
        Shortening::Trimmed { bytes } => (None, *bytes),
    };
    ReducedRow {
        seq,
        place: place as u64,
        superseded_by,
        bytes,
        tail_bytes: 0,
    }
}

fn saved_cut(row: CutRow) -> Option<SavedCut> {
    let policy = match row.policy() {
        PolicyRow::Unknown => return None,
        PolicyRow::SlidingWindow => Policy::SlidingWindow { turns: row.turns },
        PolicyRow::HeadTail => Policy::HeadTail { turns: row.turns },
        PolicyRow::TokenBudget => Policy::TokenBudget,
        PolicyRow::Salience => Policy::Salience,
    };
    let mut reduced: BTreeMap<u64, ReducedTurn> = BTreeMap::new();
    for result in row.reduced {
        let how = match result.superseded_by {
            Some(by) => Shortening::Superseded { by: by.into() },
            None => Shortening::Trimmed {
                bytes: result.bytes.saturating_add(result.tail_bytes),
            },
        };
        let of_turn = reduced.entry(result.seq).or_insert_with(|| ReducedTurn {
            results: Vec::new(),
            shown: None,
        });
        of_turn
            .results
            .push((usize::try_from(result.place).ok()?, how));
    }
    let cut = Cut {
        seq: row.seq,
        kept: row.kept,
        holes: row
            .holes
            .chunks_exact(2)
            .map(|run| (run[0], run[1]))
            .collect(),
        reduced,
        budget: row.budget,
        made_at: row.made_at,
        summary: row.summary,
        through_seq: row.through_seq,
        found: CachedPlan::default(),
    };
    Some(SavedCut {
        key: CutKey {
            model: row.model.into(),
            policy,
        },
        cut,
        last: row.last.map(saved_window),
    })
}
