//! Synchronous transactions for data stored next to the journal, such as memories.
//!
//! Statements without a needed result are pipelined: they are sent without waiting, and the next
//! one with a result waits for all of them. Ten changes cost one round trip. Repeated statements
//! are prepared, but only until the transaction ends, because a transaction pooler may be in
//! between.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use deadpool_postgres::Object;
use memoird_store::StoreError;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::Statement;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::connect::{Arg, CALL_TIME_MAX, Database, PgOptions, ReplyMissing};
use crate::error::failed;
use crate::schema::{self, SchemaMigrations};
use crate::values::Ulid;

/// Maximum number of pipelined statements without a reply.
const PIPELINED_MAX: usize = 256;
/// Maximum bytes of their parameters. Both sides buffer that much.
const PIPELINED_BYTES_MAX: usize = 4 << 20;

/// Number of the execution before which a statement is prepared, which costs a round trip.
const PREPARE_AT_EXECUTION: u32 = 3;
/// Timeout of a statement that runs outside a transaction.
const STANDALONE_TIME_MAX: Duration = Duration::from_secs(60 * 60);

/// A statement parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of any type.
    Null,
    /// `bigint`.
    Whole(i64),
    /// `double precision`.
    Real(f64),
    /// `bytea`.
    Bytes(Vec<u8>),
    /// `text`.
    Text(String),
    /// `uuid`.
    Id([u8; 16]),
    /// `bigint[]`.
    Wholes(Vec<i64>),
    /// `real[]`.
    Reals(Vec<f32>),
    /// `bigint[]`.
    WholesOrNull(Vec<Option<i64>>),
    /// `double precision[]`.
    RealsOrNull(Vec<Option<f64>>),
    /// `bytea[]`.
    BytesOrNull(Vec<Option<Vec<u8>>>),
}

/// A column value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Column<'a> {
    Null,
    /// `bigint`, `int`, `smallint` or `boolean`.
    Whole(i64),
    /// `double precision`.
    Real(f64),
    /// `bytea`, `text` or `uuid`.
    Bytes(&'a [u8]),
}

#[derive(Debug)]
pub struct ResultRow(pub(crate) tokio_postgres::Row);

/// A connection pool for transactions, so that waiting here does not block the journal.
#[derive(Clone, Debug)]
pub struct Transactions {
    database: Database,
}

/// An open transaction.
pub struct OpenTransaction {
    database: Database,
    /// Notifies when connections went silent since the transaction began.
    silence: RefCell<watch::Receiver<u64>>,
    client: Arc<Object>,
    /// Statements that were sent and have no reply yet.
    pending: RefCell<Vec<PendingReply>>,
    /// Total bytes of their parameters.
    pending_bytes: Cell<usize>,
    /// Number of executions of each statement, by SQL and parameter types.
    uses: RefCell<HashMap<(String, Vec<Type>), StatementUse>>,
}

enum StatementUse {
    Executed(u32),
    Prepared(Statement),
}

type PendingReply = Pin<Box<dyn Future<Output = Result<u64, tokio_postgres::Error>>>>;

impl std::fmt::Debug for OpenTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OpenTransaction")
    }
}

impl Transactions {
    /// Creates a pool that opens at most `connections_max` connections on demand.
    ///
    /// Connections run on `runtime`.
    ///
    /// # Errors
    /// If no pool can be created.
    pub fn new(
        options: PgOptions,
        runtime: &Handle,
        connections_max: usize,
    ) -> Result<Self, StoreError> {
        // The pool needs the runtime's timers.
        let _entered = runtime.enter();
        let database = Database::new(options, runtime.clone(), connections_max)?;
        Ok(Self { database })
    }

    /// Returns transactions on the connections of the journal.
    pub(crate) fn over(database: &Database) -> Self {
        let database = database.clone();
        Self { database }
    }

    /// Applies the missing migration steps of a schema. Blocks.
    ///
    /// # Errors
    /// If the database cannot be reached or written, or its schema is too new.
    pub fn prepare(&self, steps: &SchemaMigrations) -> Result<(), StoreError> {
        self.database.wait(async {
            let client = self.database.connect().await?;
            schema::prepare(&client, steps).await
        })
    }

    /// Runs a statement that is not allowed in a transaction. Blocks.
    ///
    /// The time limit is one hour instead of the database's statement timeout. That still applies
    /// if a pooler rejects startup parameters.
    ///
    /// # Errors
    /// If the database cannot be reached, or rejects the statement.
    pub fn run_standalone(&self, sql: &str) -> Result<(), StoreError> {
        self.database.wait(async {
            let client = self.database.connect_without_time_limit().await?;
            match timeout(STANDALONE_TIME_MAX, client.batch_execute(sql)).await {
                Ok(done) => done.map_err(failed),
                Err(_) => Err(ReplyMissing::TimedOut(STANDALONE_TIME_MAX).into()),
            }
        })
    }

