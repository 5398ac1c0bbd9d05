//! Connections to PostgreSQL: one for commits, and a pool for everything else.
//!
//! No session state survives a statement or transaction, so a transaction pooler may be in between.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use memoird_store::StoreError;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config};

use crate::error::{failed, not_connected};
use crate::tls::Tls;
use crate::transactions::ResultRow;

const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Timeout for a read, or for a write that is not a commit.
pub(crate) const CALL_TIME_MAX: Duration = Duration::from_secs(60);
/// Begins a transaction that writes.
///
/// The timeouts limit how long a paused or disconnected process can block others, and how long the
/// transaction waits for locks.
pub(crate) const BEGIN_WRITE: &str = "BEGIN; \
    SET LOCAL idle_in_transaction_session_timeout = '10s'; SET LOCAL lock_timeout = '10s'";
/// Begins a read-only transaction with one snapshot for all statements.
pub(crate) const BEGIN_SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
    SET LOCAL idle_in_transaction_session_timeout = '10s'; SET LOCAL lock_timeout = '10s'";
/// The same for statements that run twice a second.
const BEGIN_WITH_LOCK_TIMEOUT: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = \
    '5s'; \
                       SET LOCAL lock_timeout = '2s'";
/// TCP user timeout: time without an acknowledgement after which a connection is closed.
///
/// Idle connections are probed with keep-alives after the same time.
const SILENCE_TIME_MAX: Duration = Duration::from_secs(10);
/// Time between two keep-alive probes.
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(3);

/// A statement parameter with its type.
pub(crate) type Arg<'a> = (&'a (dyn ToSql + Sync), Type);

/// Which other processes may use the database concurrently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DatabaseUse {
    /// Exclusive use is neither checked nor announced. For tests and measurements.
    #[default]
    Unchecked,
    /// None. A lease ensures this; see [`crate::PgStore::lost`].
    Exclusive,
    /// Other cluster members. One of them [leads](crate::PgStore::leads).
    Cluster,
}

/// Connection settings, and channels for state shared by the connections of one daemon.
#[derive(Clone)]
pub struct PgOptions {
    pub(crate) config: Config,
    pub(crate) tls: Tls,
    /// Name of this daemon, shown to other daemons that wait for the database.
    pub name: String,
    /// memoird's version, shown in the member list.
    pub version: String,
    /// This daemon's settings in an opaque encoding, for comparison by other members. May change.
    pub settings: watch::Sender<Vec<u8>>,
    /// Name of the daemon that has the database while this one waits for it; otherwise `None`.
    pub waits_for: watch::Sender<Option<String>>,
    /// Counts how often connections went silent while a new connection worked.
    ///
    /// A change means that all older connections are dead. Shared by all clones of the options.
    pub(crate) silences: watch::Sender<u64>,
    pub sharing: DatabaseUse,
    /// Whether commits with an unknown outcome are fenced off.
    ///
    /// False only in a test that demonstrates why the fence is needed.
    pub has_fence: bool,
    /// Time after which the outcome of an unanswered commit is resolved.
    pub commit_time_max: Duration,
}

impl std::fmt::Debug for PgOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // `Config` does not print the password.
        f.debug_struct("PgOptions")
            .field("config", &self.config)
            .field("sharing", &self.sharing)
            .finish_non_exhaustive()
    }
}

impl PgOptions {
    /// Parses a URL or a key-value string.
    ///
    /// For example `postgres://user@host:port/database?sslmode=require` or `host=… user=…
    /// dbname=…`.
    ///
    /// The password may be passed separately. With `ca_pem`, only these authorities are trusted
    /// instead of the system's. Certificates and host names are always verified, so
    /// `sslmode=verify-full` is the same as `require`.
    ///
    /// # Errors
    /// A message for the operator. It contains no part of the URL.
    pub fn parse(url: &str, password: Option<&str>, ca_pem: Option<&str>) -> Result<Self, String> {
        let known = url
            .replace("sslmode=verify-full", "sslmode=require")
            .replace("sslmode=verify-ca", "sslmode=require");
        let mut config: Config = known.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let what = cause.unwrap_or_else(|| error.to_string());
            format!("is not a PostgreSQL URL ({what}); use postgres://user@host/database")
        })?;
        if config.get_hosts().is_empty() {
            return Err("names no host; use postgres://user@host/database".to_owned());
        }
        if config.get_dbname().is_none() {
            return Err("names no database; use postgres://user@host/database".to_owned());
        }
        if let Some(password) = password {
            config.password(password);
        }
        config
            .application_name("memoird")
            .connect_timeout(CONNECT_TIME_MAX)
            .tcp_user_timeout(SILENCE_TIME_MAX)
            .keepalives_idle(SILENCE_TIME_MAX)
            .keepalives_interval(KEEPALIVE_PAUSE);
        Ok(Self {
            config,
            tls: Tls::new(ca_pem)?,
            name: String::new(),
            version: String::new(),
            settings: watch::Sender::default(),
            waits_for: watch::Sender::default(),
            silences: watch::Sender::default(),
            sharing: DatabaseUse::default(),
            has_fence: true,
            commit_time_max: Duration::from_secs(10),
        })
    }

    /// Whether a password is set, in the URL or separately.
    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }

    /// Hosts and database name for messages, without user or password.
    pub fn shown(&self) -> String {
        let hosts: Vec<String> = self
            .config
            .get_hosts()
            .iter()
            .map(|host| match host {
                Host::Tcp(name) => name.clone(),
                Host::Unix(path) => path.display().to_string(),
            })
            .collect();
        let database = self.config.get_dbname().unwrap_or_default();
        format!("{}/{database}", hosts.join(","))
    }
}

