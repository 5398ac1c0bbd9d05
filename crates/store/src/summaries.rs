//! Stored form of summaries and of compaction status.
//!
//! A row is a version byte followed by a protobuf message. A row that does not decode counts as
//! missing.

use std::sync::Arc;

use memoird_core::compaction::{
    CompactionStatus, CompletedCall, StandingInstruction, Summary, SummaryBody, UserTurn,
};
use memoird_core::time::{Steady, Timestamp};
use prost::Message;

/// Version of the encoding. A newer memoird may add fields without a new version; they are skipped.
const VERSION: u8 = 1;

#[derive(Clone, PartialEq, Message)]
struct SummaryRow {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(uint64, tag = "2")]
    first_seq: u64,
    #[prost(uint64, tag = "3")]
    through_seq: u64,
    #[prost(uint64, tag = "4")]
    turns: u64,
    #[prost(int64, tag = "5")]
    made_at_seconds: i64,
    #[prost(uint32, tag = "6")]
    made_at_nanos: u32,
    #[prost(string, tag = "7")]
    by: String,
    #[prost(message, optional, tag = "8")]
    body: Option<BodyRow>,
    #[prost(string, tag = "10")]
    text: String,
}

/// Tags 1 to 9 are reserved: they belong to summaries without sections.
#[derive(Clone, PartialEq, Message)]
struct BodyRow {
    #[prost(message, repeated, tag = "10")]
    standing: Vec<StandingRow>,
    #[prost(message, repeated, tag = "11")]
    user_turns: Vec<UserTurnRow>,
    #[prost(message, repeated, tag = "12")]
    done: Vec<DoneRow>,
    #[prost(string, repeated, tag = "13")]
    open_questions: Vec<String>,
    #[prost(string, tag = "14")]
    written: String,
    #[prost(string, tag = "15")]
    recent: String,
    #[prost(int64, tag = "16")]
    until: i64,
    #[prost(string, repeated, tag = "17")]
    starts: Vec<String>,
    #[prost(bool, tag = "18")]
    is_answered: bool,
    #[prost(uint32, tag = "19")]
    following: u32,
}

#[derive(Clone, PartialEq, Message)]
struct StandingRow {
    #[prost(uint64, tag = "1")]
    seq: u64,
    #[prost(int64, tag = "2")]
    said_at: i64,
    #[prost(string, tag = "3")]
    text: String,
    #[prost(float, tag = "4")]
    score: f32,
    #[prost(uint32, tag = "5")]
    count: u32,
}

#[derive(Clone, PartialEq, Message)]
struct UserTurnRow {
    #[prost(uint64, tag = "1")]
    seq: u64,
    #[prost(int64, tag = "2")]
    said_at: i64,
    #[prost(string, tag = "3")]
    text: String,
    #[prost(bool, tag = "4")]
    opens: bool,
}

#[derive(Clone, PartialEq, Message)]
struct DoneRow {
    #[prost(uint64, tag = "1")]
    seq: u64,
    #[prost(string, tag = "2")]
    text: String,
}

