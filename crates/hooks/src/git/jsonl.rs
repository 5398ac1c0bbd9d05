//! The turns of a session for programs: a JSON object a line.

use memoird_engine::Ended;

use crate::payload;

/// One line a turn, oldest first.
pub(super) fn lines(ended: &Ended) -> String {
    let mut lines = String::new();
    for (seq, turn) in &ended.turns {
        lines.push_str(&payload::turn(*seq, turn).to_string());
        lines.push('\n');
    }
    lines
}
