//! memoird's own text in a window, such as gap markers and errors for unanswered calls.
//!
//! It always contains the nonce and is never attributed to others.

use crate::date::minute;
use crate::nonce::Nonce;
use crate::time::Timestamp;
use crate::turn::{Part, PartKind, Role, Turn};

/// Maximum characters of a name from outside.
const NAME_CHARS_MAX: usize = 64;

/// A run of missing turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) first: u64,
    pub(super) last: u64,
    /// Whether the summary after it covers the turns.
    pub(super) is_summarized: bool,
    /// Times of the turns before and after it in seconds since 1970, or 0 if unknown.
    pub(super) between: (i64, i64),
}

/// The longest gap marker, for reserving tokens.
pub(super) const LONGEST_GAP: Gap = Gap {
    first: 4_000_000_000,
    last: 4_000_000_000,
    is_summarized: false,
    between: (1_700_000_000, 1_700_000_000),
};

/// A marker in place of missing turns.
pub(super) fn gap(gap: Gap, nonce: Nonce) -> Turn {
    let turns = match gap.last - gap.first {
        0 => format!("turn {} is", gap.first),
        _ => format!("turns {}-{} are", gap.first, gap.last),
    };
    let time = |seconds: i64| (seconds > 0).then(|| Timestamp::new(seconds, 0)).flatten();
    let (after, before) = gap.between;
    let when = match (time(after), time(before)) {
        (Some(after), Some(before)) => {
            format!(", from between {} and {}", minute(after), minute(before))
        }
        (None, Some(before)) => format!(", from before {}", minute(before)),
        _ => String::new(),
    };
    let where_to = if gap.is_summarized {
        "summarized below"
    } else {
        "not shown here"
    };
    let text = format!("[memoird {nonce}: {turns} {where_to}{when}]");
    let turn = Turn::new(Role::User, vec![PartKind::Text(text).into()]);
    turn.labelled("elision")
}

/// A marker before a user turn that follows a long pause.
pub(super) fn pause(before: i64, said_at: i64, nonce: Nonce) -> Turn {
    let hours = (said_at - before) / 3_600;
    let later = match hours {
        0..48 => format!("{hours} hours"),
        _ => format!("{} days", hours / 24),
    };
    let at = Timestamp::new(said_at, 0).map(minute).unwrap_or_default();
    let text = format!("[memoird {nonce}: {later} later, {at}]");
    let turn = Turn::new(Role::User, vec![PartKind::Text(text).into()]);
    turn.labelled("elision")
}

/// Error results for calls that were never answered.
pub(super) fn abandoned<'a>(ids: impl Iterator<Item = &'a str>, nonce: Nonce) -> Turn {
    let result = |id: &str| -> Part {
        let result = PartKind::ToolResult {
            tool_use_id: id.to_owned(),
            content: format!("[memoird {nonce}: no result; the call was abandoned]"),
            parts: Vec::new(),
            is_error: true,
        };
        result.into()
    };
    let turn = Turn::new(Role::Tool, ids.map(result).collect());
    turn.labelled("abandoned")
}

pub(super) fn superseded(by: &str, nonce: Nonce) -> String {
    let by = name(by);
    format!("[memoird {nonce}: superseded by the result of the later call {by}]")
}

pub(super) fn left_out(bytes: usize, nonce: Nonce) -> String {
    format!("[memoird {nonce}: {bytes} bytes are left out here]")
}

/// A marker before the values of a JSON result that was `bytes` bytes long.
pub(super) fn values_of(bytes: usize, nonce: Nonce) -> String {
    format!("[memoird {nonce}: values only, each string once, of {bytes} bytes]")
}

pub(super) fn items_left_out(items: usize, nonce: Nonce) -> String {
    format!("[memoird {nonce}: {items} items are left out here]")
}

pub(super) fn media_left_out(media_type: &str, nonce: Nonce) -> String {
    let kind = match name(media_type) {
        kind if kind.is_empty() => "a file".to_owned(),
        kind => kind,
    };
    format!("[memoird {nonce}: {kind} is left out here]")
}

/// Removes characters from a name that could end its line or imitate other text.
fn name(given: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-_.:/+#|@".contains(*c);
    given
        .chars()
        .filter(is_plain)
        .take(NAME_CHARS_MAX)
        .collect()
}
