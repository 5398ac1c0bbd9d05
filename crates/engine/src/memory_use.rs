//! How much memory clients make the daemon use, and how much it may be.
//!
//! Counted is what grows with what clients send: sessions, their content, calls under way with
//! their answers and with what they copy, events that can still be watched, and what hooks are given
//! or owed. Content of idle sessions leaves memory when the limit is passed; heads stay, and answer
//! what needs no more. Not counted are pages of files, which have a limit of their own where these are opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memoird_core::config::{AsText, Auto, Size};
#[cfg(doc)]
use memoird_core::limits::Limits;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::error::EngineError;

/// What a session takes beside its content: its head, its places in the table and the list.
const SESSION_BYTES: u64 = 1 << 10;
/// Once a limit is passed, so much of it is made free: one part of this many.
pub(crate) const SHARE_KEPT_FREE: u64 = 32;
/// The share that events may have: one part of this many.
const EVENTS_SHARE: u64 = 32;
/// The share that content which hooks are given may have; without a journal, what they are owed has
/// as much.
const HOOKS_SHARE: u64 = 4;

/// The share that what is copied may have.
const COPIES_SHARE: u64 = 4;

/// How much clients may make the daemon use; in a configuration file a part of `limits`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct CapacityConfig {
    /// Memory of sessions and calls, in bytes; 0: no limit; `None`: half of the machine's, or
    /// of what the daemon may use of it.
    #[serde(with = "AsText::<Auto>")]
    pub memory: Option<usize>,
    /// One turn, encoded, in bytes; `None`: see [`Limits::turn_bytes_for`].
    #[serde(with = "AsText::<Auto>")]
    pub turn_bytes: Option<usize>,
    /// Bytes of turns that the journal may have, of all tenants together; 0: no limit.
    #[serde(with = "AsText::<Size>")]
    pub journal_bytes: usize,
}

/// The memory that is used for clients, in bytes.
#[derive(Debug, Default)]
pub struct MemoryUse {
    /// 0: no limit.
    limit: AtomicU64,
    sessions: AtomicU64,
    /// Of what bots decided about sessions, in bytes.
    options: AtomicU64,
    content: AtomicU64,
    calls: AtomicU64,
    events: AtomicU64,
    hooks: AtomicU64,
    unloads: AtomicU64,
    /// Notified when the limit is passed, or a tenant's own.
    passed: Notify,
}

/// Bytes that a call holds beside its request and its answer, counted until this is dropped.
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

    /// It holds so many bytes now.
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

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySnapshot {
    /// How much it may be, in bytes; 0: no limit.
    pub limit_bytes: u64,
    /// Of sessions without their content.
    pub session_bytes: u64,
    /// Of turns and states of sessions that are loaded.
    pub content_bytes: u64,
    /// Of calls and their answers.
    pub call_bytes: u64,
    /// Of events that can still be watched.
    pub event_bytes: u64,
    /// Of content that hooks are given and, without a journal, are owed.
    pub hook_bytes: u64,
    /// How often the content of a session has left memory.
    pub unloads: u64,
}

impl MemorySnapshot {
    /// All of it.
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
    /// Another limit applies from now on, in bytes; 0: none.
    pub(crate) fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes, Ordering::Relaxed);
        self.passed.notify_one();
    }

    /// How much it may be, in bytes; 0: no limit.
    pub fn limit_bytes(&self) -> u64 {
        read(&self.limit)
    }

    /// How much it is.
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

    /// What calls and their answers took changes from `before` to `after` bytes.
    pub fn count_calls(&self, before: u64, after: u64) {
        self.shift(&self.calls, before, after);
    }

    /// What the events of a tenant took changes from `before` to `after` bytes.
    pub(crate) fn count_events(&self, before: u64, after: u64) {
        self.shift(&self.events, before, after);
    }

    /// The same of what hooks are given or owed.
    pub(crate) fn count_hooks(&self, before: u64, after: u64) {
        self.shift(&self.hooks, before, after);
    }

    /// Bytes that the events of all tenants may have.
    pub(crate) fn events_max(&self) -> u64 {
        limit(self.limit_bytes()) / EVENTS_SHARE
    }

    /// Bytes that what hooks are given may have, and without a journal what they are owed.
    pub(crate) fn hooks_max(&self) -> u64 {
        limit(self.limit_bytes()) / HOOKS_SHARE
    }

    /// Bytes that what is copied may have.
    pub(crate) fn copies_max(&self) -> u64 {
        limit(self.limit_bytes()) / COPIES_SHARE
    }

    pub(crate) fn count_session(&self) {
        self.shift(&self.sessions, 0, 1);
    }

    pub(crate) fn count_session_gone(&self) {
        self.shift(&self.sessions, 1, 0);
    }

    /// What a bot decided about a session took `before` bytes, and takes `after`.
    pub(crate) fn count_options(&self, before: u64, after: u64) {
        self.shift(&self.options, before, after);
    }

    /// What the content of a session took changes from `before` to `after` bytes.
    pub(crate) fn count_content(&self, before: u64, after: u64) {
        self.shift(&self.content, before, after);
    }

    pub(crate) fn count_unload(&self) {
        self.unloads.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether so many bytes more may be used.
    ///
    /// # Errors
    /// [`EngineError::MemoryFull`].
    pub(crate) fn check_room(&self, more_bytes: u64) -> Result<(), EngineError> {
        let now = self.snapshot();
        match now.used_bytes().saturating_add(more_bytes) > limit(now.limit_bytes) {
            true => Err(full(now, now.used_bytes())),
            false => Ok(()),
        }
    }

    /// Whether one session more has room where all content can leave memory.
    ///
    /// # Errors
    /// [`EngineError::MemoryFull`].
    pub(crate) fn check_session_room(&self) -> Result<(), EngineError> {
        let now = self.snapshot();
        match now.session_bytes >= limit(now.limit_bytes) {
            true => Err(full(now, now.session_bytes)),
            false => Ok(()),
        }
    }

    /// True when so much is free that not every call has to look for room.
    pub(crate) fn is_roomy(&self) -> bool {
        let now = self.snapshot();
        let limit = limit(now.limit_bytes);
        now.used_bytes() <= limit - limit / SHARE_KEPT_FREE
    }

    /// Waits until a limit was passed: this one, or a tenant's own.
    pub(crate) async fn passed(&self) {
        self.passed.notified().await;
    }

    /// A tenant's own limit is passed.
    pub(crate) fn notify_passed(&self) {
        self.passed.notify_one();
    }

    fn shift(&self, sum: &AtomicU64, before: u64, after: u64) {
        sum.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        if after > before && self.check_room(0).is_err() {
            self.passed.notify_one();
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
        whose: "limits.memory",
        used_bytes,
        limit_bytes: now.limit_bytes,
    }
}
