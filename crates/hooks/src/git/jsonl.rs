//! Formats the turns of a session as JSON Lines, for programs.

use memoird_engine::SessionContent;
use serde_json::json;

use crate::payload;

/// One line per turn, oldest first. If there is a summary, it is the first line, without a `seq`.
pub(super) fn lines(ended: &SessionContent) -> String {
    let mut lines = String::new();
    if let Some(summary) = &ended.summary {
        lines.push_str(&json!({"summary": payload::summary(summary)}).to_string());
        lines.push('\n');
    }
    for (seq, turn) in &ended.turns {
        lines.push_str(&payload::turn(*seq, turn).to_string());
        lines.push('\n');
    }
    lines
}
