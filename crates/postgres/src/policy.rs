//! The policy of a cluster, in an encoding that only daemons know.

use memoird_store::StoreError;
use memoird_store::rows::{StoredRow, damaged};
use tokio::runtime::Handle;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connect::{Arg, Database, PgOptions, change, first};
use crate::schema;
use crate::values::{get, whole};

/// The policy of a cluster. Its version grows by one with each change, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPolicy {
    pub version: u64,
    pub body: Vec<u8>,
}

/// Reads the policy. `None` before the first daemon has stored one.
pub(crate) async fn read(client: &Client) -> Result<Option<StoredPolicy>, StoreError> {
    let sql = "SELECT version, body FROM memoird.policy";
    let row = first(client, sql, &[]).await?;
    row.map(|row| {
        Ok(StoredPolicy {
            version: row.count(0)?,
            body: get(&row, 1)?,
        })
    })
    .transpose()
}

/// Returns the policy, after storing `offered` if there is none.
pub(crate) async fn offer(client: &Client, offered: &[u8]) -> Result<StoredPolicy, StoreError> {
    let sql = "INSERT INTO memoird.policy (id, version, body) VALUES (1, 1, $1)
               ON CONFLICT (id) DO NOTHING RETURNING 1";
    change(client, sql, &[(&offered, Type::BYTEA)]).await?;
    existing(client).await
}

/// Replaces the policy unless it is the same, and returns the one that applies.
///
/// With `was`, only that version is replaced.
pub(crate) async fn replace(
    client: &Client,
    was: Option<u64>,
    body: &[u8],
) -> Result<StoredPolicy, StoreError> {
    let sql = "INSERT INTO memoird.policy AS p (id, version, body) VALUES (1, 1, $1)
               ON CONFLICT (id) DO UPDATE SET version = p.version + 1, body = excluded.body
               WHERE p.body <> excluded.body AND ($2::int8 IS NULL OR p.version = $2)
               RETURNING 1";
    let was = was.map(whole);
    let args: [Arg<'_>; 2] = [(&body, Type::BYTEA), (&was, Type::INT8)];
    change(client, sql, &args).await?;
    existing(client).await
}

async fn existing(client: &Client) -> Result<StoredPolicy, StoreError> {
    read(client).await?.ok_or(damaged("policy"))
}

/// Replaces the policy of the cluster over a database, whether or not one of its daemons runs.
///
/// Returns the policy before this, if there was one, and the one that applies. Blocks. Do not call
/// it on a thread of the runtime.
///
/// # Errors
/// If the database cannot be reached, or its schema is too new.
pub fn replace_policy(
    options: PgOptions,
    runtime: &Handle,
    body: &[u8],
) -> Result<(Option<StoredPolicy>, StoredPolicy), StoreError> {
    let database = {
        // The pool needs the runtime's timers.
        let _entered = runtime.enter();
        Database::new(options, runtime.clone(), 1)?
    };
    database.wait(async {
        let client = database.connect().await?;
        schema::prepare(&client, &schema::JOURNAL).await?;
        let before = read(&client).await?;
        Ok((before, replace(&client, None, body).await?))
    })
}
