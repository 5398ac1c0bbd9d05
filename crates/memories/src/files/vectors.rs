//! Vectors at rest: one bit for each dimension, packed together for a first look, and the
//! whole vector for an exact one.
//!
//! The bits of a dimension's sign keep the order of cosines well enough to choose among
//! (the same as sqlite-vec's `vec_quantize_binary`); sqlite-vec then measures those chosen.

use std::collections::{BinaryHeap, HashSet};

use rusqlite::{Connection, params};

use super::row::partition_of;
use super::sql::{Answer, Sql};
use super::{Embedding, row};
use crate::MemoryError;

/// Memories of one block, by the lowest bits of their `no`.
const SLOT_BITS: u32 = 5;
const SLOTS: i64 = 1 << SLOT_BITS;
/// An entry of a block before its bits: slot, kind, model, length of the bits, observed,
/// expires.
const HEAD_BYTES: usize = 1 + 1 + 2 + 2 + 8 + 8;
/// How many are measured exactly for each that is wanted, and at least. Of 10,000 in 384
/// dimensions 64 hold 99 % of the best ten, and 200 hold 96 % of the best fifty.
const CHOSEN_PER_WANTED: usize = 4;
const CHOSEN_MIN: usize = 128;

/// What of a memory a first look can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Glance {
    pub(super) kind: u8,
    pub(super) observed: i64,
    pub(super) expires: Option<i64>,
}

/// Which memories may be chosen.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    pub(super) kinds: u8,
    pub(super) observed_after: Option<i64>,
    pub(super) observed_before: Option<i64>,
    /// Not those that expired by then.
    pub(super) now: i64,
    /// Only these, where there is a list.
    pub(super) among: Option<HashSet<i64>>,
}

/// A model as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) no: u16,
    /// 0 until the first vector.
    pub(super) dimension: usize,
}

/// One entry of a block.
struct Entry<'a> {
    slot: u8,
    model: u16,
    glance: Glance,
    bits: &'a [u8],
}

/// How many of the nearest memories a search returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    count: usize,
    /// How many are chosen by their bits, and measured.
    chosen_max: usize,
}

impl Wanted {
    pub(super) fn of(count: usize) -> Self {
        Self {
            count,
            chosen_max: count.saturating_mul(CHOSEN_PER_WANTED).max(CHOSEN_MIN),
        }
    }
}

impl Filter {
    pub(super) fn passes(&self, no: i64, glance: Glance) -> bool {
        self.kinds >> glance.kind & 1 == 1
            && self
                .observed_after
                .is_none_or(|after| glance.observed >= after)
            && self
                .observed_before
                .is_none_or(|before| glance.observed < before)
            && glance.expires.is_none_or(|expires| expires > self.now)
            && self.among.as_ref().is_none_or(|among| among.contains(&no))
    }
}

/// The model of this name, if it ever made a vector or was to make one.
pub(super) fn find_model(connection: &Connection, name: &str) -> Answer<Option<Model>> {
    let sql = "SELECT no, dimension FROM models WHERE name = ?";
    connection.one(sql, [name], |row| {
        Ok(Model {
            no: row.get(0)?,
            dimension: row.get::<_, u32>(1)? as usize,
        })
    })
}

pub(super) fn make_model(connection: &Connection, name: &str) -> Answer<Model> {
    let sql = "INSERT INTO models (name, dimension) VALUES (?, 0) ON CONFLICT DO NOTHING";
    connection.run(sql, [name])?;
    Ok(find_model(connection, name)?.unwrap_or(Model {
        no: 0,
        dimension: 0,
    }))
}

/// Says whether a vector fits its model; the first one of a model says how many dimensions
/// all have.
pub(super) fn check(model: Model, vector: &Embedding) -> Answer<()> {
    let found = vector.values.len();
    if found == 0 || model.dimension != 0 && found != model.dimension {
        return Err(MemoryError::DimensionMismatch {
            model: vector.model.to_string(),
            found,
            expected: model.dimension,
        });
    }
    let is_finite = vector.values.iter().all(|value| value.is_finite());
    if is_finite && vector.values.iter().any(|value| *value != 0.0) {
        return Ok(());
    }
    let problem = "is zero or not finite; is the model's server healthy?";
    Err(MemoryError::invalid("vector", problem))
}

