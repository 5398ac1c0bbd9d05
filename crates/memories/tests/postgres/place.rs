//! A database of memories for a test, or a file if there is no server.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use memoird_memories::store::{FilesOptions, MemoryStore, check_tenant_file};
use memoird_postgres::PgOptions;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::kit::index_words;
use crate::start::{self, Server};

/// Runtime of the connections of all tests.
pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
});

/// Whether the server has pgvector.
///
/// Debian's has not; a server configured for these tests must have it.
static HAS_PGVECTOR: LazyLock<bool> = LazyLock::new(|| {
    let sql = "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'";
    let has_it = Server::shared().is_some_and(|server| server.run("postgres", sql) == "1");
    assert!(
        has_it || !start::is_named(),
        "the PostgreSQL that is named for the tests has no pgvector"
    );
    if !has_it {
        start::say("skipped: no PostgreSQL with pgvector is here");
    }
    has_it
});

/// Settings of a statement that sees the rows of the tenant `acme`, by the hash of its name.
const AS_TENANT: &str =
    "SET search_path = memoird_tenant, public; SET memoird.tenant = '156275432474364064'; ";

pub(crate) enum Place {
    Database(&'static Server, String),
    /// No server. The file takes the place of the database, whose tests run elsewhere.
    Skipped(TempDir),
}

impl Place {
    pub(crate) fn new() -> Self {
        match Server::shared() {
            Some(server) if *HAS_PGVECTOR => Self::Database(server, server.database()),
            _ => Self::Skipped(TempDir::new().unwrap()),
        }
    }

    pub(crate) fn open(&self) -> MemoryStore {
        match self {
            Self::Database(_, words) => {
                let options = PgOptions::parse(words, None, None).unwrap();
                MemoryStore::in_postgres(options, RUNTIME.handle()).unwrap()
            }
            Self::Skipped(dir) => MemoryStore::open(dir.path(), &FilesOptions::default()).unwrap(),
        }
    }

    pub(crate) fn peek(&self, sql: &str) -> i64 {
        match self {
            Self::Database(..) => self.run(sql).parse().unwrap(),
            Self::Skipped(dir) => {
                let path = dir.path().join("acme.db");
                let connection = rusqlite::Connection::open(path).unwrap();
                connection.query_row(sql, [], |row| row.get(0)).unwrap()
            }
        }
    }

    /// Runs a statement and returns its output.
    pub(crate) fn run(&self, sql: &str) -> String {
        let Self::Database(server, words) = self else {
            return String::new();
        };
        let (_, database) = words.split_once("dbname=").unwrap();
        server.run(database, &format!("{AS_TENANT}{sql}"))
    }

    /// Damages that a verification finds.
    pub(crate) fn damages(&self) -> Vec<String> {
        match self {
            Self::Database(..) => self.open().check_rows().unwrap().unwrap().damages,
            Self::Skipped(dir) => {
                let path = dir.path().join("acme.db");
                check_tenant_file(&path, None).unwrap().damages
            }
        }
    }

    /// Changes rows as damage would: no trigger notices it.
    pub(crate) fn damage(&self, sql: &str) {
        match self {
            Self::Database(..) => {
                self.run(&format!("SET session_replication_role = replica; {sql}"));
            }
            Self::Skipped(dir) => {
                let path = dir.path().join("acme.db");
                let connection = rusqlite::Connection::open(path).unwrap();
                connection.execute_batch(sql).unwrap();
            }
        }
    }

    #[allow(clippy::unused_self, reason = "elsewhere memories are in files")]
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        None
    }

    /// Checks that the index contains exactly the words of current memories.
    pub(crate) fn check(&self) {
        let rows = self.run("SELECT no, form FROM terms");
        let row = |line: &str| {
            let (no, form) = line.split_once('|')?;
            Some((no.parse().ok()?, form.parse().ok()?))
        };
        let found: BTreeSet<(i64, i64)> = rows.lines().filter_map(row).collect();
        let rows =
            self.run("SELECT no, encode(content, 'hex') FROM memories WHERE superseded_by IS NULL");
        let mut expected = BTreeSet::new();
        for line in rows.lines() {
            let (no, hex) = line.split_once('|').unwrap();
            let bytes =
                (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16));
            let content = String::from_utf8(bytes.map(Result::unwrap).collect()).unwrap();
            let no: i64 = no.parse().unwrap();
            expected.extend(keys(&index_words(&content)).map(|key| (no, key)));
        }
        assert_eq!(found, expected);
    }
}

/// Keys of indexed words. The upper half is the hash of the beginning, if it is indexed.
fn keys(words: &BTreeSet<String>) -> impl Iterator<Item = i64> {
    let (beginnings, words): (Vec<_>, Vec<_>) =
        words.iter().partition(|word| word.starts_with('\u{200d}'));
    let key = move |word: &String| {
        let begins = beginnings.iter().find_map(|begins| {
            let begins = begins.trim_start_matches('\u{200d}');
            word.starts_with(begins).then_some(begins)
        });
        let begins = begins.filter(|_| !word.contains(char::is_numeric));
        match begins {
            Some(begins) => i64::from(hash(begins)) << 32 | i64::from(hash(word).cast_unsigned()),
            None => hash(word).into(),
        }
    };
    words.into_iter().map(key)
}

/// FNV-1a, 32 bits.
fn hash(word: &str) -> i32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    word.bytes().fold(0x811c_9dc5, mix).cast_signed()
}
