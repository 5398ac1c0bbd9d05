//! Users that call all mutating rpcs. Each has a model of the acknowledged changes.
//!
//! A user makes one call at a time and repeats it at other daemons until one replies. So the model
//! is exact: a late original of a repeated call must change nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use memoird_proto::v1::{
    CopySessionRequest, EraseSessionRequest, Erasure, ForgetRequest, GetDocumentRequest,
    GetErasureRequest, GetHistoryRequest, GetSessionRequest, PutDocumentRequest,
    RewindSessionRequest, UpdateSessionRequest, UpdateTurnRequest, document, forget_request,
    put_document_request,
};
use tonic::{Code, Status};

use super::clients::Clients;
use super::{Chaos, until_answered};
use crate::harness::{
    Seed, eventually, fact, keyed, live, memories_of, refused_code, text_of, user,
};

/// More turns than this are rewound, which is fewer than the history may have.
const TURNS_MAX: usize = 40;
/// Live copies of a session, apart from the last ones that were started.
const COPIES_MAX: usize = 3;
/// Prefix of all its sessions.
pub(super) const PREFIX: &str = "changed ";

/// A user with a session, its copies, facts and a document.
pub(super) struct Changer {
    name: usize,
    session: String,
    random: Seed,
    /// Number of calls, which makes keys and texts unique.
    calls: u64,
    /// Seqs and texts of the history.
    turns: Vec<(u64, String)>,
    state: u64,
    /// Contents of facts by id.
    facts: BTreeMap<String, String>,
    /// Content and version of the document.
    document: (u64, u64),
    /// Copies with the texts that were copied.
    copies: VecDeque<(String, Vec<String>)>,
}

impl Changer {
    pub(super) fn new(name: usize, seed: u64) -> Self {
        Self {
            name,
            session: format!("{PREFIX}{name}"),
            random: Seed::new(seed * 1_000 + name as u64),
            calls: 0,
            turns: Vec::new(),
            state: 0,
            facts: BTreeMap::new(),
            document: (0, 0),
            copies: VecDeque::new(),
        }
    }

    pub(super) async fn change(mut self, chaos: Arc<Chaos>) -> Self {
        self.append(&chaos).await;
        while !chaos.is_over.load(Ordering::Relaxed) {
            match self.random.below(14) {
                0..4 => self.append(&chaos).await,
                4..6 => self.update(&chaos).await,
                6 => self.rewind(&chaos).await,
                7 | 8 => self.patch(&chaos).await,
                9 | 10 => self.remember(&chaos).await,
                11 => self.forget(&chaos).await,
                12 => self.put(&chaos).await,
                _ => self.copy(&chaos).await,
            }
            if self.calls.is_multiple_of(5) {
                self.check_history(&chaos).await;
            }
        }
        self
    }

    /// A new idempotency key, which is also a new text.
    fn key(&mut self) -> String {
        self.calls += 1;
        format!("user {} call {}", self.name, self.calls)
    }

    async fn until_answered<T>(
        &mut self,
        chaos: &Chaos,
        call: impl AsyncFn(&mut Clients) -> Result<T, Status>,
    ) -> T {
        until_answered(chaos, &mut self.random, self.name, call).await
    }

    async fn append(&mut self, chaos: &Chaos) {
        let text = self.key();
        let request = keyed(&self.session, &text, [user(&text)]);
        let append = async |clients: &mut Clients| clients.sessions.append(request.clone()).await;
        let answer = self.until_answered(chaos, append).await.into_inner();
        self.turns.push((answer.last_seq, text));
        if self.turns.len() > TURNS_MAX {
            self.rewind(chaos).await;
        }
    }

    async fn update(&mut self, chaos: &Chaos) {
        let text = self.key();
        let Some(place) = self.some_turn() else {
            return;
        };
        let request = UpdateTurnRequest {
            session_id: self.session.clone(),
            seq: self.turns[place].0,
            turn: Some(user(&text)),
            idempotency_key: text.clone(),
            ..UpdateTurnRequest::default()
        };
        let update =
            async |clients: &mut Clients| clients.sessions.update_turn(request.clone()).await;
        self.until_answered(chaos, update).await;
        self.turns[place].1 = text;
    }

