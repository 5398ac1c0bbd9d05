//! Commands of clients on sessions, one file per kind of command.

mod append;
mod context;
mod copy;
mod end;
mod handle;
mod history;
mod recall_tool;
mod rewind;
mod state;
mod update;

pub use append::AppendOutcome;
pub use context::{ContextOutcome, ContextRequest};
pub use copy::CopyCommand;
pub use handle::Commands;
pub use history::{HistoryPage, HistoryQuery, HistoryScope};
pub use recall_tool::{RecallCall, RecallReply, RecallTool};
pub use rewind::{RemovedTurns, RewindOutcome};
pub use state::{PatchCommand, PatchOutcome};
pub use update::{TurnRef, TurnUpdateCommand, TurnUpdateOutcome};
