//! Port through which memories are added to a window. The engine does not know what a memory is.

use std::fmt::Debug;
use std::pin::Pin;

use memoird_core::ids::{Generation, SessionId};
use memoird_core::nonce::Nonce;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::window::Window;
use memoird_formats::tokens::Scale;

/// A validated request to recall memories for one window.
pub trait WindowMemories: Debug + Send + Sync + 'static {
    /// Recalls what fits into a window.
    ///
    /// Never fails: a window without memories is better than none. The notes say why memories are
    /// missing.
    fn recall<'a>(&'a self, room: WindowRoom<'a>) -> WindowRecall<'a>;
}

pub type WindowRecall<'a> = Pin<Box<dyn Future<Output = RecallResult> + Send + 'a>>;

#[derive(Clone, Copy, Debug)]
pub struct WindowRoom<'a> {
    pub session: &'a SessionId,
    /// Token budget of the whole window.
    pub input_budget: u64,
    pub scale: &'a Scale,
    /// If set, the recall leaves no trace.
    pub peek: bool,
}

#[derive(Debug, Default)]
pub struct RecallResult {
    /// `None` if the recall failed.
    pub memories: Option<Box<dyn RecalledMemories>>,
    /// Human-readable deviations from the request.
    pub notes: Vec<String>,
}

/// Recalled memories, rendered into a window after its turns are selected.
pub trait RecalledMemories: Debug + Send + Sync {
    /// Tokens to reserve for the block.
    fn tokens(&self) -> u64;

    /// Renders the memories that the window does not already contain.
    ///
    /// Called again each time the window is planned again. Only the last block is used.
    fn block(&self, window: &Window, session: SessionPoint<'_>, scale: &Scale) -> MemoryBlock;
}

#[derive(Clone, Copy, Debug)]
pub struct SessionPoint<'a> {
    /// The client's session id.
    pub session: &'a SessionId,
    pub generation: Generation,
    pub last_seq: u64,
    /// Seqs of rewound turns.
    pub rewound: Option<&'a SeqRanges>,
    /// Nonce of memoird's own text in the session's windows.
    pub nonce: Nonce,
}

/// The rendered block of memories in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryBlock {
    /// Empty if there are no memories.
    pub text: String,
    pub tokens: u64,
    /// Indexes of the recalled memories in the block, best first.
    pub shown: Vec<usize>,
}
