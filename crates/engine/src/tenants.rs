//! Tenants with their policies, counters and events.

use std::collections::BTreeMap;
use std::iter;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use dashmap::DashMap;
use memoird_core::CoreError;
use memoird_core::compaction::CompactionPolicy;
use memoird_core::config::{AsOptionalText, AsText, Auto, Never, Problems, Size, Span};
use memoird_core::ids::TenantId;
use memoird_core::limits::Limits;
use memoird_core::options::{DEFAULT_CLASS, NEVER_CLASS, OptionsPatch, is_class_name};
use memoird_core::session::Head;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::calibrations::Calibrations;
use crate::error::EngineError;
use crate::events::EventLog;
use crate::journal_use::JournalUse;
use crate::load_queue::LoadQueue;
use crate::memory_use::{FREE_SHARE, MemoryUse};
use crate::models::Prompts;
use crate::stats::TenantStats;

/// Maximum scheduling weight. Bounds how long one tenant can delay the calls of others.
const WEIGHT_MAX: u32 = 100;
/// Maximum number of a tenant's change sets in the journal queue, if there are several tenants.
///
/// Keeps a flooding tenant from delaying the commits of others. A large set takes several permits.
pub(crate) const JOURNAL_SHARE: u32 = 64;
/// Maximum number of concurrent session copies per tenant. Each copy is in memory as a whole.
const COPIES_MAX: usize = 1;
/// Accepted byte rates. A lower one is below the size of a message, a higher one is no limit.
const BYTES_PER_SECOND: RangeInclusive<usize> = 1 << 10..=100 << 20;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// Maximum live sessions of the process, and default per tenant. 0 means no cap.
    pub max_sessions: usize,
    /// Idle time after which a session expires. More than zero.
    #[serde(with = "AsText::<Span>")]
    pub session_ttl: Duration,
    /// Interval between sweeps for expired sessions. `None` selects a quarter of the TTL.
    #[serde(with = "AsText::<Auto>")]
    pub sweep_interval: Option<Duration>,
    /// Additional TTLs that a client may select for a session by name, up to 8.
    pub ttl_classes: TtlClasses,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct TtlClasses(pub BTreeMap<String, ClassTtl>);

/// Idle time after which sessions of a class expire. `None` means never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct ClassTtl(#[serde(with = "AsText::<Never>")] pub Option<Duration>);

const TTL_CLASSES_MAX: usize = 8;
/// A valid duration, checked in place of one that is not set.
const UNSET: Duration = Duration::from_secs(1);

impl TtlClasses {
    fn check(&self, problems: &mut Problems) {
        let are_few = self.0.len() <= TTL_CLASSES_MAX;
        problems.unless(are_few, "ttl_classes", "takes 8 classes at most");
        for (name, ClassTtl(ttl)) in &self.0 {
            let is_name = is_class_name(name) && name != DEFAULT_CLASS;
            let problem = "takes names of 1 to 64 of a-z, 0-9, - and _, but not default, which is \
                           session_ttl";
            problems.unless(is_name, "ttl_classes", problem);
            problems.not_zero("ttl_classes", ttl.unwrap_or(UNSET));
        }
    }
}

#[derive(Clone, Debug)]
pub struct TenantConfig {
    pub id: TenantId,
    pub limits: TenantLimits,
}