/// Stores a vector, replacing any that was there.
pub(super) fn put(
    connection: &Connection,
    no: i64,
    model: Model,
    glance: Glance,
    vector: &Embedding,
) -> Answer<()> {
    check(model, vector)?;
    if model.dimension == 0 {
        let sql = "UPDATE models SET dimension = ? WHERE no = ?";
        connection.run(sql, params![row::limit(vector.values.len()), model.no])?;
    }
    let sql = "INSERT INTO vectors (no, model, vector) VALUES (?, ?, ?)
               ON CONFLICT DO UPDATE SET model = excluded.model, vector = excluded.vector";
    connection.run(sql, params![no, model.no, bytes(&vector.values)])?;
    let entry = Entry {
        slot: slot_of(no),
        model: model.no,
        glance,
        bits: &signs(&vector.values),
    };
    change_block(connection, no, Some(&entry))
}

/// Removes a vector; says whether there was one.
pub(super) fn remove(connection: &Connection, no: i64) -> Answer<bool> {
    let sql = "DELETE FROM vectors WHERE no = ?";
    let was_there = connection.change(sql, [no])? > 0;
    if was_there {
        change_block(connection, no, None)?;
    }
    Ok(was_there)
}

/// Moves a vector to another number, or only updates the properties in its block.
pub(super) fn carry(connection: &Connection, was: i64, no: i64, glance: Glance) -> Answer<()> {
    let Some((model, bits)) = find_bits(connection, was)? else {
        return Ok(());
    };
    if was != no {
        change_block(connection, was, None)?;
        let sql = "UPDATE vectors SET no = ? WHERE no = ?";
        connection.run(sql, [no, was])?;
    }
    let entry = Entry {
        slot: slot_of(no),
        model,
        glance,
        bits: &bits,
    };
    change_block(connection, no, Some(&entry))
}

/// The number of the model that made this memory's vector.
pub(super) fn model_of(connection: &Connection, no: i64) -> Answer<Option<u16>> {
    connection.value("SELECT model FROM vectors WHERE no = ?", [no])
}

/// The vector itself.
pub(super) fn vector_of(connection: &Connection, no: i64) -> Answer<Option<Vec<f32>>> {
    let sql = "SELECT vector FROM vectors WHERE no = ?";
    connection.one(sql, [no], |row| {
        let bytes = row.get_ref(0)?.as_blob()?;
        Ok(bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|value| f32::from_le_bytes(*value))
            .collect())
    })
}

/// The nearest to a vector among the model's in these partitions, with their cosines, the
/// nearest first: chosen by their bits, then measured.
pub(super) fn nearest(
    connection: &Connection,
    model: Model,
    partitions: &[i64],
    filter: &Filter,
    query: &[f32],
    wanted: Wanted,
) -> Answer<Vec<(i64, f64)>> {
    let bits = words(&signs(query));
    let mut chosen: BinaryHeap<(u32, i64)> = BinaryHeap::new();
    let sql = "SELECT no, block FROM vector_blocks WHERE no BETWEEN ? AND ?";
    let mut statement = connection.prepare_cached(sql)?;
    for partition in partitions {
        let (first, last) = row::range(*partition);
        let mut blocks = statement.query([first >> SLOT_BITS, last >> SLOT_BITS])?;
        while let Some(found) = blocks.next()? {
            let base = found.get::<_, i64>(0)? << SLOT_BITS;
            for entry in entries(found.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?) {
                let no = base | i64::from(entry.slot);
                let is_asked =
                    entry.model == model.no && entry.bits.len().div_ceil(8) == bits.len();
                if !is_asked || !filter.passes(no, entry.glance) {
                    continue;
                }
                let distance = hamming(&bits, entry.bits);
                if chosen.len() < wanted.chosen_max {
                    chosen.push((distance, no));
                } else if chosen.peek().is_some_and(|worst| (distance, no) < *worst) {
                    chosen.pop();
                    chosen.push((distance, no));
                }
            }
        }
    }
    let chosen = chosen.into_iter().map(|(_, no)| no);
    let mut found = measure(connection, model, chosen, query)?;
    found.truncate(wanted.count);
    Ok(found)
}

/// The cosines of these memories' vectors of a model to one, the nearest first; of two that are as
/// near the newer first.
pub(super) fn measure(
    connection: &Connection,
    model: Model,
    chosen: impl Iterator<Item = i64>,
    query: &[f32],
) -> Answer<Vec<(i64, f64)>> {
    let sql = "SELECT vec_distance_cosine(vector, ?2) FROM vectors WHERE no = ?1 AND model = ?3";
    let mut statement = connection.prepare_cached(sql)?;
    // Bound once: it would be copied for each of them.
    statement.raw_bind_parameter(2, bytes(query))?;
    statement.raw_bind_parameter(3, model.no)?;
    let mut chosen: Vec<i64> = chosen.collect();
    chosen.sort_unstable();
    let mut found = Vec::with_capacity(chosen.len());
    for no in chosen {
        statement.raw_bind_parameter(1, no)?;
        let mut rows = statement.raw_query();
        if let Some(row) = rows.next()? {
            found.push((no, 1.0 - row.get::<_, f64>(0)?));
        }
    }
    found.sort_by(|(one, near), (other, far)| far.total_cmp(near).then(other.cmp(one)));
    Ok(found)
}

