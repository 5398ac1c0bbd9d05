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
/// Maximum bytes that are left out up to the next space.
const WORD_BYTES_MAX: usize = 32;

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

/// The end of `recent` in at most `bytes_max` bytes.
///
/// The first line may lack its beginning, but not its role.
pub(super) fn last_lines(recent: &str, bytes_max: usize) -> String {
    if recent.len() <= bytes_max {
        return recent.to_owned();
    }
    const CUT: &str = "… ";
    let start = recent.ceil_char_boundary(recent.len() - bytes_max);
    if recent[..start].ends_with('\n') {
        return recent[start..].to_owned();
    }
    let line = recent[..start].rfind('\n').map_or(0, |end| end + 1);
    let end = recent[start..]
        .find('\n')
        .map_or(recent.len(), |end| start + end + 1);
    let role = recent[line..end].find(": ").map_or(0, |end| end + 2);
    let from = (start + role + CUT.len()).max(line + role);
    let from = recent.ceil_char_boundary(from);
    let of_line = recent.get(from..end).unwrap_or_default();
    if of_line.trim_end().is_empty() {
        return recent[end..].to_owned();
    }
    // Not all scripts have spaces.
    let of_word = &of_line[..of_line.floor_char_boundary(WORD_BYTES_MAX)];
    let from = of_word.find(' ').map_or(from, |space| from + space + 1);
    format!("{}{CUT}{}", &recent[line..line + role], &recent[from..])
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
        assert_eq!(last_lines(&recent, 12), "tool: … 0\n");
    }

    #[test]
    fn line_cut_at_start_keeps_role_and_whole_words() {
        let recent = "user: Find flights\nassistant: I have found three flights for you.\n";
        for (bytes, expected) in [
            (40, "assistant: … three flights for you.\n"),
            (10, ""),
            (99, recent),
        ] {
            assert_eq!(last_lines(recent, bytes), expected, "{bytes}");
        }
    }
}
