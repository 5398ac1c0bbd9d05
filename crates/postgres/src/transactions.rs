//! Transactions of those who keep something beside the journal in the database: one statement after
//! the other, on the calling thread.
//!
//! A statement whose answer nobody needs is sent without waiting: the next one that somebody waits
//! for follows it on the same connection, so that ten changes cost one round trip. One that comes again
//! and again is prepared, for as long as the transaction takes: a pooler may stand in between.

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

use crate::connect::{Arg, CALL_TIME_MAX, Database, NoAnswer, PgOptions};
use crate::error::failed;
use crate::schema::{self, Steps};

/// Sends nothing more before so many answers have come: they are kept until then,
const AHEAD_MAX: usize = 256;
/// or before so many bytes of parameters are on the server, which are kept as long.
const AHEAD_BYTES_MAX: usize = 4 << 20;

/// A statement is prepared when it is asked for this time: to prepare it costs a round trip.
const PREPARED_FROM: u32 = 3;
/// How long a statement may take that has to stand alone.
const ALONE_TIME_MAX: Duration = Duration::from_secs(60 * 60);

/// A parameter of a statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of whatever type.
    Null,
    /// `bigint`.
    Whole(i64),
    /// `double precision`.
    Real(f64),
    /// `bytea`.
    Bytes(Vec<u8>),
    /// `bigint[]`.
    Wholes(Vec<i64>),
    /// `int[]`.
    Halves(Vec<i32>),
    /// `bytea[]`.
    Lists(Vec<Vec<u8>>),
    /// `real[]`.
    Reals(Vec<f32>),
    /// `double precision[]`.
    Doubles(Vec<f64>),
}

/// What stands in a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Column<'a> {
    /// Nothing.
    Null,
    /// `bigint`, `int` or `boolean`.
    Whole(i64),
    /// `double precision`.
    Real(f64),
    /// `bytea` or `text`.
    Bytes(&'a [u8]),
}

/// A row.
#[derive(Debug)]
pub struct FoundRow(tokio_postgres::Row);

/// Connections for transactions, a pool of its own, so that who waits here is in nobody's way.
#[derive(Clone, Debug)]
pub struct Transactions {
    database: Database,
}

/// A transaction under way.
pub struct OpenTransaction {
    database: Database,
    /// Told when connections went silent since the transaction began.
    silence: RefCell<watch::Receiver<u64>>,
    client: Arc<Object>,
    /// Statements that were sent and not answered yet.
    ahead: RefCell<Vec<Ahead>>,
    /// Bytes of their parameters.
    ahead_bytes: Cell<usize>,
    /// How often each statement was asked for, with parameters of these types.
    uses: RefCell<HashMap<(String, Vec<Type>), Use>>,
}

enum Use {
    Times(u32),
    Prepared(Statement),
}

type Ahead = Pin<Box<dyn Future<Output = Result<u64, tokio_postgres::Error>>>>;

impl std::fmt::Debug for OpenTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OpenTransaction")
    }
}

impl Transactions {
    /// Makes at most so many connections, when they are needed. They run on `runtime`.
    ///
    /// # Errors
    /// When no pool can be made.
    pub fn new(
        options: PgOptions,
        runtime: &Handle,
        connections_max: usize,
    ) -> Result<Self, StoreError> {
        // The pool has timers.
        let _entered = runtime.enter();
        let database = Database::new(options, runtime.clone(), connections_max)?;
        Ok(Self { database })
    }

    /// Takes the steps of a schema that are missing. Blocks.
    ///
    /// # Errors
    /// When the database cannot be reached or written, or its schema is too new.
    pub fn prepare(&self, steps: &Steps) -> Result<(), StoreError> {
        self.database.wait(async {
            let client = self.database.connect().await?;
            schema::prepare(&client, steps).await
        })
    }

    /// Runs a statement that has to stand alone, in no transaction, for as long as it takes up to an
    /// hour, whatever time the database gives to others; behind a pooler that time may be all it has. Blocks.
    ///
    /// # Errors
    /// When the database cannot be reached, or refuses it.
    pub fn alone(&self, sql: &str) -> Result<(), StoreError> {
        self.database.wait(async {
            let client = self.database.connect_without_time_limit().await?;
            match timeout(ALONE_TIME_MAX, client.batch_execute(sql)).await {
                Ok(done) => done.map_err(failed),
                Err(_) => Err(NoAnswer::Within(ALONE_TIME_MAX).into()),
            }
        })
    }

