//! Short words for tests of memories.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memoird_core::ids::{MemoryId, SessionId, Subject, TenantId};
use memoird_core::time::Timestamp;
use memoird_core::words::add_index_words;
use memoird_memories::files::{
    Embedding, FilesOptions, MemoryFiles, MemoryWriter, RecallLists, RememberCommand, TenantFile,
};
use memoird_memories::rules::{Fact, Memory, MemoryKind, MemoryLimits, Outcome, Source};
use memoird_memories::{FileError, MemoryError};
use memoird_memories::{ForgetOutcome, ForgetRequest, RecallRequest, RememberOutcome};
use rusqlite::Connection;
use tempfile::TempDir;

pub(crate) const HOUR_MS: i64 = 60 * 60 * 1_000;
pub(crate) const MODEL: &str = "a-model";

/// True when a file could not be used, and not for what the rules say.
pub(crate) fn failed_with<T>(
    answer: &Result<T, MemoryError>,
    is_cause: impl Fn(&FileError) -> bool,
) -> bool {
    matches!(answer, Err(MemoryError::Failed { cause }) if is_cause(cause))
}

/// A directory with one tenant's memories.
pub(crate) struct Kit {
    pub(crate) dir: TempDir,
    pub(crate) store: MemoryFiles,
    pub(crate) memories: Arc<TenantFile>,
}

impl Kit {
    pub(crate) fn new() -> Self {
        Self::with(&FilesOptions::default())
    }

    pub(crate) fn with(options: &FilesOptions) -> Self {
        let dir = TempDir::new().unwrap();
        let store = MemoryFiles::open(dir.path(), options).unwrap();
        let memories = store.tenant(&tenant("acme")).unwrap();
        Self {
            dir,
            store,
            memories,
        }
    }

    /// As after a crash or a restart.
    pub(crate) fn reopened(self) -> Self {
        let Self {
            dir,
            store,
            memories,
        } = self;
        drop((store, memories));
        let store = MemoryFiles::open(dir.path(), &FilesOptions::default()).unwrap();
        let memories = store.tenant(&tenant("acme")).unwrap();
        Self {
            dir,
            store,
            memories,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("acme.db")
    }

    pub(crate) fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&MemoryWriter<'_>) -> Result<T, MemoryError> + Send + 'static,
    ) -> T {
        self.memories.write_one(job).unwrap()
    }

    /// What a job is refused with.
    pub(crate) fn refusal<T: Send + 'static>(
        &self,
        job: impl FnOnce(&MemoryWriter<'_>) -> Result<T, MemoryError> + Send + 'static,
    ) -> MemoryError {
        match self.memories.write_one(job) {
            Err(error @ (MemoryError::Failed { .. } | MemoryError::DiskFull)) => {
                panic!("{error}")
            }
            Err(refusal) => refusal,
            Ok(_) => panic!("it was not refused"),
        }
    }

    pub(crate) fn remember(&self, order: RememberCommand) -> RememberOutcome {
        self.write(move |writer| writer.remember(&order, &limits()))
    }

    /// Remembers a text of a subject as a new memory of this number.
    pub(crate) fn say(&self, number: u64, who: &str, text: &str) -> MemoryId {
        let order = order(number, fact(who, MemoryKind::Project, text));
        let done = self.remember(order);
        assert_eq!(
            (done.outcome, done.memory.id),
            (Outcome::Created, id(number)),
            "{text}"
        );
        id(number)
    }

    pub(crate) fn get(&self, id: MemoryId) -> Option<Memory> {
        self.memories.read(|reader| reader.get(id)).unwrap()
    }

    pub(crate) fn recall(&self, ask: &RecallRequest) -> RecallLists {
        self.recall_at(at(1), ask, None)
    }

    pub(crate) fn recall_at(
        &self,
        now: Timestamp,
        ask: &RecallRequest,
        vector: Option<&Embedding>,
    ) -> RecallLists {
        self.memories
            .read(|reader| reader.recall(ask, vector, now))
            .unwrap()
    }

    /// The numbers of what a subject finds by words, best first.
    pub(crate) fn found(&self, who: &str, query: &str) -> Vec<u64> {
        let lists = self.recall(&ask(&[who], query));
        lists
            .lexical
            .iter()
            .map(|scored| number(scored.id))
            .collect()
    }

    pub(crate) fn forget(&self, job: u64, filter: &ForgetRequest) -> ForgetOutcome {
        let begun = filter.clone();
        self.write(move |writer| writer.forget_begin(id(job), &begun, at(1)));
        loop {
            let progress = self.write(move |writer| writer.forget_step(id(job), 3));
            if progress.is_done {
                return progress.counts;
            }
        }
    }

