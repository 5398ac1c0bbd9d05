//! Connections to the database, and the transactions of each tenant.
//!
//! A write locks the row of its tenant, which serializes the tenant's writes across all daemons.
//! Reads wait for no lock.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use memoird_core::ids::TenantId;
use memoird_core::sha256::Sha256;
use memoird_core::time::Timestamp;
use memoird_postgres::{Column, OpenTransaction, PgOptions, Transactions, Value};
use memoird_store::verify::FileCheck;
use memoird_store::{READERS_MAX, StoreError};
use tokio::runtime::Handle;
use tracing::warn;

use super::clock::DatabaseClock;
use super::{Pgvector, Transaction, near, schema, value, whole};
use crate::store::backend::{Action, Backend, TenantBackend};
use crate::store::embedding::WALKS;
use crate::store::sql::StoreResult;
use crate::store::time::moment;
use crate::store::word_index::VERSION;
use crate::{MemoryError, lock};

/// Maximum connections per daemon: one per concurrent read, and some for writes.
///
/// A write that waits for the lock of its tenant occupies one.
const CONNECTIONS_MAX: usize = READERS_MAX + 4;

/// Planner options of a write.
///
/// Rows are joined by their keys. Without statistics, a hash join might read all of a tenant.
const PLANS: &str = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off";

#[derive(Debug)]
pub(in crate::store) struct PostgresMemories {
    place: Arc<Database>,
    tenants: Mutex<HashMap<TenantId, Arc<PostgresTenant>>>,
}

#[derive(Debug)]
struct Database {
    /// Servers and name of the database.
    name: String,
    transactions: Transactions,
    clock: DatabaseClock,
    pgvector: Option<Pgvector>,
    /// Schemas of the views and of pgvector.
    search_path: String,
}

#[derive(Debug)]
struct PostgresTenant {
    place: Arc<Database>,
    no: i64,
    salt: Vec<u8>,
    /// Whether an operation has failed.
    ///
    /// A failover may have lost the tenant's rows, so the next call verifies them.
    is_doubtful: AtomicBool,
}

impl PostgresMemories {
    /// See [`MemoryStore::in_postgres`](crate::store::MemoryStore::in_postgres).
    ///
    /// Creates missing tables.
    pub(in crate::store) fn open(options: PgOptions, runtime: &Handle) -> Result<Self, StoreError> {
        let name = options.shown();
        let transactions = Transactions::new(options, runtime, CONNECTIONS_MAX)?;
        transactions.prepare(&schema::TABLES)?;
        let extension = find_pgvector(&transactions)?;
        let mut search_path = "memoird_tenant".to_owned();
        if let Some((schema, _)) = &extension {
            transactions.prepare(&schema::VECTORS)?;
            search_path += &format!(", \"{}\"", schema.replace('"', "\"\""));
        }
        let place = Database {
            name,
            clock: DatabaseClock::new(&transactions)?,
            transactions,
            pgvector: extension.map(|(_, pgvector)| pgvector),
            search_path,
        };
        Ok(Self {
            place: Arc::new(place),
            tenants: Mutex::default(),
        })
    }

    fn tenants_where(&self, condition: &str) -> Result<Vec<TenantId>, MemoryError> {
        let sql = format!(
            "SELECT name FROM memoird_memories.tenants AS t WHERE {condition} ORDER BY name"
        );
        let rows = self.place.look(&sql)?;
        let mut tenants = Vec::with_capacity(rows.len());
        for row in &rows {
            let name = value(row, 0)?.as_blob().map_err(rusqlite::Error::from)?;
            let name = std::str::from_utf8(name).ok();
            tenants.extend(name.and_then(|name| TenantId::parse(name).ok()));
        }
        Ok(tenants)
    }
}

impl Backend for PostgresMemories {
    fn has_vectors(&self) -> bool {
        self.place.pgvector.is_some()
    }

    fn now(&self) -> Option<Timestamp> {
        Some(self.place.clock.now())
    }

    fn make_vector_indexes(&self) -> StoreResult<()> {
        match self.place.pgvector {
            Some(Pgvector { looks_on: true }) => Ok(near::make_indexes(&self.place.transactions)?),
            _ => Ok(()),
        }
    }

    fn tenant(&self, tenant: &TenantId) -> StoreResult<Arc<dyn TenantBackend>> {
        let known = lock(&self.tenants).get(tenant).map(Arc::clone);
        if let Some(known) = known.filter(|known| !known.is_doubtful.load(Ordering::Relaxed)) {
            return Ok(known);
        }
        let no = number_of(tenant);
        let name = tenant.as_str().as_bytes();
        let transactions = &self.place.transactions;
        let salt = transactions.transact("BEGIN", |open| make_tenant(open, no, name))?;
        let made = Arc::new(PostgresTenant {
            place: Arc::clone(&self.place),
            no,
            salt,
            is_doubtful: AtomicBool::new(false),
        });
        lock(&self.tenants).insert(tenant.clone(), Arc::clone(&made));
        Ok(made)
    }

