//! An index of vectors (HNSW) for each very large partition, where measuring all of it would take
//! longer than a recall may: above some 20,000 memories. It has the vectors of that partition and
//! of one model only, so nothing that it finds is somebody else's.

use memoird_postgres::{Transactions, Value};
use memoird_store::StoreError;
use tracing::{info, warn};

use super::vectors::{measured, passing};
use super::{Transaction, value};
use crate::store::row::{limit, range};
use crate::store::sql::Answer;
use crate::store::vectors::{Filter, Model};

/// Memories that a partition had, from which on it has an index.
const INDEXED_FROM: i64 = 20_000;
/// Dimensions that pgvector takes into one.
const DIMENSIONS_MAX: i64 = 2_000;
/// Candidates of a look, `hnsw.ef_search`: with the usual 40 a recall of fifty finds forty.
const CANDIDATES: u32 = 200;

/// Those of these partitions that are so large.
pub(super) fn large(it: &Transaction<'_>, partitions: &[i64]) -> Answer<Vec<i64>> {
    if !it.has_indexes() {
        return Ok(Vec::new());
    }
    let sql = "SELECT no FROM partitions WHERE no = ANY($1) AND next > $2";
    let values = [
        Value::Wholes(partitions.to_vec()),
        Value::Whole(INDEXED_FROM),
    ];
    let rows = it.rows(sql, &values)?;
    let number = |row| Ok(value(row, 0)?.as_i64().map_err(rusqlite::Error::from)?);
    rows.iter().map(number).collect()
}

/// The nearest in each of them. Where an index is not there yet, all is measured.
pub(super) fn nearest(
    it: &Transaction<'_>,
    model: Model,
    partitions: &[i64],
    filter: &Filter,
    query: &[f32],
    count: usize,
) -> Answer<Vec<(i64, f64)>> {
    let mut found = Vec::new();
    for partition in partitions {
        // What a filter leaves out is made up for by further looks.
        it.control("SET LOCAL hnsw.iterative_scan = relaxed_order")?;
        it.control(&format!("SET LOCAL hnsw.ef_search = {CANDIDATES}"))?;
        let dimension = query.len();
        let (passes, more) = passing(filter, 3);
        // The index is found by what is written in its condition, so that is no parameter.
        let sql = format!(
            "SELECT no, embedding::vector({dimension}) <=> $1::vector({dimension}) AS distance
             FROM memoird_vectors.vectors WHERE {} AND {passes}
             ORDER BY embedding::vector({dimension}) <=> $1::vector({dimension}) LIMIT $2",
            condition(it.tenant(), *partition, model.no.into())
        );
        let mut values = vec![Value::Reals(query.to_vec()), Value::Whole(limit(count))];
        values.extend(more);
        found.extend(measured(&it.rows(&sql, &values)?)?);
    }
    Ok(found)
}

/// Makes the indexes that are missing, one after the other, beside all that goes on.
pub(super) fn make_indexes(transactions: &Transactions) -> Result<(), StoreError> {
    let sql = "SELECT partitions.tenant, partitions.no, models.no, models.dimension
        FROM memoird_memories.partitions
        JOIN memoird_memories.meta ON meta.tenant = partitions.tenant AND meta.name = 'embedding_model'
        JOIN memoird_memories.models ON models.tenant = partitions.tenant AND models.name = meta.value
        WHERE partitions.next > $1 AND models.dimension BETWEEN 1 AND $2";
    let values = [Value::Whole(INDEXED_FROM), Value::Whole(DIMENSIONS_MAX)];
    let large = transactions.look("BEGIN READ ONLY", |open| {
        let rows = open.query(sql, &values)?;
        rows.iter()
            .map(memoird_postgres::FoundRow::wholes)
            .collect::<Result<Vec<_>, _>>()
    })?;
    for row in large {
        let [tenant, partition, model, dimension] = row[..] else {
            continue;
        };
        let name = format!("near_{tenant}_{partition}_{model}");
        let known = format!(
            "SELECT indisvalid FROM pg_index
            WHERE indexrelid = to_regclass('memoird_vectors.{name}')"
        );
        let state = transactions.look("BEGIN READ ONLY", |open| open.query(&known, &[]))?;
        let state = state
            .first()
            .map(memoird_postgres::FoundRow::wholes)
            .transpose()?;
        match state.as_deref() {
            Some([1]) => continue,
            // One that was broken off, or that another daemon is making.
            Some(_) => {
                transactions.alone(&format!("DROP INDEX CONCURRENTLY memoird_vectors.{name}"))?;
            }
            None => {}
        }
        info!(
            tenant,
            partition, "the vectors of a large subject are indexed"
        );
        let make = format!(
            "CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON memoird_vectors.vectors
             USING hnsw ((embedding::vector({dimension})) vector_cosine_ops) WHERE {}",
            condition(tenant, partition, model)
        );
        if let Err(error) = transactions.alone(&make) {
            warn!(%error, tenant, partition, "vectors are not indexed; it is tried again");
        }
    }
    Ok(())
}

fn condition(tenant: i64, partition: i64, model: i64) -> String {
    let (first, last) = range(partition);
    format!("tenant = {tenant} AND model = {model} AND no BETWEEN {first} AND {last}")
}
