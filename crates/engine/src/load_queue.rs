//! A tenant's sessions that wait to be loaded together.
//!
//! Only few loads run at once, and each takes all sessions that wait by then. So the more calls
//! need a session, the fewer statements each of them costs.

use std::collections::VecDeque;

use memoird_core::session::Session;
use memoird_store::SessionToLoad;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::error::EngineError;

/// Maximum number of loads of a tenant that run at once.
const RUNNING_MAX: usize = 2;
/// Maximum number of sessions per load.
const SESSIONS_MAX: usize = 64;

/// A loaded session. `None` if it is not live.
pub(crate) type LoadResult = Result<Option<Session>, EngineError>;

#[derive(Debug)]
pub(crate) struct LoadQueue {
    waiting: Mutex<WaitingLoads>,
    running: Semaphore,
}

#[derive(Debug, Default)]
struct WaitingLoads {
    loads: VecDeque<WaitingLoad>,
    /// Number of loads that were taken.
    taken: u64,
}

#[derive(Debug)]
pub(crate) struct WaitingLoad {
    pub(crate) wanted: SessionToLoad,
    pub(crate) reply: oneshot::Sender<LoadResult>,
}

/// A session that waits.
#[derive(Debug)]
pub(crate) struct Ticket {
    number: u64,
    loaded: oneshot::Receiver<LoadResult>,
}

/// Next step of a caller that waits for a session.
#[allow(
    clippy::large_enum_variant,
    reason = "it is moved once, and nearly all are loaded sessions"
)]
pub(crate) enum LoadTurn<'a> {
    Loaded(LoadResult),
    /// Load the next sessions. This one may not be among them.
    Runs(SemaphorePermit<'a>),
}

impl Default for LoadQueue {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            running: Semaphore::new(RUNNING_MAX),
        }
    }
}

impl LoadQueue {
    pub(crate) fn push(&self, wanted: SessionToLoad) -> Ticket {
        let (reply, loaded) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        let number = waiting.taken + waiting.loads.len() as u64;
        waiting.loads.push_back(WaitingLoad { wanted, reply });
        Ticket { number, loaded }
    }

    /// Waits until the session is loaded, or until its caller must load the next ones.
    pub(crate) async fn turn(&self, ticket: &mut Ticket) -> LoadTurn<'_> {
        let permit = tokio::select! {
            biased;
            loaded = &mut ticket.loaded => return LoadTurn::Loaded(received(loaded)),
            permit = self.running.acquire() => permit,
        };
        match permit {
            Ok(permit) if self.waiting.lock().taken <= ticket.number => LoadTurn::Runs(permit),
            // It is being loaded, by a call that cannot be cancelled.
            _ => LoadTurn::Loaded(received((&mut ticket.loaded).await)),
        }
    }

    /// Takes the next sessions, the longest waiting first.
    pub(crate) fn take(&self) -> Vec<WaitingLoad> {
        let mut waiting = self.waiting.lock();
        let count = waiting.loads.len().min(SESSIONS_MAX);
        waiting.taken += count as u64;
        let taken = waiting.loads.drain(..count);
        // Cancelled callers need no session.
        taken.filter(|load| !load.reply.is_closed()).collect()
    }
}

fn received(loaded: Result<LoadResult, oneshot::error::RecvError>) -> LoadResult {
    loaded.unwrap_or(Err(EngineError::Stopping))
}

#[cfg(test)]
mod tests {
    use memoird_core::ids::{SessionId, SessionKey, TenantId};

    use super::*;

    fn wanted(session: &str) -> SessionToLoad {
        SessionToLoad {
            key: SessionKey {
                tenant: TenantId::parse("t").expect("an id"),
                session: SessionId::parse(session).expect("an id"),
            },
            known: None,
            idempotency_key: None,
        }
    }

    #[tokio::test]
    async fn sessions_that_wait_for_running_loads_are_taken_together() {
        let queue = LoadQueue::default();
        let mut tickets: Vec<Ticket> = (0..4)
            .map(|place| queue.push(wanted(&place.to_string())))
            .collect();
        let LoadTurn::Runs(permit) = queue.turn(&mut tickets[0]).await else {
            panic!("no load is running")
        };
        let taken = queue.take();
        assert_eq!(taken.len(), 4);
        // A second load may run, but has nothing to do.
        let mut later = queue.push(wanted("later"));
        for load in taken {
            assert!(load.reply.send(Ok(None)).is_ok());
        }
        drop(permit);
        for ticket in &mut tickets {
            assert!(matches!(
                queue.turn(ticket).await,
                LoadTurn::Loaded(Ok(None))
            ));
        }
        assert!(matches!(queue.turn(&mut later).await, LoadTurn::Runs(_)));
    }

    #[tokio::test]
    async fn sessions_of_cancelled_callers_are_not_loaded() {
        let queue = LoadQueue::default();
        let cancelled = queue.push(wanted("a"));
        let mut other = queue.push(wanted("b"));
        drop(cancelled);
        assert!(matches!(queue.turn(&mut other).await, LoadTurn::Runs(_)));
        let taken = queue.take();
        let names = taken.iter().map(|load| load.wanted.key.session.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["b"]);
        // A load that panicked.
        drop(taken);
        assert!(matches!(
            queue.turn(&mut other).await,
            LoadTurn::Loaded(Err(_))
        ));
    }
}