    async fn rewind(&mut self, chaos: &Chaos) {
        let text = self.key();
        let Some(place) = self.some_turn() else {
            return;
        };
        let request = RewindSessionRequest {
            session_id: self.session.clone(),
            after_seq: self.turns[place].0,
            turns: vec![user(&text)],
            idempotency_key: text.clone(),
            ..RewindSessionRequest::default()
        };
        let rewind =
            async |clients: &mut Clients| clients.sessions.rewind_session(request.clone()).await;
        let answer = self.until_answered(chaos, rewind).await.into_inner();
        self.turns.truncate(place + 1);
        self.turns.push((answer.last_seq, text));
    }

    fn some_turn(&mut self) -> Option<usize> {
        (!self.turns.is_empty()).then(|| self.random.below(self.turns.len()))
    }

    async fn patch(&mut self, chaos: &Chaos) {
        let idempotency_key = self.key();
        let request = UpdateSessionRequest {
            session_id: self.session.clone(),
            state_patch_json: format!(r#"{{"n":{}}}"#, self.calls),
            idempotency_key,
            ..UpdateSessionRequest::default()
        };
        let patch =
            async |clients: &mut Clients| clients.sessions.update_session(request.clone()).await;
        self.until_answered(chaos, patch).await;
        self.state = self.calls;
    }

    fn subject(&self) -> String {
        format!("user {}", self.name)
    }

    async fn remember(&mut self, chaos: &Chaos) {
        let content = self.key();
        let mut request = fact(&self.subject(), &content);
        request.idempotency_key.clone_from(&content);
        let remember =
            async |clients: &mut Clients| clients.memories.remember(request.clone()).await;
        let answer = self.until_answered(chaos, remember).await.into_inner();
        let id = answer.memory.expect("a memory").id;
        self.facts.insert(id, content);
    }

    async fn forget(&mut self, chaos: &Chaos) {
        let Some(id) = self.facts.keys().next().cloned() else {
            return;
        };
        let request = ForgetRequest {
            target: Some(forget_request::Target::Id(id.clone())),
            dry_run: false,
        };
        let forget =
            async |clients: &mut Clients| match clients.memories.forget(request.clone()).await {
                Err(refused) if refused.code() == Code::NotFound => Ok(()),
                answer => answer.map(drop),
            };
        self.until_answered(chaos, forget).await;
        self.facts.remove(&id);
    }

    async fn put(&mut self, chaos: &Chaos) {
        let idempotency_key = self.key();
        let request = PutDocumentRequest {
            namespace: vec![self.subject()],
            key: "document".to_owned(),
            value: Some(put_document_request::Value::Json(self.calls.to_string())),
            idempotency_key,
            ..PutDocumentRequest::default()
        };
        let put =
            async |clients: &mut Clients| clients.documents.put_document(request.clone()).await;
        let answer = self.until_answered(chaos, put).await.into_inner();
        let version = answer.document.expect("a document").version;
        let (_, earlier) = self.document;
        assert_eq!(version, earlier + 1, "{}: once each", self.session);
        self.document = (self.calls, version);
    }

    async fn copy(&mut self, chaos: &Chaos) {
        let target = format!("{PREFIX}by {}", self.key());
        let request = CopySessionRequest {
            session_id: self.session.clone(),
            target_session_id: target.clone(),
            idempotency_key: target.clone(),
            ..CopySessionRequest::default()
        };
        let copy =
            async |clients: &mut Clients| clients.sessions.copy_session(request.clone()).await;
        self.until_answered(chaos, copy).await;
        let texts = self.turns.iter().map(|(_, text)| text.clone()).collect();
        self.copies.push_back((target, texts));
        if self.copies.len() > COPIES_MAX {
            self.copies.pop_front();
        }
    }

    /// Compares the session at a random daemon with the model.
    async fn check_history(&mut self, chaos: &Chaos) {
        let state = GetSessionRequest {
            session_id: self.session.clone(),
            include_state: true,
        };
        let look = async |clients: &mut Clients| clients.sessions.get_session(state.clone()).await;
        let seen = self.until_answered(chaos, look).await.into_inner();
        let seen = seen.session.expect("a session");
        assert_eq!(seen.state_json, self.state_json(), "{}", self.session);
        let turns = seen.history_turns;
        let history = GetHistoryRequest {
            session_id: self.session.clone(),
            ..GetHistoryRequest::default()
        };
        let read =
            async |clients: &mut Clients| clients.sessions.get_history(history.clone()).await;
        let seen = self.until_answered(chaos, read).await.into_inner().turns;
        let seen: Vec<_> = seen.iter().map(|turn| (turn.seq, text_of(turn))).collect();
        let acked = self.turns.iter().map(|(seq, text)| (*seq, &**text));
        assert_eq!(seen, acked.collect::<Vec<_>>(), "{}", self.session);
        assert_eq!(turns, self.turns.len() as u64, "{}", self.session);
    }

    fn state_json(&self) -> String {
        match self.state {
            0 => "{}".to_owned(),
            n => format!(r#"{{"n":{n}}}"#),
        }
    }

    /// Asserts that a daemon shows everything as it was acknowledged.
    pub(super) async fn check(&self, clients: &mut Clients) {
        let texts = async |clients: &mut Clients, session: &str| -> Vec<String> {
            let turns = live(&mut clients.sessions, session).await;
            turns.iter().map(|turn| text_of(turn).to_owned()).collect()
        };
        let expected: Vec<_> = self.turns.iter().map(|(_, text)| text.clone()).collect();
        assert_eq!(texts(clients, &self.session).await, expected);
        for (copy, expected) in &self.copies {
            assert_eq!(texts(clients, copy).await, *expected, "{copy}");
        }
        let state = clients.sessions.get_session(GetSessionRequest {
            session_id: self.session.clone(),
            include_state: true,
        });
        let state = state.await.expect("a state").into_inner().session;
        let state = state.expect("a session").state_json;
        assert_eq!(state, self.state_json(), "{}", self.session);
        let there = memories_of(&mut clients.memories, &self.subject()).await;
        let there = there.into_iter().map(|memory| (memory.id, memory.content));
        assert_eq!(there.collect::<BTreeMap<_, _>>(), self.facts);
        let (content, version) = self.document;
        let document = clients.documents.get_document(GetDocumentRequest {
            namespace: vec![self.subject()],
            key: "document".to_owned(),
            ..GetDocumentRequest::default()
        });
        match document.await {
            Ok(document) => {
                let document = document.into_inner().document.expect("a document");
                assert_eq!(document.version, version, "{}", self.session);
                let expected = document::Value::Json(content.to_string());
                assert_eq!(document.value, Some(expected), "{}", self.session);
            }
            Err(refused) => {
                assert_eq!(refused.code(), Code::NotFound, "{refused:?}");
                assert_eq!(version, 0, "{}: the document is lost", self.session);
            }
        }
    }

    /// Erases its session. Asserts that all daemons report it as not found.
    pub(super) async fn erase(&self, all: &mut [Clients]) {
        let erased = all[0].sessions.erase_session(EraseSessionRequest {
            session_id: self.session.clone(),
            ..EraseSessionRequest::default()
        });
        let Erasure { id, .. } = erased
            .await
            .expect("a job")
            .into_inner()
            .erasure
            .expect("one");
        eventually("it is erased", async || {
            let request = GetErasureRequest { id: id.clone() };
            let progress = all[0].sessions.get_erasure(request).await.ok()?;
            progress.into_inner().erasure?.done.then_some(())
        })
        .await;
        for clients in all {
            let read = clients.sessions.get_session(GetSessionRequest {
                session_id: self.session.clone(),
                ..GetSessionRequest::default()
            });
            let refused = read.await.expect_err("it is erased");
            assert_eq!(refused_code(&refused), "SESSION_NOT_FOUND");
        }
    }
}
