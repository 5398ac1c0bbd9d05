//! Tenants: what applies to each of them, what is counted of it, and what happened there.

use std::collections::BTreeMap;
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
use memoird_core::options::{DEFAULT_CLASS, OptionsPatch, is_class_name};
use memoird_core::session::Head;
use memoird_formats::tokens::{Calibration, Charge};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::calibrations::Calibrations;
use crate::error::EngineError;
use crate::events::EventLog;
use crate::journal_use::JournalUse;
use crate::memory_use::{MemoryUse, SHARE_KEPT_FREE};
use crate::models::Prompts;
use crate::stats::TenantStats;

/// Nobody has so many times the calls of others that these wait for long.
const WEIGHT_MAX: u32 = 100;
/// Where several tenants share a journal, so many sets of each may be in its queue at once, so
/// that nobody's set waits behind all that a flood brings; of large sets fewer.
pub(crate) const JOURNAL_SHARE: u32 = 64;
/// Copies of sessions that are made for a tenant at once: each is in memory as a whole.
const COPIES_MAX: usize = 1;
/// Fewer are less than a message, and more are no limit.
const BYTES_PER_SECOND: RangeInclusive<usize> = 1 << 10..=100 << 20;

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
    /// Other TTLs, which a bot may choose for a session by their names; at most 8.
    pub ttl_classes: TtlClasses,
}

/// TTLs by the names that bots choose them by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct TtlClasses(pub BTreeMap<String, ClassTtl>);

/// How long sessions of a class live untouched; `None`: they never expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct ClassTtl(#[serde(with = "AsText::<Never>")] pub Option<Duration>);

/// Classes of TTLs that a tenant may have.
const TTL_CLASSES_MAX: usize = 8;

impl TtlClasses {
    /// Adds their problems.
    fn check(&self, problems: &mut Problems) {
        let are_few = self.0.len() <= TTL_CLASSES_MAX;
        problems.unless(are_few, "ttl_classes", "takes 8 classes at most");
        for (name, ClassTtl(ttl)) in &self.0 {
            let is_name = is_class_name(name) && name != DEFAULT_CLASS;
            let problem = "takes names of 1 to 64 of a-z, 0-9, - and _, but not default, which is \
                           session_ttl";
            problems.unless(is_name, "ttl_classes", problem);
            if let Some(ttl) = ttl {
                problems.not_zero("ttl_classes", *ttl);
            }
        }
    }
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
    /// Other TTLs, in place of those that all tenants have.
    pub ttl_classes: Option<TtlClasses>,
    /// Turns its histories keep.
    pub max_history_turns: Option<usize>,
    /// Encoded bytes its histories keep.
    #[serde(with = "AsOptionalText::<Size>")]
    pub max_history_bytes: Option<usize>,
    /// Calls it may have at once; more are refused.
    pub calls_in_flight: Option<usize>,
    /// Calls it may begin in a second, and as many at once; more are refused.
    pub calls_per_second: Option<NonZeroU32>,
    /// Bytes of requests it may send in a second: 1 KiB to 100 MiB. More are refused.
    #[serde(with = "AsOptionalText::<Size>")]
    pub bytes_per_second: Option<usize>,
    /// Bytes of its turns that the journal may have; 0: no limit of its own.
    #[serde(with = "AsOptionalText::<Size>")]
    pub journal_bytes: Option<usize>,
    /// Bytes of content that its sessions may have in memory; 0: no limit of its own. Above it the
    /// content of those that are idle longest leaves memory; where that cannot be, appends are
    /// refused.
    #[serde(with = "AsOptionalText::<Size>")]
    pub memory_bytes: Option<usize>,
    /// Calls it has worked on in each round in which the others have one; 1 unless told.
    pub weight: Option<u32>,
}

/// What applies to tenants: in common, and to each.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantsConfig {
    pub(crate) limits: Limits,
    pub(crate) sessions: SessionConfig,
    pub(crate) compaction: CompactionPolicy,
    pub(crate) tenants: Vec<TenantConfig>,
}

