//! Reading generations that ended, whole and many at once: for the hooks that are owed
//! them. The intake has no order in which anything is found, so it is read through once
//! for all of them.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use memoird_core::ids::Generation;
use memoird_core::state::State;

use super::intake::folded_row;
use super::read::{FOLDED_TURNS, Reach, blob, turn};
use super::row::{COLUMNS, GenerationRow, count};
use crate::{EndedRecord, StoreError};

/// Seqs with encoded turns, ascending.
type Turns = Vec<(u64, Arc<[u8]>)>;

/// What the intake has of the generations that are wanted.
#[derive(Default)]
struct Unfolded {
    rows: HashMap<Generation, GenerationRow>,
    turns: HashMap<Generation, Turns>,
}

pub(super) fn ended(
    connection: &Connection,
    reach: Reach,
    wanted: &[Generation],
    bytes_max: usize,
) -> Result<Vec<EndedRecord>, StoreError> {
    let view = connection.unchecked_transaction()?;
    let mut unfolded = match reach {
        Reach::Folded => Unfolded::default(),
        Reach::IntakeToo => Unfolded::read(&view, wanted)?,
    };
    let (mut records, mut bytes) = (Vec::new(), 0);
    for generation in wanted {
        if bytes >= bytes_max && !records.is_empty() {
            break;
        }
        let row = match unfolded.rows.remove(generation) {
            Some(row) => Some(row),
            None => folded_row(&view, *generation)?,
        };
        let Some(GenerationRow { key, head, ended: Some((at, reason)), .. }) = row else {
            continue;
        };
        let newest = unfolded.turns.remove(generation).unwrap_or_default();
        let turns = newest_turns(&view, *generation, newest, bytes_max)?;
        bytes += turns.iter().map(|(_, content)| content.len()).sum::<usize>();
        let state = view
            .prepare_cached("SELECT json FROM states WHERE generation = ?")?
            .query_row([generation.to_bytes()], |row| row.get::<_, String>(0))
            .optional()?
            .map(|json| State { json: json.into(), version: head.state_version });
        records.push(EndedRecord { key, head, at, reason, turns, state });
    }
    Ok(records)
}

impl Unfolded {
    fn read(connection: &Connection, wanted: &[Generation]) -> Result<Self, StoreError> {
        let wanted: HashMap<Generation, ()> = wanted.iter().map(|name| (*name, ())).collect();
        let mut unfolded = Self::default();
        let sql = format!("SELECT {COLUMNS} FROM intake_heads ORDER BY id");
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let generation = Generation::from_bytes(row.get(0)?);
            if wanted.contains_key(&generation) {
                unfolded.rows.insert(generation, GenerationRow::read(row)?);
            }
        }
        let sql = "SELECT generation, seq, content FROM turns
                   WHERE id > (SELECT placed FROM progress) ORDER BY id";
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let generation = Generation::from_bytes(row.get(0)?);
            if wanted.contains_key(&generation) {
                let kept = unfolded.turns.entry(generation).or_default();
                kept.push((count(row, 1)?, blob(row, 2)?));
            }
        }
        Ok(unfolded)
    }
}

/// The turns of a generation, ascending, of which `newest` are known: all that there are,
/// or as many of the last ones as `bytes_max` allows, but at least one.
fn newest_turns(
    connection: &Connection,
    generation: Generation,
    newest: Turns,
    bytes_max: usize,
) -> Result<Turns, StoreError> {
    let (mut turns, mut bytes) = (Vec::new(), 0);
    let has_room = |bytes: &mut usize, content: &Arc<[u8]>| {
        *bytes += content.len();
        *bytes <= bytes_max || *bytes == content.len()
    };
    for (seq, content) in newest.into_iter().rev() {
        if !has_room(&mut bytes, &content) {
            turns.reverse();
            return Ok(turns);
        }
        turns.push((seq, content));
    }
    let sql = format!("{FOLDED_TURNS} ORDER BY 1 DESC");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![generation.to_bytes(), 0])?;
    while let Some(row) = rows.next()? {
        let (seq, content) = turn(row)?;
        if !has_room(&mut bytes, &content) {
            break;
        }
        turns.push((seq, content));
    }
    turns.reverse();
    Ok(turns)
}
