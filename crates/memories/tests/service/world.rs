//! A world with memories: that of the engine's tests, and a memory directory.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use memoird_core::budget::Budget;
use memoird_core::time::Steady;
use memoird_engine::{Blocking, ContextModel, Engine, EngineConfig, Machine, Tenant};
use memoird_formats::model::{ModelProfile, Provider, TokenizerKind};
use memoird_formats::tokens::Tokenizer;
use memoird_memories::store::{FilesOptions, MemoryStore, TenantMemories};
use memoird_memories::{Memories, MemoriesConfig};
use memoird_store::Store;
use tempfile::TempDir;

use crate::kit::{self, TestMachine};
use crate::store::FaultyStore;

/// Configuration of the engine and of memories.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    engine: EngineConfig,
    pub(crate) long_term: MemoriesConfig,
}

impl From<EngineConfig> for Config {
    fn from(engine: EngineConfig) -> Self {
        Self {
            engine,
            long_term: MemoriesConfig::default(),
        }
    }
}

impl Deref for Config {
    type Target = EngineConfig;

    fn deref(&self) -> &EngineConfig {
        &self.engine
    }
}

impl DerefMut for Config {
    fn deref_mut(&mut self) -> &mut EngineConfig {
        &mut self.engine
    }
}

/// One tenant, no caps, no sweeper.
pub(crate) fn unswept() -> Config {
    kit::unswept().into()
}

/// A memory directory that lives as long as the test.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub(crate) dir: Arc<TempDir>,
    pub(crate) files: Arc<MemoryStore>,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self::in_dir(Arc::new(tempfile::tempdir().unwrap()))
    }

    /// The same directory, opened independently of files that are open.
    pub(crate) fn in_dir(dir: Arc<TempDir>) -> Self {
        let files = MemoryStore::open(dir.path(), &FilesOptions::default()).unwrap();
        Self {
            dir,
            files: Arc::new(files),
        }
    }
}

/// State that survives reopening an engine.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) machine: Arc<TestMachine>,
    pub(crate) blocking: Blocking,
    /// `None` without memories.
    pub(crate) memories: Option<Folder>,
}

#[derive(Clone, Debug)]
pub(crate) struct House {
    pub(crate) engine: Engine,
    pub(crate) memories: Memories,
}

impl Deref for House {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl World {
    pub(crate) fn new(config: impl Into<Config>) -> Self {
        Self {
            config: config.into(),
            store: Arc::default(),
            machine: Arc::new(TestMachine::new(7)),
            blocking: Blocking::Inline,
            memories: None,
        }
    }

    pub(crate) fn remembering(self) -> Self {
        Self {
            memories: Some(Folder::new()),
            ..self
        }
    }

    pub(crate) fn machine_now(&self) -> Steady {
        self.machine.now().steady
    }

    /// Opens the memories of a bot directly, bypassing the daemon.
    pub(crate) fn kept_of(&self, bot: &Bot) -> TenantMemories {
        let folder = self.memories.as_ref().unwrap();
        folder.files.tenant(&bot.tenant.id).unwrap()
    }

    pub(crate) async fn open(&self) -> House {
        let store: Arc<dyn Store> = self.store.clone();
        let (config, machine) = (self.config.engine.clone(), self.machine.clone());
        let engine = Engine::open(config, Some(store), machine, self.blocking)
            .await
            .unwrap();
        let files = self.memories.as_ref();
        let files = files.map(|folder| Arc::clone(&folder.files));
        let memories = Memories::open(engine.clone(), files, self.config.long_term.clone());
        House { engine, memories }
    }
}

/// A client of the engine and of its memories.
#[derive(Clone, Debug)]
pub(crate) struct Bot {
    client: crate::bot::Bot,
    pub(crate) memories: Memories,
    pub(crate) tenant: Arc<Tenant>,
}

impl Deref for Bot {
    type Target = crate::bot::Bot;

    fn deref(&self) -> &crate::bot::Bot {
        &self.client
    }
}

impl Bot {
    pub(crate) fn new(house: &House, tenant: &str) -> Self {
        let client = crate::bot::Bot::new(&house.engine, tenant);
        Self {
            tenant: Arc::clone(&client.tenant),
            memories: house.memories.clone(),
            client,
        }
    }
}

/// Counts one token per byte.
#[derive(Debug)]
struct Bytes;

impl Tokenizer for Bytes {
    fn count(&self, text: &str) -> usize {
        text.len()
    }

    fn margin(&self) -> f64 {
        0.0
    }
}

/// Configures one model with this context window, all of it for the window.
pub(crate) fn with_model(mut config: Config, context_window: u64) -> Config {
    let budget = Budget {
        context_window,
        max_reply_tokens: 0,
        safety_headroom: 0,
        tool_result_headroom: 0,
    };
    let profile = ModelProfile {
        name: "large".to_owned(),
        provider: Provider::OpenAi,
        tokenizer: TokenizerKind::O200k,
        budget,
    };
    config.context.default_model = profile.name.clone();
    config.context.models = vec![ContextModel {
        profile,
        tokenizer: Arc::new(Bytes),
        counter: None,
    }];
    config
}
