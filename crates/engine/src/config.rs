//! What an operator decides of the engine, as data.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::config::{AsOptionalText, AsText, Auto, Problems, Size, Span};
use memoird_core::ids::TenantId;
use memoird_core::limits::Limits;
use memoird_core::outbox::{RetryPolicy, Subscription};
use serde::{Deserialize, Serialize};

use crate::commands::ContextConfig;
use crate::compaction::CompactionConfig;
use crate::hooks::Hook;

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    /// What clients may send and keep, unless their tenant has other limits.
    pub limits: Limits,
    /// How many sessions live, and how long.
    pub sessions: SessionConfig,
    /// How the journal is kept.
    pub journal: JournalConfig,
    /// How windows are built.
    pub context: ContextConfig,
    /// How sessions are compacted.
    pub compaction: CompactionConfig,
    /// What is done when a session ends.
    pub hooks: HooksConfig,
    /// The tenants that are known from the start.
    pub tenants: Vec<TenantConfig>,
}

/// What is done when a session ends. Its three limits stand in the section `limits` of a
/// configuration file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HooksConfig {
    /// Deliveries under way at once, of all hooks.
    #[serde(rename = "hooks_under_way")]
    pub concurrency: usize,
    /// Bytes of turns that one delivery holds; of a larger generation the newest turns.
    #[serde(rename = "hook_content_bytes", with = "AsText::<Size>")]
    pub content_bytes: usize,
    /// Without a journal: bytes of turns and states that may be owed.
    #[serde(rename = "hook_memory_bytes", with = "AsText::<Size>")]
    pub memory_bytes: usize,
    /// How long deliveries may take when the daemon stops: those under way, and without a
    /// journal all that are owed.
    #[serde(skip)]
    pub drain: Duration,
    /// The hooks, each with a name of its own.
    #[serde(skip)]
    pub hooks: Vec<HookConfig>,
}

/// One hook.
#[derive(Clone, Debug)]
pub struct HookConfig {
    /// Its name, and for what it is called.
    pub subscription: Subscription,
    /// How long one delivery may take.
    pub timeout: Duration,
    /// Its deliveries under way at once. At least 1.
    pub concurrency: usize,
    /// When a delivery that failed is tried again.
    pub retry: RetryPolicy,
    /// What does it.
    pub hook: Arc<dyn Hook>,
}

/// How many sessions live, and how long.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// Sessions of the whole process, and of each tenant without a cap of its own;
    /// 0: no cap.
    pub max_sessions: usize,
    /// How long a session lives untouched. More than zero.
    #[serde(with = "AsText::<Span>")]
    pub session_ttl: Duration,
    /// How often expired sessions are collected; `None`: every quarter of the TTL.
    #[serde(with = "AsText::<Auto>")]
    pub sweep_interval: Option<Duration>,
}

/// When an answer may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Once the disk has it: what was acknowledged survives a crash of the machine.
    Sync,
    /// At once; the disk has it within `flush_interval`.
    Interval,
    /// At once; there is no journal, and nothing survives the process.
    Off,
}

/// How the journal is kept.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct JournalConfig {
    /// When an answer may be given.
    pub durability: Durability,
    /// With [`Durability::Interval`], the longest time that the disk lags behind.
    #[serde(with = "AsText::<Span>")]
    pub flush_interval: Duration,
    /// How long the turns of an ended generation stay readable.
    #[serde(with = "AsText::<Span>")]
    pub retention: Duration,
    /// Bytes of changes that may wait for the disk.
    #[serde(with = "AsText::<Size>")]
    pub queue_bytes: usize,
    /// How long a call waits for room among them before it is refused.
    #[serde(with = "AsText::<Span>")]
    pub queue_wait: Duration,
    /// Change sets of one transaction.
    #[serde(skip)]
    pub batch_sets: usize,
}

/// A tenant that is known from the start.
#[derive(Clone, Debug)]
pub struct TenantConfig {
    /// Its id.
    pub id: TenantId,
    /// Where it differs from the others.
    pub limits: TenantLimits,
}

/// Where a tenant differs from the others.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantLimits {
    /// Sessions it may have; 0: no cap of its own.
    pub max_sessions: Option<usize>,
    /// How long its sessions live untouched.
    #[serde(with = "AsOptionalText::<Span>")]
    pub session_ttl: Option<Duration>,
    /// Turns its histories keep.
    pub max_history_turns: Option<usize>,
    /// Encoded bytes its histories keep.
    #[serde(with = "AsOptionalText::<Size>")]
    pub max_history_bytes: Option<usize>,
}

impl HooksConfig {
    /// Adds what is wrong with its limits.
    pub fn check(&self, problems: &mut Problems) {
        problems.at_least_one("hooks_under_way", self.concurrency);
        problems.at_least_one("hook_content_bytes", self.content_bytes);
        problems.at_least_one("hook_memory_bytes", self.memory_bytes);
    }
}

impl SessionConfig {
    /// Adds what is wrong with it.
    pub fn check(&self, problems: &mut Problems) {
        problems.not_zero("session_ttl", self.session_ttl);
        if let Some(interval) = self.sweep_interval {
            problems.not_zero("sweep_interval", interval);
        }
    }
}

impl JournalConfig {
    /// Adds what is wrong with it.
    pub fn check(&self, problems: &mut Problems) {
        problems.not_zero("flush_interval", self.flush_interval);
        problems.not_zero("queue_wait", self.queue_wait);
        problems.at_least_one("queue_bytes", self.queue_bytes);
    }
}

impl TenantLimits {
    /// Adds what is wrong with them.
    pub fn check(&self, problems: &mut Problems) {
        if let Some(ttl) = self.session_ttl {
            problems.not_zero("session_ttl", ttl);
        }
        if let Some(turns) = self.max_history_turns {
            problems.at_least_one("max_history_turns", turns);
        }
        if let Some(bytes) = self.max_history_bytes {
            problems.at_least_one("max_history_bytes", bytes);
        }
    }
}

impl Default for HooksConfig {
    fn default() -> Self {
        Self {
            concurrency: 8,
            content_bytes: 64 << 20,
            memory_bytes: 256 << 20,
            drain: Duration::from_secs(10),
            hooks: Vec::new(),
        }
    }
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            max_sessions: 10_000,
            session_ttl: Duration::from_secs(24 * 60 * 60),
            sweep_interval: None,
        }
    }
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            durability: Durability::Sync,
            flush_interval: Duration::from_secs(1),
            retention: Duration::from_secs(30 * 24 * 60 * 60),
            queue_bytes: 64 << 20,
            queue_wait: Duration::from_secs(2),
            batch_sets: 1_024,
        }
    }
}
