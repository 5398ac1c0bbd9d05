//! Commit messages.

use std::collections::BTreeMap;
use std::fmt::Write;

use git2::Oid;
use memoird_core::ids::SessionId;
use memoird_core::time::Timestamp;
use memoird_engine::SessionContent;

use super::GitConfig;
use crate::text::escaped;
use crate::time;

/// Maximum number of sessions named in a message. The others are counted.
const LINES_MAX: usize = 50;

/// Maximum characters of an id in a message.
const ID_CHARS_MAX: usize = 60;

/// Formats a commit object.
///
/// The author's time is that of the last end, the committer's that of the delivery.
pub(super) fn commit(
    config: &GitConfig,
    tree: Oid,
    parent: Option<Oid>,
    new: &[&SessionContent],
    at: Timestamp,
) -> String {
    let who = committer(config);
    let ended_at = new.iter().map(|ended| ended.ended_at).max().unwrap_or(at);
    let mut content = format!("tree {tree}\n");
    if let Some(parent) = parent {
        content.push_str(&format!("parent {parent}\n"));
    }
    let (ended_at, at) = (ended_at.seconds(), at.seconds());
    content.push_str(&format!(
        "author {who} {ended_at} +0000\ncommitter {who} {at} +0000\n"
    ));
    content.push_str(&format!("\n{}", text(new)));
    content
}

/// Author and committer in git's format.
pub(super) fn committer(config: &GitConfig) -> String {
    format!("{} <{}>", config.author_name, config.author_email)
}

pub(super) fn turns(count: u64) -> String {
    match count {
        1 => "1 turn".to_owned(),
        _ => format!("{count} turns"),
    }
}

/// Number of turns of a generation, including omitted ones.
pub(super) fn turn_count(ended: &SessionContent) -> u64 {
    ended.turns.len() as u64 + ended.turns_omitted
}

fn text(new: &[&SessionContent]) -> String {
    if let [ended] = new {
        let (session, reason) = (shortened(&ended.session), ended.reason.name());
        let count = turns(turn_count(ended));
        let took = time::between(ended.created_at, ended.ended_at);
        let created_at = time::readable(ended.created_at);
        return format!(
            "Checkpoint {session}: {reason} after {count}\n\nStarted {created_at} UTC, took {took}.\n"
        );
    }
    let mut tally: BTreeMap<&str, usize> = BTreeMap::new();
    for ended in new {
        *tally.entry(ended.reason.name()).or_default() += 1;
    }
    let mut ordered: Vec<(&str, usize)> = tally.into_iter().collect();
    ordered.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let counts: Vec<String> = ordered
        .into_iter()
        .map(|(word, count)| format!("{count} {word}"))
        .collect();
    let mut text = format!(
        "Checkpoint {} sessions: {}\n\n",
        new.len(),
        counts.join(", ")
    );
    for ended in new.iter().take(LINES_MAX) {
        let (session, reason) = (shortened(&ended.session), ended.reason.name());
        let count = turns(turn_count(ended));
        let took = time::between(ended.created_at, ended.ended_at);
        // Writing to a String does not fail.
        let _ = writeln!(text, "- {session}: {reason}, {count} in {took}");
    }
    if new.len() > LINES_MAX {
        let _ = writeln!(text, "- and {} more", new.len() - LINES_MAX);
    }
    text
}

/// Formats an id on one line, with control characters escaped and the middle of a long id omitted.
pub(super) fn shortened(id: &SessionId) -> String {
    let line = escaped(id.as_str().as_bytes());
    let chars: Vec<char> = line.chars().collect();
    if chars.len() <= ID_CHARS_MAX {
        return line;
    }
    let half = ID_CHARS_MAX / 2;
    let [head, tail] =
        [&chars[..half], &chars[chars.len() - half..]].map(|part| part.iter().collect::<String>());
    format!("{head}…{tail}")
}
