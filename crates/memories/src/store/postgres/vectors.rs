//! Vectors in pgvector.
//!
//! Searches compare all vectors of the requested partitions. An HNSW index over the vectors of all
//! tenants would find next to nothing for a small subject. A very large partition has an index of
//! its own, see [`super::near`].

use std::collections::HashMap;

use memoird_postgres::{ResultRow, Value};

use super::{Transaction, near, value, whole};
use crate::store::row::{limit, range};
use crate::store::sql::{Dialect, StoreResult};
use crate::store::vector_index::{Filter, FilterColumns, Model, VectorIndex, Wanted};

impl VectorIndex for Transaction<'_> {
    fn stores_vectors(&self) -> bool {
        self.pgvector.is_some()
    }

    fn put_vector(
        &self,
        no: i64,
        model: Model,
        glance: FilterColumns,
        values: &[f32],
    ) -> StoreResult<()> {
        if !self.stores_vectors() {
            return Ok(());
        }
        let sql = "INSERT INTO vectors (no, model, kind, observed, expires, embedding)
            VALUES ($1, $2, $3, $4, $5, $6::vector)
            ON CONFLICT (tenant, no) DO UPDATE SET model = excluded.model, kind = excluded.kind,
            observed = excluded.observed, expires = excluded.expires, embedding = excluded.embedding";
        let mut row = vec![Value::Whole(no), Value::Whole(model.no.into())];
        row.extend(glanced(glance));
        row.push(Value::Reals(values.to_vec()));
        self.send(sql, row)
    }

    fn remove_vector(&self, no: i64) -> StoreResult<bool> {
        if !self.stores_vectors() {
            return Ok(false);
        }
        Ok(self.change("DELETE FROM vectors WHERE no = ?", &[&no])? > 0)
    }

    fn move_vector(&self, was: i64, no: i64, glance: FilterColumns) -> StoreResult<()> {
        if !self.stores_vectors() {
            return Ok(());
        }
        let sql =
            "UPDATE vectors SET no = $2, kind = $3, observed = $4, expires = $5 WHERE no = $1";
        let mut row = vec![Value::Whole(was), Value::Whole(no)];
        row.extend(glanced(glance));
        self.send(sql, row)
    }

    fn vectors_of(&self, numbers: &[i64]) -> StoreResult<HashMap<i64, (u16, Vec<f32>)>> {
        if !self.stores_vectors() {
            return Ok(HashMap::new());
        }
        let sql = "SELECT no, model, embedding::real[] FROM unnest($1) AS asked (number)
            CROSS JOIN LATERAL (SELECT no, model, embedding FROM vectors WHERE no = asked.number) AS found";
        let rows = self.rows(sql, &[Value::Wholes(numbers.to_vec())])?;
        let vector = |row: &ResultRow| {
            let model = u16::try_from(whole(row, 1)?).unwrap_or_default();
            Ok((whole(row, 0)?, (model, row.reals(2)?)))
        };
        rows.iter().map(vector).collect()
    }

    /// Uses the indexes of large partitions, and compares all vectors of the others.
    fn nearest(
        &self,
        model: Model,
        partitions: &[i64],
        filter: &Filter,
        query: &[f32],
        wanted: Wanted,
    ) -> StoreResult<Vec<(i64, f64)>> {
        if !self.stores_vectors() {
            return Ok(Vec::new());
        }
        let count = wanted.count;
        let large = near::large(self, partitions)?;
        let (indexed, partitions): (Vec<i64>, Vec<i64>) = partitions
            .iter()
            .partition(|partition| large.contains(partition));
        let mut found = near::nearest(self, model, &indexed, filter, query, count)?;
        found.extend(exactly(self, model, &partitions, filter, query, count)?);
        found.sort_by(|(one, near), (other, far)| far.total_cmp(near).then(other.cmp(one)));
        found.truncate(count);
        Ok(found)
    }

    fn measure(
        &self,
        model: Model,
        chosen: Vec<i64>,
        query: &[f32],
    ) -> StoreResult<Vec<(i64, f64)>> {
        if !self.stores_vectors() || chosen.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT no, embedding <=> $1::vector FROM unnest($2) AS asked (number)
            CROSS JOIN LATERAL (SELECT no, embedding FROM vectors
                WHERE no = asked.number AND model = $3) AS found";
        let values = [
            Value::Reals(query.to_vec()),
            Value::Wholes(chosen),
            Value::Whole(model.no.into()),
        ];
        measured(&self.rows(sql, &values)?)
    }
}

fn exactly(
    it: &Transaction<'_>,
    model: Model,
    partitions: &[i64],
    filter: &Filter,
    query: &[f32],
    count: usize,
) -> StoreResult<Vec<(i64, f64)>> {
    let (passes, more) = passing(filter, 6);
    let sql = format!(
        "SELECT no, distance FROM unnest($1, $2) AS asked (first, last)
         CROSS JOIN LATERAL (
             SELECT no, embedding <=> $3::vector AS distance FROM vectors
             WHERE no BETWEEN asked.first AND asked.last AND model = $4 AND {passes}
             ORDER BY distance, no DESC LIMIT $5) AS found
         ORDER BY distance, no DESC LIMIT $5"
    );
    let (firsts, lasts) = partitions.iter().map(|partition| range(*partition)).unzip();
    let mut values = vec![
        Value::Wholes(firsts),
        Value::Wholes(lasts),
        Value::Reals(query.to_vec()),
        Value::Whole(model.no.into()),
        Value::Whole(limit(count)),
    ];
    values.extend(more);
    measured(&it.rows(&sql, &values)?)
}

/// Translates a filter to a condition and its parameters, which are numbered from `first`.
pub(super) fn passing(filter: &Filter, first: usize) -> (String, Vec<Value>) {
    let [second, third, fourth, fifth] = [1, 2, 3, 4].map(|ahead| first + ahead);
    let mut condition = format!(
        "(${first} >> kind::int) & 1 = 1 AND observed >= ${second} AND observed < ${third}
         AND (expires IS NULL OR expires > ${fourth})"
    );
    let mut values = vec![
        Value::Whole(filter.kinds.into()),
        Value::Whole(filter.observed_after.unwrap_or(i64::MIN)),
        Value::Whole(filter.observed_before.unwrap_or(i64::MAX)),
        Value::Whole(filter.now),
    ];
    if let Some(among) = &filter.among {
        condition += &format!(" AND no = ANY(${fifth})");
        values.push(Value::Wholes(among.iter().copied().collect()));
    }
    (condition, values)
}

/// Converts rows of numbers and distances to numbers and cosines.
pub(super) fn measured(rows: &[ResultRow]) -> StoreResult<Vec<(i64, f64)>> {
    let one = |row: &ResultRow| {
        let distance = value(row, 1)?.as_f64().map_err(rusqlite::Error::from)?;
        Ok((whole(row, 0)?, 1.0 - distance))
    };
    let mut found = rows.iter().map(one).collect::<StoreResult<Vec<_>>>()?;
    found.sort_by(|(one, near), (other, far)| far.total_cmp(near).then(other.cmp(one)));
    Ok(found)
}

fn glanced(glance: FilterColumns) -> [Value; 3] {
    [
        Value::Whole(glance.kind.into()),
        Value::Whole(glance.observed),
        glance.expires.map_or(Value::Null, Value::Whole),
    ]
}