#[derive(Clone, PartialEq, Message)]
struct StatusRow {
    #[prost(uint32, tag = "1")]
    summaries: u32,
    #[prost(uint64, tag = "2")]
    through_seq: u64,
    #[prost(uint64, tag = "3")]
    at_seq: u64,
    #[prost(uint32, tag = "4")]
    failures: u32,
    #[prost(message, optional, tag = "5")]
    opened: Option<OpenedRow>,
    #[prost(string, tag = "6")]
    last_error: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct OpenedRow {
    #[prost(uint64, tag = "1")]
    since: u64,
    #[prost(uint64, tag = "2")]
    seq: u64,
}

pub fn encode(summary: &Summary) -> Vec<u8> {
    versioned(&SummaryRow {
        number: summary.number,
        first_seq: summary.first_seq,
        through_seq: summary.through_seq,
        turns: summary.turns,
        made_at_seconds: summary.made_at.seconds(),
        made_at_nanos: summary.made_at.nanos(),
        by: summary.by.to_string(),
        body: Some(body_row(&summary.body)),
        text: summary.text.to_string(),
    })
}

/// Decodes a summary. `None` if the row is damaged or of an unknown version.
pub fn decode(row: &[u8]) -> Option<Summary> {
    let row: SummaryRow = opened(row)?;
    Some(Summary {
        number: row.number,
        first_seq: row.first_seq,
        through_seq: row.through_seq,
        turns: row.turns,
        made_at: Timestamp::new(row.made_at_seconds, row.made_at_nanos)?,
        by: row.by.into(),
        body: body(row.body.unwrap_or_default(), &row.text),
        text: row.text.into(),
    })
}

/// Encodes a status, except whether a compaction is running.
pub fn encode_status(status: &CompactionStatus) -> Vec<u8> {
    versioned(&StatusRow {
        summaries: status.summaries,
        through_seq: status.through_seq,
        at_seq: status.at_seq,
        failures: status.failures,
        opened: status.opened.map(|(since, seq)| OpenedRow {
            since: since.0,
            seq,
        }),
        last_error: status.last_error.to_string(),
    })
}

/// Decodes a status. `None` if the row is damaged or of an unknown version.
pub fn decode_status(row: &[u8]) -> Option<CompactionStatus> {
    let row: StatusRow = opened(row)?;
    Some(CompactionStatus {
        summaries: row.summaries,
        through_seq: row.through_seq,
        at_seq: row.at_seq,
        failures: row.failures,
        opened: row
            .opened
            .map(|OpenedRow { since, seq }| (Steady(since), seq)),
        last_error: row.last_error.into(),
        running: false,
    })
}

/// Returns the status after a reload, when no compaction is running.
pub fn kept_status(status: &Arc<CompactionStatus>) -> Arc<CompactionStatus> {
    if status.running {
        Arc::new(CompactionStatus {
            running: false,
            ..CompactionStatus::clone(status)
        })
    } else {
        Arc::clone(status)
    }
}

/// Returns the status with `through_seq` set to that of the current summary, or 0 if there is none.
pub fn status_through(
    status: &CompactionStatus,
    standing: Option<&Summary>,
) -> Arc<CompactionStatus> {
    Arc::new(CompactionStatus {
        through_seq: standing.map_or(0, |summary| summary.through_seq),
        ..status.clone()
    })
}

/// Encodes a row with its version byte.
pub(crate) fn versioned(row: &impl Message) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + row.encoded_len());
    bytes.push(VERSION);
    bytes.extend(row.encode_to_vec());
    bytes
}

/// Decodes a row of this version.
pub(crate) fn opened<T: Message + Default>(row: &[u8]) -> Option<T> {
    let (version, message) = row.split_first()?;
    (*version == VERSION).then(|| T::decode(message).ok())?
}

fn body_row(body: &SummaryBody) -> BodyRow {
    let standing = body.standing.iter().cloned().map(|one| StandingRow {
        seq: one.seq,
        said_at: one.said_at,
        text: one.text,
        score: one.score,
        count: one.count,
    });
    let user_turns = body.user_turns.iter().cloned().map(|turn| UserTurnRow {
        seq: turn.seq,
        said_at: turn.said_at,
        text: turn.text,
        opens: turn.opens,
    });
    let done = body.done.iter().cloned().map(|done| DoneRow {
        seq: done.seq,
        text: done.text,
    });
    BodyRow {
        standing: standing.collect(),
        user_turns: user_turns.collect(),
        done: done.collect(),
        open_questions: body.open_questions.clone(),
        written: body.written.clone(),
        recent: body.recent.clone(),
        until: body.until,
        starts: body.starts.clone(),
        is_answered: body.is_answered,
        following: body.following,
    }
}

/// Decodes the sections of a stored summary.
///
/// A summary from before sections existed has only a text. It becomes the recent details, so that
/// the next summary continues it.
fn body(row: BodyRow, text: &str) -> SummaryBody {
    let standing = row.standing.into_iter().map(|one| StandingInstruction {
        seq: one.seq,
        said_at: one.said_at,
        text: one.text,
        score: one.score,
        count: one.count,
    });
    let user_turns = row.user_turns.into_iter().map(|turn| UserTurn {
        seq: turn.seq,
        said_at: turn.said_at,
        text: turn.text,
        opens: turn.opens,
    });
    let done = row.done.into_iter().map(|done| CompletedCall {
        seq: done.seq,
        text: done.text,
    });
    let mut body = SummaryBody {
        standing: standing.collect(),
        user_turns: user_turns.collect(),
        done: done.collect(),
        open_questions: row.open_questions,
        written: row.written,
        recent: row.recent,
        until: row.until,
        starts: row.starts,
        is_answered: row.is_answered,
        following: row.following,
    };
    if body.is_empty() {
        let sections = text.split_once('\n').map_or("", |(_, sections)| sections);
        body.recent = sections.trim_start().to_owned();
    }
    body
}