/// An organisation or bot. A call gets it from its credential.
#[derive(Debug)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    policy: ArcSwap<Policy>,
    pub(crate) stats: TenantStats,
    /// Both are of the process.
    pub(crate) memory: Arc<MemoryUse>,
    journal: Arc<JournalUse>,
    /// How many tenants there are.
    tenants: Arc<AtomicUsize>,
    /// Room for its changes in the journal's queue, where there are several tenants.
    pub(crate) journal_share: Arc<Semaphore>,
    /// Places for the copies that it makes of sessions.
    pub(crate) copies: Semaphore,
    pub(crate) events: EventLog,
    pub(crate) calibrations: Calibrations,
    pub(crate) prompts: Prompts,
    /// The last change of its sessions that was submitted to the journal.
    pub(crate) last_ticket: AtomicU64,
    /// The last batch in which one was written.
    pub(crate) last_batch: AtomicU64,
}

/// What all tenants of the process use together.
#[derive(Clone, Debug, Default)]
pub(crate) struct UseOfAll {
    memory: Arc<MemoryUse>,
    journal: Arc<JournalUse>,
    tenants: Arc<AtomicUsize>,
}

/// What an operator decided for a tenant. A reload replaces it as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What its clients may send and keep.
    pub limits: Limits,
    /// When its sessions are compacted, and how far.
    pub compaction: CompactionPolicy,
    /// Calls at once; `None`: what there is room for beside others.
    pub calls_in_flight: Option<usize>,
    /// Calls it may begin in a second; `None`: any number.
    pub calls_per_second: Option<NonZeroU32>,
    /// Bytes of requests it may send in a second; `None`: any number.
    pub bytes_per_second: Option<NonZeroU32>,
    /// Calls that are worked on in each round in which others have one.
    pub weight: u32,
    /// Bytes of its turns that the journal may have; 0: no limit.
    pub(crate) journal_bytes: u64,
    /// Bytes of content in memory; 0: no limit.
    pub(crate) memory_bytes: u64,
    pub(crate) max_sessions: usize,
    pub(crate) ttl_ms: u64,
    /// By their names; one that never expires has the largest number.
    pub(crate) ttl_classes: BTreeMap<Arc<str>, u64>,
    pub(crate) sweep_ms: u64,
}

/// All tenants that are known: those of the configuration, and those that still have
/// sessions in the journal.
#[derive(Debug)]
pub struct Tenants {
    config: ArcSwap<TenantsConfig>,
    of_all: UseOfAll,
    by_id: DashMap<TenantId, Arc<Tenant>>,
}

impl SessionConfig {
    /// Adds its problems.
    pub fn check(&self, problems: &mut Problems) {
        problems.not_zero("session_ttl", self.session_ttl);
        if let Some(interval) = self.sweep_interval {
            problems.not_zero("sweep_interval", interval);
        }
        self.ttl_classes.check(problems);
    }
}

