//! Accounting of the memory used on behalf of clients, and its limit.
//!
//! Counts everything that grows with client input: sessions and their content, in-flight calls with
//! their replies and copies, events that can still be watched, and the input of hooks. Without a
//! journal it also counts pending deliveries. File pages are not counted; they are limited where
//! the files are opened.
//!
//! Above the limit, the content of idle sessions is unloaded. Session heads stay in memory and
//! serve calls that need only them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memoird_core::config::{AsText, Auto, Size};
#[cfg(doc)]
use memoird_core::limits::Limits;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::error::EngineError;

/// Estimated bytes of a session without content: its head and its table and list entries.
const SESSION_BYTES: u64 = 1 << 10;
/// Unloading continues until 1/32 of the limit is free, so that it does not run at every call.
pub(crate) const FREE_SHARE: u64 = 32;
/// Events may use 1/32 of the limit.
const EVENTS_SHARE: u64 = 32;
/// Content passed to hooks may use a quarter of the limit.
///
/// Without a journal, pending deliveries may use another quarter.
const HOOKS_SHARE: u64 = 4;

/// Copies may use a quarter of the limit.
const COPIES_SHARE: u64 = 4;

/// Global capacity limits, part of `limits` in the configuration file.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct CapacityConfig {
    /// Maximum memory for sessions and calls in bytes. 0 means no limit.
    ///
    /// `None` selects half of the memory available to the daemon.
    #[serde(with = "AsText::<Auto>")]
    pub memory: Option<usize>,
    /// Maximum encoded size of a turn in bytes. For `None` see [`Limits::turn_bytes_for`].
    #[serde(with = "AsText::<Auto>")]
    pub turn_bytes: Option<usize>,
    /// Maximum bytes of turns in the journal, across all tenants. 0 means no limit.
    #[serde(with = "AsText::<Size>")]
    pub journal_bytes: usize,
}

#[derive(Debug, Default)]
pub struct MemoryUse {
    /// 0 means no limit.
    limit: AtomicU64,
    sessions: AtomicU64,
    /// Bytes of session options.
    options: AtomicU64,
    content: AtomicU64,
    calls: AtomicU64,
    events: AtomicU64,
    hooks: AtomicU64,
    unloads: AtomicU64,
    /// Notified when this limit or a tenant's own is exceeded.
    pub(crate) exceeded: Notify,
}

/// Bytes held by a call in addition to its request and reply. Uncounted on drop.
#[derive(Debug)]
pub(crate) struct CallBytes {
    memory: Arc<MemoryUse>,
    bytes: u64,
}

impl CallBytes {
    pub(crate) fn count(memory: &Arc<MemoryUse>, bytes: u64) -> Self {
        memory.count_calls(0, bytes);
        Self {
            memory: Arc::clone(memory),
            bytes,
        }
    }

    pub(crate) fn set(&mut self, bytes: u64) {
        self.memory.count_calls(self.bytes, bytes);
        self.bytes = bytes;
    }
}

impl Drop for CallBytes {
    fn drop(&mut self) {
        self.memory.count_calls(self.bytes, 0);
    }
}

/// Snapshot of [`MemoryUse`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySnapshot {
    /// 0 means no limit.
    pub limit_bytes: u64,
    /// Sessions without their content.
    pub session_bytes: u64,
    /// Turns and states of loaded sessions.
    pub content_bytes: u64,
    /// Calls and their replies.
    pub call_bytes: u64,
    /// Events that can still be watched.
    pub event_bytes: u64,
    /// Content passed to hooks, and without a journal also pending deliveries.
    pub hook_bytes: u64,
    pub unloads: u64,
}

impl MemorySnapshot {
    pub fn used_bytes(&self) -> u64 {
        let parts = [
            self.session_bytes,
            self.content_bytes,
            self.call_bytes,
            self.event_bytes,
            self.hook_bytes,
        ];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

impl MemoryUse {
    /// Sets the limit in bytes. 0 removes it.
    pub(crate) fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes, Ordering::Relaxed);
        self.exceeded.notify_one();
    }

    /// 0 means no limit.
    pub fn limit_bytes(&self) -> u64 {
        read(&self.limit)
    }

    pub fn snapshot(&self) -> MemorySnapshot {
        MemorySnapshot {
            limit_bytes: read(&self.limit),
            session_bytes: read(&self.sessions) * SESSION_BYTES + read(&self.options),
            content_bytes: read(&self.content),
            call_bytes: read(&self.calls),
            event_bytes: read(&self.events),
            hook_bytes: read(&self.hooks),
            unloads: read(&self.unloads),
        }
    }

    /// The `count_*` methods record a change from `before` to `after` bytes or sessions.
    pub fn count_calls(&self, before: u64, after: u64) {
        self.shift(&self.calls, before, after);
    }

    pub(crate) fn count_events(&self, before: u64, after: u64) {
        self.shift(&self.events, before, after);
    }

    pub(crate) fn count_hooks(&self, before: u64, after: u64) {
        self.shift(&self.hooks, before, after);
    }

    pub(crate) fn events_max(&self) -> u64 {
        limit(self.limit_bytes()) / EVENTS_SHARE
    }

    pub(crate) fn hooks_max(&self) -> u64 {
        limit(self.limit_bytes()) / HOOKS_SHARE
    }

    pub(crate) fn copies_max(&self) -> u64 {
        limit(self.limit_bytes()) / COPIES_SHARE
    }

    pub(crate) fn count_sessions(&self, before: u64, after: u64) {
        self.shift(&self.sessions, before, after);
    }

    pub(crate) fn count_options(&self, before: u64, after: u64) {
        self.shift(&self.options, before, after);
    }

    pub(crate) fn count_content(&self, before: u64, after: u64) {
        self.shift(&self.content, before, after);
    }

    pub(crate) fn count_unload(&self) {
        self.unloads.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks that `more_bytes` can be used.
    pub(crate) fn check_room(&self, more_bytes: u64) -> Result<(), EngineError> {
        let now = self.snapshot();
        if now.used_bytes().saturating_add(more_bytes) > limit(now.limit_bytes) {
            Err(full(now, now.used_bytes()))
        } else {
            Ok(())
        }
    }

    /// Checks that one more session would fit if all content were unloaded.
    pub(crate) fn check_session_room(&self) -> Result<(), EngineError> {
        let now = self.snapshot();
        if now.session_bytes >= limit(now.limit_bytes) {
            Err(full(now, now.session_bytes))
        } else {
            Ok(())
        }
    }

    /// Whether enough is free that calls need not check for room first.
    pub(crate) fn has_free_share(&self) -> bool {
        let now = self.snapshot();
        let limit = limit(now.limit_bytes);
        now.used_bytes() <= limit - limit / FREE_SHARE
    }

    fn shift(&self, sum: &AtomicU64, before: u64, after: u64) {
        sum.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        if after > before && self.check_room(0).is_err() {
            self.exceeded.notify_one();
        }
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn limit(configured: u64) -> u64 {
    match configured {
        0 => u64::MAX,
        bytes => bytes,
    }
}

fn full(now: MemorySnapshot, used_bytes: u64) -> EngineError {
    EngineError::MemoryFull {
        setting: "limits.memory",
        used_bytes,
        limit_bytes: now.limit_bytes,
    }
}
