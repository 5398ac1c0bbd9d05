//! Helpers for tests of the store.

use std::collections::BTreeSet;

use memoird_core::ids::{MemoryId, SessionId, Subject, TenantId};
use memoird_core::time::Timestamp;
use memoird_core::words::add_index_words;
use memoird_memories::rules::fusion::{Candidate, Candidates};
use memoird_memories::rules::{Memory, MemoryKind, MemoryLimits, Outcome, Source};
use memoird_memories::store::{
    Embedding, MemoryStore, MemoryWriter, RememberCommand, TenantMemories,
};
use memoird_memories::{ForgetOutcome, ForgetRequest, RecallRequest, RememberOutcome};
use memoird_memories::{MemoryError, RememberRequest};

use crate::place::Place;

pub(crate) const HOUR_MS: i64 = 60 * 60 * 1_000;
pub(crate) const MODEL: &str = "a-model";

/// One tenant's memories in storage of their own.
pub(crate) struct Kit {
    pub(crate) place: Place,
    pub(crate) store: MemoryStore,
    pub(crate) memories: TenantMemories,
}

impl Kit {
    pub(crate) fn new() -> Self {
        Self::at(Place::new())
    }

    pub(crate) fn at(place: Place) -> Self {
        let store = place.open();
        let memories = store.tenant(&tenant("acme")).unwrap();
        Self {
            place,
            store,
            memories,
        }
    }

    /// Reopens the storage, as after a crash or a restart.
    pub(crate) fn reopened(self) -> Self {
        let Self {
            place,
            store,
            memories,
        } = self;
        drop((store, memories));
        Self::at(place)
    }

    pub(crate) fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&MemoryWriter<'_>) -> Result<T, MemoryError> + Send + 'static,
    ) -> T {
        self.memories.write_one(job).unwrap()
    }

    /// The error that rejects a job.
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

    /// Remembers a text of a subject as a new memory with this number.
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

    pub(crate) fn recall(&self, ask: &RecallRequest) -> Candidates {
        self.recall_at(at(1), ask, None)
    }

    pub(crate) fn recall_at(
        &self,
        now: Timestamp,
        ask: &RecallRequest,
        vector: Option<&Embedding>,
    ) -> Candidates {
        self.memories
            .read(|reader| reader.recall(ask, vector, now))
            .unwrap()
    }

    /// Numbers of the memories that a subject finds by words, best first.
    pub(crate) fn found(&self, who: &str, query: &str) -> Vec<u64> {
        by_words(&self.recall(&ask(&[who], query)))
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

    /// Queries the rows directly, bypassing the store.
    pub(crate) fn peek(&self, sql: &str) -> i64 {
        self.place.peek(sql)
    }

    /// All bytes of the files, if there are any.
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        self.place.bytes()
    }

    /// Checks that every index contains exactly the current memories.
    pub(crate) fn check_indexes(&self) {
        for stray in [
            "SELECT count(*) FROM vectors WHERE no NOT IN
                 (SELECT no FROM memories WHERE superseded_by IS NULL)",
            "SELECT count(*) FROM embeddings_due WHERE no NOT IN
                 (SELECT no FROM memories WHERE superseded_by IS NULL)",
            "SELECT count(*) FROM tags WHERE no NOT IN (SELECT no FROM memories)",
            "SELECT count(*) FROM places WHERE no NOT IN
                 (SELECT no FROM memories WHERE superseded_by IS NULL)",
            "SELECT count(*) FROM recall_events WHERE memory NOT IN (SELECT id FROM memories)",
            "SELECT count(*) FROM keys WHERE version IS NULL
                 AND memory NOT IN (SELECT id FROM memories)",
            "SELECT count(*) - (SELECT memories FROM state) FROM memories",
            "SELECT count(*) FROM memories WHERE partition <> no >> 32",
        ] {
            assert_eq!(self.peek(stray), 0, "{stray}");
        }
        self.place.check();
    }
}

/// Numbers of the memories that were found by words, best first.
pub(crate) fn by_words(found: &Candidates) -> Vec<u64> {
    best_first(found, |one| one.is_lexical.then_some(one.words.score))
}

/// Numbers of the memories that were found by vector, nearest first.
pub(crate) fn by_vector(found: &Candidates) -> Vec<u64> {
    best_first(found, |one| one.cosine.filter(|_| one.is_near))
}

fn best_first(found: &Candidates, score: impl Fn(&Candidate) -> Option<f64>) -> Vec<u64> {
    let scored = found.list.iter();
    let scored = scored.filter_map(|one| Some((score(one)?, number(one.memory.id))));
    let mut scored: Vec<(f64, u64)> = scored.collect();
    scored.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
    scored.into_iter().map(|(_, number)| number).collect()
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

/// A number of hours after the start time of all tests.
pub(crate) fn at(hours: i64) -> Timestamp {
    Timestamp::from_ms(1_700_000_000_000 + hours * HOUR_MS)
}

pub(crate) fn id(number: u64) -> MemoryId {
    MemoryId::new(1_700_000_000_000, u128::from(number))
}

pub(crate) fn number(id: MemoryId) -> u64 {
    u64::from_be_bytes(id.to_bytes()[8..].try_into().unwrap())
}

pub(crate) fn fact(who: &str, kind: MemoryKind, text: &str) -> RememberRequest {
    RememberRequest::new(Some(subject(who)), kind, text)
}

pub(crate) fn order(number: u64, fact: RememberRequest) -> RememberCommand {
    order_at(at(0), number, fact)
}

pub(crate) fn order_at(now: Timestamp, number: u64, fact: RememberRequest) -> RememberCommand {
    let owner = fact.subject.clone().unwrap();
    let mut command = RememberCommand::new(fact, owner, id(number), now, 0.9);
    command.memory = command.memory.checked(&limits()).unwrap();
    command
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

pub(crate) fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

/// The indexed words of a text.
pub(crate) fn index_words(content: &str) -> BTreeSet<String> {
    let mut words = String::new();
    add_index_words(content, &mut words);
    words.split_ascii_whitespace().map(str::to_owned).collect()
}
