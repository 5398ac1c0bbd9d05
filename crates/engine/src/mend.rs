//! Sessions whose change was not written: what memory holds of them is not so, and only
//! the journal knows what is. They are loaded again at once, not when somebody asks, so
//! that the counts and the lists are right.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::cell::{Residence, SessionCell};
use crate::engine::Engine;
use crate::worker::{WorkError, Worker};

/// The sessions to be loaded again.
#[derive(Debug, Default)]
pub(crate) struct Mender {
    queue: Mutex<VecDeque<Arc<SessionCell>>>,
    arrived: Notify,
}

impl Mender {
    pub(crate) fn mend(&self, cell: Arc<SessionCell>) {
        self.lock().push_back(cell);
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<SessionCell>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The worker that loads them.
pub(crate) struct MendWorker {
    pub(crate) engine: Engine,
}

impl Worker for MendWorker {
    fn name(&self) -> &'static str {
        "mender"
    }

    async fn wait(&mut self) {
        let mender = &self.engine.shared.mender;
        while mender.lock().is_empty() {
            mender.arrived.notified().await;
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let Some(cell) = self.engine.shared.mender.lock().pop_front() else { return Ok(()) };
        self.engine.put_back(&cell);
        let loaded = self.engine.load(&cell).await;
        loaded.map_err(|error| {
            self.engine.shared.mender.lock().push_back(cell);
            WorkError(error.to_string())
        })
    }
}

impl Engine {
    /// Takes an ended session out of the table and the lists, and gives its place back.
    /// Its end may turn out not to be true while this goes on; then it is mended.
    pub(crate) fn retire(&self, cell: &Arc<SessionCell>) {
        self.shared.table.remove(cell);
        cell.tenant.idle.remove(cell);
        self.shared.capacity.give_back(&cell.tenant.id);
        let mut inner = cell.lock();
        inner.retired = true;
        let is_gone = matches!(inner.residence(), Residence::Gone);
        drop(inner);
        if !is_gone {
            self.shared.mender.mend(Arc::clone(cell));
        }
    }

    /// Puts a session whose end did not happen back in its place, unless somebody has
    /// started another one there: the journal will refuse that one.
    fn put_back(&self, cell: &Arc<SessionCell>) {
        let mut inner = cell.lock();
        let is_lost = inner.retired && !matches!(inner.residence(), Residence::Gone);
        inner.retired &= !is_lost;
        drop(inner);
        if !is_lost {
            return;
        }
        self.shared.capacity.take_anyway(&cell.tenant.id);
        cell.tenant.idle.push(cell, self.shared.machine.now().steady);
        if !self.shared.table.insert_if_free(cell) {
            let mut inner = cell.lock();
            inner.settle(&cell.tenant, Residence::Gone);
            drop(inner);
            self.retire(cell);
        }
    }
}