    /// Looks at the file behind the store's back.
    pub(crate) fn peek(&self, sql: &str) -> i64 {
        let connection = Connection::open(self.path()).unwrap();
        connection.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// Every index has exactly what is current.
    pub(crate) fn check_indexes(&self) {
        let connection = Connection::open(self.path()).unwrap();
        check_words(&connection);
        for stray in [
            "SELECT count(*) FROM vectors WHERE no NOT IN
                 (SELECT no FROM memories WHERE superseded_by IS NULL)",
            "SELECT count(*) FROM embeddings_due WHERE no NOT IN
                 (SELECT no FROM memories WHERE superseded_by IS NULL)",
            "SELECT count(*) FROM tags WHERE no NOT IN (SELECT no FROM memories)",
            "SELECT count(*) FROM places WHERE no NOT IN
                 (SELECT no FROM memories WHERE superseded_by IS NULL)",
            "SELECT count(*) FROM recall_events WHERE memory NOT IN (SELECT id FROM memories)",
            "SELECT count(*) FROM keys WHERE memory NOT IN (SELECT id FROM memories)",
            "SELECT count(*) - (SELECT memories FROM state) FROM memories",
            "SELECT count(*) FROM memories WHERE partition <> no >> 32",
            // An entry of a block has 22 bytes, and one for the eight dimensions of tests.
            "SELECT (SELECT ifnull(sum(length(block)), 0) FROM vector_blocks) / 23
                 - (SELECT count(*) FROM vectors)",
        ] {
            assert_eq!(
                connection.query_row(stray, [], |row| row.get(0)),
                Ok(0_i64),
                "{stray}"
            );
        }
        let verdict: String = connection
            .query_row("PRAGMA quick_check", [], |row| row.get(0))
            .unwrap();
        assert_eq!(verdict, "ok");
    }
}

pub(crate) fn limits() -> MemoryLimits {
    MemoryLimits::default()
}

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

pub(crate) fn subject(name: &str) -> Subject {
    Subject::parse(name).unwrap()
}

pub(crate) fn session(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

/// So many hours after the beginning of all tests.
pub(crate) fn at(hours: i64) -> Timestamp {
    Timestamp::from_ms(1_700_000_000_000 + hours * HOUR_MS)
}

pub(crate) fn id(number: u64) -> MemoryId {
    MemoryId::new(1_700_000_000_000, u128::from(number))
}

pub(crate) fn number(id: MemoryId) -> u64 {
    u64::from_be_bytes(id.to_bytes()[8..].try_into().unwrap())
}

pub(crate) fn fact(who: &str, kind: MemoryKind, text: &str) -> Fact {
    Fact::new(subject(who), kind, text)
}

pub(crate) fn order(number: u64, fact: Fact) -> RememberCommand {
    let fact = fact.checked(&limits()).unwrap();
    RememberCommand {
        id: id(number),
        fact,
        at: at(0),
        key: None,
        at_seq: None,
        vector: None,
        cosine_min: 0.9,
    }
}

pub(crate) fn source(name: &str) -> Source {
    Source {
        session: session(name),
        generation: None,
        seqs: vec![],
    }
}

pub(crate) fn ask(who: &[&str], query: &str) -> RecallRequest {
    RecallRequest {
        query: query.to_owned(),
        subjects: who.iter().map(|who| subject(who)).collect(),
        limit: 10,
        ..RecallRequest::default()
    }
}

pub(crate) fn vector(values: [f32; 8]) -> Embedding {
    Embedding {
        model: MODEL.into(),
        values: values.to_vec(),
    }
}

/// All bytes of the files in a directory.
pub(crate) fn bytes(dir: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        bytes.extend(std::fs::read(entry.unwrap().path()).unwrap());
    }
    bytes
}

pub(crate) fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

/// The index has the words of what is current, and no others.
fn check_words(connection: &Connection) {
    let check = "INSERT INTO terms (terms, rank) VALUES ('integrity-check', 0)";
    connection.execute(check, []).unwrap();
    let rows = |sql: &str| -> BTreeSet<(i64, String)> {
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.unwrap().map(Result::unwrap).collect()
    };
    let vocabulary = "CREATE VIRTUAL TABLE temp.found USING fts5vocab(main, terms, instance)";
    connection.execute_batch(vocabulary).unwrap();
    let found = rows("SELECT doc, term FROM temp.found");
    let current = rows("SELECT no, content FROM memories WHERE superseded_by IS NULL");
    let mut expected = BTreeSet::new();
    for (no, content) in current {
        let mut words = String::new();
        add_index_words(&content, &mut words);
        let words = words.split_ascii_whitespace();
        expected.extend(words.map(|word| (no, word.to_owned())));
    }
    assert_eq!(found, expected);
}
