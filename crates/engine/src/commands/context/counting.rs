//! Counting the tokens of turns and prompts for windows: at most one call for each core, tenants
//! in turn, and for each session one at a time.

use std::sync::Arc;

use memoird_core::ids::SessionKey;
use memoird_core::mark::Mark;
use memoird_core::quote;
use memoird_core::turn::estimate_tokens;
use memoird_formats::tokens::Scale;
use memoird_store::encoding;

use crate::blocking::{Blocking, Executor, cores};
use crate::error::EngineError;
use crate::sessions::{Flight, SessionRef, SingleFlight};
use crate::tenants::Tenant;

/// Bytes that are counted on the calling thread; counting more takes longer than a hand-over.
const INLINE_BYTES_MAX: usize = 32 << 10;

/// Counts tokens.
#[derive(Debug)]
pub(crate) struct TokenCounting {
    executor: Executor,
    /// Whose turns are being counted: who wants the same waits for the counts.
    sessions: SingleFlight<SessionKey>,
}

/// The right to count the turns of one session.
pub(super) type CountingTurn<'a> = Flight<'a, SessionKey>;

impl TokenCounting {
    pub(crate) fn new(blocking: Blocking) -> Self {
        Self {
            executor: Executor::new(blocking, "token-counter", cores()),
            sessions: SingleFlight::default(),
        }
    }

    /// Waits until nobody else counts the turns of this session.
    pub(super) async fn turn_of(&self, session: &SessionRef) -> CountingTurn<'_> {
        self.sessions.enter(&session.key).await
    }

    /// Counts something of so many bytes, and not on a thread of the runtime when that takes
    /// long.
    pub(in crate::commands) async fn count<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        bytes: usize,
        count: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        match is_short(bytes) {
            true => Ok(count()),
            false => self.executor.run(Some(&tenant.id), count).await,
        }
    }
}

/// True when counting so many bytes takes no longer than handing them over.
pub(super) fn is_short(bytes: usize) -> bool {
    bytes <= INLINE_BYTES_MAX
}

/// The tokens of each turn.
pub(super) fn count_turns(
    scale: &Scale,
    turns: Vec<(u64, Arc<[u8]>)>,
    mark: Mark,
) -> Vec<(u64, u64)> {
    let count = |(seq, content): (u64, Arc<[u8]>)| {
        let tokens = match encoding::open(&content) {
            // As windows show it.
            Some(mut turn) if quote::has_marks(&content) || mark.is_in(&content) => {
                quote::unmark(&mut turn, mark);
                scale.turn(&turn)
            }
            Some(turn) => scale.turn(&turn),
            // One that is damaged is not small.
            None => u64::from(estimate_tokens(content.len())),
        };
        (seq, tokens)
    };
    turns.into_iter().map(count).collect()
}
