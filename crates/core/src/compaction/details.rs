//! Recent details: the end of the summarized turns, one line per turn.

use std::fmt::Write;

use crate::condense::{head_and_tail, mostly_head, parse, scalars};
use crate::date::Date;
use crate::quote::one_line;
use crate::time::Timestamp;
use crate::turn::Role;

use super::changes::call_line;
use super::transcript::TranscriptTurn;

/// Maximum bytes of a user turn, and of a result or reply.
const USER_BYTES_MAX: usize = 400;
const TEXT_BYTES_MAX: usize = 4_000;

/// Appends a line for each turn: text verbatim, JSON results as their scalar values.
///
/// A change of day since the previous turn, or at first since `until` (seconds since 1970), adds a
/// line with the date.
pub(super) fn append(recent: &mut String, turns: &[TranscriptTurn], until: i64) {
    let until = (until > 0).then(|| Timestamp::new(until, 0)).flatten();
    let mut day = until.map(Date::from_timestamp);
    for turn in turns {
        let line = line(turn);
        if line.is_empty() {
            continue;
        }
        let said_on = turn.said_at.map(Date::from_timestamp);
        if said_on.is_some() && said_on != day {
            day = said_on;
            let date = said_on.map(|date| date.to_string()).unwrap_or_default();
            let _ = writeln!(recent, "({date})");
        }
        recent.push_str(&line);
        recent.push('\n');
    }
}

fn line(turn: &TranscriptTurn) -> String {
    let mut pieces: Vec<String> = Vec::new();
    for text in turn.spoken() {
        let text = flat(text);
        pieces.push(match turn.role {
            Role::User => mostly_head(&text, USER_BYTES_MAX, " … "),
            _ => head_and_tail(&text, TEXT_BYTES_MAX, " … "),
        });
    }
    for call in &turn.calls {
        pieces.push(call_line(&call.name, &call.input));
    }
    for text in turn.result_texts() {
        let values = parse(text).map(|value| scalars(&value, TEXT_BYTES_MAX));
        pieces.push(match values {
            Some(values) => flat(&values),
            None => head_and_tail(&flat(text), TEXT_BYTES_MAX, " … "),
        });
    }
    pieces.retain(|piece| !piece.is_empty());
    match pieces.as_slice() {
        [] => String::new(),
        pieces => format!("{}: {}", turn.role.name(), pieces.join(" | ")),
    }
}

fn flat(text: &str) -> String {
    one_line(text, text.len())
}

/// The end of `recent` in at most `bytes_max` bytes. The first line may lack its beginning.
pub(super) fn last_lines(recent: &str, bytes_max: usize) -> String {
    const CUT: &str = "… ";
    if recent.len() <= bytes_max {
        return recent.to_owned();
    }
    let end_bytes = bytes_max.saturating_sub(CUT.len());
    let start = recent.ceil_char_boundary(recent.len() - end_bytes);
    let is_line = recent[..start].ends_with('\n');
    format!("{}{}", if is_line { "" } else { CUT }, &recent[start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_contain_result_values_and_a_line_per_day() {
        let mut user = TranscriptTurn::new(1, Role::User, "Find\nflights");
        user.said_at = Timestamp::new(1_700_000_000, 0);
        let result = TranscriptTurn::new(2, Role::Tool, r#"[{"id":"HAT1","price":10}]"#);
        let mut recent = String::new();
        append(&mut recent, &[user, result], 0);
        assert_eq!(recent, "(2023-11-14)\nuser: Find flights\ntool: HAT1 10\n");
        assert_eq!(last_lines(&recent, 18), "tool: HAT1 10\n");
        assert_eq!(last_lines(&recent, 12), "… HAT1 10\n");
    }
}
