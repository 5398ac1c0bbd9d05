//! Connections: one for commits, and a pool of some for all else. Nothing is kept in them between
//! two statements, or two transactions, so a pooler may stand in between.

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
use tokio_postgres::{Client, Config, Row};

use crate::error::{failed, not_connected};
use crate::tls::Tls;

/// How long a connection may take to be made.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a read, or a write that is no commit, may take altogether.
pub(crate) const CALL_TIME_MAX: Duration = Duration::from_secs(60);
/// A process that is paused or cut off in a transaction keeps others from its rows no longer than
/// this, and none waits for longer.
const BOUNDED: &str =
    "SET LOCAL idle_in_transaction_session_timeout = '10s'; SET LOCAL lock_timeout = '10s'";
/// The same of what is asked twice a second.
const BRIEFLY: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '5s'; \
                       SET LOCAL lock_timeout = '2s'";
/// A peer that does not acknowledge for so long is gone. One that nobody sends anything is asked after as
/// long.
const SILENCE_TIME_MAX: Duration = Duration::from_secs(10);
/// Between two such questions.
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(3);

/// A parameter of a statement with its type.
pub(crate) type Arg<'a> = (&'a (dyn ToSql + Sync), Type);

/// Who may have the database beside this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody looks who else has it, and nothing says that this process has it: for tests and
    /// measurements.
    #[default]
    Unseen,
    /// Nobody. A lease sees to that: see [`crate::PgStore::lost`].
    Nobody,
    /// Other daemons that share it as well, of which one [leads](crate::PgStore::leads).
    Members,
}

/// Where the database is, and how it is reached.
#[derive(Clone)]
pub struct PgOptions {
    pub(crate) config: Config,
    pub(crate) tls: Tls,
    /// What others are told who wants to have the database as well: this daemon's name.
    pub name: String,
    /// Which memoird this is, for those who look at the members.
    pub version: String,
    /// What the members of a cluster tell each other of their configurations: only those who write
    /// it know how. It may change.
    pub settings: watch::Sender<Vec<u8>>,
    /// Says which daemon has the database, as long as this one waits for it.
    pub waits_for: watch::Sender<Option<String>>,
    /// Counts how often connections went silent and a new one did not: then nothing is to be expected of
    /// those made before. All who have the options of one daemon share it.
    pub(crate) silences: watch::Sender<u64>,
    /// Who else may have the database meanwhile.
    pub sharing: Sharing,
    /// False: commits whose outcome is unknown are not fenced off. For a test that shows what the
    /// fence is for; true otherwise.
    pub has_fence: bool,
    /// How long a commit may take before its outcome is looked up.
    pub commit_time_max: Duration,
}

impl std::fmt::Debug for PgOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The configuration shows no password.
        f.debug_struct("PgOptions")
            .field("config", &self.config)
            .field("sharing", &self.sharing)
            .finish_non_exhaustive()
    }
}

impl PgOptions {
    /// A URL (`postgres://user@host:port/database?sslmode=require`) or words
    /// (`host=… user=… dbname=…`); the password may stand apart. `ca_pem`: the only authorities
    /// whose certificates are trusted; `None`: those of the system. A certificate is always checked
    /// with its name, so that `sslmode=verify-full` says the same as `require`.
    ///
    /// # Errors
    /// A sentence for the operator about what is wrong; it has nothing of the URL in it.
    pub fn parse(url: &str, password: Option<&str>, ca_pem: Option<&str>) -> Result<Self, String> {
        let known = url
            .replace("sslmode=verify-full", "sslmode=require")
            .replace("sslmode=verify-ca", "sslmode=require");
        let mut config: Config = known.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let what = cause.unwrap_or_else(|| error.to_string());
            format!("is none of PostgreSQL ({what}); write postgres://user@host/database")
        })?;
        if config.get_hosts().is_empty() {
            return Err("names no host; write postgres://user@host/database".to_owned());
        }
        if config.get_dbname().is_none() {
            return Err("names no database; write postgres://user@host/database".to_owned());
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
            sharing: Sharing::default(),
            has_fence: true,
            commit_time_max: Duration::from_secs(10),
        })
    }

    /// True where the URL has a password in it, or one was given beside it.
    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }

    /// Where the database is, for people: neither user nor password.
    pub fn shown(&self) -> String {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        let hosts: Vec<String> = hosts.collect();
        let database = self.config.get_dbname().unwrap_or_default();
        format!("{}/{database}", hosts.join(","))
    }
}

