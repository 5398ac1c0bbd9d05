//! The ports between sessions and memories: how a window gets memories, and how memories get
//! turns and background work. What a memory is, the engine does not know.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::{Generation, SessionId};
use memoird_core::tokens::Scale;
use memoird_core::window::Window;
use tokio_util::sync::CancellationToken;

use crate::engine::{Blocking, Engine};
use crate::error::EngineError;
use crate::machine::Machine;
use crate::read::{HistoryPage, HistoryQuery, HistoryScope};
use crate::tenant::Tenant;
use crate::worker::Worker;

/// Memories that are to be recalled for one window. Its request has been checked.
pub trait WindowMemories: Debug + Send + Sync + 'static {
    /// Recalls what fits into a window. It does not fail: a window without memories is
    /// better than none, and the notes say why there are none.
    fn recall<'a>(&'a self, room: WindowRoom<'a>) -> WindowRecall<'a>;
}

/// What was recalled, on its way.
pub type WindowRecall<'a> = Pin<Box<dyn Future<Output = Recalled> + Send + 'a>>;

/// The window that memories are recalled for.
#[derive(Clone, Copy, Debug)]
pub struct WindowRoom<'a> {
    /// The session of the window.
    pub session: &'a SessionId,
    /// Tokens that the whole window may use.
    pub input_budget: u64,
    /// What counts tokens.
    pub scale: &'a Scale,
    /// Only look: the recall leaves no trace.
    pub peek: bool,
}

/// What was recalled for a window.
#[derive(Debug, Default)]
pub struct Recalled {
    /// The memories; `None` when the recall failed.
    pub memories: Option<Box<dyn RecalledMemories>>,
    /// What differs from what was requested, for people.
    pub notes: Vec<String>,
}

/// Recalled memories, to be put into a window once its turns are chosen.
pub trait RecalledMemories: Debug + Send + Sync {
    /// Tokens to be kept free for the block.
    fn tokens(&self) -> u64;

    /// The block of those memories that the window does not hold already. Called again
    /// where the window is planned again; the last block counts.
    fn block(&self, window: &Window, session: SessionPoint<'_>, scale: &Scale) -> MemoryBlock;
}

/// A session at one point of its life.
#[derive(Clone, Copy, Debug)]
pub struct SessionPoint<'a> {
    /// The bot's own id of it.
    pub session: &'a SessionId,
    /// Its live generation.
    pub generation: Generation,
    /// Its newest turn.
    pub last_seq: u64,
}

/// The block in which a model reads memories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryBlock {
    /// The text; empty without memories.
    pub text: String,
    /// Tokens of the text.
    pub tokens: u64,
    /// Which of the recalled memories it shows, best first.
    pub shown: Vec<usize>,
}

impl Engine {
    /// Turns of a generation, `after_seq` excluded: all of them where there is a journal,
    /// else those that the live history keeps.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::GenerationNotFound`], a journal that
    /// cannot be read.
    pub async fn turns_after(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        range: TurnRange,
    ) -> Result<HistoryPage, EngineError> {
        let scope = match self.shared.journal.is_on() {
            true => HistoryScope::Journal,
            false => HistoryScope::Live,
        };
        let query = HistoryQuery {
            scope,
            generation: range.generation,
            after_seq: range.after_seq,
            turns_max: range.turns_max,
            bytes_max: range.bytes_max,
        };
        self.history(tenant, session, query).await
    }

    /// Runs a worker until the engine is closed.
    pub fn run_worker(&self, worker: impl Worker) {
        self.shared.supervisor.run(worker);
    }

    /// Cancelled when the workers are to stop: for what may hang in the middle of a step.
    pub fn stopping(&self) -> CancellationToken {
        self.shared.supervisor.stopping()
    }

    /// The clocks and the randomness that the engine uses.
    pub fn machine(&self) -> &dyn Machine {
        &*self.shared.machine
    }

    /// Where blocking calls run.
    pub fn blocking(&self) -> Blocking {
        self.shared.blocking
    }

    /// How long the turns of an ended generation stay readable.
    pub fn retention(&self) -> Duration {
        self.shared.config.load().journal.retention
    }
}

/// Which turns of a session to read.
#[derive(Clone, Copy, Debug)]
pub struct TurnRange {
    /// Of which generation; `None`: the live one, else the newest.
    pub generation: Option<Generation>,
    /// Only turns after this one.
    pub after_seq: u64,
    /// At most so many turns.
    pub turns_max: usize,
    /// No further turn once so many bytes were read.
    pub bytes_max: usize,
}
