//! Reads turns of all sessions in write order, for followers of the journal.

use std::collections::HashMap;

use rusqlite::{Connection, params};

use memoird_core::ids::Generation;

use super::pending::indexed_row;
use super::prewrite::CONTENT;
use super::rewound::is_rewound;
use super::row::{count, whole};
use crate::checksum::TurnCounters;
use crate::rows::{GenerationRow, written_turn};
use crate::{GenerationOwner, StoreError, WrittenTurn, WrittenTurns};

pub(super) fn after(
    connection: &Connection,
    number: u64,
    turns_max: usize,
    bytes_max: usize,
    counters: &TurnCounters,
) -> Result<WrittenTurns, StoreError> {
    let view = connection.unchecked_transaction()?;
    // Numbers are not reused after pruning: `placed` remembers the highest.
    let sql = "SELECT max(placed, (SELECT ifnull(max(id), 0) FROM turns)) FROM progress";
    let last_number = view
        .prepare_cached(sql)?
        .query_row([], |row| count(row, 0))?;
    let sql = format!("{} AND id > ? ORDER BY id", written_turns());
    let mut statement = view.prepare_cached(&sql)?;
    let mut rows = statement.query([whole(number)])?;
    let (mut turns, mut bytes) = (Vec::new(), 0);
    while turns.len() < turns_max.max(1)
        && bytes < bytes_max.max(1)
        && let Some(row) = rows.next()?
    {
        let turn = written_turn(row, counters)?;
        bytes += turn.content.len();
        turns.push(turn);
    }
    Ok(WrittenTurns { turns, last_number })
}

pub(super) fn at(
    connection: &Connection,
    numbers: &[u64],
    counters: &TurnCounters,
) -> Result<Vec<WrittenTurn>, StoreError> {
    let sql = format!("{} AND id = ?", written_turns());
    let mut statement = connection.prepare_cached(&sql)?;
    let mut turns = Vec::with_capacity(numbers.len());
    for number in numbers {
        let mut rows = statement.query(params![whole(*number)])?;
        if let Some(row) = rows.next()? {
            turns.push(written_turn(row, counters)?);
        }
    }
    Ok(turns)
}

/// Returns the owners of generations. `newer` are those found in the pending table.
pub(super) fn owners(
    connection: &Connection,
    generations: &[Generation],
    mut newer: HashMap<Generation, GenerationRow>,
) -> Result<Vec<GenerationOwner>, StoreError> {
    let mut owners = Vec::with_capacity(generations.len());
    for generation in generations {
        let row = match newer.remove(generation) {
            Some(row) => Some(row),
            None => indexed_row(connection, *generation)?,
        };
        owners.extend(row.map(GenerationRow::into_owner));
    }
    Ok(owners)
}

/// SQL for turns by id, without rewound ones.
fn written_turns() -> String {
    let is_rewound = is_rewound("turns.generation", "turns.seq");
    format!(
        "SELECT seq, {CONTENT}, header, checksum, id, generation
         FROM turns WHERE NOT {is_rewound}"
    )
}
