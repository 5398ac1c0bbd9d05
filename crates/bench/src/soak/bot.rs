//! A bot that uses all features of a daemon, and records the acknowledged turns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use memoird_proto::v1::memory_service_client::MemoryServiceClient;
use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::session_service_client::SessionServiceClient;
use memoird_proto::v1::{
    AppendRequest, BuildContextRequest, EndSessionRequest, EraseSessionRequest, GetHistoryRequest,
    HistoryScope, MemoryKind, Part, RecallRequest, RememberRequest, ResetSessionRequest, Role,
    SearchTranscriptsRequest, Turn, UpdateSessionRequest,
};
use tokio::time::sleep;
use tonic::Status;
use tonic::transport::Channel;

use super::super::clock;
use super::super::connect::Target;
use super::super::traffic::Rng;
use super::{Gauge, Kept, RETENTION};

const SESSIONS: u64 = 12;
/// Number of different facts per bot. Repeated ones are not stored again, which limits memories.
const FACTS: u64 = 200;
const TURN_BYTES_MAX: u64 = 1_500;
/// Maximum age of an ended generation that is read back. Older ones may be pruned already.
const ASKED_FOR: Duration = Duration::from_secs(RETENTION.as_secs() / 2);
/// Maximum reads, so that a daemon can recover from a full disk before turns are read back.
const READS_TRIED: u32 = 50;
const READ_AGAIN: Duration = Duration::from_millis(200);

pub(super) struct Bot {
    target: Target,
    sessions: SessionServiceClient<Channel>,
    memories: MemoryServiceClient<Channel>,
    name: String,
    rng: Rng,
    turns: u64,
    books: BTreeMap<(u64, String), Book>,
}

/// Acknowledged turns of a generation: the number in each turn's text, by seq.
#[derive(Default)]
struct Book {
    said: BTreeMap<u64, u64>,
    ended: Option<Instant>,
}

impl Bot {
    pub(super) fn new(target: Target, name: String, rng: Rng) -> Self {
        Self {
            sessions: target.sessions_anew(),
            memories: target.memories_anew(),
            target,
            name,
            rng,
            turns: 0,
            books: BTreeMap::new(),
        }
    }

    /// Makes calls at this pace until the soak test is over.
    pub(super) async fn run(mut self, pace: Duration, gauge: Arc<Gauge>) -> Self {
        while !gauge.is_over() {
            let started = clock::monotonic();
            let outcome = self.call().await;
            gauge.note(outcome.as_ref().copied());
            sleep(pace.saturating_sub(clock::since(started))).await;
        }
        self
    }

    async fn call(&mut self) -> Result<(), Status> {
        let session = self.rng.below(SESSIONS);
        match self.rng.below(1_000) {
            0..400 => self.append(session).await,
            400..550 => self.window(session).await,
            550..630 => self.history(session).await,
            630..700 => self.patch(session).await,
            700..800 => self.remember().await,
            800..900 => self.recall().await,
            900..950 => self.search().await,
            950..970 => self.reset(session).await,
            970..999 => self.end(session).await,
            _ => self.erase(session).await,
        }
    }

    async fn append(&mut self, session: u64) -> Result<(), Status> {
        let request = self.append_request(session);
        let appended = self
            .sessions
            .append(self.target.request(request))
            .await?
            .into_inner();
        let generation = appended.session.unwrap_or_default().generation;
        self.note(session, generation, appended.first_seq);
        Ok(())
    }

    async fn window(&mut self, session: u64) -> Result<(), Status> {
        let append = self.append_request(session);
        let request = BuildContextRequest {
            session_id: append.session_id.clone(),
            append: Some(append),
            ..BuildContextRequest::default()
        };
        let window = self
            .sessions
            .build_context(self.target.request(request))
            .await?;
        let info = window.into_inner().session.unwrap_or_default();
        self.note(session, info.generation, info.last_seq);
        Ok(())
    }

    async fn history(&mut self, session: u64) -> Result<(), Status> {
        let request = GetHistoryRequest {
            session_id: self.session_id(session),
            ..GetHistoryRequest::default()
        };
        let read = self
            .sessions
            .get_history(self.target.request(request))
            .await;
        found(read.map(drop))
    }

