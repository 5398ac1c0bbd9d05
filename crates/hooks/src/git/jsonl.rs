//! Formats the turns of a session as JSON Lines, for programs.

use memoird_engine::SessionContent;
use serde_json::json;

use crate::payload;

/// Passes the lines to `put`, one per turn, oldest first.
///
/// If there is a summary, it is the first line, without a `seq`.
pub(super) fn write_lines<E>(
    ended: &SessionContent,
    put: &mut impl FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    if let Some(summary) = &ended.summary {
        put(&format!(
            "{}\n",
            json!({"summary": payload::summary(summary)})
        ))?;
    }
    for (seq, turn) in &ended.turns {
        put(&format!("{}\n", payload::turn(*seq, turn)))?;
    }
    Ok(())
}