    /// Runs `action` in a transaction, and commits if it succeeds. Blocks.
    ///
    /// The transaction starts with the statements in `begin`. Do not call it on a thread of the
    /// runtime.
    ///
    /// # Errors
    /// Those of `action`, or if the database cannot be reached. If the reply to the commit is lost,
    /// the transaction may have been committed.
    pub fn transact<T, E: From<StoreError>>(
        &self,
        begin: &str,
        action: impl FnOnce(&OpenTransaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut begun = BegunTransaction::begin(&self.database, begin)?;
        let open = begun.open()?;
        let outcome = action(open).and_then(|outcome| {
            open.wait_for_pipelined()?;
            Ok(outcome)
        });
        let ended = match &outcome {
            Ok(_) => open.end("COMMIT"),
            Err(_) => {
                // Replies to pipelined statements do not matter: they are rolled back.
                let _ = open.wait_for_pipelined();
                open.end("ROLLBACK")
            }
        };
        begun.is_clean = ended.is_ok();
        outcome.and_then(|outcome| {
            ended?;
            Ok(outcome)
        })
    }
}

impl Transactions {
    /// Like `transact`, for a transaction that only reads. Does not wait for its end.
    ///
    /// # Errors
    /// Those of `action`, or if the database cannot be reached.
    pub fn read<T, E: From<StoreError>>(
        &self,
        begin: &str,
        action: impl FnOnce(&OpenTransaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut begun = BegunTransaction::begin(&self.database, begin)?;
        let open = begun.open()?;
        let outcome = action(open);
        begun.is_clean = match &outcome {
            // The next user's statements queue after this one.
            Ok(_) => open.wait(async {
                open.uses.borrow_mut().clear();
                let mut end = std::pin::pin!(open.client.batch_execute("ROLLBACK"));
                !matches!(poll_once(&mut end).await, Some(Err(_)))
            }),
            Err(_) => {
                let _ = open.wait_for_pipelined();
                open.end("ROLLBACK").is_ok()
            }
        };
        outcome
    }
}

/// A pooled connection with its transaction.
///
/// It returns to the pool if the transaction has ended. Otherwise its state is unknown, and it is
/// closed.
struct BegunTransaction {
    open: Option<OpenTransaction>,
    is_clean: bool,
}

impl BegunTransaction {
    /// Begins a transaction, and retries once on another connection.
    ///
    /// A connection that was closed while idle, for example by a restart of the server, fails only
    /// at its first statement.
    fn begin(database: &Database, begin: &str) -> Result<Self, StoreError> {
        match Self::try_begin(database, begin) {
            Err(StoreError::Unavailable { .. }) => Self::try_begin(database, begin),
            outcome => outcome,
        }
    }

    fn try_begin(database: &Database, begin: &str) -> Result<Self, StoreError> {
        let open = OpenTransaction {
            database: database.clone(),
            silence: RefCell::new(database.silence()),
            client: Arc::new(database.wait(database.take())?),
            pending: RefCell::default(),
            pending_bytes: Cell::default(),
            uses: RefCell::default(),
        };
        let begun = Self {
            open: Some(open),
            is_clean: false,
        };
        begun.open()?.run_batch(begin)?;
        Ok(begun)
    }

    fn open(&self) -> Result<&OpenTransaction, StoreError> {
        self.open.as_ref().ok_or_else(|| StoreError::Unavailable {
            detail: "the transaction is over".to_owned(),
        })
    }
}

impl Drop for BegunTransaction {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else {
            return;
        };
        // Pipelined statements also hold the connection.
        drop(open.pending);
        if let Some(connection) = Arc::into_inner(open.client)
            && !self.is_clean
        {
            drop(Object::take(connection));
        }
    }
}

impl OpenTransaction {
    /// Runs a statement and returns its rows.
    ///
    /// # Errors
    /// If it or an earlier pipelined statement fails.
    pub fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<ResultRow>, StoreError> {
        let rows = match self.prepared(sql, values)? {
            Some(statement) => {
                let values = untyped(values);
                self.send_and_wait(self.client.query(&statement, &values))?
            }
            None => {
                let args = arguments(values);
                self.send_and_wait(self.client.query_typed(sql, &args))?
            }
        };
        Ok(rows.into_iter().map(ResultRow).collect())
    }