impl TenantLimits {
    /// Adds their problems.
    pub fn check(&self, problems: &mut Problems) {
        if let Some(ttl) = self.session_ttl {
            problems.not_zero("session_ttl", ttl);
        }
        if let Some(classes) = &self.ttl_classes {
            classes.check(problems);
        }
        if let Some(turns) = self.max_history_turns {
            problems.at_least_one("max_history_turns", turns);
        }
        if let Some(bytes) = self.max_history_bytes {
            problems.at_least_one("max_history_bytes", bytes);
        }
        if let Some(calls) = self.calls_in_flight {
            problems.at_least_one("calls_in_flight", calls);
        }
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
    pub(crate) fn new(id: TenantId, policy: Policy, of_all: &UseOfAll) -> Self {
        Self {
            id,
            policy: ArcSwap::from_pointee(policy),
            stats: TenantStats::default(),
            memory: Arc::clone(&of_all.memory),
            journal: Arc::clone(&of_all.journal),
            tenants: Arc::clone(&of_all.tenants),
            journal_share: Arc::new(Semaphore::new(JOURNAL_SHARE as usize)),
            copies: Semaphore::new(COPIES_MAX),
            events: EventLog::new(Arc::clone(&of_all.memory), Arc::clone(&of_all.tenants)),
            calibrations: Calibrations::default(),
            prompts: Prompts::default(),
            last_ticket: AtomicU64::new(0),
            last_batch: AtomicU64::new(0),
        }
    }

    /// True where it is not the only tenant.
    pub(crate) fn is_one_of_several(&self) -> bool {
        self.tenants.load(Ordering::Relaxed) > 1
    }

    /// The calibration that all sessions share.
    pub(crate) fn calibration(&self, model: &str) -> Calibration {
        self.calibrations.shared(model)
    }

    /// Learns from a count of the provider; `before` is its count for the session's previous window.
    pub(crate) fn calibrate(&self, model: &str, before: Option<Charge>, charge: Charge) {
        self.calibrations.observe_provider(model, before, charge);
    }

    /// Shared calibrations by model, to be stored over a restart.
    pub fn learnt_charges(&self) -> BTreeMap<Box<str>, Calibration> {
        self.calibrations.all_shared()
    }

    /// Restores the calibrations of before a restart.
    pub fn restore_charges(&self, learnt: BTreeMap<Box<str>, Calibration>) {
        self.calibrations.restore(learnt);
    }

    /// What applies to it now.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// The content of a session took `before` bytes of memory, and takes `after`.
    pub(crate) fn count_content(&self, before: u64, after: u64) {
        self.stats.count_loaded(before, after);
        self.memory.count_content(before, after);
        if after > before && self.check_own_memory(0).is_err() {
            self.memory.notify_passed();
        }
    }

    /// Whether so many bytes of content more have room in memory.
    ///
    /// # Errors
    /// [`EngineError::MemoryFull`].
    pub(crate) fn check_memory_room(&self, more: u64) -> Result<(), EngineError> {
        self.check_own_memory(more)?;
        self.memory.check_room(more)
    }

    fn check_own_memory(&self, more: u64) -> Result<(), EngineError> {
        let (used_bytes, limit_bytes) =
            (self.stats.bytes_loaded(), self.policy.load().memory_bytes);
        if limit_bytes > 0 && used_bytes.saturating_add(more) > limit_bytes {
            return Err(EngineError::MemoryFull {
                whose: "tenants[].limits.memory_bytes",
                used_bytes,
                limit_bytes,
            });
        }
        Ok(())
    }

    /// True when so much of its own limit is free that not every call has to look for room.
    pub(crate) fn has_own_room(&self) -> bool {
        let kept_free = self.policy.load().memory_bytes / SHARE_KEPT_FREE;
        self.check_own_memory(kept_free).is_ok()
    }

    /// The journal has turns of so many bytes more, in the place of others.
    pub(crate) fn add_journal_bytes(&self, more: u64, less: u64) {
        let before = self.stats.journal_bytes();
        self.set_journal_bytes((before + more).saturating_sub(less));
    }

    /// The journal has so many bytes of its turns.
    pub(crate) fn set_journal_bytes(&self, bytes: u64) {
        let before = self.stats.journal_bytes();
        self.stats.count_journal(before, bytes);
        self.journal.change(before, bytes);
    }

    /// Whether the journal has room for so many bytes more of its turns.
    ///
    /// # Errors
    /// [`EngineError::JournalQuota`].
    pub(crate) fn check_journal_room(&self, more: u64) -> Result<(), EngineError> {
        self.journal.check_room(self, more)
    }

    /// How long a session lives untouched; of one that never expires the largest number.
    pub(crate) fn ttl_ms(&self, head: &Head) -> u64 {
        let policy = self.policy.load();
        match &head.options {
            None => policy.ttl_ms,
            Some(options) => policy.class_ttl_ms(options.ttl_class.as_deref()),
        }
    }
}

impl Policy {
    /// What applies to a tenant with these limits of its own.
    pub(crate) fn new(config: &TenantsConfig, own: &TenantLimits) -> Self {
        let mut limits = config.limits.clone();
        limits.max_history_turns = own.max_history_turns.unwrap_or(limits.max_history_turns);
        limits.max_history_bytes = own.max_history_bytes.unwrap_or(limits.max_history_bytes);
        let ttl_ms = ms(own.session_ttl.unwrap_or(config.sessions.session_ttl)).max(1);
        let bytes_per_second = own.bytes_per_second;
        let bytes_per_second = bytes_per_second.and_then(|bytes| u32::try_from(bytes).ok());
        let classes = own.ttl_classes.as_ref();
        let classes = classes.unwrap_or(&config.sessions.ttl_classes).0.iter();
        let ttl_classes: BTreeMap<Arc<str>, u64> = classes
            .map(|(name, ClassTtl(ttl))| (name.as_str().into(), ttl.map_or(NEVER_MS, ms).max(1)))
            .collect();
        let shortest_ms = ttl_classes.values().copied().fold(ttl_ms, u64::min);
        let sweep_ms = config.sessions.sweep_interval;
        let sweep_ms = sweep_ms.map_or(shortest_ms / 4, ms).max(1);
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

    /// How long sessions of a class live untouched. A class that the configuration does not have
    /// any more is as none.
    pub(crate) fn class_ttl_ms(&self, class: Option<&str>) -> u64 {
        let of_class = class.and_then(|class| self.ttl_classes.get(class));
        of_class.copied().unwrap_or(self.ttl_ms)
    }

    /// The shortest time that a session may live untouched; [`NEVER_MS`] where all live for ever.
    pub(crate) fn shortest_ttl_ms(&self) -> u64 {
        let classes = self.ttl_classes.values().copied();
        classes.fold(self.ttl_ms, u64::min)
    }

    /// Whether a session may get the class that a change names. One that it has already may have
    /// left the configuration.
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

    /// What applies to the tenant of this id. One that the configuration does not name has
    /// the common limits.
    fn of(config: &TenantsConfig, id: &TenantId) -> Self {
        let own = config.tenants.iter().find(|tenant| tenant.id == *id);
        let own = own.map(|tenant| tenant.limits.clone());
        Self::new(config, &own.unwrap_or_default())
    }

    /// True when histories may keep less than under the other policy.
    fn keeps_less_than(&self, other: &Self) -> bool {
        let (is, was) = (&self.limits, &other.limits);
        is.max_history_turns < was.max_history_turns
            || is.max_history_bytes < was.max_history_bytes
            || is.pinned_turns < was.pinned_turns
            || is.pinned_bytes < was.pinned_bytes
    }
}

impl Tenants {
    /// The tenants of a configuration.
    pub(crate) fn new(config: TenantsConfig) -> Self {
        let tenants = Self {
            config: ArcSwap::from_pointee(config),
            of_all: UseOfAll::default(),
            by_id: DashMap::new(),
        };
        for tenant in &tenants.config.load().tenants {
            tenants.get_or_insert(&tenant.id);
        }
        tenants
    }

