//! Storage of vectors. Only current memories have one, each of a single model.

use std::collections::{HashMap, HashSet};

use rusqlite::params;

#[cfg(feature = "postgres")]
use super::postgres;
use super::sql::{Connection, Row, Sql, StoreResult};
use super::sqlite::blocks;
use super::{Embedding, row};
use crate::MemoryError;

/// Candidates per requested result that are selected by sign bits and compared exactly.
///
/// Measured with 10,000 vectors of 384 dimensions: 64 candidates contain 99 % of the best ten, and
/// 200 contain 96 % of the best fifty.
const CHOSEN_PER_WANTED: usize = 4;
/// Minimum number of candidates.
const CHOSEN_MIN: usize = 128;

/// The properties of a memory that searches filter by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterColumns {
    pub(super) kind: u8,
    pub(super) observed: i64,
    pub(super) expires: Option<i64>,
}

/// Condition on the memories that a search may return.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    pub(super) kinds: u8,
    pub(super) observed_after: Option<i64>,
    pub(super) observed_before: Option<i64>,
    /// Excludes memories that have expired by then.
    pub(super) now: i64,
    /// If set, only these memories.
    pub(super) among: Option<HashSet<i64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) no: u16,
    /// 0 until the first vector is stored.
    pub(super) dimension: usize,
}

/// Number of results of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) count: usize,
    /// Number of candidates to compare exactly, if candidates are preselected by sign bits.
    pub(super) chosen_max: usize,
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
    pub(super) fn passes(&self, no: i64, glance: FilterColumns) -> bool {
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

/// Returns the model of this name, if it is stored.
pub(super) fn find_model(connection: Connection<'_>, name: &str) -> StoreResult<Option<Model>> {
    let sql = "SELECT no, dimension FROM models WHERE name = ?";
    connection.one(sql, params![name], read_model)
}

pub(super) fn read_model(row: &Row<'_>) -> rusqlite::Result<Model> {
    Ok(Model {
        no: row.get(0)?,
        dimension: row.get::<u32>(1)? as usize,
    })
}

pub(super) fn make_model(connection: Connection<'_>, name: &str) -> StoreResult<Model> {
    let sql = "INSERT INTO models (no, name, dimension)
               VALUES ((SELECT coalesce(max(no), 0) + 1 FROM models), ?, 0) ON CONFLICT DO NOTHING";
    connection.run(sql, params![name])?;
    Ok(find_model(connection, name)?.unwrap_or(Model {
        no: 0,
        dimension: 0,
    }))
}

/// Checks that a vector fits its model. The first vector of a model determines its dimension.
pub(super) fn check(model: Model, vector: &Embedding) -> StoreResult<()> {
    let found = vector.values.len();
    if found == 0 || model.dimension != 0 && found != model.dimension {
        return Err(MemoryError::DimensionMismatch {
            model: vector.model.to_string(),
            found,
            expected: model.dimension,
        });
    }
    if Embedding::is_measurable(&vector.values) {
        return Ok(());
    }
    let problem = "is zero, not finite, or too short or long to be compared; is the model's server \
                   healthy?";
    Err(MemoryError::invalid("vector", problem))
}

/// Whether vectors can be stored. If not, all operations on them do nothing.
pub(super) fn are_kept(connection: Connection<'_>) -> bool {
    match connection {
        Connection::Sqlite(_) => true,
        #[cfg(feature = "postgres")]
        Connection::Postgres(it) => it.has_vectors(),
    }
}

/// Stores a vector, replacing the previous one.
pub(super) fn put(
    connection: Connection<'_>,
    no: i64,
    model: Model,
    glance: FilterColumns,
    vector: &Embedding,
) -> StoreResult<()> {
    check(model, vector)?;
    if model.dimension == 0 {
        let sql = "UPDATE models SET dimension = ? WHERE no = ?";
        connection.run(sql, params![row::limit(vector.values.len()), model.no])?;
    }
    store(connection, no, model, glance, &vector.values)
}

fn store(
    connection: Connection<'_>,
    no: i64,
    model: Model,
    glance: FilterColumns,
    values: &[f32],
) -> StoreResult<()> {
    match connection {
        Connection::Sqlite(file) => blocks::put(file, no, model, glance, values),
        #[cfg(feature = "postgres")]
        Connection::Postgres(it) => postgres::put(it, no, model, glance, values),
    }
}

/// Stores a vector copied from other storage, whose model is already stored.
pub(super) fn carry_over(
    connection: Connection<'_>,
    no: i64,
    model: u16,
    glance: FilterColumns,
    values: &[f32],
) -> StoreResult<()> {
    let model = Model {
        no: model,
        dimension: values.len(),
    };
    store(connection, no, model, glance, values)
}

/// Deletes a vector. Returns whether there was one.
pub(super) fn remove(connection: Connection<'_>, no: i64) -> StoreResult<bool> {
    match connection {
        Connection::Sqlite(file) => blocks::remove(file, no),
        #[cfg(feature = "postgres")]
        Connection::Postgres(it) => postgres::remove(it, no),
    }
}

/// Moves a vector to another number, or only updates its filter properties.
pub(super) fn carry(
    connection: Connection<'_>,
    was: i64,
    no: i64,
    glance: FilterColumns,
) -> StoreResult<()> {
    match connection {
        Connection::Sqlite(file) => blocks::carry(file, was, no, glance),
        #[cfg(feature = "postgres")]
        Connection::Postgres(it) => postgres::carry(it, was, no, glance),
    }
}

/// Number of the model that computed this memory's vector.
pub(super) fn model_of(connection: Connection<'_>, no: i64) -> StoreResult<Option<u16>> {
    match connection {
        Connection::Sqlite(_) => {
            connection.value("SELECT model FROM vectors WHERE no = ?", params![no])
        }
        #[cfg(feature = "postgres")]
        Connection::Postgres(it) => postgres::model_of(it, no),
    }
}

/// Vectors of these memories, each with the number of its model.
pub(super) fn vectors_of(
    connection: Connection<'_>,
    numbers: &[i64],
) -> StoreResult<HashMap<i64, (u16, Vec<f32>)>> {
    match connection {
        Connection::Sqlite(_) => {
            let sql = "SELECT no, model, vector FROM vectors WHERE no = ?1";
            let read = |row: &Row<'_>| {
                let values = row.bytes(2)?.as_chunks::<4>().0.iter();
                let values = values.map(|value| f32::from_le_bytes(*value)).collect();
                Ok((row.get(0)?, (row.get(1)?, values)))
            };
            Ok(connection
                .of_numbers(sql, numbers, read)?
                .into_iter()
                .collect())
        }
        #[cfg(feature = "postgres")]
        Connection::Postgres(it) => postgres::vectors_of(it, numbers),
    }
}