fn find_bits(connection: &Connection, no: i64) -> Answer<Option<(u16, Vec<u8>)>> {
    let block = block_of(connection, no)?.unwrap_or_default();
    let entry = entries(&block).find(|entry| entry.slot == slot_of(no));
    Ok(entry.map(|entry| (entry.model, entry.bits.to_vec())))
}

/// The block of a number.
fn block_of(connection: &Connection, no: i64) -> Answer<Option<Vec<u8>>> {
    let sql = "SELECT block FROM vector_blocks WHERE no = ?";
    connection.value(sql, [no >> SLOT_BITS])
}

/// Writes the block of a number with this entry for it, or without one.
fn change_block(connection: &Connection, no: i64, entry: Option<&Entry<'_>>) -> Answer<()> {
    debug_assert_eq!(partition_of(no), partition_of(no | (SLOTS - 1)));
    let key = no >> SLOT_BITS;
    let was = block_of(connection, no)?.unwrap_or_default();
    let mut block = Vec::with_capacity(was.len() + 128);
    let others = entries(&was).filter(|other| other.slot != slot_of(no));
    others.for_each(|other| push(&mut block, &other));
    if let Some(entry) = entry {
        push(&mut block, entry);
    }
    if block.is_empty() {
        return connection.run("DELETE FROM vector_blocks WHERE no = ?", [key]);
    }
    let sql = "INSERT INTO vector_blocks (no, block) VALUES (?, ?)
               ON CONFLICT DO UPDATE SET block = excluded.block";
    connection.run(sql, params![key, block])
}

fn slot_of(no: i64) -> u8 {
    (no & (SLOTS - 1)) as u8
}

fn push(block: &mut Vec<u8>, entry: &Entry<'_>) {
    let glance = entry.glance;
    let length = u16::try_from(entry.bits.len()).unwrap_or(u16::MAX);
    block.extend_from_slice(&[entry.slot, glance.kind]);
    block.extend_from_slice(&entry.model.to_le_bytes());
    block.extend_from_slice(&length.to_le_bytes());
    block.extend_from_slice(&glance.observed.to_le_bytes());
    block.extend_from_slice(&glance.expires.unwrap_or(i64::MAX).to_le_bytes());
    block.extend_from_slice(&entry.bits[..usize::from(length)]);
}

/// The entries of a block; it ends at what does not decode.
fn entries(mut block: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    std::iter::from_fn(move || {
        let (head, rest) = block.split_first_chunk::<HEAD_BYTES>()?;
        let two = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let eight = |at: usize| i64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let (bits, rest) = rest.split_at_checked(usize::from(two(4)))?;
        block = rest;
        let expires = Some(eight(14)).filter(|expires| *expires != i64::MAX);
        let glance = Glance {
            kind: head[1],
            observed: eight(6),
            expires,
        };
        Some(Entry {
            slot: head[0],
            model: two(2),
            glance,
            bits,
        })
    })
}

/// One bit for each dimension, set where it is above zero.
fn signs(values: &[f32]) -> Vec<u8> {
    let mut bits = vec![0; values.len().div_ceil(8)];
    for (index, value) in values.iter().enumerate() {
        bits[index / 8] |= u8::from(*value > 0.0) << (index % 8);
    }
    bits
}

/// Eight bytes at a time, the last ones filled up with zeros.
fn words(bits: &[u8]) -> Vec<u64> {
    let whole = |bytes: &[u8]| {
        u64::from_le_bytes(std::array::from_fn(|byte| {
            bytes.get(byte).copied().unwrap_or(0)
        }))
    };
    bits.chunks(8).map(whole).collect()
}

/// In how many dimensions the signs differ.
fn hamming(query: &[u64], bits: &[u8]) -> u32 {
    let (chunks, rest) = bits.as_chunks::<8>();
    let whole = query.iter().zip(chunks);
    let whole: u32 = whole
        .map(|(q, chunk)| (q ^ u64::from_le_bytes(*chunk)).count_ones())
        .sum();
    let last = match (rest.is_empty(), query.get(chunks.len())) {
        (false, Some(q)) => words(rest)
            .first()
            .map_or(0, |word| (q ^ word).count_ones()),
        _ => 0,
    };
    whole + last
}

/// A vector as sqlite-vec reads it.
fn bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

#[cfg(test)]
#[path = "vectors_tests.rs"]
mod tests;
