//! Guarantees of memories, even if callers leave, or providers or daemons fail in between.
//!
//! The engine, its fault-injecting journal and its machine are those of the engine's own tests.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]

#[allow(dead_code, reason = "the engine's tests use the rest")]
#[path = "../../../engine/tests/engine/bot.rs"]
mod bot;
#[allow(dead_code, reason = "the engine's tests use the rest")]
#[path = "../../../engine/tests/engine/kit.rs"]
mod kit;
#[path = "../../../store/tests/model/mod.rs"]
mod model;
#[allow(dead_code, reason = "the engine's tests use the rest")]
#[path = "../../../engine/tests/engine/record.rs"]
mod record;
#[allow(dead_code, reason = "the engine's tests use the rest")]
#[path = "../../../engine/tests/engine/store.rs"]
mod store;

mod consolidation;
mod documents;
mod embedder;
mod embedding;
mod extraction;
mod forget;
mod learning;
mod manifests;
mod recall;
mod remember;
mod reranker;
mod reranking;
mod secrets;
#[path = "../../../../tests/suite/harness/seeds.rs"]
mod seeds;
mod simulation;
mod sources;
mod windows;
mod world;

use std::sync::Arc;

use memoird_core::ids::{MemoryId, Subject};
use memoird_core::session::AppendCommand;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_memories::rules::{Memory, MemoryKind, Outcome, Source, Visibility};
use memoird_memories::{
    ForgetOutcome, ForgetRequest, ListRequest, MemoryError, RecallOutcome, RecallRequest,
    RememberOutcome, RememberRequest,
};
use memoird_store::encoding;

use crate::kit::{ACME, TestMachine, session_id};
use crate::world::{Bot, Config, Folder, House, World, unswept};
use embedder::ScriptedEmbedder;

/// The subject of tests that need only one.
pub(crate) const ANN: &str = "ann";
const BOB: &str = "bob";

pub(crate) fn subject(text: &str) -> Subject {
    Subject::parse(text).unwrap()
}

/// A world with memories, but without an embedder.
fn world() -> World {
    World::new(unswept()).remembering()
}

/// The same with an embedder.
fn world_with(embedder: &Arc<ScriptedEmbedder>) -> World {
    World::new(with_embedder(unswept(), embedder)).remembering()
}

fn with_embedder(config: impl Into<Config>, embedder: &Arc<ScriptedEmbedder>) -> Config {
    let mut config = config.into();
    config.long_term.embedder = Some(embedder.clone());
    config
}

/// A fact with defaults for all other fields.
pub(crate) fn fact(whose: &str, content: &str) -> RememberRequest {
    RememberRequest::new(Some(subject(whose)), MemoryKind::Project, content)
}

fn team(whose: &str, content: &str) -> RememberRequest {
    RememberRequest {
        visibility: Visibility::Team,
        ..fact(whose, content)
    }
}

fn from(session: &str, seqs: &[u64]) -> Option<Source> {
    Some(Source {
        session: session_id(session),
        generation: None,
        seqs: seqs.to_vec(),
    })
}

/// Recalls memories of a subject.
fn query(whose: &str, words: &str) -> RecallRequest {
    let subjects = if whose.is_empty() {
        Vec::new()
    } else {
        vec![subject(whose)]
    };
    RecallRequest {
        query: words.to_owned(),
        subjects,
        ..RecallRequest::default()
    }
}

/// Recalls memories for a session.
fn query_in(session: &str, words: &str) -> RecallRequest {
    RecallRequest {
        session: Some(session_id(session)),
        ..query("", words)
    }
}

/// Appends a turn with this text.
pub(crate) fn telling(whose: &str, text: &str) -> AppendCommand {
    let turn = Turn::new(Role::User, vec![PartKind::Text(text.to_owned()).into()]);
    AppendCommand {
        turns: vec![encoding::encode(turn)],
        subject: Some(subject(whose)),
        ..AppendCommand::default()
    }
}

fn contents<'a>(memories: impl IntoIterator<Item = &'a Memory>) -> Vec<String> {
    memories
        .into_iter()
        .map(|memory| memory.content.clone())
        .collect()
}