    fn tenants(&self) -> StoreResult<Vec<TenantId>> {
        self.tenants_where("true")
    }

    /// A single statement, with a few index lookups per tenant.
    fn tenants_due(&self, now: Timestamp, expired_before: Timestamp) -> StoreResult<Vec<TenantId>> {
        let of = |table: &str, condition: &str| {
            format!(
                "EXISTS (SELECT FROM memoird_memories.{table} AS r
                 WHERE r.tenant = t.no AND {condition})"
            )
        };
        let walks = WALKS.map(|name| format!("'{name}'")).join(", ");
        let due = [
            of("forget_jobs", "true"),
            of("embeddings_due", "r.failed = 0"),
            of("meta", &format!("r.name IN ({walks})")),
            of(
                "memories",
                &format!("r.expires < {}", moment(expired_before)),
            ),
            of("documents", &format!("r.expires <= {}", moment(now))),
            of("memories", "r.checksum IS NULL"),
            of("documents", "r.checksum IS NULL"),
        ];
        self.tenants_where(&due.join(" OR "))
    }

    fn shared_rows(&self) -> StoreResult<Option<FileCheck>> {
        let sql = "SELECT pg_table_size('memoird_memories.memories')
            + pg_table_size('memoird_memories.documents')";
        let size = self.place.look(sql)?;
        Ok(Some(FileCheck {
            path: format!("{} (memories)", self.place.name).into(),
            bytes: size
                .first()
                .map_or(Ok(0), |row| whole(row, 0))?
                .unsigned_abs(),
            ..FileCheck::default()
        }))
    }

    fn read_learnt(&self) -> StoreResult<Option<u64>> {
        let rows = self
            .place
            .look("SELECT number FROM memoird_memories.learnt")?;
        let number = rows.first().map(|row| whole(row, 0)).transpose()?;
        Ok(number.map(i64::unsigned_abs))
    }

    fn write_learnt(&self, number: u64) -> StoreResult<()> {
        let sql = "INSERT INTO memoird_memories.learnt (id, number) VALUES (1, $1)
            ON CONFLICT (id) DO UPDATE SET number = excluded.number";
        let number = Value::Whole(i64::try_from(number).unwrap_or(i64::MAX));
        self.place.transactions.transact("BEGIN", |open| {
            open.change(sql, &[number])?;
            Ok(())
        })
    }
}

impl Database {
    fn look(&self, sql: &str) -> Result<Vec<memoird_postgres::ResultRow>, StoreError> {
        self.transactions
            .read("BEGIN READ ONLY", |open| open.query(sql, &[]))
    }
}

impl PostgresTenant {
    /// After a failure, makes the next call verify the rows of the tenant.
    fn noted<T>(&self, outcome: Result<T, MemoryError>) -> Result<T, MemoryError> {
        if let Err(MemoryError::Failed { .. } | MemoryError::Busy) = &outcome {
            self.is_doubtful.store(true, Ordering::Relaxed);
        }
        outcome
    }

    fn opened<'a>(&'a self, open: &'a OpenTransaction) -> Transaction<'a> {
        Transaction {
            open,
            tenant: self.no,
            salt: &self.salt,
            pgvector: self.place.pgvector,
            waiting: RefCell::default(),
        }
    }

    /// Settings of a transaction. They end with it, so that a connection pooler may be in between.
    ///
    /// The timeouts keep a daemon that is suspended during a transaction from blocking others for
    /// long.
    fn settings(&self) -> String {
        format!(
            "SET LOCAL search_path = {}; SET LOCAL memoird.tenant = '{}';
             SET LOCAL lock_timeout = '10s'; SET LOCAL idle_in_transaction_session_timeout = '10s'",
            self.place.search_path, self.no
        )
    }
}

impl TenantBackend for PostgresTenant {
    fn transact(&self, action: Action<'_>) -> StoreResult<()> {
        let turn = format!(
            "SELECT 1 FROM memoird_memories.tenants WHERE no = {} FOR UPDATE",
            self.no
        );
        let begin = format!("BEGIN; {}; {PLANS}; {turn}", self.settings());
        let mut is_done = false;
        let written = self.place.transactions.transact(&begin, |open| {
            self.place.clock.follow(open)?;
            let transaction = self.opened(open);
            action(&transaction)?;
            transaction.settle()?;
            is_done = true;
            Ok(())
        });
        self.noted(written).map_err(|error| match error {
            // The failure was that of the commit.
            MemoryError::Failed { cause } if is_done => MemoryError::InDoubt {
                detail: cause.to_string(),
            },
            error => error,
        })
    }

    fn read(&self, look: Action<'_>) -> StoreResult<()> {
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {}",
            self.settings()
        );
        let transactions = &self.place.transactions;
        self.noted(transactions.read(&begin, |open| {
            self.place.clock.follow(open)?;
            look(&self.opened(open))
        }))
    }
}

