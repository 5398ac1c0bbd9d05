//! Request and reply of a window, as plain data.

use std::sync::Arc;

use memoird_core::budget::BudgetOverride;
use memoird_core::nonce::Nonce;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::AppendCommand;
use memoird_core::turn::MessageFormat;
use memoird_core::window::{NextCut, Policy as WindowPolicy, Report, WindowTurns};
use memoird_formats::model::MessageRules;

use crate::commands::{AppendOutcome, RecallTool};
use crate::sessions::SessionView;
use crate::window_memories::{MemoryBlock, WindowMemories};

#[derive(Clone, Debug, Default)]
pub struct ContextRequest {
    /// Turns to append first.
    pub append: Option<AppendCommand>,
    /// Model name. Empty for the default model.
    pub model: String,
    pub budget: BudgetOverride,
    /// Tokens that the client adds outside the window.
    pub overhead_tokens: u64,
    pub system: String,
    /// Tool schemas in the provider's format.
    pub tools_json: String,
    /// Message format of the request, if known.
    pub format: Option<MessageFormat>,
    /// Policy for selecting turns. `None` selects the configured one.
    pub policy: Option<WindowPolicy>,
    /// Number of the retry, or 0. Each retry reduces the budget by a tenth.
    pub attempt: u32,
    /// Dry run: it does not count as a use, and no decision is retained.
    pub peek: bool,
    /// Memories to recall into the window.
    pub memories: Option<Arc<dyn WindowMemories>>,
    /// If set, open calls of `read_earlier_turns` are answered before the window is built.
    pub recall_tool: Option<RecallTool>,
}

/// A window for a model call.
#[derive(Clone, Debug)]
pub struct ContextOutcome {
    /// The session, after the append if there was one.
    pub session: SessionView,
    pub appended: Option<AppendOutcome>,
    /// Turns of the window, in order.
    pub turns: WindowTurns,
    pub rules: MessageRules,
    /// Indexes of turns after which to set a provider's cache breakpoint, ascending.
    pub cache_breakpoints: Vec<usize>,
    pub memories: MemoryBlock,
    /// Explains the selection of turns.
    pub report: Report,
    /// Nonce of memoird's own text in the window.
    pub nonce: Nonce,
    /// Seqs of rewound turns. Turns that did not fit are not included.
    pub rewound: SeqRanges,
    /// Preview of the next cut, in a dry run.
    pub next_cut: Option<NextCut>,
}
