//! Reading turns in the order in which they were taken in, whosever they are: for an index
//! that follows the journal.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, Row, params};

use memoird_core::ids::Generation;

use super::intake::folded_row;
use super::read::blob;
use super::row::{GenerationRow, count, whole};
use crate::{GenerationOwner, StoreError, WrittenTurn, WrittenTurns};

pub(super) fn after(
    connection: &Connection,
    number: u64,
    turns_max: usize,
    bytes_max: usize,
) -> Result<WrittenTurns, StoreError> {
    let view = connection.unchecked_transaction()?;
    // Turns are forgotten, and their numbers stay given: `placed` remembers the highest.
    let sql = "SELECT max(placed, (SELECT ifnull(max(id), 0) FROM turns)) FROM progress";
    let last_number = view
        .prepare_cached(sql)?
        .query_row([], |row| count(row, 0))?;
    let sql = "SELECT id, generation, seq, content FROM turns WHERE id > ? ORDER BY id";
    let mut statement = view.prepare_cached(sql)?;
    let mut rows = statement.query([whole(number)])?;
    let (mut turns, mut bytes) = (Vec::new(), 0);
    while turns.len() < turns_max.max(1)
        && bytes < bytes_max.max(1)
        && let Some(row) = rows.next()?
    {
        let turn = written_turn(row)?;
        bytes += turn.content.len();
        turns.push(turn);
    }
    Ok(WrittenTurns { turns, last_number })
}

pub(super) fn at(connection: &Connection, numbers: &[u64]) -> Result<Vec<WrittenTurn>, StoreError> {
    let sql = "SELECT id, generation, seq, content FROM turns WHERE id = ?";
    let mut statement = connection.prepare_cached(sql)?;
    let mut turns = Vec::with_capacity(numbers.len());
    for number in numbers {
        let parameters = params![whole(*number)];
        turns.extend(statement.query_row(parameters, written_turn).optional()?);
    }
    Ok(turns)
}

/// Whose the generations are; `newer` is what the intake has of them.
pub(super) fn owners(
    connection: &Connection,
    generations: &[Generation],
    newer: Vec<GenerationOwner>,
) -> Result<Vec<GenerationOwner>, StoreError> {
    let mut newer: HashMap<Generation, GenerationOwner> = newer
        .into_iter()
        .map(|owner| (owner.generation, owner))
        .collect();
    let mut owners = Vec::with_capacity(generations.len());
    for generation in generations {
        owners.extend(match newer.remove(generation) {
            Some(owner) => Some(owner),
            None => folded_row(connection, *generation)?.map(GenerationRow::into_owner),
        });
    }
    Ok(owners)
}

fn written_turn(row: &Row<'_>) -> rusqlite::Result<WrittenTurn> {
    Ok(WrittenTurn {
        number: count(row, 0)?,
        generation: Generation::from_bytes(row.get(1)?),
        seq: count(row, 2)?,
        content: blob(row, 3)?,
    })
}