/// Makes connections, and keeps some.
#[derive(Clone)]
pub(crate) struct Database {
    runtime: Handle,
    options: Arc<PgOptions>,
    pool: Pool,
    /// Silences since which the pool has new connections.
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
        let pool = Pool::builder(manager)
            .max_size(connections_max)
            .runtime(Runtime::Tokio1)
            .create_timeout(Some(CONNECT_TIME_MAX))
            .wait_timeout(Some(CALL_TIME_MAX))
            .build();
        let pool = pool.map_err(|error| StoreError::Unavailable {
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

    /// Waits for something on the calling thread, which is none of the runtime's.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> Result<Client, StoreError> {
        self.connect_as(&self.options.config)
            .await?
            .map_err(not_connected)
    }

    /// One whose statements may take any time. It says so as it is made: what is set later would be lost
    /// behind a pooler, or be somebody else's. A pooler that takes no settings gives one whose statements
    /// have the time that the database gives to all.
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
    ) -> Result<Result<Client, tokio_postgres::Error>, NoAnswer> {
        let tls = self.options.tls.clone();
        let connecting = timeout(CONNECT_TIME_MAX, config.connect(tls));
        let made = connecting
            .await
            .map_err(|_| NoAnswer::Within(CONNECT_TIME_MAX))?;
        Ok(made.map(|(client, connection)| {
            // It ends with its client.
            self.runtime.spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to the database ended");
                }
            });
            client
        }))
    }

    /// Does something with a connection of the pool; once more where that turns out to have ended,
    /// as after a restart of the server. So it must be such that doing it twice does no harm.
    #[allow(clippy::needless_pass_by_value, reason = "it is given a closure")]
    pub(crate) fn call<T>(
        &self,
        action: impl AsyncFn(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.wait(async {
            match self.try_call(&action).await {
                Err(Failed {
                    has_ended: true, ..
                }) => self.try_call(&action).await,
                outcome => outcome,
            }
        })
        .map_err(|failed| failed.error)
    }

    /// Told when connections went silent, from now on.
    pub(crate) fn silence(&self) -> watch::Receiver<u64> {
        self.options.silences.subscribe()
    }

    /// What was asked on this connection is answered within this time, and before connections went silent; or
    /// it is not waited for any more.
    pub(crate) async fn answer<T>(
        &self,
        time_max: Duration,
        silence: &mut watch::Receiver<u64>,
        asked: impl Future<Output = T>,
    ) -> Result<T, NoAnswer> {
        tokio::select! {
            biased;
            answer = timeout(time_max, asked) => answer.map_err(|_| NoAnswer::Within(time_max)),
            Ok(()) = silence.changed() => Err(NoAnswer::Silence),
        }
    }

    /// A connection of the pool.
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

    /// One on which something went wrong is not used again: nobody knows what it is in the middle
    /// of.
    async fn try_call<T>(
        &self,
        action: &impl AsyncFn(&Client) -> Result<T, StoreError>,
    ) -> Result<T, Failed> {
        let mut silence = self.silence();
        let pooled = self.take().await.map_err(|error| Failed {
            error,
            has_ended: false,
        })?;
        let answer = self.answer(CALL_TIME_MAX, &mut silence, action(&pooled));
        let failed = match answer.await {
            Ok(answer) => match answer {
                Ok(outcome) => return Ok(outcome),
                Err(error) => Failed {
                    has_ended: matches!(error, StoreError::Unavailable { .. }),
                    error,
                },
            },
            Err(none) => Failed {
                has_ended: none == NoAnswer::Silence,
                error: none.into(),
            },
        };
        drop(Object::take(pooled));
        Err(failed)
    }

    /// The same, and every statement sees one moment.
    pub(crate) fn look<T>(
        &self,
        action: impl AsyncFn(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        self.transact(&format!("{begin}; {BOUNDED}"), action)
    }

    /// The same, and all of it is written, or nothing.
    pub(crate) fn write<T>(
        &self,
        action: impl AsyncFn(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.transact(&format!("BEGIN; {BOUNDED}"), action)
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

/// Why an answer is not waited for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// It did not come within this time.
    Within(Duration),
    /// Its connection went silent, and another one does not.
    Silence,
}

impl From<NoAnswer> for StoreError {
    fn from(none: NoAnswer) -> Self {
        let detail = match none {
            NoAnswer::Within(time) => format!("no answer within {time:?}"),
            NoAnswer::Silence => "the connection went silent".to_owned(),
        };
        Self::Unavailable { detail }
    }
}

/// Why something was not done with a connection.
struct Failed {
    error: StoreError,
    /// The connection has ended.
    has_ended: bool,
}

/// Asks one statement that waits for locks for 2 s at most: a backend does not notice that nobody waits for it
/// any more, and would keep its connection. Everything is sent at once, so no pause of this process is in
/// the midst of the transaction.
pub(crate) async fn briefly<T>(
    client: &Client,
    asked: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let begin = client.batch_execute(BRIEFLY);
    let (begun, answer, ended) = tokio::join!(begin, asked, client.batch_execute("COMMIT"));
    begun.map_err(failed)?;
    let answer = answer?;
    ended.map_err(failed)?;
    Ok(answer)
}

/// Runs a statement; the rows.
pub(crate) async fn query(
    client: &Client,
    sql: &str,
    args: &[Arg<'_>],
) -> Result<Vec<Row>, StoreError> {
    client.query_typed(sql, args).await.map_err(failed)
}

/// Runs a statement; the first row.
pub(crate) async fn first(
    client: &Client,
    sql: &str,
    args: &[Arg<'_>],
) -> Result<Option<Row>, StoreError> {
    Ok(query(client, sql, args).await?.into_iter().next())
}

/// Runs a statement that ends with `RETURNING 1`, or selects one row for each that it changed; how
/// many these are.
pub(crate) async fn change(
    client: &Client,
    sql: &str,
    args: &[Arg<'_>],
) -> Result<usize, StoreError> {
    Ok(query(client, sql, args).await?.len())
}