pub(super) fn count_of(connection: Connection<'_>, model: Model) -> StoreResult<u64> {
    let sql = "SELECT count(*) FROM vectors WHERE model = ?";
    if are_kept(connection) {
        connection.count(sql, params![model.no])
    } else {
        Ok(0)
    }
}

/// Finds the vectors of a model in these partitions that are nearest to the query.
///
/// Returns their numbers and cosines, nearest first.
pub(super) fn nearest(
    connection: Connection<'_>,
    model: Model,
    partitions: &[i64],
    filter: &Filter,
    query: &[f32],
    wanted: Wanted,
) -> StoreResult<Vec<(i64, f64)>> {
    match connection {
        Connection::Sqlite(file) => blocks::nearest(file, model, partitions, filter, query, wanted),
        #[cfg(feature = "postgres")]
        Connection::Postgres(it) => {
            postgres::nearest(it, model, partitions, filter, query, wanted.count)
        }
    }
}

/// Computes the cosines of these memories' vectors to the query, nearest first, then newest first.
pub(super) fn measure(
    connection: Connection<'_>,
    model: Model,
    chosen: impl Iterator<Item = i64>,
    query: &[f32],
) -> StoreResult<Vec<(i64, f64)>> {
    match connection {
        Connection::Sqlite(file) => blocks::measure(file, model, chosen, query),
        #[cfg(feature = "postgres")]
        Connection::Postgres(it) => postgres::measure(it, model, chosen.collect(), query),
    }
}

/// Cosine of two vectors. 0 if one of them is zero.
pub(crate) fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let dot = |one: &[f32], other: &[f32]| -> f64 {
        let pairs = one.iter().zip(other);
        pairs
            .map(|(one, other)| f64::from(*one) * f64::from(*other))
            .sum()
    };
    dot(one, other)
        / (dot(one, one) * dot(other, other))
            .sqrt()
            .max(f64::MIN_POSITIVE)
}
