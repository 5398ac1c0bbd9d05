//! Migration of memories and documents, one tenant at a time and atomically for each.

use std::collections::BTreeMap;

use memoird_cli::progress::Progress;
use memoird_core::sha256::Sha256;
use memoird_memories::MemoryError;
use memoird_memories::store::{Contents, MemoryStore};
use memoird_store::transfer::{TableComparison, TableDigest};

use crate::exit::{CliError, Exit};

/// Progress steps per tenant: read the source, copy, read the target.
const STEPS: u64 = 3;

/// Copies the memories and documents of tenants missing in the target, and compares both sides.
pub(super) fn copy_and_compare(
    source: &MemoryStore,
    target: &MemoryStore,
) -> Result<Vec<TableComparison>, CliError> {
    let failed = |error: MemoryError| {
        let cause = match &error {
            MemoryError::Failed { cause } => format!("{cause}"),
            other => other.to_string(),
        };
        CliError::failed(Exit::Unavailable, format!("memories: {cause}"))
    };
    let tenants = source.tenants().map_err(failed)?;
    let progress = Progress::new(Some(tenants.len() as u64 * STEPS));
    let mut sums: BTreeMap<&'static str, [TableSum; 2]> = BTreeMap::new();
    for tenant in &tenants {
        progress.show(|| format!("memories of {tenant}"));
        let from = source.tenant(tenant).map_err(failed)?;
        let to = target.tenant(tenant).map_err(failed)?;
        let contents = from.contents().map_err(failed)?;
        progress.add(1);
        let vectors = contents.get("vectors").map_or(0, |vectors| vectors.rows);
        if vectors > 0 && !target.has_vectors() {
            let problem = format!(
                "the database has no pgvector, and tenant {tenant} has {vectors} vectors: install \
                 it, run CREATE EXTENSION vector, and call this again"
            );
            return Err(CliError::failed(Exit::Unavailable, problem));
        }
        if to.is_unused().map_err(failed)? {
            from.copy_to(&to).map_err(failed)?;
        }
        progress.add(1);
        let there = to.contents().map_err(failed)?;
        progress.add(1);
        for (side, contents) in [contents, there].iter().enumerate() {
            for (name, found) in contents {
                sums.entry(name).or_default()[side].add(tenant.as_str(), found);
            }
        }
    }
    if let Some(number) = source.read_learnt().map_err(failed)? {
        target.write_learnt(number).map_err(failed)?;
    }
    let compared = |(name, [source, target]): (&'static str, [TableSum; 2])| TableComparison {
        name,
        source: source.end(),
        target: target.end(),
    };
    Ok(sums.into_iter().map(compared).collect())
}

/// Row count and digest of one table, over all tenants.
#[derive(Clone, Default)]
struct TableSum {
    rows: u64,
    digest: Sha256,
}

impl TableSum {
    fn add(&mut self, tenant: &str, contents: &Contents) {
        self.rows += contents.rows;
        self.digest.update((tenant.len() as u64).to_le_bytes());
        self.digest.update(tenant);
        self.digest.update(contents.checksum);
    }

    fn end(self) -> TableDigest {
        TableDigest {
            rows: self.rows,
            sha256: self.digest.finalize(),
        }
    }
}
