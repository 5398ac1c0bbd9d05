//! The turns of a session for programs: a JSON object a line.

use memoird_engine::SessionContent;
use serde_json::json;

use crate::payload;

/// One line a turn, oldest first; before them, where one stood for the oldest of them, a
/// line with nothing but the `summary`. Only turns have a `seq`.
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