    /// Does something in a transaction that begins with these statements. It is written where that
    /// succeeds, and otherwise nothing is. Blocks, and must not be called on a thread of the runtime.
    ///
    /// # Errors
    /// Those of `action`, and when the database cannot be reached. A commit whose answer is lost may
    /// have been written.
    pub fn transact<T, E: From<StoreError>>(
        &self,
        begin: &str,
        action: impl FnOnce(&OpenTransaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut taken = Taken::begin(&self.database, begin)?;
        let open = taken.open()?;
        let outcome = action(open).and_then(|outcome| {
            open.settle()?;
            Ok(outcome)
        });
        let ended = match &outcome {
            Ok(_) => open.end("COMMIT"),
            Err(_) => {
                // Whatever was sent meanwhile goes with the rest.
                let _ = open.settle();
                open.end("ROLLBACK")
            }
        };
        taken.is_clean = ended.is_ok();
        outcome.and_then(|outcome| {
            ended?;
            Ok(outcome)
        })
    }
}

impl Transactions {
    /// The same of a transaction that only reads: nobody waits for its end.
    ///
    /// # Errors
    /// Those of `action`, and when the database cannot be reached.
    pub fn look<T, E: From<StoreError>>(
        &self,
        begin: &str,
        action: impl FnOnce(&OpenTransaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut taken = Taken::begin(&self.database, begin)?;
        let open = taken.open()?;
        let outcome = action(open);
        taken.is_clean = match &outcome {
            // Whoever has the connection next comes behind it.
            Ok(_) => open.wait(async {
                open.uses.borrow_mut().clear();
                let mut end = std::pin::pin!(open.client.batch_execute("ROLLBACK"));
                !matches!(poll_once(&mut end).await, Some(Err(_)))
            }),
            Err(_) => {
                let _ = open.settle();
                open.end("ROLLBACK").is_ok()
            }
        };
        outcome
    }
}

/// A connection that goes back to the pool where its transaction has ended; otherwise nobody knows
/// what it is in the middle of, and it is closed.
struct Taken {
    open: Option<OpenTransaction>,
    is_clean: bool,
}

impl Taken {
    /// A connection that ended while it was idle, as after a restart of the server, is found out by
    /// its first statement.
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
            ahead: RefCell::default(),
            ahead_bytes: Cell::default(),
            uses: RefCell::default(),
        };
        let taken = Self {
            open: Some(open),
            is_clean: false,
        };
        taken.open()?.run_words(begin)?;
        Ok(taken)
    }

    fn open(&self) -> Result<&OpenTransaction, StoreError> {
        self.open.as_ref().ok_or_else(|| StoreError::Unavailable {
            detail: "the transaction is over".to_owned(),
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else {
            return;
        };
        // What was sent has the connection as well.
        drop(open.ahead);
        if let Some(connection) = Arc::into_inner(open.client)
            && !self.is_clean
        {
            drop(Object::take(connection));
        }
    }
}

impl OpenTransaction {
    /// The rows of a statement.
    ///
    /// # Errors
    /// When it, or one that was sent before, fails.
    pub fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<FoundRow>, StoreError> {
        let rows = match self.prepared(sql, values)? {
            Some(statement) => {
                let values = untyped(values);
                self.after_all(self.client.query(&statement, &values))?
            }
            None => {
                let args = arguments(values);
                self.after_all(self.client.query_typed(sql, &args))?
            }
        };
        Ok(rows.into_iter().map(FoundRow).collect())
    }

    /// How many rows a statement changes.
    ///
    /// # Errors
    /// When it, or one that was sent before, fails.
    pub fn change(&self, sql: &str, values: &[Value]) -> Result<u64, StoreError> {
        match self.prepared(sql, values)? {
            Some(statement) => {
                let values = untyped(values);
                self.after_all(self.client.execute(&statement, &values))
            }
            None => {
                let args = arguments(values);
                self.after_all(self.client.execute_typed(sql, &args))
            }
        }
    }

    /// Sends a statement that changes rows, and does not wait for it: whether it fails is told by
    /// one of the calls that follow.
    ///
    /// # Errors
    /// When one that was sent before fails.
    pub fn send(&self, sql: &str, values: Vec<Value>) -> Result<(), StoreError> {
        let is_full = self.ahead.borrow().len() >= AHEAD_MAX;
        if is_full || self.ahead_bytes.get() >= AHEAD_BYTES_MAX {
            self.settle()?;
        }
        let bytes: usize = values.iter().map(Value::bytes).sum();
        let statement = self.prepared(sql, &values)?;
        let (client, sql) = (Arc::clone(&self.client), sql.to_owned());
        let mut sent: Ahead = Box::pin(async move {
            match statement {
                Some(statement) => client.execute(&statement, &untyped(&values)).await,
                None => client.execute_typed(&sql, &arguments(&values)).await,
            }
        });
        // The first poll sends it.
        let answer = self.wait(async { poll_once(&mut sent).await });
        match answer {
            Some(answer) => answer.map(drop).map_err(failed),
            None => {
                self.ahead.borrow_mut().push(sent);
                self.ahead_bytes.update(|ahead| ahead + bytes);
                Ok(())
            }
        }
    }

    /// Waits for all that was sent.
    ///
    /// # Errors
    /// When one of them fails.
    pub fn settle(&self) -> Result<(), StoreError> {
        self.after_all(async { Ok(()) })
    }

    /// The statement, prepared, where it was asked for some times already. What works on a cursor is
    /// never prepared: the same words give other columns.
    fn prepared(&self, sql: &str, values: &[Value]) -> Result<Option<Statement>, StoreError> {
        let is_planned = ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"];
        if !is_planned.iter().any(|word| sql.starts_with(word)) {
            return Ok(None);
        }
        let kinds: Vec<Type> = values.iter().map(Value::kind).collect();
        let key = (sql.to_owned(), kinds);
        let times = match self.uses.borrow().get(&key) {
            Some(Use::Prepared(statement)) => return Ok(Some(statement.clone())),
            Some(Use::Times(times)) => times + 1,
            None => 1,
        };
        let prepared = match times < PREPARED_FROM {
            true => None,
            false => Some(self.after_all(self.client.prepare_typed(sql, &key.1))?),
        };
        let known = prepared.clone().map_or(Use::Times(times), Use::Prepared);
        self.uses.borrow_mut().insert(key, known);
        Ok(prepared)
    }

    /// Ends the transaction. What was prepared goes before: behind a pooler the connection is
    /// somebody else's afterwards.
    fn end(&self, sql: &str) -> Result<(), StoreError> {
        self.uses.borrow_mut().clear();
        self.run_words(sql)
    }

    /// Statements without parameters.
    fn run_words(&self, sql: &str) -> Result<(), StoreError> {
        self.after_all(self.client.batch_execute(sql))
    }

    /// Sends another one, and waits for those before it and for it.
    fn after_all<T>(
        &self,
        next: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, StoreError> {
        let ahead = std::mem::take(&mut *self.ahead.borrow_mut());
        self.ahead_bytes.set(0);
        self.wait(async {
            let all = async {
                let mut next = std::pin::pin!(next);
                let early = poll_once(&mut next).await;
                for sent in ahead {
                    sent.await?;
                }
                match early {
                    Some(answer) => answer,
                    None => next.await,
                }
            };
            let mut silence = self.silence.borrow().clone();
            let answer = self
                .database
                .answer(CALL_TIME_MAX, &mut silence, all)
                .await?;
            answer.map_err(failed)
        })
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.database.wait(future)
    }
}

/// The answer, where it is there already.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match Pin::new(&mut *future).poll(context) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        })
    })
    .await
}

