//! A request for a window, and its answer, as plain data.

use std::sync::Arc;

use memoird_core::budget::BudgetOverride;
use memoird_core::mark::Mark;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::AppendCommand;
use memoird_core::turn::MessageFormat;
use memoird_core::window::{NextCut, Policy as WindowPolicy, Report, WindowTurns};
use memoird_formats::model::MessageRules;

use crate::commands::{AppendOutcome, RecallTool};
use crate::sessions::SessionView;
use crate::window_memories::{MemoryBlock, WindowMemories};

/// Asks for a window.
#[derive(Clone, Debug, Default)]
pub struct ContextRequest {
    /// An append to do first.
    pub append: Option<AppendCommand>,
    /// The name of a model; empty: the default one.
    pub model: String,
    /// What differs from the model's budget.
    pub budget: BudgetOverride,
    /// Tokens that the bot adds by itself.
    pub overhead_tokens: u64,
    /// The system prompt.
    pub system: String,
    /// The tool schemas, as the provider takes them.
    pub tools_json: String,
    /// The interface that the request goes to, where it is known.
    pub format: Option<MessageFormat>,
    /// How to choose turns; `None`: as configured.
    pub policy: Option<WindowPolicy>,
    /// 0 for the first try; each further one takes a tenth off the budget.
    pub attempt: u32,
    /// Only look: nothing is touched, and nothing decided is kept.
    pub peek: bool,
    /// Memories to put into the window.
    pub memories: Option<Arc<dyn WindowMemories>>,
    /// Answers open calls of `read_earlier_turns` before the window is built.
    pub recall_tool: Option<RecallTool>,
}

/// A window.
#[derive(Clone, Debug)]
pub struct ContextOutcome {
    /// The session, after the append where there was one.
    pub session: SessionView,
    /// What the append did.
    pub appended: Option<AppendOutcome>,
    /// What the model sees, in order.
    pub turns: WindowTurns,
    /// Rules of the model for requests.
    pub rules: MessageRules,
    /// Indices of turns after which a provider's cache may break, ascending.
    pub cache_breakpoints: Vec<usize>,
    /// The block of memories that were recalled for it.
    pub memories: MemoryBlock,
    /// Why.
    pub report: Report,
    /// What memoird's own words in it bear.
    pub mark: Mark,
    /// Which turns of the session were rewound: those that it has no room for are not among them.
    pub rewound: SeqRanges,
    /// What the next cut is likely to do, for who only looks.
    pub next_cut: Option<NextCut>,
}