    /// How much memory their sessions and calls use.
    pub fn memory(&self) -> &Arc<MemoryUse> {
        &self.of_all.memory
    }

    /// Waits until all of them together use more memory than they may, or one of them does.
    pub(crate) async fn memory_passed(&self) {
        let is_over = |tenant: &Arc<Tenant>| tenant.check_own_memory(0).is_err();
        let memory = self.memory();
        while memory.check_room(0).is_ok() && !self.all().iter().any(is_over) {
            memory.passed().await;
        }
    }

    /// True when so much is free, of what all together may have and of what each may, that not
    /// every call has to look for room.
    pub(crate) fn have_memory_room(&self) -> bool {
        self.memory().is_roomy() && self.all().iter().all(|tenant| tenant.has_own_room())
    }

    /// How much the journal has of their turns.
    pub(crate) fn journal(&self) -> &JournalUse {
        &self.of_all.journal
    }

    /// True where the journal may not have all turns of all of them.
    pub(crate) fn has_journal_limits(&self) -> bool {
        let is_limited = |tenant: &Arc<Tenant>| tenant.policy().journal_bytes > 0;
        self.journal().is_limited() || self.all().iter().any(is_limited)
    }

    /// The tenant of this id, if it is known.
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

    /// The tenant of a session in the journal. One that the configuration does not name any
    /// more has the common limits until its sessions end.
    pub fn get_or_insert(&self, id: &TenantId) -> Arc<Tenant> {
        if let Some(known) = self.get(id) {
            return known;
        }
        let new = || {
            let policy = Policy::of(&self.config.load(), id);
            self.of_all.tenants.fetch_add(1, Ordering::Relaxed);
            Arc::new(Tenant::new(id.clone(), policy, &self.of_all))
        };
        Arc::clone(&self.by_id.entry(id.clone()).or_insert_with(new))
    }

    /// Applies another configuration. Gives the tenants whose histories may keep less now.
    pub(crate) fn reconfigure(&self, config: TenantsConfig) -> Vec<Arc<Tenant>> {
        // First: a tenant that a call brings up now must not get the old policy.
        let config = Arc::new(config);
        self.config.store(Arc::clone(&config));
        for tenant in &config.tenants {
            self.get_or_insert(&tenant.id);
        }
        let mut shortened = Vec::new();
        for tenant in self.all() {
            let policy = Policy::of(&config, &tenant.id);
            if policy.keeps_less_than(&tenant.policy()) {
                shortened.push(Arc::clone(&tenant));
            }
            tenant.policy.store(Arc::new(policy));
        }
        shortened
    }
}

/// The TTL of what never expires, in milliseconds.
pub(crate) const NEVER_MS: u64 = u64::MAX;

/// A duration in whole milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