/// Opens connections and pools them.
#[derive(Clone)]
pub(crate) struct Database {
    runtime: Handle,
    options: Arc<PgOptions>,
    pool: Pool,
    /// Value of [`PgOptions::silences`] for which the pool was last cleared.
    silences: Arc<AtomicU64>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.options.shown())
    }
}

impl Database {
    pub(crate) fn new(
        options: PgOptions,
        runtime: Handle,
        connections_max: usize,
    ) -> Result<Self, StoreError> {
        let config = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let manager = Manager::from_config(options.config.clone(), options.tls.clone(), config);
        let built = Pool::builder(manager)
            .max_size(connections_max)
            .runtime(Runtime::Tokio1)
            .create_timeout(Some(CONNECT_TIME_MAX))
            .wait_timeout(Some(CALL_TIME_MAX))
            .build();
        let pool = built.map_err(|error| StoreError::Unavailable {
            detail: error.to_string(),
        })?;
        let silences = *options.silences.borrow();
        Ok(Self {
            runtime,
            silences: Arc::new(AtomicU64::new(silences)),
            options: Arc::new(options),
            pool,
        })
    }

    pub(crate) fn options(&self) -> &PgOptions {
        &self.options
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Runs a future on the calling thread, which must not belong to the runtime.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Opens a connection outside the pool.
    pub(crate) async fn connect(&self) -> Result<Client, StoreError> {
        self.connect_as(&self.options.config)
            .await?
            .map_err(not_connected)
    }

    /// Opens a connection without a statement timeout.
    ///
    /// The timeout is disabled in the startup parameters, because a pooler would lose a later `SET`
    /// or apply it to another client. If the pooler rejects startup parameters, the connection has
    /// the server's default timeout.
    pub(crate) async fn connect_without_time_limit(&self) -> Result<Client, StoreError> {
        let mut config = self.options.config.clone();
        let others = config.get_options().unwrap_or_default();
        config.options(format!("{others} -c statement_timeout=0"));
        match self.connect_as(&config).await? {
            Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                self.connect().await
            }
            made => made.map_err(not_connected),
        }
    }

