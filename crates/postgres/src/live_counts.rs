//! Counters of live sessions by tenant.
//!
//! Triggers insert a row for each start and each end in the same transaction. One daemon adds these
//! rows to the counters, so that a count reads only the counters and the newest rows.

use std::time::Duration;

use deadpool_postgres::Object;
use memoird_core::ids::TenantId;
use memoird_store::StoreError;
use memoird_store::rows::StoredRow;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use crate::connect::{CALL_TIME_MAX, Database, change, query, with_lock_timeout};

/// Pause between two additions.
const FOLD_PAUSE: Duration = Duration::from_secs(1);

/// Returns the number of live sessions of each tenant that has any.
pub(crate) async fn read(client: &Client) -> Result<Vec<(TenantId, u64)>, StoreError> {
    let sql = "SELECT tenant, sum(live)::int8 FROM (
                   SELECT tenant, live FROM memoird.live_counts
                   UNION ALL SELECT tenant, change FROM memoird.live_changes) AS it
               GROUP BY tenant HAVING sum(live) > 0";
    let rows = query(client, sql, &[]).await?;
    let counts = rows.iter();
    counts
        .map(|row| Ok((row.id(0, TenantId::parse)?, row.count(1)?)))
        .collect()
}

/// Adds the changes to the counters every second, while this process leads.
pub(crate) async fn keep_folded(database: Database, mut leads: watch::Receiver<bool>) {
    // The sender ends with the lease.
    while leads.wait_for(|leads| *leads).await.is_ok() {
        // Until they are added, each count reads the changes.
        match timeout(CALL_TIME_MAX, fold(&database)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "changed counts could not be added up"),
            Err(_) => tracing::debug!("changed counts could not be added up in time"),
        }
        sleep(FOLD_PAUSE).await;
    }
}

/// Adds all committed changes, each exactly once even if two processes do it.
async fn fold(database: &Database) -> Result<(), StoreError> {
    let sql = "WITH changes AS (DELETE FROM memoird.live_changes RETURNING tenant, change)
               INSERT INTO memoird.live_counts AS c (live, tenant)
               SELECT sum(change), tenant FROM changes GROUP BY tenant HAVING sum(change) <> 0
               ON CONFLICT (tenant) DO UPDATE SET live = c.live + excluded.live RETURNING 1";
    let pooled = database.take().await?;
    let folded = with_lock_timeout(&pooled, change(&pooled, sql, &[])).await;
    if folded.is_err() {
        // Its transaction may still be open.
        drop(Object::take(pooled));
    }
    folded.map(drop)
}