/// A tenant's overrides of the common limits.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantLimits {
    /// Maximum live sessions. 0 means no cap of its own.
    pub max_sessions: Option<usize>,
    #[serde(with = "AsOptionalText::<Span>")]
    pub session_ttl: Option<Duration>,
    /// Replaces the common TTL classes.
    pub ttl_classes: Option<TtlClasses>,
    pub max_history_turns: Option<usize>,
    #[serde(with = "AsOptionalText::<Size>")]
    pub max_history_bytes: Option<usize>,
    /// Maximum concurrent calls. More are rejected.
    pub calls_in_flight: Option<usize>,
    /// Maximum calls per second, with bursts of the same size. More are rejected.
    pub calls_per_second: Option<NonZeroU32>,
    /// Maximum bytes of requests per second, 1 KiB to 100 MiB. More are rejected.
    #[serde(with = "AsOptionalText::<Size>")]
    pub bytes_per_second: Option<usize>,
    /// Maximum bytes of turns in the journal. 0 means no limit of its own.
    #[serde(with = "AsOptionalText::<Size>")]
    pub journal_bytes: Option<usize>,
    /// Maximum bytes of session content in memory. 0 means no limit of its own.
    ///
    /// Above it, the longest idle content is unloaded. If that is impossible, appends are rejected.
    #[serde(with = "AsOptionalText::<Size>")]
    pub memory_bytes: Option<usize>,
    /// Scheduling weight: calls processed for each one of a tenant with weight 1. Default 1.
    pub weight: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TenantsConfig {
    pub(crate) limits: Limits,
    pub(crate) sessions: SessionConfig,
    pub(crate) compaction: CompactionPolicy,
    pub(crate) tenants: Vec<TenantConfig>,
}

/// An organization or bot. Calls are assigned to a tenant by their credential.
#[derive(Debug)]
pub struct Tenant {
    pub id: TenantId,
    policy: ArcSwap<Policy>,
    pub(crate) stats: TenantStats,
    /// `memory` and `journal` are shared by all tenants.
    pub(crate) memory: Arc<MemoryUse>,
    journal: Arc<JournalUse>,
    /// Number of tenants in the process.
    tenants: Arc<AtomicUsize>,
    /// Limits the tenant's sets in the journal queue if there are several tenants.
    pub(crate) journal_share: Arc<Semaphore>,
    /// Limits concurrent session copies.
    pub(crate) copies: Semaphore,
    pub(crate) loads: LoadQueue,
    pub(crate) events: EventLog,
    pub calibrations: Calibrations,
    pub(crate) prompts: Prompts,
    /// Highest ticket of the tenant's submitted change sets.
    pub(crate) last_ticket: AtomicU64,
    /// Number of the last journal batch that contained one of them.
    pub(crate) last_batch: AtomicU64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SharedUsage {
    memory: Arc<MemoryUse>,
    journal: Arc<JournalUse>,
    tenants: Arc<AtomicUsize>,
}

/// Effective settings of a tenant. A reload replaces them as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub limits: Limits,
    pub compaction: CompactionPolicy,
    /// Maximum concurrent calls. `None` leaves the limit to admission control.
    pub calls_in_flight: Option<usize>,
    /// `None` means no limit.
    pub calls_per_second: Option<NonZeroU32>,
    /// `None` means no limit.
    pub bytes_per_second: Option<NonZeroU32>,
    /// See [`TenantLimits::weight`].
    pub weight: u32,
    /// 0 means no limit.
    pub(crate) journal_bytes: u64,
    /// 0 means no limit.
    pub(crate) memory_bytes: u64,
    pub(crate) max_sessions: usize,
    pub(crate) ttl_ms: u64,
    /// Milliseconds by class name. [`NEVER_MS`] for a class that never expires.
    pub(crate) ttl_classes: BTreeMap<Arc<str>, u64>,
    pub(crate) sweep_ms: u64,
}

#[derive(Debug)]
pub struct Tenants {
    config: ArcSwap<TenantsConfig>,
    shared_usage: SharedUsage,
    by_id: DashMap<TenantId, Arc<Tenant>>,
}

impl SessionConfig {
    pub fn check(&self, problems: &mut Problems) {
        problems.not_zero("session_ttl", self.session_ttl);
        problems.not_zero("sweep_interval", self.sweep_interval.unwrap_or(UNSET));
        self.ttl_classes.check(problems);
    }
}