    /// Runs a statement and returns the number of changed rows.
    ///
    /// # Errors
    /// If it or an earlier pipelined statement fails.
    pub fn change(&self, sql: &str, values: &[Value]) -> Result<u64, StoreError> {
        match self.prepared(sql, values)? {
            Some(statement) => {
                let values = untyped(values);
                self.send_and_wait(self.client.execute(&statement, &values))
            }
            None => {
                let args = arguments(values);
                self.send_and_wait(self.client.execute_typed(sql, &args))
            }
        }
    }

    /// Pipelines a statement. Its error is returned by one of the next calls.
    ///
    /// # Errors
    /// If an earlier pipelined statement fails.
    pub fn send(&self, sql: &str, values: Vec<Value>) -> Result<(), StoreError> {
        let is_full = self.pending.borrow().len() >= PIPELINED_MAX;
        if is_full || self.pending_bytes.get() >= PIPELINED_BYTES_MAX {
            self.wait_for_pipelined()?;
        }
        let bytes: usize = values.iter().map(Value::bytes).sum();
        let statement = self.prepared(sql, &values)?;
        let (client, sql) = (Arc::clone(&self.client), sql.to_owned());
        let mut sent: PendingReply = Box::pin(async move {
            match statement {
                Some(statement) => client.execute(&statement, &untyped(&values)).await,
                None => client.execute_typed(&sql, &arguments(&values)).await,
            }
        });
        // The first poll sends the statement.
        let reply = self.wait(async { poll_once(&mut sent).await });
        match reply {
            Some(reply) => reply.map(drop).map_err(failed),
            None => {
                self.pending.borrow_mut().push(sent);
                self.pending_bytes.update(|pending| pending + bytes);
                Ok(())
            }
        }
    }

    /// Waits for all pipelined statements.
    ///
    /// # Errors
    /// If one of them fails.
    pub fn wait_for_pipelined(&self) -> Result<(), StoreError> {
        self.send_and_wait(async { Ok(()) })
    }

    /// Returns a prepared statement if this one has been executed often enough.
    ///
    /// Statements on cursors are never prepared, because the same SQL can return different columns.
    fn prepared(&self, sql: &str, values: &[Value]) -> Result<Option<Statement>, StoreError> {
        let is_planned = ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"];
        if !is_planned.iter().any(|word| sql.starts_with(word)) {
            return Ok(None);
        }
        let kinds: Vec<Type> = values.iter().map(Value::kind).collect();
        let key = (sql.to_owned(), kinds);
        let times = match self.uses.borrow().get(&key) {
            Some(StatementUse::Prepared(statement)) => return Ok(Some(statement.clone())),
            Some(StatementUse::Executed(times)) => times + 1,
            None => 1,
        };
        let prepared = if times < PREPARE_AT_EXECUTION {
            None
        } else {
            Some(self.send_and_wait(self.client.prepare_typed(sql, &key.1))?)
        };
        let known = prepared
            .clone()
            .map_or(StatementUse::Executed(times), StatementUse::Prepared);
        self.uses.borrow_mut().insert(key, known);
        Ok(prepared)
    }

    /// Ends the transaction after closing its prepared statements.
    ///
    /// With a pooler, the server connection may serve another client afterwards.
    fn end(&self, sql: &str) -> Result<(), StoreError> {
        self.uses.borrow_mut().clear();
        self.run_batch(sql)
    }

    /// Runs statements without parameters.
    fn run_batch(&self, sql: &str) -> Result<(), StoreError> {
        self.send_and_wait(self.client.batch_execute(sql))
    }

    /// Sends a statement, and waits for it and for all pipelined ones.
    fn send_and_wait<T>(
        &self,
        next: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, StoreError> {
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        self.pending_bytes.set(0);
        self.wait(async {
            let all = async {
                let mut next = std::pin::pin!(next);
                let early = poll_once(&mut next).await;
                for sent in pending {
                    sent.await?;
                }
                match early {
                    Some(reply) => reply,
                    None => next.await,
                }
            };
            let mut silence = self.silence.borrow().clone();
            let reply = self
                .database
                .wait_for_reply(CALL_TIME_MAX, &mut silence, all)
                .await?;
            reply.map_err(failed)
        })
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.database.wait(future)
    }
}

/// Polls a future once, and returns its output if it is ready.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match Pin::new(&mut *future).poll(context) {
            Poll::Ready(reply) => Some(reply),
            Poll::Pending => None,
        })
    })
    .await
}

