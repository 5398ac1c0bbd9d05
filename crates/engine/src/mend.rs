//! Sessions whose change was not written: what memory holds of them is not so, and only
//! the journal knows what is. They are loaded again at once, not when somebody asks, so
//! that the counts and the lists are right.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::cell::{Residence, SessionCell};
use crate::engine::Engine;
use crate::error::EngineError;
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
        let Some(cell) = self.engine.shared.mender.lock().pop_front() else {
            return Ok(());
        };
        if let Err(error) = self.engine.mend_session(&cell).await {
            self.engine.shared.mender.lock().push_back(cell);
            return Err(WorkError(error.to_string()));
        }
        // Its place may have been given away meanwhile.
        let enforced = self.engine.enforce_caps().await;
        enforced.map_err(|error| WorkError(error.to_string()))
    }
}

impl Engine {
    /// Makes of a session what the journal knows of it. Nobody starts one of its id
    /// meanwhile.
    async fn mend_session(&self, cell: &Arc<SessionCell>) -> Result<(), EngineError> {
        let _flight = self.shared.flights.enter(&cell.key).await;
        if self.is_replaced(cell) {
            return Ok(());
        }
        self.reload(cell).await?;
        let mut inner = cell.lock();
        let last_access = inner.head().map(|head| head.last_access);
        // Without one it has ended, or comes again.
        let Some(last_access) = last_access else {
            return Ok(());
        };
        if inner.is_listed {
            cell.tenant.idle.set_right(cell, last_access);
        } else {
            // Its end did not happen.
            inner.is_listed = true;
            self.shared.capacity.take_anyway(&cell.tenant.id);
            cell.tenant.idle.insert(cell, last_access);
            self.shared.table.insert(cell);
        }
        Ok(())
    }

    /// True when another one was started on top of an end that was not written. The
    /// journal refuses that one, and then it becomes what this one was: never both.
    pub(crate) fn is_replaced(&self, cell: &Arc<SessionCell>) -> bool {
        let mut inner = cell.lock();
        let is_replaced = !inner.is_listed && self.shared.table.has_other(cell);
        if is_replaced {
            inner.settle(&cell.tenant, Residence::Gone);
        }
        is_replaced
    }
}
