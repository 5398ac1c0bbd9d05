//! Everything concurrent: who may speak to a session when, what is written in which
//! order, what expires, and how it all stops.
//!
//! [`Engine::open`] takes a configuration, a journal and a machine, and gives a handle
//! with plain method calls. gRPC is one client of it; a test is another.

mod append;
mod capacity;
mod cell;
mod compaction;
mod config;
mod context;
mod counter;
mod dispatch;
mod embedder;
mod end;
mod engine;
mod error;
mod events;
mod flights;
mod hook;
mod idle;
mod ids;
mod journal;
mod long_term;
mod machine;
mod mend;
mod models;
mod outbox;
mod prune;
mod read;
mod reconfigure;
mod recover;
mod state;
mod stats;
mod summarizer;
mod sweep;
mod table;
mod tenant;
mod worker;

pub use append::AppendOutcome;
pub use compaction::{
    CompactionConfig, CompactionOutcome, CompactionSnapshot, Outcome, ProviderBreaker,
    SessionDetail,
};
pub use config::{
    Durability, EngineConfig, HookConfig, HooksConfig, JournalConfig, SessionConfig, TenantConfig,
    TenantLimits,
};
pub use context::{ContextConfig, ContextModel, ContextOutcome, ContextRequest};
pub use counter::{CountAsk, CountError, Counting, TokenCounter};
pub use embedder::{EmbedError, Embedder, Embeddings, Purpose};
pub use end::EndedSession;
pub use engine::{Blocking, Engine, Stores};
pub use error::EngineError;
pub use events::{EVENTS_KEPT, Event, EventKind, Seen, Watched, Watcher};
pub use hook::{Again, Answers, Ended, Hook, HookCall, HookError};
pub use long_term::{
    ExtractedFact, ExtractionLease, ExtractionOutcome, ForgetAsk, ForgetOutcome, LongTermConfig,
    MemoryFilter, MemoryPage, MemoryQuery, MemorySnapshot, MemoryStats, RecallAsk, RecallHit,
    RecallMode, RecallOutcome, RememberAsk, RememberOutcome, SourceAsk,
};
pub use machine::{Machine, SystemMachine};
pub use memoird_core::window::WindowTurn;
pub use outbox::DeliveryView;
pub use read::{HistoryPage, HistoryQuery, HistoryScope, SessionPage, SessionView};
pub use stats::{HookStats, Stats, StatsSnapshot, TenantSnapshot, TenantStats, WindowSnapshot};
pub use summarizer::{Answer, Stop, Summaries, SummarizeError, Summarizer, SummaryAsk};
pub use tenant::{Policy, Tenant};
pub use worker::WorkerStatus;
