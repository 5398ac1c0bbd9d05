//! The outbox of pending deliveries.
//!
//! With a journal, deliveries are written there with the end of their generation. Without one, they
//! are in memory, with the content. A delivery stays until it succeeds or is dropped. While it is
//! open, the journal retains the turns.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use memoird_core::change::EndReason;
use memoird_core::ids::{Generation, HookName, SessionKey, TenantId};
use memoird_core::outbox::Delivery;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::{Head, Session};
use memoird_core::time::Now;
use memoird_store::{EndedRecord, Store, encoding};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::error;

use crate::error::EngineError;
use crate::hook::{HookConfig, HooksConfig, SessionContent};
use crate::memory_use::MemoryUse;
use crate::store_handle::StoreHandle;

#[derive(Debug)]
pub(crate) struct Outbox {
    store: StoreHandle,
    config: ArcSwap<HooksConfig>,
    /// Notified when a delivery may have become pending or due.
    changed: Notify,
    /// Generations in running attempts, with the number of deliveries.
    running: Mutex<HashMap<Generation, usize>>,
    room: ContentRoom,
}

/// An ending session, as far as it is in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending<'a> {
    pub(crate) key: &'a SessionKey,
    pub(crate) head: &'a Head,
    /// The whole session, if it is loaded.
    pub(crate) session: Option<&'a Session>,
    pub(crate) reason: EndReason,
    pub(crate) at: Now,
}

/// Memory for content passed to hooks. Each hook has its own share, so that none waits for another.
#[derive(Debug)]
pub(crate) struct ContentRoom {
    memory: Arc<MemoryUse>,
    held_bytes: Mutex<HashMap<HookName, u64>>,
    freed: Notify,
}

/// Content that is passed to a hook, accounted until dropped.
#[derive(Debug)]
pub(crate) struct HeldContent<'a> {
    room: &'a ContentRoom,
    hook: HookName,
    bytes: u64,
}

/// Content is in memory twice: decoded, and as read from the store or sent to the receiver.
const TIMES_IN_MEMORY: u64 = 2;
/// Maximum deliveries of a hook that are read concurrently, if all are of the maximum size.
const READ_AT_ONCE: u64 = 2;

impl ContentRoom {
    fn new(memory: Arc<MemoryUse>) -> Self {
        Self {
            memory,
            held_bytes: Mutex::default(),
            freed: Notify::new(),
        }
    }

    /// Waits for room for the content of a delivery of at most `bytes_max` bytes.
    ///
    /// Earlier deliveries of the hook may have to finish first. The actual size is known only after
    /// the read. Until then, at most half of the hook's share is reserved.
    async fn hold(&self, hook: &HookName, hooks: usize, bytes_max: usize) -> HeldContent<'_> {
        let of_hook = self.memory.hooks_max() / hooks.max(1) as u64;
        let wanted = TIMES_IN_MEMORY
            .saturating_mul(bytes_max as u64)
            .min(of_hook / READ_AT_ONCE);
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            {
                let mut all = self.held_bytes.lock();
                let held = all.get(hook).copied().unwrap_or(0);
                // A single delivery always proceeds, so that none is skipped for lack of memory.
                if held == 0 || held.saturating_add(wanted) <= of_hook {
                    all.insert(hook.clone(), held + wanted);
                    self.memory.count_hooks(0, wanted);
                    return HeldContent {
                        room: self,
                        hook: hook.clone(),
                        bytes: wanted,
                    };
                }
            }
            freed.await;
        }
    }
}

impl HeldContent<'_> {
    /// Sets the accounted size.
    fn set(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let mut all = self.room.held_bytes.lock();
        if let Some(held) = all.get_mut(&self.hook) {
            *held = *held - before + bytes;
            if *held == 0 {
                all.remove(&self.hook);
            }
        }
        drop(all);
        self.room.memory.count_hooks(before, bytes);
        if bytes < before {
            self.room.freed.notify_waiters();
        }
    }
}

impl Drop for HeldContent<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Outbox {
    pub(crate) fn new(store: StoreHandle, config: HooksConfig, memory: &Arc<MemoryUse>) -> Self {
        Self {
            store,
            config: ArcSwap::from_pointee(config),
            changed: Notify::new(),
            running: Mutex::default(),
            room: ContentRoom::new(Arc::clone(memory)),
        }
    }

    pub(crate) fn config(&self) -> Arc<HooksConfig> {
        self.config.load_full()
    }

    /// Applies a configuration. Deliveries to a removed hook stay pending.
    pub(crate) fn reconfigure(&self, config: HooksConfig) {
        self.config.store(Arc::new(config));
        self.notify();
    }

    /// Reports that deliveries may have become pending or due.
    pub(crate) fn notify(&self) {
        self.changed.notify_one();
    }

    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Records that attempts for these deliveries are about to start.
    pub(crate) fn begin(&self, deliveries: &[Delivery]) {
        let mut running = self.running.lock();
        for delivery in deliveries {
            *running.entry(delivery.id.generation).or_default() += 1;
        }
    }

