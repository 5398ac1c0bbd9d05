//! What memoird itself says in a window: a line where turns are left out, an error where a
//! call was never answered. Always marked, never as if somebody else had said it.

use crate::turn::{Part, PartKind, Role, Turn};

/// The label of a turn that is not there as it was said; its value says what it is.
pub const LABEL: &str = "memoird";

/// A line that stands where turns are left out.
pub(super) fn elision(turns: u64) -> Turn {
    let text = match turns {
        1 => "[memoird: 1 turn is left out here]".to_owned(),
        _ => format!("[memoird: {turns} turns are left out here]"),
    };
    let turn = Turn::new(Role::User, vec![PartKind::Text(text).into()]);
    labelled(turn, "elision")
}

/// The results of calls that were never answered.
pub(super) fn abandoned<'a>(ids: impl Iterator<Item = &'a str>) -> Turn {
    let result = |id: &str| -> Part {
        let result = PartKind::ToolResult {
            tool_use_id: id.to_owned(),
            content: "[memoird: no result; the call was abandoned]".to_owned(),
            parts: Vec::new(),
            is_error: true,
        };
        result.into()
    };
    let turn = Turn::new(Role::Tool, ids.map(result).collect());
    labelled(turn, "abandoned")
}

/// What stands for a result that a later call has made old.
pub(super) fn superseded(by: &str) -> String {
    format!("[memoird: superseded by the result of the later call {by}]")
}

/// What stands where text is left out.
pub(super) fn left_out(bytes: usize) -> String {
    format!("[memoird: {bytes} bytes are left out here]")
}

/// What stands where items of a JSON list are left out.
pub(super) fn items_left_out(items: usize) -> String {
    format!("[memoird: {items} items are left out here]")
}

/// What stands for an image, a document or a sound that is left out.
pub(super) fn media_left_out(media_type: &str) -> String {
    let kind = if media_type.is_empty() {
        "a file"
    } else {
        media_type
    };
    format!("[memoird: {kind} is left out here]")
}

/// A turn with the label that says what it is.
pub(crate) fn labelled(mut turn: Turn, what: &str) -> Turn {
    turn.metadata.insert(LABEL.to_owned(), what.to_owned());
    turn
}
