//! Summaries, and how compactions do, as they stand in rows: a byte that says which version
//! of the encoding it is, and a message behind it. What does not decode is as none.

use std::sync::Arc;

use memoird_core::compaction::notes::Notes;
use memoird_core::compaction::{Body, CompactionStatus, Summary};
use memoird_core::time::{Steady, Timestamp};
use prost::Message;

/// The encoding that this memoird writes. A newer memoird may add fields to it without a
/// number of its own: they are skipped here.
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
    #[prost(message, optional, tag = "9")]
    notes: Option<NotesRow>,
    #[prost(string, tag = "10")]
    text: String,
}

#[derive(Clone, PartialEq, Message)]
struct BodyRow {
    #[prost(string, tag = "1")]
    session_intent: String,
    #[prost(string, repeated, tag = "2")]
    files_touched: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    decisions: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pending_questions: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    next_steps: Vec<String>,
    #[prost(string, tag = "6")]
    narrative: String,
    #[prost(string, repeated, tag = "7")]
    identifiers: Vec<String>,
    #[prost(string, repeated, tag = "8")]
    actions: Vec<String>,
    #[prost(string, repeated, tag = "9")]
    facts: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct NotesRow {
    #[prost(uint64, tag = "1")]
    through_seq: u64,
    #[prost(string, repeated, tag = "2")]
    files: Vec<String>,
    #[prost(string, tag = "3")]
    last_error: String,
    #[prost(string, repeated, tag = "4")]
    decisions: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pending_questions: Vec<String>,
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

/// A summary as it stands in a row.
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
        notes: Some(notes_row(&summary.notes)),
        text: summary.text.to_string(),
    })
}

/// `None` when the row is damaged, or of an encoding that is not known.
pub fn decode(row: &[u8]) -> Option<Summary> {
    let row: SummaryRow = opened(row)?;
    Some(Summary {
        number: row.number,
        first_seq: row.first_seq,
        through_seq: row.through_seq,
        turns: row.turns,
        made_at: Timestamp::new(row.made_at_seconds, row.made_at_nanos)?,
        by: row.by.into(),
        body: body(row.body.unwrap_or_default()),
        notes: notes(row.notes.unwrap_or_default()),
        text: row.text.into(),
    })
}

/// A status as it stands in a row; whether a compaction runs is not in it.
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

/// `None` when the row is damaged, or of an encoding that is not known.
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

/// A status as it is read back: no compaction runs on after a restart.
pub fn kept_status(status: &Arc<CompactionStatus>) -> Arc<CompactionStatus> {
    match status.running {
        false => Arc::clone(status),
        true => Arc::new(CompactionStatus {
            running: false,
            ..CompactionStatus::clone(status)
        }),
    }
}

/// The same with the summary that stands now, where one does.
pub fn status_through(
    status: &CompactionStatus,
    standing: Option<&Summary>,
) -> Arc<CompactionStatus> {
    Arc::new(CompactionStatus {
        through_seq: standing.map_or(0, |summary| summary.through_seq),
        ..status.clone()
    })
}

/// A row with its version.
pub(crate) fn versioned(row: &impl Message) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + row.encoded_len());
    bytes.push(VERSION);
    bytes.extend(row.encode_to_vec());
    bytes
}

/// A row of this version.
pub(crate) fn opened<T: Message + Default>(row: &[u8]) -> Option<T> {
    let (version, message) = row.split_first()?;
    (*version == VERSION).then(|| T::decode(message).ok())?
}

fn body_row(body: &Body) -> BodyRow {
    BodyRow {
        session_intent: body.session_intent.clone(),
        files_touched: body.files_touched.clone(),
        decisions: body.decisions.clone(),
        pending_questions: body.pending_questions.clone(),
        next_steps: body.next_steps.clone(),
        narrative: body.narrative.clone(),
        identifiers: body.identifiers.clone(),
        actions: body.actions.clone(),
        facts: body.facts.clone(),
    }
}

fn body(row: BodyRow) -> Body {
    Body {
        session_intent: row.session_intent,
        files_touched: row.files_touched,
        decisions: row.decisions,
        pending_questions: row.pending_questions,
        next_steps: row.next_steps,
        narrative: row.narrative,
        identifiers: row.identifiers,
        actions: row.actions,
        facts: row.facts,
    }
}

fn notes_row(notes: &Notes) -> NotesRow {
    NotesRow {
        through_seq: notes.through_seq,
        files: notes.files.clone(),
        last_error: notes.last_error.clone(),
        decisions: notes.decisions.clone(),
        pending_questions: notes.pending_questions.clone(),
    }
}

fn notes(row: NotesRow) -> Notes {
    Notes {
        through_seq: row.through_seq,
        files: row.files,
        last_error: row.last_error,
        decisions: row.decisions,
        pending_questions: row.pending_questions,
    }
}
