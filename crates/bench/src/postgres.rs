//! A private PostgreSQL for a measurement, and the resources it uses.
//!
//! It is on the same disk as the daemons' files, is reached by a Unix socket, and syncs its
//! commits. It writes no checkpoint during a measurement, so that its WAL is that of a server with
//! warm pages.

#[path = "../../postgres/tests/conformance/start.rs"]
mod start;

use anyhow::{Context, Result};

use self::start::{Server, ServerOptions};

const OPTIONS: &str = "-c fsync=on -c max_wal_size=16GB -c checkpoint_timeout=1h \
                       -c shared_buffers=512MB -c shared_preload_libraries=pg_stat_statements";

/// A server with a database for daemons.
pub(crate) struct Postgres {
    server: Server,
    words: String,
}

/// Resources used by a server, up to a moment or in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Used {
    /// CPU of all of its processes.
    pub(crate) cpu_seconds: f64,
    pub(crate) wal_bytes: f64,
    /// Number of statements received, including those that begin and end transactions.
    pub(crate) statements: f64,
}

impl Postgres {
    /// Starts a server, which ends when the value is dropped.
    pub(crate) fn start() -> Result<Self> {
        let server_options = ServerOptions {
            options: OPTIONS.to_owned(),
            ..ServerOptions::default()
        };
        let server = Server::start(&server_options)
            .context("no PostgreSQL is installed (Debian: the package postgresql)")?;
        server.run("postgres", "CREATE EXTENSION pg_stat_statements");
        let words = server.database();
        Ok(Self { server, words })
    }

    /// YAML for the `journal` section of a daemon that uses it.
    pub(crate) fn journal(&self, cluster: bool) -> String {
        format!(
            ", postgres: {{ url: '{}', cluster: {cluster} }}",
            self.words
        )
    }

    /// Runs statements in its database and returns their output.
    pub(crate) fn run(&self, sql: &str) -> String {
        let database = self.words.rsplit("dbname=").next().unwrap_or_default();
        self.server.run(database, sql)
    }

    /// Resources used since its start.
    pub(crate) fn used(&self) -> Result<Used> {
        let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8
                       || ' ' || (SELECT sum(calls) FROM pg_stat_statements)";
        let text = self.server.run("postgres", sql);
        let (wal, statements) = text.split_once(' ').context("two numbers")?;
        Ok(Used {
            cpu_seconds: self.cpu_seconds()?,
            wal_bytes: wal.parse()?,
            statements: statements.parse()?,
        })
    }

    /// CPU of its processes, including those that have ended.
    #[cfg(target_os = "linux")]
    fn cpu_seconds(&self) -> Result<f64> {
        let file = self.server.dir().join("data/postmaster.pid");
        let text = std::fs::read_to_string(file)?;
        let pid: i32 = text.lines().next().unwrap_or_default().parse()?;
        let mut ticks = 0;
        for process in procfs::process::all_processes()? {
            // A process may end in the meantime.
            let Ok(stat) = process.and_then(|process| process.stat()) else {
                continue;
            };
            if stat.pid == pid {
                let of_ended = u64::try_from(stat.cutime + stat.cstime)?;
                ticks += stat.utime + stat.stime + of_ended;
            } else if stat.ppid == pid {
                ticks += stat.utime + stat.stime;
            }
        }
        Ok(ticks as f64 / procfs::ticks_per_second() as f64)
    }

    #[cfg(not(target_os = "linux"))]
    #[allow(clippy::unused_self, reason = "only Linux tells")]
    fn cpu_seconds(&self) -> Result<f64> {
        Ok(f64::NAN)
    }
}

impl Used {
    /// The difference to an earlier value.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            wal_bytes: self.wal_bytes - before.wal_bytes,
            statements: self.statements - before.statements,
        }
    }
}
