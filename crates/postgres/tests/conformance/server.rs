//! A PostgreSQL for the tests: that of `MEMOIRD_TEST_POSTGRES`, or one that is started for them
//! and ends with them. Where there is neither they are skipped, and say so.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use memoird_postgres::{PgOptions, PgStore};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

/// Runs the connections of all tests.
pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
});

static SERVER: LazyLock<Option<Server>> = LazyLock::new(Server::find);

struct Server {
    /// Of any database; without its name.
    words: String,
    /// Ends the server once its input is closed, which the end of this process does.
    _life: Option<Child>,
}

/// A database of one test.
#[derive(Clone)]
pub(crate) struct Database {
    /// Where it is.
    pub(crate) words: String,
}

/// A fresh database; `None` where no server is there.
pub(crate) fn database() -> Option<Database> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let Some(server) = &*SERVER else {
        assert!(
            variable("CI").is_none(),
            "no PostgreSQL: install postgresql, or set MEMOIRD_TEST_POSTGRES"
        );
        say("skipped: no PostgreSQL is here");
        return None;
    };
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let name = format!("memoird_test_{}_{number}", std::process::id());
    let words = format!("{} dbname=postgres", server.words);
    RUNTIME.block_on(async {
        let client = connect(&words).await.unwrap();
        let sql = format!("CREATE DATABASE {name}");
        client.batch_execute(&sql).await.unwrap();
    });
    let words = format!("{} dbname={name}", server.words);
    Some(Database { words })
}

impl Database {
    pub(crate) fn options(&self) -> PgOptions {
        PgOptions::parse(&self.words, None, None).unwrap()
    }

    pub(crate) fn store(&self) -> PgStore {
        self.store_with(self.options())
    }

    pub(crate) fn store_with(&self, options: PgOptions) -> PgStore {
        PgStore::open(options, RUNTIME.handle()).unwrap()
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.words.split("dbname=").nth(1).unwrap()
    }

    /// The socket of the server; `None`, and a word, where it has none.
    pub(crate) fn socket(&self) -> Option<PathBuf> {
        let dir = self.words.strip_prefix("host=/")?.split(' ').next()?;
        let socket = Path::new("/").join(dir).join(".s.PGSQL.5432");
        if !socket.exists() {
            say("skipped: the server has no Unix socket");
        }
        socket.exists().then_some(socket)
    }

    /// Runs statements past any store.
    pub(crate) fn run(&self, sql: &str) {
        RUNTIME.block_on(async {
            let client = connect(&self.words).await.unwrap();
            client.batch_execute(sql).await.unwrap();
        });
    }

    /// A number that a statement gives.
    pub(crate) fn number(&self, sql: &str) -> i64 {
        RUNTIME.block_on(async {
            let client = connect(&self.words).await.unwrap();
            client.query_one(sql, &[]).await.unwrap().get(0)
        })
    }
}

#[allow(clippy::print_stderr, reason = "a test that checks nothing says so")]
fn say(word: &str) {
    eprintln!("{word}");
}

async fn connect(words: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(words, NoTls).await?;
    RUNTIME.spawn(connection);
    Ok(client)
}

#[allow(
    clippy::disallowed_methods,
    reason = "a variable of the environment says where the server is"
)]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

impl Server {
    fn find() -> Option<Self> {
        if let Some(words) = variable("MEMOIRD_TEST_POSTGRES") {
            return Some(Self { words, _life: None });
        }
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
        let programs = versions.map(|version| version.unwrap().path().join("bin"));
        let programs = programs.filter(|bin| bin.join("postgres").exists()).max()?;
        Some(Self::start(&programs))
    }

    /// Starts a server in a directory of its own, on a Unix socket.
    fn start(programs: &Path) -> Self {
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
        // The shell ends the server when its input ends: also where this process is killed.
        let script = format!(
            "'{0}/postgres' -D '{1}/data' -k '{1}' -c listen_addresses= -c fsync=off \
                 -c max_connections=200 >'{1}/log' 2>&1 & server=$!
             read -r _; kill -INT $server; wait $server; rm -rf '{1}'",
            programs.display(),
            dir.display()
        );
        let child = as_user("/bin/sh".into(), user)
            .args(["-c", &script])
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let words = format!("host={} user=postgres", dir.display());
        let probe = format!("{words} dbname=postgres");
        let is_up = (0..600).any(|_| {
            let is_up = RUNTIME.block_on(connect(&probe)).is_ok();
            if !is_up {
                std::thread::sleep(Duration::from_millis(50));
            }
            is_up
        });
        assert!(
            is_up,
            "the server does not start: {}",
            fs::read_to_string(dir.join("log")).unwrap_or_default()
        );
        Self {
            words,
            _life: Some(child),
        }
    }
}

/// Somebody else, where this is root: PostgreSQL does not run as root.
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
