//! Counting tokens of turns and prompts for windows.
//!
//! At most one count per core runs at a time, round-robin by tenant, and one per session.

use memoird_core::ids::SessionKey;

use crate::blocking::{Blocking, Executor, cores};
use crate::error::EngineError;
use crate::sessions::SessionRef;
use crate::single_flight::{Flight, SingleFlight};
use crate::tenants::Tenant;

/// Maximum bytes counted on the calling thread. Above it, counting takes longer than a handover.
const INLINE_BYTES_MAX: usize = 32 << 10;

#[derive(Debug)]
pub(crate) struct TokenCounting {
    executor: Executor,
    sessions: SingleFlight<SessionKey>,
}

pub(super) type CountingTurn<'a> = Flight<'a, SessionKey>;

impl TokenCounting {
    pub(crate) fn new(blocking: Blocking) -> Self {
        Self {
            executor: Executor::new(blocking, "token-counter", cores()),
            sessions: SingleFlight::default(),
        }
    }

    /// Waits for exclusive access to counting the turns of a session.
    pub(super) async fn turn_of(&self, session: &SessionRef) -> CountingTurn<'_> {
        self.sessions.enter(&session.key).await
    }

    /// Counts `bytes` bytes, off the runtime's threads if that takes long.
    pub(in crate::commands) async fn count<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        bytes: usize,
        count: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        if is_short(bytes) {
            Ok(count())
        } else {
            self.executor.run(Some(&tenant.id), count).await
        }
    }
}

/// Whether counting this many bytes takes no longer than handing them to another thread.
pub(super) fn is_short(bytes: usize) -> bool {
    bytes <= INLINE_BYTES_MAX
}
