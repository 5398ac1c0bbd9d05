//! A history drawn on a line: the anchor in brackets, a call joined to its result.

use std::collections::HashMap;

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{Role, Turn};

use crate::cli::json::short_name;

/// `[1] 4 5 6─7 8`: the seqs of the turns, oldest first.
pub(super) fn drawn(turns: &[Turn]) -> String {
    let anchor = turns
        .iter()
        .find(|turn| turn.role() == Role::User)
        .map(|turn| turn.seq);
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
    use super::super::bot;
    use super::*;

    fn numbered(said: impl IntoIterator<Item = Turn>) -> Vec<Turn> {
        (1..)
            .zip(said)
            .map(|(seq, turn)| Turn { seq, ..turn })
            .collect()
    }

    #[test]
    fn calls_are_joined_to_their_results() {
        let turns = numbered(bot::trip().into_iter().flatten());
        assert_eq!(drawn(&turns), "[1] 2─3 4 5 6─7 8 9 10");
        assert_eq!(named(&turns[..4]), "1 user, 2 call, 3 result, 4 assistant");
        assert_eq!(drawn(&turns[1..3]), "2─3");
        assert_eq!(drawn(&turns[2..4]), "3 4", "its call is not there");
        let kept: Vec<Turn> = [&turns[..1], &turns[3..]].concat();
        assert_eq!(left(&turns, &kept), "2─3");
        assert_eq!(left(&kept, &kept), "");
    }
}
