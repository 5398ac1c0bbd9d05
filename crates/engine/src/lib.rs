//! The concurrent core of memoird: sessions, the journal, background work and shutdown.
//!
//! [`Engine::open`] takes a configuration, a journal and a machine, and returns a handle with one
//! field per component. The gRPC server and the tests are both clients of this handle.
//!
//! Components own their state and depend on each other in one direction: `journal` ← `sessions` ←
//! `compaction` ← `commands`, `sessions` ← `hooks` ← `erasure`, and `sessions` ← `transcripts`.
//! `engine` composes them. Only `sessions` knows where a session is stored.

mod background;
mod blocking;
mod calibrations;
mod cluster;
mod commands;
mod compaction;
mod config;
mod engine;
mod eraser;
mod erasure;
mod error;
mod events;
mod hook;
mod hooks;
mod journal;
mod journal_use;
mod load_queue;
mod machine;
mod memory_use;
mod model_fault;
mod models;
mod outbox;
mod sessions;
mod single_flight;
mod stats;
mod store_handle;
mod tenants;
mod token_counter;
mod transcript_search;
mod transcripts;
mod watch;
mod window_memories;
mod worker;

pub use background::run_in_background;
pub use blocking::{Blocking, Executor};
pub use calibrations::Calibrations;
pub use cluster::Cluster;
pub use commands::{
    AppendOutcome, Commands, ContextOutcome, ContextRequest, CopyCommand, HistoryPage,
    HistoryQuery, HistoryScope, PatchCommand, PatchOutcome, RecallCall, RecallReply, RecallTool,
    RemovedTurns, RewindOutcome, TurnRef, TurnUpdateCommand, TurnUpdateOutcome,
};
pub use compaction::{
    Compaction, CompactionConfig, CompactionOutcome, ProviderBreaker, SessionDetail, Summarizer,
    SummarizerFuture, SummarizerReply, SummaryRequest, TextEnd,
};
pub use config::EngineConfig;
pub use engine::Engine;
pub use eraser::{EraseFuture, EraseRequest, ErasedElsewhere, Eraser};
pub use erasure::Erasures;
pub use error::EngineError;
pub use events::{EVENTS_MAX, Event, EventKind};
pub use hook::{
    Hook, HookCall, HookConfig, HookError, HookFuture, HooksConfig, Retry, SessionContent,
};
pub use hooks::{DeliveryView, Hooks};
pub use journal::{Durability, JournalConfig};
pub use machine::{Machine, Stopwatch, SystemMachine, new_nonce_secret};
pub use memoird_core::window::{WindowTurn, WindowTurns};
pub use memoird_store::{EraseTarget, JournalRange};
pub use memory_use::{CapacityConfig, MemorySnapshot, MemoryUse};
pub use model_fault::{FaultKind, ModelFault};
pub use models::{ContextConfig, ContextModel};
pub use sessions::{
    EndCommand, EndOutcome, EndedSession, LivePosition, PartPosition, SessionListPosition,
    SessionOrder, SessionPage, SessionQuery, SessionState, SessionView, Sessions,
};
pub use stats::{
    CompactionResult, CompactionSnapshot, HookStats, Stats, StatsSnapshot, TenantSnapshot,
    TenantStats, WindowSnapshot,
};
pub use tenants::{
    ClassTtl, Policy, SessionConfig, Tenant, TenantConfig, TenantLimits, Tenants, TtlClasses,
};
pub use token_counter::{CountFuture, CountRequest, TokenCounter};
pub use transcript_search::{
    FoundTurns, TranscriptQuery, TranscriptSearch, TranscriptSearchError, TranscriptSearchFuture,
};
pub use transcripts::Transcripts;
pub use watch::{CursorInvalid, EventCursor, Events, WatchFrom, WatchItem, WatchScope, Watcher};
pub use window_memories::{
    MemoryBlock, RecallResult, RecalledMemories, SessionPoint, WindowMemories, WindowRecall,
    WindowRoom,
};
pub use worker::{WorkError, Worker, WorkerStatus};