impl FoundRow {
    /// What stands in a column.
    ///
    /// # Errors
    /// When there is no such column, or it is of a type that is none of [`Column`].
    pub fn column(&self, index: usize) -> Result<Column<'_>, StoreError> {
        self.0.try_get(index).map_err(failed)
    }

    /// All columns, which are whole numbers.
    ///
    /// # Errors
    /// When one of them is of a type that is none of [`Column`].
    pub fn wholes(&self) -> Result<Vec<i64>, StoreError> {
        let whole = |index| match self.column(index)? {
            Column::Whole(whole) => Ok(whole),
            _ => Ok(0),
        };
        (0..self.0.len()).map(whole).collect()
    }

    /// The numbers in a column of type `bigint[]`.
    ///
    /// # Errors
    /// When there is no such column, or it is of another type.
    pub fn list(&self, index: usize) -> Result<Vec<i64>, StoreError> {
        self.0.try_get(index).map_err(failed)
    }

    /// The numbers in a column of type `real[]`.
    ///
    /// # Errors
    /// When there is no such column, or it is of another type.
    pub fn reals(&self, index: usize) -> Result<Vec<f32>, StoreError> {
        self.0.try_get(index).map_err(failed)
    }
}

impl<'a> FromSql<'a> for Column<'a> {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(match *kind {
            Type::INT8 => Self::Whole(i64::from_be_bytes(raw.try_into()?)),
            Type::INT4 => Self::Whole(i32::from_be_bytes(raw.try_into()?).into()),
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
            Type::BOOL,
            Type::FLOAT8,
            Type::BYTEA,
            Type::TEXT,
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
    /// About how many bytes it takes.
    fn bytes(&self) -> usize {
        match self {
            Self::Null | Self::Whole(_) | Self::Real(_) => 8,
            Self::Bytes(bytes) => bytes.len(),
            Self::Wholes(list) => 8 * list.len(),
            Self::Halves(list) => 4 * list.len(),
            Self::Lists(list) => list.iter().map(Vec::len).sum(),
            Self::Reals(list) => 4 * list.len(),
            Self::Doubles(list) => 8 * list.len(),
        }
    }

    fn kind(&self) -> Type {
        match self {
            // The server finds out.
            Self::Null => Type::UNKNOWN,
            Self::Whole(_) => Type::INT8,
            Self::Real(_) => Type::FLOAT8,
            Self::Bytes(_) => Type::BYTEA,
            Self::Wholes(_) => Type::INT8_ARRAY,
            Self::Halves(_) => Type::INT4_ARRAY,
            Self::Lists(_) => Type::BYTEA_ARRAY,
            Self::Reals(_) => Type::FLOAT4_ARRAY,
            Self::Doubles(_) => Type::FLOAT8_ARRAY,
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
            Self::Wholes(list) => list.to_sql(kind, out),
            Self::Halves(list) => list.to_sql(kind, out),
            Self::Lists(list) => list.to_sql(kind, out),
            Self::Reals(list) => list.to_sql(kind, out),
            Self::Doubles(list) => list.to_sql(kind, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
