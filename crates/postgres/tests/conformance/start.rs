//! A PostgreSQL server for tests.
//!
//! Uses the server of `MEMOIRD_TEST_POSTGRES` (`host=… user=…`, without a database). Otherwise
//! starts one that ends with the tests, from the programs in `MEMOIRD_TEST_POSTGRES_BIN` or
//! Debian's. If there is neither, the tests are skipped with a message. Also used by the daemon's
//! tests and the benchmarks.

#![allow(dead_code, reason = "not all that include this file need all of it")]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static SHARED: LazyLock<Option<Server>> = LazyLock::new(Server::find);

/// A server that has one database per test.
pub(crate) struct Server {
    /// Connection string without the database.
    words: String,
    /// Directory of its programs. `None` to search the `PATH`.
    programs: Option<PathBuf>,
    /// Shell that stops the server when its stdin closes, at the latest when this process ends.
    _life: Option<Child>,
}

#[allow(clippy::print_stderr, reason = "a test that checks nothing says so")]
pub(crate) fn say(word: &str) {
    eprintln!("{word}");
}

#[allow(
    clippy::disallowed_methods,
    reason = "a variable of the environment says where the server is"
)]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

const PORT: u16 = 5432;

/// Non-default settings of a server.
#[derive(Default)]
pub(crate) struct ServerOptions {
    /// Port, which is also part of the socket's name.
    pub(crate) port: Option<u16>,
    /// Additional command line options.
    pub(crate) options: String,
    /// Additional lines of `pg_hba.conf`.
    pub(crate) access: String,
    /// Files to copy into the data directory.
    pub(crate) files: Vec<PathBuf>,
}

impl Server {
    /// The server shared by all tests. `None`, after printing a message, if there is none.
    pub(crate) fn shared() -> Option<&'static Self> {
        if SHARED.is_none() {
            assert!(
                variable("CI").is_none(),
                "no PostgreSQL: install postgresql, or set MEMOIRD_TEST_POSTGRES"
            );
            say("skipped: no PostgreSQL is here");
        }
        SHARED.as_ref()
    }

    /// Creates a database and returns its connection string.
    pub(crate) fn database(&self) -> String {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("memoird_test_{}_{number}", std::process::id());
        self.run("postgres", &format!("CREATE DATABASE {name}"));
        format!("{} dbname={name}", self.words)
    }

    /// Runs a statement and returns its output.
    pub(crate) fn run(&self, database: &str, sql: &str) -> String {
        let words = format!("{} dbname={database}", self.words);
        let ran = Command::new(program(self.programs.as_deref(), "psql"))
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
            .args(["--set=ON_ERROR_STOP=1", "--command", sql, &words])
            .output()
            .unwrap();
        let problem = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{sql}: {problem}");
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    }

    /// Directory of a server started here, with its data, log and socket.
    pub(crate) fn dir(&self) -> &Path {
        let dir = self.words.strip_prefix("host=");
        Path::new(dir.and_then(|rest| rest.split(' ').next()).unwrap())
    }

    /// Crashes the server and restarts it.
    pub(crate) fn crash(&self) {
        let (dir, programs) = (self.dir(), self.programs.as_deref());
        let restarted = as_user(program(programs, "pg_ctl"), other_user())
            .args(["restart", "-m", "immediate", "-w", "-D"])
            .arg(dir.join("data"))
            .arg("-l")
            .arg(dir.join("log"))
            .current_dir(dir)
            .stdout(Stdio::null())
            .status();
        assert!(restarted.unwrap().success(), "the server does not restart");
    }

    fn find() -> Option<Self> {
        if let Some(words) = variable("MEMOIRD_TEST_POSTGRES") {
            return Some(Self {
                words,
                programs: None,
                _life: None,
            });
        }
        Self::start(&ServerOptions::default())
    }

    /// Starts a server in a temporary directory. `None` if PostgreSQL is not installed.
    ///
    /// It listens on a Unix socket only.
    pub(crate) fn start(options: &ServerOptions) -> Option<Self> {
        let programs = programs()?;
        let dir = tempfile::tempdir().unwrap().keep();
        let user = other_user();
        if let Some((uid, gid)) = user {
            chown(&dir, Some(uid), Some(gid)).unwrap();
        }
        let data = dir.join("data");
        let made = as_user(programs.join("initdb"), user)
            .args(["--username=postgres", "--auth=trust", "--no-sync"])
            .args(["--encoding=UTF8", "--locale=C", "--pgdata"])
            .arg(&data)
            .current_dir(&dir)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let port = options.port.unwrap_or(PORT);
        // One role needs a password.
        let access = "local all memoird_locked scram-sha-256\nlocal all all trust\n";
        fs::write(
            data.join("pg_hba.conf"),
            access.to_owned() + &options.access,
        )
        .unwrap();
        for file in &options.files {
            let copy = data.join(file.file_name().unwrap());
            fs::copy(file, &copy).unwrap();
            fs::set_permissions(&copy, Permissions::from_mode(0o600)).unwrap();
            if let Some((uid, gid)) = user {
                chown(&copy, Some(uid), Some(gid)).unwrap();
            }
        }
        // The shell stops the server when its stdin closes, even if this process is killed.
        let script = format!(
            "'{0}/postgres' -D '{1}/data' -k '{1}' -c listen_addresses= -c fsync=off \
                 -c max_connections=200 -c port={3} {2} >'{1}/log' 2>&1 &
             read -r _; '{0}/pg_ctl' -D '{1}/data' -m fast stop >'{1}/log'; rm -rf '{1}'",
            programs.display(),
            dir.display(),
            options.options,
            port
        );
        let child = as_user("/bin/sh".into(), user)
            .args(["-c", &script])
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let is_up = || {
            let mut probe = Command::new(programs.join("pg_isready"));
            probe
                .args(["--quiet", "--port", &port.to_string(), "--host"])
                .arg(&dir);
            probe.status().unwrap().success()
        };
        for _ in 0..600 {
            if is_up() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(
            is_up(),
            "the server does not start: {}",
            fs::read_to_string(dir.join("log")).unwrap_or_default()
        );
        Some(Self {
            words: format!("host={} user=postgres", dir.display()),
            programs: Some(programs),
            _life: Some(child),
        })
    }
}

/// Whether an environment variable selects the server's programs.
pub(crate) fn is_named() -> bool {
    variable("MEMOIRD_TEST_POSTGRES_BIN").is_some()
}

/// The programs named by a variable, or else Debian's newest.
fn programs() -> Option<PathBuf> {
    if let Some(named) = variable("MEMOIRD_TEST_POSTGRES_BIN") {
        return Some(named.into());
    }
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.map(|version| version.unwrap().path().join("bin"));
    programs.filter(|bin| bin.join("postgres").exists()).max()
}

fn program(programs: Option<&Path>, name: &str) -> PathBuf {
    programs.map_or_else(|| name.into(), |programs| programs.join(name))
}

/// A user to run as if this process is root, because PostgreSQL refuses to run as root.
fn other_user() -> Option<(u32, u32)> {
    let id = |args: &[&str]| {
        let output = Command::new("id").args(args).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.trim().parse::<u32>().ok()
    };
    if id(&["-u"]) != Some(0) {
        return None;
    }
    let mut users = ["postgres", "nobody"].into_iter();
    users.find_map(|user| Some((id(&["-u", user])?, id(&["-g", user])?)))
}

fn as_user(program: PathBuf, user: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command
}
