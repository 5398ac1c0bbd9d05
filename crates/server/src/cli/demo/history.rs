//! A history drawn on a line: the anchor in brackets, a call joined to its result.

use std::collections::HashMap;

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{Role, Turn};

use crate::cli::json::short_name;

/// `[1] 4 5 6─7 8`: the seqs of the turns, oldest first.
pub(super) fn drawn(turns: &[Turn]) -> String {
    let anchor = turns.iter().find(|turn| turn.role() == Role::User);
    let anchor = anchor.map(|turn| turn.seq);
    let mut calls = HashMap::new();
    let mut line = String::new();
    for turn in turns {
        let uses = kinds(turn).filter_map(|kind| match kind {
            Kind::ToolUse(call) => Some((call.id.as_str(), turn.seq)),
            _ => None,
        });
        calls.extend(uses);
        let is_answer = kinds(turn).any(
            |kind| matches!(kind, Kind::ToolResult(it) if calls.contains_key(&*it.tool_use_id)),
        );
        if !line.is_empty() {
            line.push(if is_answer { '─' } else { ' ' });
        }
        match anchor == Some(turn.seq) {
            true => line.push_str(&format!("[{}]", turn.seq)),
            false => line.push_str(&turn.seq.to_string()),
        }
    }
    line
}

/// What was in a history and is not any more, drawn.
pub(super) fn left(before: &[Turn], after: &[Turn]) -> String {
    let gone = before
        .iter()
        .filter(|turn| after.iter().all(|kept| kept.seq != turn.seq));
    let gone: Vec<Turn> = gone.cloned().collect();
    drawn(&gone)
}

/// What turns are, in a word each: `2 call, 3 result`.
pub(super) fn named(turns: &[Turn]) -> String {
    let names = turns.iter().map(|turn| {
        let what = kinds(turn).find_map(|kind| match kind {
            Kind::ToolUse(_) => Some("call".to_owned()),
            Kind::ToolResult(_) => Some("result".to_owned()),
            _ => None,
        });
        format!(
            "{} {}",
            turn.seq,
            what.unwrap_or_else(|| short_name("Role", turn.role))
        )
    });
    names.collect::<Vec<_>>().join(", ")
}

fn kinds(turn: &Turn) -> impl Iterator<Item = &Kind> {
    turn.parts.iter().filter_map(|part| part.part.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use memoird_proto::v1::{Part, ToolResult, ToolUse};

    fn turn(seq: u64, role: Role, kind: Kind) -> Turn {
        let part = Part {
            part: Some(kind),
            extra_json: String::new(),
        };
        Turn {
            seq,
            role: role.into(),
            parts: vec![part],
            ..Turn::default()
        }
    }

    fn says(seq: u64, role: Role) -> Turn {
        turn(seq, role, Kind::Text("words".into()))
    }

    fn call(seq: u64, id: &str) -> Turn {
        let call = ToolUse {
            id: id.into(),
            ..ToolUse::default()
        };
        turn(seq, Role::Assistant, Kind::ToolUse(call))
    }

    fn result(seq: u64, id: &str) -> Turn {
        let result = ToolResult {
            tool_use_id: id.into(),
            ..ToolResult::default()
        };
        turn(seq, Role::Tool, Kind::ToolResult(result))
    }

    #[test]
    fn calls_are_joined_to_their_results() {
        let turns = [
            says(1, Role::User),
            call(2, "c1"),
            result(3, "c1"),
            says(4, Role::Assistant),
            says(5, Role::User),
            call(6, "c2"),
            result(7, "c2"),
            says(8, Role::Assistant),
            says(9, Role::User),
            says(10, Role::Assistant),
        ];
        assert_eq!(drawn(&turns), "[1] 2─3 4 5 6─7 8 9 10");
        assert_eq!(named(&turns[..4]), "1 user, 2 call, 3 result, 4 assistant");
        assert_eq!(drawn(&turns[1..3]), "2─3");
        assert_eq!(drawn(&turns[2..4]), "3 4", "its call is not there");
        let kept: Vec<Turn> = [&turns[..1], &turns[3..]].concat();
        assert_eq!(left(&turns, &kept), "2─3");
        assert_eq!(left(&kept, &kept), "");
    }
}
