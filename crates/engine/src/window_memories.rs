//! The port by which a window gets memories. What a memory is, the engine does not know.

use std::fmt::Debug;
use std::pin::Pin;

use memoird_core::ids::{Generation, SessionId};
use memoird_core::mark::Mark;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::window::Window;
use memoird_formats::tokens::Scale;

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
    /// Which of its turns were rewound.
    pub rewound: Option<&'a SeqRanges>,
    /// What memoird's own words in its windows bear.
    pub mark: Mark,
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