fn told(outcome: &RecallOutcome) -> Vec<String> {
    contents(outcome.hits.iter().map(|hit| &hit.memory))
}

impl Bot {
    pub(crate) async fn remember(
        &self,
        ask: RememberRequest,
    ) -> Result<RememberOutcome, MemoryError> {
        self.memories.facts.remember(&self.tenant, ask).await
    }

    /// Remembers a new fact, and returns its id.
    pub(crate) async fn learn(&self, whose: &str, content: &str) -> MemoryId {
        self.learn_so(fact(whose, content)).await
    }

    async fn learn_so(&self, ask: RememberRequest) -> MemoryId {
        let done = self.remember(ask).await.unwrap();
        assert_eq!(done.outcome, Outcome::Created, "{done:?}");
        done.memory.id
    }

    pub(crate) async fn recall(&self, ask: RecallRequest) -> Result<RecallOutcome, MemoryError> {
        self.memories.recall.find(&self.tenant, ask).await
    }

    /// Contents that a subject recalls.
    async fn finds(&self, whose: &str, words: &str) -> Vec<String> {
        told(&self.recall(query(whose, words)).await.unwrap())
    }

    async fn listed(&self, whose: &str) -> Vec<String> {
        contents(&self.list_of(Some(whose), false).await)
    }

    async fn list_of(&self, whose: Option<&str>, include_history: bool) -> Vec<Memory> {
        let query = ListRequest {
            subject: whose.map(subject),
            include_history,
            count: usize::MAX,
            ..ListRequest::default()
        };
        self.memories
            .facts
            .list(&self.tenant, query)
            .await
            .unwrap()
            .memories
    }

    async fn memory(&self, id: MemoryId) -> Result<Memory, MemoryError> {
        self.memories.facts.get(&self.tenant, id, None).await
    }

    async fn manifest(&self, whose: &str) -> String {
        self.memories
            .recall
            .manifest(&self.tenant, subject(whose), 0, 0)
            .await
            .unwrap()
            .text
            .clone()
    }

    pub(crate) async fn forget(&self, ask: ForgetRequest) -> Result<ForgetOutcome, MemoryError> {
        self.memories
            .forgetting
            .forget(&self.tenant, ask, false)
            .await
    }

    async fn tell(&self, session: &str, whose: &str, text: &str) {
        self.append(session, telling(whose, text)).await.unwrap();
    }
}

fn is_not_found(answer: &Result<Memory, MemoryError>) -> bool {
    matches!(answer, Err(MemoryError::NotFound { .. }))
}

/// Successive runs of a daemon on one disk. Each run ends by dropping its runtime, like `kill -9`.
struct Daemon {
    world: Option<World>,
    config: Config,
}

impl Daemon {
    fn new(config: impl Into<Config>) -> Self {
        Self {
            world: None,
            config: config.into(),
        }
    }

    fn live<T>(&mut self, life: impl AsyncFnOnce(&House, &World) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let (outcome, world) = runtime.block_on(async {
            let last = self.world.take();
            let base = last
                .as_ref()
                .map_or_else(Default::default, |last| last.machine.stopped());
            let store = last
                .as_ref()
                .map(|last| Arc::clone(&last.store))
                .unwrap_or_default();
            let dir = last.as_ref().and_then(|last| last.memories.as_ref());
            let dir = dir.map(|memories| Arc::clone(&memories.dir));
            // The directory can only be opened once at a time.
            drop(last);
            let world = World {
                config: self.config.clone(),
                store,
                machine: Arc::new(TestMachine::resume(base, base.0 + 1)),
                blocking: memoird_engine::Blocking::Inline,
                memories: Some(match dir {
                    Some(dir) => Folder::in_dir(dir),
                    None => Folder::new(),
                }),
            };
            let outcome = life(&world.open().await, &world).await;
            world.machine.stop();
            (outcome, world)
        });
        self.world = Some(world);
        outcome
    }
}

/// The bot of the only tenant.
fn acme(house: &House) -> Bot {
    Bot::new(house, ACME)
}
