//! Vectors in a file.
//!
//! Sign bits select candidates, and whole vectors rank them. The sign bits of several memories are
//! packed into one block. They preserve the order of cosines well enough to select candidates (like
//! sqlite-vec's `vec_quantize_binary`). sqlite-vec then computes the exact cosines of these.

use std::collections::{BinaryHeap, HashMap};

use rusqlite::{Connection, OptionalExtension, params};

use crate::store::row::{self, partition_of};
use crate::store::sql::{Dialect, Sql, StoreResult};
use crate::store::vector_index::{Filter, FilterColumns, Model, VectorIndex, Wanted};

/// Low bits of a memory's `no` that select its slot in a block.
const SLOT_BITS: u32 = 5;
const SLOTS: i64 = 1 << SLOT_BITS;
/// Bytes of a block entry before its bits.
///
/// Slot, kind, model, length of the bits, observed, expires.
const HEAD_BYTES: usize = 1 + 1 + 2 + 2 + 8 + 8;
struct Entry<'a> {
    slot: u8,
    model: u16,
    glance: FilterColumns,
    bits: &'a [u8],
}

impl VectorIndex for Connection {
    fn put_vector(
        &self,
        no: i64,
        model: Model,
        glance: FilterColumns,
        values: &[f32],
    ) -> StoreResult<()> {
        let sql = "INSERT INTO vectors (no, model, vector) VALUES (?, ?, ?)
                   ON CONFLICT DO UPDATE SET model = excluded.model, vector = excluded.vector";
        self.run(sql, params![no, model.no, bytes(values)])?;
        let entry = Entry {
            slot: slot_of(no),
            model: model.no,
            glance,
            bits: &signs(values),
        };
        change_block(self, no, Some(&entry))
    }

    fn remove_vector(&self, no: i64) -> StoreResult<bool> {
        let sql = "DELETE FROM vectors WHERE no = ?";
        let was_there = self.change(sql, params![no])? > 0;
        if was_there {
            change_block(self, no, None)?;
        }
        Ok(was_there)
    }

    fn move_vector(&self, was: i64, no: i64, glance: FilterColumns) -> StoreResult<()> {
        let Some((model, bits)) = find_bits(self, was)? else {
            return Ok(());
        };
        if was != no {
            change_block(self, was, None)?;
            let sql = "UPDATE vectors SET no = ? WHERE no = ?";
            self.run(sql, params![no, was])?;
        }
        let entry = Entry {
            slot: slot_of(no),
            model,
            glance,
            bits: &bits,
        };
        change_block(self, no, Some(&entry))
    }

    fn vectors_of(&self, numbers: &[i64]) -> StoreResult<HashMap<i64, (u16, Vec<f32>)>> {
        let this: &dyn Dialect = self;
        let sql = "SELECT no, model, vector FROM vectors WHERE no = ?1";
        let vectors = this.of_numbers(sql, numbers, |row| {
            let values = row.bytes(2)?.as_chunks::<4>().0.iter();
            let values = values.map(|value| f32::from_le_bytes(*value)).collect();
            Ok((row.get(0)?, (row.get(1)?, values)))
        })?;
        Ok(vectors.into_iter().collect())
    }

    /// Selects candidates by sign bits, then ranks them exactly.
    fn nearest(
        &self,
        model: Model,
        partitions: &[i64],
        filter: &Filter,
        query: &[f32],
        wanted: Wanted,
    ) -> StoreResult<Vec<(i64, f64)>> {
        let bits = words(&signs(query));
        let mut chosen: BinaryHeap<(u32, i64)> = BinaryHeap::new();
        let sql = "SELECT no, block FROM vector_blocks WHERE no BETWEEN ? AND ?";
        let mut statement = self.prepare_cached(sql)?;
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
        let chosen = chosen.into_iter().map(|(_, no)| no).collect();
        let mut found = self.measure(model, chosen, query)?;
        found.truncate(wanted.count);
        Ok(found)
    }

    fn measure(
        &self,
        model: Model,
        mut chosen: Vec<i64>,
        query: &[f32],
    ) -> StoreResult<Vec<(i64, f64)>> {
        let sql =
            "SELECT vec_distance_cosine(vector, ?2) FROM vectors WHERE no = ?1 AND model = ?3";
        let mut statement = self.prepare_cached(sql)?;
        // Bind the query once. Otherwise it would be copied for each memory.
        statement.raw_bind_parameter(2, bytes(query))?;
        statement.raw_bind_parameter(3, model.no)?;
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
}

fn find_bits(connection: &Connection, no: i64) -> StoreResult<Option<(u16, Vec<u8>)>> {
    let block = block_of(connection, no)?.unwrap_or_default();
    let entry = entries(&block).find(|entry| entry.slot == slot_of(no));
    Ok(entry.map(|entry| (entry.model, entry.bits.to_vec())))
}

/// The block that contains this number.
fn block_of(connection: &Connection, no: i64) -> StoreResult<Option<Vec<u8>>> {
    let sql = "SELECT block FROM vector_blocks WHERE no = ?";
    let mut statement = connection.prepare_cached(sql)?;
    let block = statement.query_row([no >> SLOT_BITS], |row| row.get(0));
    Ok(block.optional()?)
}

/// Replaces the entry of a number in its block, or removes it.
fn change_block(connection: &Connection, no: i64, entry: Option<&Entry<'_>>) -> StoreResult<()> {
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
        return connection.run("DELETE FROM vector_blocks WHERE no = ?", params![key]);
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

/// Iterates over the entries of a block. Stops at the first one that does not decode.
fn entries(mut block: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    std::iter::from_fn(move || {
        let (head, rest) = block.split_first_chunk::<HEAD_BYTES>()?;
        let two = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let eight = |at: usize| i64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let (bits, rest) = rest.split_at_checked(usize::from(two(4)))?;
        block = rest;
        let expires = Some(eight(14)).filter(|expires| *expires != i64::MAX);
        let glance = FilterColumns {
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

/// One bit per dimension, set if the value is positive.
fn signs(values: &[f32]) -> Vec<u8> {
    let mut bits = vec![0; values.len().div_ceil(8)];
    for (index, value) in values.iter().enumerate() {
        bits[index / 8] |= u8::from(*value > 0.0) << (index % 8);
    }
    bits
}

/// Groups bytes into words of eight, padding the last one with zeros.
fn words(bits: &[u8]) -> Vec<u64> {
    let whole = |bytes: &[u8]| {
        u64::from_le_bytes(std::array::from_fn(|byte| {
            bytes.get(byte).copied().unwrap_or(0)
        }))
    };
    bits.chunks(8).map(whole).collect()
}

/// Hamming distance of the sign bits.
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

/// Encodes a vector for sqlite-vec.
fn bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
