//! HNSW vector indexes, one per very large partition.
//!
//! Above some 20,000 memories, comparing all vectors would take longer than a recall may. An index
//! covers a single partition and model, so all of its results belong to the right subject.

use std::collections::BTreeMap;

use memoird_postgres::{Column, ResultRow, Transactions, Value};
use memoird_store::StoreError;
use tracing::{info, warn};

use super::vectors::{measured, passing};
use super::{Transaction, whole};
use crate::store::row::{limit, range};
use crate::store::sql::{Dialect, StoreResult};
use crate::store::vector_index::{Filter, Model};

/// Number of memories ever stored in a partition from which it gets an index.
const INDEXED_FROM: i64 = 20_000;
/// Maximum dimension that a pgvector index supports.
const DIMENSIONS_MAX: i64 = 2_000;
/// Candidates of an index scan, `hnsw.ef_search`.
///
/// With the default of 40, a recall of fifty finds only forty.
const CANDIDATES: u32 = 200;

/// Returns the partitions that are large enough for an index.
pub(super) fn large(it: &Transaction<'_>, partitions: &[i64]) -> StoreResult<Vec<i64>> {
    if !it.pgvector.is_some_and(|pgvector| pgvector.looks_on) {
        return Ok(Vec::new());
    }
    let sql = "SELECT no FROM partitions WHERE no = ANY($1) AND next > $2";
    let values = [
        Value::Wholes(partitions.to_vec()),
        Value::Whole(INDEXED_FROM),
    ];
    let rows = it.rows(sql, &values)?;
    rows.iter().map(|row| whole(row, 0)).collect()
}

/// Finds the nearest vectors of each partition.
///
/// Compares all vectors if the index does not exist yet.
pub(super) fn nearest(
    it: &Transaction<'_>,
    model: Model,
    partitions: &[i64],
    filter: &Filter,
    query: &[f32],
    count: usize,
) -> StoreResult<Vec<(i64, f64)>> {
    let mut found = Vec::new();
    for partition in partitions {
        // Iterative scans make up for the results that the filter drops.
        it.control("SET LOCAL hnsw.iterative_scan = relaxed_order")?;
        it.control(&format!("SET LOCAL hnsw.ef_search = {CANDIDATES}"))?;
        let dimension = query.len();
        let (passes, more) = passing(filter, 3);
        // The planner matches the literal condition of a partial index, so the condition takes no
        // parameters.
        let sql = format!(
            "SELECT no, embedding::vector({dimension}) <=> $1::vector({dimension}) AS distance
             FROM memoird_vectors.vectors WHERE {} AND {passes}
             ORDER BY embedding::vector({dimension}) <=> $1::vector({dimension}) LIMIT $2",
            condition(it.tenant, *partition, model.no.into())
        );
        let mut values = vec![Value::Reals(query.to_vec()), Value::Whole(limit(count))];
        values.extend(more);
        found.extend(measured(&it.rows(&sql, &values)?)?);
    }
    Ok(found)
}

/// Creates missing indexes one after the other, without blocking, and drops obsolete ones.
///
/// An index is obsolete if its model or partition is no longer in use.
pub(super) fn make_indexes(transactions: &Transactions) -> Result<(), StoreError> {
    let sql = "SELECT partitions.tenant, partitions.no, models.no, models.dimension
        FROM memoird_memories.partitions
        JOIN memoird_memories.meta ON meta.tenant = partitions.tenant AND meta.name = 'embedding_model'
        JOIN memoird_memories.models ON models.tenant = partitions.tenant AND models.name = meta.value
        WHERE partitions.next > $1 AND models.dimension BETWEEN 1 AND $2";
    let values = [Value::Whole(INDEXED_FROM), Value::Whole(DIMENSIONS_MAX)];
    // An index that another daemon is creating is not valid yet, and must not be dropped.
    let known = "SELECT relname::text, indisvalid, EXISTS (
            SELECT 1 FROM pg_stat_progress_create_index
            WHERE datname = current_database() AND index_relid = indexrelid)
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
        WHERE indrelid = 'memoird_vectors.vectors'::regclass AND relname ~ '^near_[0-9_]+$'";
    let (large, known) = transactions.read("BEGIN READ ONLY", |open| {
        let large = open.query(sql, &values)?;
        let large = large.iter().map(ResultRow::wholes);
        let known = open.query(known, &[])?;
        let known = known.iter().map(Index::read);
        Ok::<_, StoreError>((
            large.collect::<Result<Vec<_>, _>>()?,
            known.collect::<Result<Vec<_>, _>>()?,
        ))
    })?;
    let mut missing = BTreeMap::new();
    for row in large {
        if let [tenant, partition, model, dimension] = row[..] {
            let name = format!("near_{tenant}_{partition}_{model}");
            missing.insert(name, [tenant, partition, model, dimension]);
        }
    }
    for index in known {
        let is_wanted = missing.contains_key(&index.name);
        if index.is_being_made || is_wanted && index.is_valid {
            missing.remove(&index.name);
        } else {
            // Its creation was aborted, or it is obsolete.
            let name = &index.name;
            let drop = format!("DROP INDEX CONCURRENTLY IF EXISTS memoird_vectors.{name}");
            transactions.run_standalone(&drop)?;
        }
    }
    for (name, [tenant, partition, model, dimension]) in missing {
        info!(
            tenant,
            partition, "the vectors of a large subject are indexed"
        );
        let make = format!(
            "CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON memoird_vectors.vectors
             USING hnsw ((embedding::vector({dimension})) vector_cosine_ops) WHERE {}",
            condition(tenant, partition, model)
        );
        if let Err(error) = transactions.run_standalone(&make) {
            warn!(%error, tenant, partition, "vectors are not indexed; it is tried again");
        }
    }
    Ok(())
}

struct Index {
    name: String,
    is_valid: bool,
    is_being_made: bool,
}

impl Index {
    fn read(row: &ResultRow) -> Result<Self, StoreError> {
        let name = match row.column(0)? {
            Column::Bytes(name) => String::from_utf8_lossy(name).into_owned(),
            _ => String::new(),
        };
        Ok(Self {
            name,
            is_valid: row.column(1)? == Column::Whole(1),
            is_being_made: row.column(2)? == Column::Whole(1),
        })
    }
}

fn condition(tenant: i64, partition: i64, model: i64) -> String {
    let (first, last) = range(partition);
    format!("tenant = {tenant} AND model = {model} AND no BETWEEN {first} AND {last}")
}
