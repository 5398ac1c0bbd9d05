//! Loads ended generations in bulk for pending deliveries.
//!
//! Their unflushed rows come from the writer.
//!
//! The newest ended generation of a session is the one that ended last on the monotonic timeline.
//! Generation ids follow the wall clock, which may have been set back.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use memoird_core::ids::Generation;
use memoird_core::state::State;

use super::compaction;
use super::pending::indexed_row;
use super::prewrite::CONTENT;
use super::read::indexed_turns;
use super::rewound::{self, is_rewound};
use crate::checksum::TurnCounters;
use crate::rows::{GenerationRow, StoredRow, TurnReader};
use crate::{EndedRecord, StoreError};

type Turns = Vec<(u64, Arc<[u8]>)>;

/// A requested generation with its rows in the pending table a moment ago.
///
/// If it was flushed since, its turns are found in both places and are equal.
pub(super) struct RequestedGeneration {
    pub(super) generation: Generation,
    /// Newest state, if in the pending table.
    pub(super) row: Option<GenerationRow>,
    /// Ids of its turns in the pending table, ascending. They are its newest ones.
    pub(super) turns: Vec<i64>,
}

pub(super) fn ended(
    connection: &Connection,
    wanted: Vec<RequestedGeneration>,
    bytes_max: usize,
    counters: &TurnCounters,
) -> Result<Vec<EndedRecord>, StoreError> {
    let view = connection.unchecked_transaction()?;
    let (mut records, mut bytes) = (Vec::new(), 0);
    for RequestedGeneration {
        generation,
        row,
        turns,
    } in wanted
    {
        if bytes >= bytes_max && !records.is_empty() {
            break;
        }
        let row = match row {
            Some(row) => Some(row),
            None => indexed_row(&view, generation)?,
        };
        let Some(GenerationRow {
            key,
            head,
            ended: Some((at, reason)),
            ..
        }) = row
        else {
            continue;
        };
        let reader = TurnReader::new(generation, counters);
        let turns = newest_turns(&view, reader, &turns, bytes_max)?;
        bytes += turns
            .iter()
            .map(|(_, content)| content.len())
            .sum::<usize>();
        let state = view
            .prepare_cached("SELECT json FROM states WHERE generation = ?")?
            .query_row([generation.to_bytes()], |row| row.get::<_, String>(0))
            .optional()?
            .map(|json| State {
                json: json.into(),
                version: head.state_version,
            });
        let summary = compaction::newest(&view, generation)?;
        let rewound_turns = rewound::turns(&view, generation)?;
        records.push(EndedRecord {
            key,
            head,
            at,
            reason,
            turns,
            rewound_turns,
            state,
            summary,
        });
    }
    Ok(records)
}

/// Returns the newest turns that fit into `bytes_max`, ascending, and at least one.
///
/// `unindexed` are the ids of the newest turns, which may not be flushed yet.
fn newest_turns(
    connection: &Connection,
    reader: TurnReader<'_>,
    unindexed: &[i64],
    bytes_max: usize,
) -> Result<Turns, StoreError> {
    let (mut newest_first, mut bytes) = (Turns::new(), 0);
    let mut take = |seq: u64, content: Arc<[u8]>| {
        bytes += content.len();
        let has_room = bytes <= bytes_max || newest_first.is_empty();
        if has_room {
            newest_first.push((seq, content));
        }
        has_room
    };
    let mut oldest = u64::MAX;
    let mut has_room = true;
    let sql = format!(
        "SELECT seq, {CONTENT}, header, checksum, {} FROM turns WHERE id = ?",
        is_rewound("turns.generation", "turns.seq")
    );
    let mut by_id = connection.prepare_cached(&sql)?;
    for id in unindexed.iter().rev() {
        let mut rows = by_id.query([id])?;
        let row = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        oldest = row.count(0)?;
        if row.get(4)? {
            continue;
        }
        let (seq, content) = reader.read(row)?;
        has_room = take(seq, content);
        if !has_room {
            break;
        }
    }
    let sql = format!("{} ORDER BY 1 DESC", indexed_turns());
    let mut placed = connection.prepare_cached(&sql)?;
    let mut rows = placed.query(params![reader.generation.to_bytes(), 0])?;
    while has_room && let Some(row) = rows.next()? {
        if row.count(0)? < oldest && !row.get::<_, bool>(4)? {
            let (seq, content) = reader.read(row)?;
            has_room = take(seq, content);
        }
    }
    newest_first.reverse();
    Ok(newest_first)
}