    async fn connect_as(
        &self,
        config: &Config,
    ) -> Result<Result<Client, tokio_postgres::Error>, ReplyMissing> {
        let tls = self.options.tls.clone();
        let connecting = timeout(CONNECT_TIME_MAX, config.connect(tls));
        let made = connecting
            .await
            .map_err(|_| ReplyMissing::TimedOut(CONNECT_TIME_MAX))?;
        Ok(made.map(|(client, connection)| {
            // The task ends when the client is dropped.
            self.runtime.spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to the database ended");
                }
            });
            client
        }))
    }

    /// Runs an action on a pooled connection, and once more if the connection is closed.
    ///
    /// The server may have restarted since the connection was last used. The action must be
    /// idempotent.
    #[allow(clippy::needless_pass_by_value, reason = "it is given a closure")]
    pub(crate) fn call<T>(
        &self,
        action: impl AsyncFn(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.wait(async {
            match self.try_call(&action).await {
                Err(FailedCall {
                    has_ended: true, ..
                }) => self.try_call(&action).await,
                outcome => outcome,
            }
        })
        .map_err(|failed| failed.error)
    }

    /// Subscribes to silences from now on; see [`PgOptions::silences`].
    pub(crate) fn silence(&self) -> watch::Receiver<u64> {
        self.options.silences.subscribe()
    }

    /// Waits for a reply until the timeout, or until connections went silent.
    pub(crate) async fn wait_for_reply<T>(
        &self,
        time_max: Duration,
        silence: &mut watch::Receiver<u64>,
        asked: impl Future<Output = T>,
    ) -> Result<T, ReplyMissing> {
        tokio::select! {
            biased;
            reply = timeout(time_max, asked) => reply.map_err(|_| ReplyMissing::TimedOut(time_max)),
            Ok(()) = silence.changed() => Err(ReplyMissing::Silence),
        }
    }

    pub(crate) async fn take(&self) -> Result<Object, StoreError> {
        let silences = *self.options.silences.borrow();
        if self.silences.swap(silences, Ordering::Relaxed) != silences {
            self.pool.retain(|_, _| false);
        }
        self.pool.get().await.map_err(|error| match error {
            deadpool_postgres::PoolError::Backend(error) => not_connected(error),
            error => StoreError::Unavailable {
                detail: error.to_string(),
            },
        })
    }

    /// Runs an action on a pooled connection, which is closed after an error.
    ///
    /// Its state is unknown then.
    async fn try_call<T>(
        &self,
        action: &impl AsyncFn(&Client) -> Result<T, StoreError>,
    ) -> Result<T, FailedCall> {
        let mut silence = self.silence();
        let pooled = self.take().await.map_err(|error| FailedCall {
            error,
            has_ended: false,
        })?;
        let reply = self.wait_for_reply(CALL_TIME_MAX, &mut silence, action(&pooled));
        let failed = match reply.await {
            Ok(reply) => match reply {
                Ok(outcome) => return Ok(outcome),
                Err(error) => FailedCall {
                    has_ended: matches!(error, StoreError::Unavailable { .. }),
                    error,
                },
            },
            Err(none) => FailedCall {
                has_ended: none == ReplyMissing::Silence,
                error: none.into(),
            },
        };
        drop(Object::take(pooled));
        Err(failed)
    }

    /// Runs one statement and returns its rows.
    pub(crate) fn query(&self, sql: &str, args: &[Arg<'_>]) -> Result<Vec<ResultRow>, StoreError> {
        self.call(async |client: &Client| query(client, sql, args).await)
    }

    /// Like `call`, but in a read-only transaction with one snapshot for all statements.
    pub(crate) fn read_snapshot<T>(
        &self,
        action: impl AsyncFn(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.transact(BEGIN_SNAPSHOT, action)
    }

    /// Like `call`, but in a transaction.
    pub(crate) fn write<T>(
        &self,
        action: impl AsyncFn(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.transact(BEGIN_WRITE, action)
    }

    #[allow(clippy::needless_pass_by_value, reason = "it is given a closure")]
    fn transact<T>(
        &self,
        begin: &str,
        action: impl AsyncFn(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.call(async |client: &Client| {
            client.batch_execute(begin).await.map_err(failed)?;
            let outcome = action(client).await?;
            client.batch_execute("COMMIT").await.map_err(failed)?;
            Ok(outcome)
        })
    }
}

/// Why waiting for a reply was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMissing {
    TimedOut(Duration),
    /// The connection went silent, but a new one works.
    Silence,
}

impl From<ReplyMissing> for StoreError {
    fn from(none: ReplyMissing) -> Self {
        let detail = match none {
            ReplyMissing::TimedOut(time) => format!("no answer within {time:?}"),
            ReplyMissing::Silence => "the connection went silent".to_owned(),
        };
        Self::Unavailable { detail }
    }
}

struct FailedCall {
    error: StoreError,
    /// Whether the connection is closed.
    has_ended: bool,
}

/// Runs one statement that waits at most 2 s for locks.
///
/// A backend that waits for a lock does not notice that its client is gone, and would occupy a
/// connection. `BEGIN`, the statement and `COMMIT` are sent together, so that a pause of this
/// process cannot leave the transaction open.
pub(crate) async fn with_lock_timeout<T>(
    client: &Client,
    asked: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let begin = client.batch_execute(BEGIN_WITH_LOCK_TIMEOUT);
    let (begun, outcome, ended) = tokio::join!(begin, asked, client.batch_execute("COMMIT"));
    begun.map_err(failed)?;
    let reply = outcome?;
    ended.map_err(failed)?;
    Ok(reply)
}

pub(crate) async fn query(
    client: &Client,
    sql: &str,
    args: &[Arg<'_>],
) -> Result<Vec<ResultRow>, StoreError> {
    let rows = client.query_typed(sql, args).await.map_err(failed)?;
    Ok(rows.into_iter().map(ResultRow).collect())
}

pub(crate) async fn first(
    client: &Client,
    sql: &str,
    args: &[Arg<'_>],
) -> Result<Option<ResultRow>, StoreError> {
    Ok(query(client, sql, args).await?.into_iter().next())
}

/// Runs a statement that returns one row per changed row, and returns their number.
pub(crate) async fn change(
    client: &Client,
    sql: &str,
    args: &[Arg<'_>],
) -> Result<usize, StoreError> {
    Ok(query(client, sql, args).await?.len())
}