impl TenantLimits {
    pub fn check(&self, problems: &mut Problems) {
        problems.not_zero("session_ttl", self.session_ttl.unwrap_or(UNSET));
        if let Some(classes) = &self.ttl_classes {
            classes.check(problems);
        }
        problems.at_least_one("max_history_turns", self.max_history_turns.unwrap_or(1));
        problems.at_least_one("max_history_bytes", self.max_history_bytes.unwrap_or(1));
        problems.at_least_one("calls_in_flight", self.calls_in_flight.unwrap_or(1));
        let bytes = self.bytes_per_second;
        let is_measured = bytes.is_none_or(|bytes| BYTES_PER_SECOND.contains(&bytes));
        problems.unless(is_measured, "bytes_per_second", "takes 1KiB to 100MiB");
        let has_turns = self
            .weight
            .is_none_or(|weight| (1..=WEIGHT_MAX).contains(&weight));
        problems.unless(has_turns, "weight", "takes 1 to 100");
    }
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            max_sessions: 10_000,
            session_ttl: Duration::from_secs(24 * 60 * 60),
            sweep_interval: None,
            ttl_classes: TtlClasses::default(),
        }
    }
}

impl Tenant {
    pub(crate) fn new(id: TenantId, policy: Policy, shared_usage: &SharedUsage) -> Self {
        Self {
            id,
            policy: ArcSwap::from_pointee(policy),
            stats: TenantStats::default(),
            memory: Arc::clone(&shared_usage.memory),
            journal: Arc::clone(&shared_usage.journal),
            tenants: Arc::clone(&shared_usage.tenants),
            journal_share: Arc::new(Semaphore::new(JOURNAL_SHARE as usize)),
            copies: Semaphore::new(COPIES_MAX),
            loads: LoadQueue::default(),
            events: EventLog::new(
                Arc::clone(&shared_usage.memory),
                Arc::clone(&shared_usage.tenants),
            ),
            calibrations: Calibrations::default(),
            prompts: Prompts::default(),
            last_ticket: AtomicU64::new(0),
            last_batch: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_one_of_several(&self) -> bool {
        self.tenants.load(Ordering::Relaxed) > 1
    }

    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    pub(crate) fn count_content(&self, before: u64, after: u64) {
        self.stats.count_loaded(before, after);
        self.memory.count_content(before, after);
        if after > before && self.check_own_memory(0).is_err() {
            self.memory.exceeded.notify_one();
        }
    }

    /// Checks that `more` bytes of content fit into the tenant's and the global memory limit.
    pub(crate) fn check_memory_room(&self, more: u64) -> Result<(), EngineError> {
        self.check_own_memory(more)?;
        self.memory.check_room(more)
    }

    fn check_own_memory(&self, more: u64) -> Result<(), EngineError> {
        let (used_bytes, limit_bytes) =
            (self.stats.bytes_loaded(), self.policy.load().memory_bytes);
        if limit_bytes > 0 && used_bytes.saturating_add(more) > limit_bytes {
            return Err(EngineError::MemoryFull {
                setting: "tenants[].limits.memory_bytes",
                used_bytes,
                limit_bytes,
            });
        }
        Ok(())
    }

    /// Whether enough of the tenant's own limit is free that calls need not check for room first.
    pub(crate) fn has_own_free_share(&self) -> bool {
        let free = self.policy.load().memory_bytes / FREE_SHARE;
        self.check_own_memory(free).is_ok()
    }

    /// Records that the journal gained `more` bytes of the tenant's turns and lost `less`.
    pub(crate) fn add_journal_bytes(&self, more: u64, less: u64) {
        let before = self.stats.journal_bytes();
        self.set_journal_bytes((before + more).saturating_sub(less));
    }

    /// Sets the bytes of the tenant's turns in the journal, after a count.
    pub(crate) fn set_journal_bytes(&self, bytes: u64) {
        let before = self.stats.journal_bytes();
        self.stats.count_journal(before, bytes);
        self.journal.change(before, bytes);
    }

    /// Checks that `more` bytes of turns fit into the tenant's and the global journal limit.
    pub(crate) fn check_journal_room(&self, more: u64) -> Result<(), EngineError> {
        self.journal.check_room(self, more)
    }

    /// TTL of a session in milliseconds. [`NEVER_MS`] if it never expires.
    pub(crate) fn ttl_ms(&self, head: &Head) -> u64 {
        let policy = self.policy.load();
        match &head.options {
            None => policy.ttl_ms,
            Some(options) => policy.class_ttl_ms(options.ttl_class.as_deref()),
        }
    }
}

impl Policy {
    /// Merges the common settings with a tenant's own limits.
    pub(crate) fn new(config: &TenantsConfig, own: &TenantLimits) -> Self {
        let mut limits = config.limits.clone();
        limits.max_history_turns = own.max_history_turns.unwrap_or(limits.max_history_turns);
        limits.max_history_bytes = own.max_history_bytes.unwrap_or(limits.max_history_bytes);
        let ttl_ms = ms(own.session_ttl.unwrap_or(config.sessions.session_ttl)).max(1);
        let bytes_per_second = own
            .bytes_per_second
            .and_then(|bytes| u32::try_from(bytes).ok());
        let classes = own
            .ttl_classes
            .as_ref()
            .unwrap_or(&config.sessions.ttl_classes)
            .0
            .iter();
        let classes =
            classes.map(|(name, ClassTtl(ttl))| (name.as_str(), ttl.map_or(NEVER_MS, ms).max(1)));
        // A configured class of the same name replaces the built-in one.
        let ttl_classes: BTreeMap<Arc<str>, u64> = iter::once((NEVER_CLASS, NEVER_MS))
            .chain(classes)
            .map(|(name, ttl_ms)| (name.into(), ttl_ms))
            .collect();
        let shortest_ms = ttl_classes.values().copied().fold(ttl_ms, u64::min);
        let sweep_ms = config
            .sessions
            .sweep_interval
            .map_or(shortest_ms / 4, ms)
            .max(1);
        Self {
            limits,
            compaction: config.compaction,
            calls_in_flight: own.calls_in_flight,
            calls_per_second: own.calls_per_second,
            bytes_per_second: bytes_per_second.and_then(NonZeroU32::new),
            weight: own.weight.unwrap_or(1),
            journal_bytes: own.journal_bytes.unwrap_or(0) as u64,
            memory_bytes: own.memory_bytes.unwrap_or(0) as u64,
            max_sessions: own.max_sessions.unwrap_or(config.sessions.max_sessions),
            ttl_ms,
            ttl_classes,
            sweep_ms,
        }
    }

    /// TTL of a class in milliseconds. A class that is no longer configured has the default TTL.
    pub(crate) fn class_ttl_ms(&self, class: Option<&str>) -> u64 {
        let of_class = class.and_then(|class| self.ttl_classes.get(class));
        of_class.copied().unwrap_or(self.ttl_ms)
    }

    /// Shortest TTL in milliseconds. [`NEVER_MS`] if no session expires.
    pub(crate) fn shortest_ttl_ms(&self) -> u64 {
        let classes = self.ttl_classes.values().copied();
        classes.fold(self.ttl_ms, u64::min)
    }

    /// Checks that a patch names a configured TTL class.
    ///
    /// The session's current class is accepted even if it is no longer configured.
    pub(crate) fn check_class(&self, patch: &OptionsPatch, head: &Head) -> Result<(), CoreError> {
        let Some(class) = &patch.ttl_class else {
            return Ok(());
        };
        let has = head
            .options
            .as_ref()
            .and_then(|options| options.ttl_class.as_ref());
        if **class == *DEFAULT_CLASS || has == Some(class) || self.ttl_classes.contains_key(class) {
            return Ok(());
        }
        let known = self.ttl_classes.keys().map(ToString::to_string);
        Err(CoreError::TtlClassUnknown {
            class: class.to_string(),
            known: known.chain([DEFAULT_CLASS.to_owned()]).collect(),
        })
    }

    /// Policy of the tenant with this id. Tenants without their own limits have the common ones.
    fn for_tenant(config: &TenantsConfig, id: &TenantId) -> Self {
        let own = config
            .tenants
            .iter()
            .find(|tenant| tenant.id == *id)
            .map(|tenant| tenant.limits.clone());
        Self::new(config, &own.unwrap_or_default())
    }

    /// Whether histories may retain less than under `other`.
    fn has_lower_history_limits_than(&self, other: &Self) -> bool {
        let (is, was) = (&self.limits, &other.limits);
        is.max_history_turns < was.max_history_turns
            || is.max_history_bytes < was.max_history_bytes
            || is.pinned_turns < was.pinned_turns
            || is.pinned_bytes < was.pinned_bytes
    }
}

impl Tenants {
    pub(crate) fn new(config: TenantsConfig) -> Self {
        let tenants = Self {
            config: ArcSwap::from_pointee(config),
            shared_usage: SharedUsage::default(),
            by_id: DashMap::new(),
        };
        for tenant in &tenants.config.load().tenants {
            tenants.get_or_insert(&tenant.id);
        }
        tenants
    }

    pub fn memory(&self) -> &Arc<MemoryUse> {
        &self.shared_usage.memory
    }

    pub(crate) async fn memory_exceeded(&self) {
        let is_over = |tenant: &Arc<Tenant>| tenant.check_own_memory(0).is_err();
        let memory = self.memory();
        while memory.check_room(0).is_ok() && !self.all().iter().any(is_over) {
            memory.exceeded.notified().await;
        }
    }

    /// Whether enough is free, globally and per tenant, that calls need not check for room first.
    pub(crate) fn have_free_memory(&self) -> bool {
        self.memory().has_free_share()
            && self.all().iter().all(|tenant| tenant.has_own_free_share())
    }

    pub(crate) fn journal(&self) -> &JournalUse {
        &self.shared_usage.journal
    }

    /// Whether any limit applies to the bytes of turns in the journal.
    pub(crate) fn has_journal_limits(&self) -> bool {
        let is_limited = |tenant: &Arc<Tenant>| tenant.policy().journal_bytes > 0;
        self.journal().is_limited() || self.all().iter().any(is_limited)
    }

    pub fn get(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.by_id.get(id).map(|tenant| Arc::clone(&tenant))
    }

    /// All tenants, ordered by id.
    pub fn all(&self) -> Vec<Arc<Tenant>> {
        let mut all: Vec<_> = self
            .by_id
            .iter()
            .map(|tenant| Arc::clone(&tenant))
            .collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// Returns a tenant, and creates it if it is unknown.
    ///
    /// A tenant that is not configured has the common limits.
    pub fn get_or_insert(&self, id: &TenantId) -> Arc<Tenant> {
        if let Some(known) = self.get(id) {
            return known;
        }
        let new = || {
            let policy = Policy::for_tenant(&self.config.load(), id);
            self.shared_usage.tenants.fetch_add(1, Ordering::Relaxed);
            Arc::new(Tenant::new(id.clone(), policy, &self.shared_usage))
        };
        Arc::clone(&self.by_id.entry(id.clone()).or_insert_with(new))
    }

    /// Applies a configuration. Returns the tenants whose histories may now retain less.
    pub(crate) fn reconfigure(&self, config: TenantsConfig) -> Vec<Arc<Tenant>> {
        // Store the configuration first, so that a tenant created concurrently does not get the old
        // policy.
        let config = Arc::new(config);
        self.config.store(Arc::clone(&config));
        for tenant in &config.tenants {
            self.get_or_insert(&tenant.id);
        }
        let mut shortened = Vec::new();
        for tenant in self.all() {
            let policy = Policy::for_tenant(&config, &tenant.id);
            if policy.has_lower_history_limits_than(&tenant.policy()) {
                shortened.push(Arc::clone(&tenant));
            }
            tenant.policy.store(Arc::new(policy));
        }
        shortened
    }
}

/// TTL in milliseconds of a session that never expires.
pub(crate) const NEVER_MS: u64 = u64::MAX;

/// Converts to whole milliseconds, saturating.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
