//! What waits to be compacted: bounded, each session once, tenants in turns.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memoird_core::breaker::Breaker;
use memoird_core::compaction::Trigger;
use memoird_core::ids::{SessionKey, TenantId};
use tokio::sync::{Notify, oneshot};

use super::CompactionOutcome;
use super::near::Near;
use crate::cell::SessionCell;
use crate::error::EngineError;

/// Sessions that may wait; one that finds no room is asked for again by its next call.
const WAITING_MAX: usize = 10_000;
/// Of these, of one tenant: there is always room for another one.
const WAITING_TENANT_MAX: usize = 2_500;

/// All that compactions share.
#[derive(Debug, Default)]
pub(crate) struct Compactions {
    queue: Mutex<Queue>,
    pub(super) arrived: Notify,
    /// For a remote summarizer, of all sessions.
    pub(super) provider: Mutex<Breaker>,
}

#[derive(Debug, Default)]
struct Queue {
    /// First those that somebody waits for.
    waiting: VecDeque<Wanted>,
    /// Those that nobody waits for, each once.
    known: HashSet<SessionKey>,
    /// How many of them are whose.
    by_tenant: HashMap<TenantId, usize>,
    /// True once nobody takes anything any more.
    is_closed: bool,
}

/// Why a session is to be compacted.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) trigger: Trigger,
    /// The window because of which, where its tokens can be counted for sure.
    pub(crate) near: Option<Near>,
}

/// A compaction that is wanted.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) cell: Arc<SessionCell>,
    pub(super) trigger: Trigger,
    /// What a call asks to keep.
    pub(super) exchanges: Option<u32>,
    /// The window because of which it is wanted, where its tokens can be counted for sure.
    pub(super) near: Option<Near>,
    /// Who waits for it.
    pub(super) answer: Option<Answer>,
}

pub(super) type Answer = oneshot::Sender<Result<CompactionOutcome, EngineError>>;

impl Compactions {
    /// Wants a session to be compacted, unless it is wanted already.
    pub(crate) fn want(&self, cell: &Arc<SessionCell>, Wish { trigger, near }: Wish) {
        let mut queue = self.queue();
        if !queue.has_room(&cell.key.tenant) || !queue.known.insert(cell.key.clone()) {
            return;
        }
        queue.count(&cell.key.tenant);
        let (cell, exchanges, answer) = (Arc::clone(cell), None, None);
        queue.waiting.push_back(Wanted {
            cell,
            trigger,
            exchanges,
            near,
            answer,
        });
        drop(queue);
        self.arrived.notify_one();
    }

    /// Wants it now, because somebody waits for it.
    pub(super) fn want_now(&self, wanted: Wanted) -> Result<(), EngineError> {
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(EngineError::Stopping);
        }
        if !queue.has_room(&wanted.cell.key.tenant) {
            return Err(EngineError::CompactionRunning);
        }
        queue.count(&wanted.cell.key.tenant);
        // Behind those that came before it.
        let place = queue
            .waiting
            .partition_point(|known| known.answer.is_some());
        queue.waiting.insert(place, wanted);
        drop(queue);
        self.arrived.notify_one();
        Ok(())
    }

    /// The first that waits of the tenant that has the fewest under way, and less than so
    /// many.
    pub(super) fn take(
        &self,
        under_way: &HashMap<TenantId, usize>,
        tenant_max: usize,
    ) -> Option<Wanted> {
        let mut queue = self.queue();
        let busy = |wanted: &Wanted| under_way.get(&wanted.cell.key.tenant).copied().unwrap_or(0);
        let waiting = queue.waiting.iter().map(busy).enumerate();
        let (place, _) = waiting
            .filter(|(_, busy)| *busy < tenant_max)
            .min_by_key(|(_, busy)| *busy)?;
        let wanted = queue.waiting.remove(place)?;
        queue.discount(&wanted.cell.key.tenant);
        if wanted.answer.is_none() {
            queue.known.remove(&wanted.cell.key);
        }
        Some(wanted)
    }

    /// From now on nothing waits: nobody would take it.
    pub(super) fn close(&self) {
        let mut queue = self.queue();
        let (is_closed, waiting) = (true, std::mem::take(&mut queue.waiting));
        *queue = Queue {
            is_closed,
            ..Queue::default()
        };
        drop((queue, waiting));
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another provider, or the same with another key, is asked as if it had never failed.
    pub(crate) fn forget_provider(&self) {
        *self.breaker() = Breaker::default();
    }

    pub(super) fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.provider.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn has_room(&self, tenant: &TenantId) -> bool {
        let of_tenant = self.by_tenant.get(tenant).copied().unwrap_or(0);
        !self.is_closed && self.waiting.len() < WAITING_MAX && of_tenant < WAITING_TENANT_MAX
    }

    fn count(&mut self, tenant: &TenantId) {
        *self.by_tenant.entry(tenant.clone()).or_default() += 1;
    }

    fn discount(&mut self, tenant: &TenantId) {
        if let Some(count) = self.by_tenant.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.by_tenant.remove(tenant);
            }
        }
    }
}