    /// Records that the outcomes of attempts for these generations are written.
    pub(crate) fn finish(&self, generations: impl Iterator<Item = Generation>) {
        let mut running = self.running.lock();
        for generation in generations {
            if let Some(count) = running.get_mut(&generation) {
                *count -= 1;
                if *count == 0 {
                    running.remove(&generation);
                }
            }
        }
    }

    /// Whether an attempt may be running for one of these generations.
    ///
    /// No attempt starts for a delivery that is no longer pending.
    pub(crate) fn are_running(&self, mut generations: impl Iterator<Item = Generation>) -> bool {
        let running = self.running.lock();
        !running.is_empty() && generations.any(|generation| running.contains_key(&generation))
    }

    /// Reads the content of a batch, up to `bytes_max`, and which deliveries are no longer pending.
    ///
    /// [`Self::begin`] must have been called for them. The memory is accounted until the last
    /// returned value is dropped.
    pub(crate) async fn contents(
        &self,
        hook: &HookName,
        deliveries: &[Delivery],
        bytes_max: usize,
    ) -> Result<(Vec<SessionContent>, HashSet<Generation>, HeldContent<'_>), EngineError> {
        let hooks = self.config.load().hooks.len();
        let mut held = self.room.hold(hook, hooks, bytes_max).await;
        let wanted: Vec<_> = deliveries
            .iter()
            .map(|delivery| (delivery.key.clone(), delivery.id.clone()))
            .collect();
        let read = move |store: &dyn Store| {
            let (mut hooks_to_call, mut cancelled) = (Vec::new(), HashSet::new());
            for (key, id) in wanted {
                match store.delivery(&id)? {
                    Some(_) => hooks_to_call.push((key, id.generation)),
                    None => _ = cancelled.insert(id.generation),
                }
            }
            let records = store.ended(&hooks_to_call, bytes_max)?;
            let bytes: u64 = records.iter().map(bytes_of).sum();
            let contents: Vec<_> = records.into_iter().map(content_of).collect();
            Ok((contents, cancelled, bytes))
        };
        let (contents, cancelled, bytes) = self.store.run(None, read).await?;
        held.set(TIMES_IN_MEMORY * bytes);
        Ok((contents, cancelled, held))
    }

    /// The hooks to deliver an end to.
    pub(crate) fn hooks_for_end(&self, tenant: &TenantId, reason: EndReason) -> Arc<[HookName]> {
        let config = self.config.load();
        let wants = |hook: &&HookConfig| hook.subscription.wants(tenant, reason);
        let hooks = config.hooks.iter().filter(wants);
        hooks.map(|hook| hook.subscription.hook.clone()).collect()
    }

    /// Without a journal: retains the content of an ending session if there is room.
    ///
    /// Must be called under the lock of the session.
    pub(crate) fn session_ending(&self, ending: &Ending<'_>, hooks_to_call: &[HookName]) {
        let (Some(retained), Some(session)) = (self.store.retained(), ending.session) else {
            return;
        };
        let turns = session.history().turns_after(0);
        let state = session.state();
        let record = EndedRecord {
            key: ending.key.clone(),
            head: session.head().clone(),
            at: ending.at,
            reason: ending.reason,
            turns: turns
                .map(|turn| (turn.seq, Arc::clone(&turn.content)))
                .collect(),
            rewound_turns: session.history().rewound().map_or(0, SeqRanges::count),
            state: (state.version > 0).then_some(state),
            summary: session.summary().cloned(),
        };
        let share = usize::try_from(self.room.memory.hooks_max()).unwrap_or(usize::MAX);
        let bytes_max = self.config.load().memory_bytes.min(share);
        match retained.add(record, hooks_to_call, bytes_max) {
            Ok(true) => self.notify(),
            Ok(false) => error!(
                tenant = %ending.key.tenant,
                "memory limit for pending deliveries reached; hooks will not receive this session"
            ),
            Err(error) => error!(
                tenant = %ending.key.tenant,
                %error,
                "session could not be retained; hooks will not receive it"
            ),
        }
    }
}

/// Bytes of turns and state in a record.
fn bytes_of(record: &EndedRecord) -> u64 {
    let turns = record.turns.iter().map(|(_, content)| content.len());
    let state = record.state.as_ref().map_or(0, |state| state.json.len());
    (turns.sum::<usize>() + state) as u64
}

fn content_of(record: EndedRecord) -> SessionContent {
    let EndedRecord { key, head, .. } = record;
    let appended = head.last_seq.saturating_sub(record.rewound_turns);
    let open = |(seq, content): (u64, Arc<[u8]>)| Some((seq, encoding::open(&content)?));
    let turns: Vec<_> = record.turns.into_iter().filter_map(open).collect();
    SessionContent {
        tenant: key.tenant,
        session: key.session,
        generation: head.generation,
        subject: head.subject,
        reason: record.reason,
        created_at: head.created_at,
        ended_at: record.at.wall,
        turns_omitted: appended.saturating_sub(turns.len() as u64),
        turns,
        state: record.state.unwrap_or_default(),
        summary: record.summary,
    }
}