impl ResultRow {
    /// Returns the value of a column.
    ///
    /// # Errors
    /// If the column does not exist, or has a type that [`Column`] does not support.
    pub fn column(&self, index: usize) -> Result<Column<'_>, StoreError> {
        self.0.try_get(index).map_err(failed)
    }

    pub(crate) fn columns(&self) -> Result<Vec<Column<'_>>, StoreError> {
        (0..self.0.len()).map(|index| self.column(index)).collect()
    }

    /// Returns all columns, which must be integers. Other values become 0.
    ///
    /// # Errors
    /// If a column has a type that [`Column`] does not support.
    pub fn wholes(&self) -> Result<Vec<i64>, StoreError> {
        let whole = |index| match self.column(index)? {
            Column::Whole(whole) => Ok(whole),
            _ => Ok(0),
        };
        (0..self.0.len()).map(whole).collect()
    }

    /// Returns the elements of a `bigint[]` column.
    ///
    /// # Errors
    /// If the column does not exist or has another type.
    pub fn list(&self, index: usize) -> Result<Vec<i64>, StoreError> {
        self.0.try_get(index).map_err(failed)
    }

    /// Returns the elements of a `real[]` column.
    ///
    /// # Errors
    /// If the column does not exist or has another type.
    pub fn reals(&self, index: usize) -> Result<Vec<f32>, StoreError> {
        self.0.try_get(index).map_err(failed)
    }
}

impl<'a> FromSql<'a> for Column<'a> {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(match *kind {
            Type::INT8 => Self::Whole(i64::from_be_bytes(raw.try_into()?)),
            Type::INT4 => Self::Whole(i32::from_be_bytes(raw.try_into()?).into()),
            Type::INT2 => Self::Whole(i16::from_be_bytes(raw.try_into()?).into()),
            Type::BOOL => Self::Whole(raw.first().copied().unwrap_or(0).into()),
            Type::FLOAT8 => Self::Real(f64::from_be_bytes(raw.try_into()?)),
            _ => Self::Bytes(raw),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self::Null)
    }

    fn accepts(kind: &Type) -> bool {
        [
            Type::INT8,
            Type::INT4,
            Type::INT2,
            Type::BOOL,
            Type::FLOAT8,
            Type::BYTEA,
            Type::TEXT,
            Type::UUID,
        ]
        .contains(kind)
    }
}

fn untyped(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    values
        .iter()
        .map(|value| value as &(dyn ToSql + Sync))
        .collect()
}

fn arguments(values: &[Value]) -> Vec<Arg<'_>> {
    let argument = |value: &'_ Value| value.kind();
    values
        .iter()
        .map(|value| (value as &(dyn ToSql + Sync), argument(value)))
        .collect()
}

impl Value {
    /// Approximate size in bytes.
    fn bytes(&self) -> usize {
        match self {
            Self::Null | Self::Whole(_) | Self::Real(_) => 8,
            Self::Bytes(bytes) => bytes.len(),
            Self::Text(text) => text.len(),
            Self::Id(id) => id.len(),
            Self::Wholes(list) => 8 * list.len(),
            Self::Reals(list) => 4 * list.len(),
            Self::WholesOrNull(list) => 8 * list.len(),
            Self::RealsOrNull(list) => 8 * list.len(),
            Self::BytesOrNull(list) => list.iter().flatten().map(Vec::len).sum(),
        }
    }

    fn kind(&self) -> Type {
        match self {
            // The server infers the type.
            Self::Null => Type::UNKNOWN,
            Self::Whole(_) => Type::INT8,
            Self::Real(_) => Type::FLOAT8,
            Self::Bytes(_) => Type::BYTEA,
            Self::Text(_) => Type::TEXT,
            Self::Id(_) => Type::UUID,
            Self::Wholes(_) => Type::INT8_ARRAY,
            Self::Reals(_) => Type::FLOAT4_ARRAY,
            Self::WholesOrNull(_) => Type::INT8_ARRAY,
            Self::RealsOrNull(_) => Type::FLOAT8_ARRAY,
            Self::BytesOrNull(_) => Type::BYTEA_ARRAY,
        }
    }
}

impl ToSql for Value {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Whole(whole) => whole.to_sql(kind, out),
            Self::Real(real) => real.to_sql(kind, out),
            Self::Bytes(bytes) => bytes.to_sql(kind, out),
            Self::Text(text) => text.to_sql(kind, out),
            Self::Id(id) => Ulid(*id).to_sql(kind, out),
            Self::Wholes(list) => list.to_sql(kind, out),
            Self::Reals(list) => list.to_sql(kind, out),
            Self::WholesOrNull(list) => list.to_sql(kind, out),
            Self::RealsOrNull(list) => list.to_sql(kind, out),
            Self::BytesOrNull(list) => list.to_sql(kind, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
