//! Storage of vectors. Only current memories have one, each of a single model.

use rusqlite::params;

use super::requests::Embedding;
use super::row;
use super::sql::{Connection, Row, Sql, StoreResult};
use super::vector_index::{FilterColumns, Model};
use crate::MemoryError;

/// Model name of vectors computed by clients. No texts are queued for this model.
pub const CLIENTS: &str = "(made by clients)";

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
    connection.put_vector(no, model, glance, &vector.values)
}

/// Number of the model that computed this memory's vector.
pub(super) fn model_of(connection: Connection<'_>, no: i64) -> StoreResult<Option<u16>> {
    if !connection.stores_vectors() {
        return Ok(None);
    }
    connection.value("SELECT model FROM vectors WHERE no = ?", params![no])
}

pub(super) fn count_of(connection: Connection<'_>, model: Model) -> StoreResult<u64> {
    let sql = "SELECT count(*) FROM vectors WHERE model = ?";
    if connection.stores_vectors() {
        connection.count(sql, params![model.no])
    } else {
        Ok(0)
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