    async fn patch(&mut self, session: u64) -> Result<(), Status> {
        let request = UpdateSessionRequest {
            session_id: self.session_id(session),
            state_patch_json: format!(r#"{{"step":{},"mood":null}}"#, self.rng.below(9)),
            ..UpdateSessionRequest::default()
        };
        let patched = self
            .sessions
            .update_session(self.target.request(request))
            .await;
        found(patched.map(drop))
    }

    async fn remember(&mut self) -> Result<(), Status> {
        let fact = self.rng.below(FACTS);
        let request = RememberRequest {
            subject: format!("person {}", fact % 10),
            kind: MemoryKind::Project.into(),
            content: format!(
                "fact {fact} of {}: {}",
                self.name,
                words(200, &mut Rng::new(fact))
            ),
            ..RememberRequest::default()
        };
        self.memories.remember(self.target.request(request)).await?;
        Ok(())
    }

    async fn recall(&mut self) -> Result<(), Status> {
        let request = RecallRequest {
            query: words(30, &mut self.rng),
            subjects: vec![format!("person {}", self.rng.below(10))],
            ..RecallRequest::default()
        };
        self.memories.recall(self.target.request(request)).await?;
        Ok(())
    }

    async fn search(&mut self) -> Result<(), Status> {
        let query = SearchTranscriptsRequest {
            query: words(20, &mut self.rng),
            ..SearchTranscriptsRequest::default()
        };
        let request = self.target.request(query);
        self.sessions.search_transcripts(request).await?;
        Ok(())
    }

    async fn reset(&mut self, session: u64) -> Result<(), Status> {
        let request = ResetSessionRequest {
            session_id: self.session_id(session),
            run_hooks: false,
            ..ResetSessionRequest::default()
        };
        let reset = self
            .sessions
            .reset_session(self.target.request(request))
            .await;
        self.close(session);
        found(reset.map(drop))
    }

    async fn end(&mut self, session: u64) -> Result<(), Status> {
        let request = EndSessionRequest {
            session_id: self.session_id(session),
            ..EndSessionRequest::default()
        };
        let ended = self
            .sessions
            .end_session(self.target.request(request))
            .await;
        self.close(session);
        found(ended.map(drop))
    }

    async fn erase(&mut self, session: u64) -> Result<(), Status> {
        let request = EraseSessionRequest {
            session_id: self.session_id(session),
            ..EraseSessionRequest::default()
        };
        let erased = self
            .sessions
            .erase_session(self.target.request(request))
            .await;
        // Whatever the reply is, its turns may be gone.
        self.books.retain(|key, _| key.0 != session);
        found(erased.map(drop))
    }

    fn session_id(&self, session: u64) -> String {
        format!("{}-{session}", self.name)
    }

    fn append_request(&mut self, session: u64) -> AppendRequest {
        self.turns += 1;
        let bytes = self.rng.below(TURN_BYTES_MAX);
        let said = words(usize::try_from(bytes).unwrap_or(0), &mut self.rng);
        let text = Part {
            part: Some(Kind::Text(format!("{}: {said}", self.turns))),
            extra_json: String::new(),
        };
        let turn = Turn {
            role: Role::User.into(),
            parts: vec![text],
            ..Turn::default()
        };
        AppendRequest {
            session_id: self.session_id(session),
            turns: vec![turn],
            subject: format!("person {}", session % 10),
            ..AppendRequest::default()
        }
    }

    /// Records the seq of the last appended turn.
    fn note(&mut self, session: u64, generation: String, seq: u64) {
        let now = clock::monotonic();
        let is_live = |key: &(u64, String)| *key == (session, generation.clone());
        for (key, book) in &mut self.books {
            if key.0 == session && !is_live(key) {
                book.ended.get_or_insert(now);
            }
        }
        self.books
            .retain(|_, book| book.ended.is_none_or(|ended| now - ended < ASKED_FOR));
        let book = self.books.entry((session, generation)).or_default();
        book.said.insert(seq, self.turns);
    }

    /// Its generation may have ended. From now on, the daemon may prune it.
    fn close(&mut self, session: u64) {
        let now = clock::monotonic();
        let books = self.books.iter_mut().filter(|(key, _)| key.0 == session);
        books.for_each(|(_, book)| _ = book.ended.get_or_insert(now));
    }

    /// Reads back all acknowledged turns that cannot have been pruned yet.
    pub(super) async fn read_back(mut self) -> Result<Kept> {
        let mut kept = Kept::default();
        let now = clock::monotonic();
        for ((session, generation), book) in std::mem::take(&mut self.books) {
            if book.ended.is_some_and(|ended| now - ended >= ASKED_FOR) {
                continue;
            }
            let told = self.told(session, generation).await?;
            for (seq, number) in book.said {
                let times = told.values().filter(|told| **told == number).count();
                kept.asked += 1;
                kept.lost += u64::from(told.get(&seq) != Some(&number));
                kept.twice += u64::from(times > 1);
            }
        }
        Ok(kept)
    }

    /// Reads a generation from the journal: the number in each turn's text, by seq.
    async fn told(&mut self, session: u64, generation: String) -> Result<BTreeMap<u64, u64>> {
        let (mut told, mut after_seq) = (BTreeMap::new(), 0);
        loop {
            let request = GetHistoryRequest {
                session_id: self.session_id(session),
                generation: generation.clone(),
                scope: HistoryScope::Journal.into(),
                after_seq,
                ..GetHistoryRequest::default()
            };
            let page = match self.read(request).await {
                // All of its turns are lost.
                Err(status) if status.code() == tonic::Code::NotFound => return Ok(told),
                page => page?,
            };
            told.extend(page.0);
            match page.1 {
                0 => return Ok(told),
                next => after_seq = next,
            }
        }
    }

    async fn read(&mut self, request: GetHistoryRequest) -> Result<(Vec<(u64, u64)>, u64), Status> {
        for _ in 0..READS_TRIED {
            let asked = self.target.request(request.clone());
            match self.sessions.get_history(asked).await {
                Err(status) if status.code() != tonic::Code::NotFound => sleep(READ_AGAIN).await,
                answer => {
                    let page = answer?.into_inner();
                    let turns = page.turns.iter().map(|turn| (turn.seq, number(turn)));
                    return Ok((turns.collect(), page.next_after_seq));
                }
            }
        }
        Err(Status::deadline_exceeded("the journal cannot be read"))
    }
}

/// A missing session is not an error: it was never used, or has ended.
fn found(outcome: Result<(), Status>) -> Result<(), Status> {
    match outcome {
        Err(status) if status.code() == tonic::Code::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// The number at the start of a turn's text.
fn number(turn: &Turn) -> u64 {
    let text = turn.parts.first().and_then(|part| part.part.as_ref());
    let Some(Kind::Text(text)) = text else {
        return 0;
    };
    let number = text
        .split_once(':')
        .and_then(|(number, _)| number.parse().ok());
    number.unwrap_or(0)
}

fn words(bytes: usize, rng: &mut Rng) -> String {
    super::super::traffic::text(bytes, rng)
}
