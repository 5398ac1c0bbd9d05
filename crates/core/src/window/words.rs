//! What memoird itself says in a window: a line where turns are left out, an error where a
//! call was never answered. Always marked, never as if somebody else had said it.

use crate::mark::Mark;
use crate::turn::{Part, PartKind, Role, Turn};

/// The label of a turn that is not there as it was said; its value says what it is.
pub const LABEL: &str = "memoird";

/// Characters of a name that somebody else chose.
const NAME_CHARS_MAX: usize = 64;

/// A line that stands where turns are left out.
pub(super) fn elision(turns: u64, mark: Mark) -> Turn {
    let text = match turns {
        1 => format!("[memoird {mark}: 1 turn is left out here]"),
        _ => format!("[memoird {mark}: {turns} turns are left out here]"),
    };
    let turn = Turn::new(Role::User, vec![PartKind::Text(text).into()]);
    labelled(turn, "elision")
}

/// The results of calls that were never answered.
pub(super) fn abandoned<'a>(ids: impl Iterator<Item = &'a str>, mark: Mark) -> Turn {
    let result = |id: &str| -> Part {
        let result = PartKind::ToolResult {
            tool_use_id: id.to_owned(),
            content: format!("[memoird {mark}: no result; the call was abandoned]"),
            parts: Vec::new(),
            is_error: true,
        };
        result.into()
    };
    let turn = Turn::new(Role::Tool, ids.map(result).collect());
    labelled(turn, "abandoned")
}

/// What stands for a result that a later call has made old.
pub(super) fn superseded(by: &str, mark: Mark) -> String {
    let by = name(by);
    format!("[memoird {mark}: superseded by the result of the later call {by}]")
}

/// What stands where text is left out.
pub(super) fn left_out(bytes: usize, mark: Mark) -> String {
    format!("[memoird {mark}: {bytes} bytes are left out here]")
}

/// What stands where items of a JSON list are left out.
pub(super) fn items_left_out(items: usize, mark: Mark) -> String {
    format!("[memoird {mark}: {items} items are left out here]")
}

/// What stands for an image, a document or a sound that is left out.
pub(super) fn media_left_out(media_type: &str, mark: Mark) -> String {
    let kind = match name(media_type) {
        kind if kind.is_empty() => "a file".to_owned(),
        kind => kind,
    };
    format!("[memoird {mark}: {kind} is left out here]")
}

/// A name without what could end the line that it stands in, or say something itself.
fn name(given: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-_.:/+#|@".contains(*c);
    given
        .chars()
        .filter(is_plain)
        .take(NAME_CHARS_MAX)
        .collect()
}

/// A turn with the label that says what it is.
pub(crate) fn labelled(mut turn: Turn, what: &str) -> Turn {
    turn.metadata.insert(LABEL.to_owned(), what.to_owned());
    turn
}
