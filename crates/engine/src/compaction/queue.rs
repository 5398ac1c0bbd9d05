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
    waiting: VecDeque<Wanted>,
    /// Those that nobody waits for, each once.
    known: HashSet<SessionKey>,
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
        if queue.waiting.len() >= WAITING_MAX || !queue.known.insert(cell.key.clone()) {
            return;
        }
        let (cell, exchanges, answer) = (Arc::clone(cell), None, None);
        queue.waiting.push_back(Wanted { cell, trigger, exchanges, near, answer });
        drop(queue);
        self.arrived.notify_one();
    }

    /// Wants it now, because somebody waits for it.
    pub(super) fn want_now(&self, wanted: Wanted) -> Result<(), EngineError> {
        let mut queue = self.queue();
        if queue.waiting.len() >= WAITING_MAX {
            return Err(EngineError::CompactionRunning);
        }
        queue.waiting.push_front(wanted);
        drop(queue);
        self.arrived.notify_one();
        Ok(())
    }

    /// The first that waits and whose tenant has less than so many under way.
    pub(super) fn take(
        &self,
        under_way: &HashMap<TenantId, usize>,
        tenant_max: usize,
    ) -> Option<Wanted> {
        let mut queue = self.queue();
        let has_room = |wanted: &Wanted| {
            under_way.get(&wanted.cell.key.tenant).is_none_or(|count| *count < tenant_max)
        };
        let place = queue.waiting.iter().position(has_room)?;
        let wanted = queue.waiting.remove(place)?;
        if wanted.answer.is_none() {
            queue.known.remove(&wanted.cell.key);
        }
        Some(wanted)
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