/// Returns the schema of pgvector, after creating the extension if possible.
///
/// `None` if it is not available. Recalls are lexical only then.
fn find_pgvector(transactions: &Transactions) -> Result<Option<(String, Pgvector)>, StoreError> {
    let sql =
        "SELECT nspname::text, string_to_array(extversion, '.')::int[] >= '{0,8}' FROM pg_extension
        JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'vector'";
    let find = || -> Result<Option<(String, Pgvector)>, StoreError> {
        let rows = transactions.read("BEGIN READ ONLY", |open| open.query(sql, &[]))?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let Column::Bytes(schema) = row.column(0)? else {
            return Ok(None);
        };
        let schema = String::from_utf8_lossy(schema).into_owned();
        let looks_on = row.column(1)? == Column::Whole(1);
        Ok(Some((schema, Pgvector { looks_on })))
    };
    if let Some(found) = find()? {
        return Ok(Some(found));
    }
    let make = |schema: &str| {
        let sql = format!("CREATE EXTENSION IF NOT EXISTS vector{schema}");
        transactions.transact("BEGIN", |open| open.change(&sql, &[]))
    };
    // For a role named memoird, the journal's schema comes first in the search path. With the
    // extension in it, dumps of memoird's schemas could not be restored.
    let make = match make(" SCHEMA public") {
        Err(StoreError::Database { .. } | StoreError::Locked { .. }) => make(""),
        made => made,
    };
    match make {
        // Another daemon may create it concurrently.
        Ok(_) | Err(StoreError::Database { .. } | StoreError::Locked { .. }) => {}
        Err(error) => return Err(error),
    }
    let found = find()?;
    if let (None, Err(error)) = (&found, make) {
        warn!(
            %error,
            "the database has no pgvector: memories are found by their words only. Install it, \
             run CREATE EXTENSION vector, and start again"
        );
    }
    Ok(found)
}

/// Hashes a tenant's name to a non-negative number.
fn number_of(tenant: &TenantId) -> i64 {
    let digest = Sha256::digest(tenant.as_str().as_bytes());
    i64::from_be_bytes(std::array::from_fn(|index| digest[index])) & i64::MAX
}

/// Creates missing rows of a tenant, possibly concurrently with other daemons.
///
/// Returns the salt of its digests.
fn make_tenant(open: &OpenTransaction, no: i64, name: &[u8]) -> Result<Vec<u8>, MemoryError> {
    let make = "INSERT INTO memoird_memories.tenants (no, name) VALUES ($1, $2)
        ON CONFLICT DO NOTHING";
    let named = || vec![Value::Whole(no), Value::Bytes(name.to_vec())];
    open.send(make, named())?;
    for first in [
        "state (tenant, memories, born, next_partition) VALUES ($1, 0, 0, 1)",
        "partitions (tenant, no, subject, next) VALUES ($1, 0, '', 1)",
        "document_state (tenant, documents, bytes) VALUES ($1, 0, 0)",
    ] {
        let insert = format!("INSERT INTO memoird_memories.{first} ON CONFLICT DO NOTHING");
        open.send(&insert, vec![Value::Whole(no)])?;
    }
    renew_words(open, no)?;
    let sql = "SELECT salt FROM memoird_memories.tenants WHERE no = $1 AND name = $2";
    let rows = open.query(sql, &named())?;
    let Some(row) = rows.first() else {
        let detail = "two tenants have one number in memoird_memories.tenants: rename one";
        return Err(StoreError::Database {
            detail: detail.to_owned(),
        }
        .into());
    };
    let salt = value(row, 0)?.as_blob().map_err(rusqlite::Error::from)?;
    Ok(salt.to_vec())
}

/// Deletes the words of a tenant if other word rules created them, and starts to reindex them.
fn renew_words(open: &OpenTransaction, no: i64) -> Result<(), MemoryError> {
    let version = || Value::Bytes(VERSION.to_string().into_bytes());
    let other = "SELECT 1 FROM memoird_memories.tenants WHERE no = $1 AND NOT EXISTS (
            SELECT 1 FROM memoird_memories.meta
            WHERE tenant = $1 AND name = 'words' AND value = $2
        ) FOR UPDATE";
    if open
        .query(other, &[Value::Whole(no), version()])?
        .is_empty()
    {
        return Ok(());
    }
    let clear = "DELETE FROM memoird_memories.terms WHERE tenant = $1";
    open.send(clear, vec![Value::Whole(no)])?;
    for (name, value) in [("words_at", "'0'"), ("words_left", "memories::text")] {
        let walk = format!(
            "INSERT INTO memoird_memories.meta (tenant, name, value)
             SELECT $1, '{name}'::bytea, convert_to({value}, 'UTF8')
             FROM memoird_memories.state WHERE tenant = $1 AND memories > 0
             ON CONFLICT (tenant, name) DO UPDATE SET value = excluded.value"
        );
        open.send(&walk, vec![Value::Whole(no)])?;
    }
    let set = "INSERT INTO memoird_memories.meta (tenant, name, value) VALUES ($1, 'words', $2)
        ON CONFLICT (tenant, name) DO UPDATE SET value = excluded.value";
    open.send(set, vec![Value::Whole(no), version()])?;
    Ok(())
}
