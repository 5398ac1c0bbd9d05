//! Formats a session as Markdown with front matter, for people.
//!
//! Message content cannot break out of its section: text is quoted, and code gets a fence longer
//! than any fence in it.

use std::collections::HashMap;
use std::fmt::Write;

use memoird_core::compaction::Summary;
use memoird_core::quote::is_hidden;
use memoird_core::turn::{MediaSource, Part, PartKind, Turn};
use memoird_engine::SessionContent;
use serde_json::Value;

use super::links;
use super::message::turns;
use crate::time;

/// Passes the document to `put`, in one piece for each turn.
pub(super) fn write_document<E>(
    ended: &SessionContent,
    put: &mut impl FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    let mut text = String::new();
    front_matter(&mut text, ended);
    let _ = write!(text, "\n# {}\n", inline(ended.session.as_str()));
    let count = turns(ended.turns.len() as u64);
    let took = time::between(ended.created_at, ended.ended_at);
    let reason = ended.reason.name();
    let _ = write!(text, "\n{count} in {took}, {reason}.\n");
    let omitted = ended.turns_omitted;
    if omitted > 0 {
        let _ = write!(text, "\n*{omitted} more are not kept here.*\n");
    }
    if let Some(summary) = &ended.summary {
        put_summary(&mut text, summary);
    }
    if ended.state.json.trim() != "{}" {
        text.push_str("\n## State\n");
        fenced(&mut text, "json", &pretty(&ended.state.json));
    }
    put(&text)?;
    let mut tools = HashMap::new();
    for (seq, turn) in &ended.turns {
        text.clear();
        section(&mut text, *seq, turn, &mut tools);
        put(&text)?;
    }
    Ok(())
}

/// The summary that replaced the oldest turns in windows. The turns are in the document as well.
fn put_summary(text: &mut String, summary: &Summary) {
    let (turns, seq) = (turns(summary.turns), summary.through_seq);
    let (by, at) = (inline(&summary.by), time::readable(summary.made_at));
    let _ = write!(
        text,
        "\n## Summary\n\n*Of {turns}, up to {seq}; by {by}, {at}.*\n"
    );
    quoted(text, &summary.text);
}

fn front_matter(text: &mut String, ended: &SessionContent) {
    let mut put = |name: &str, value: String| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{name}: {value}");
    };
    put("---\ntenant", string(ended.tenant.as_str()));
    put("session", string(ended.session.as_str()));
    put("generation", string(&ended.generation.to_string()));
    if let Some(subject) = &ended.subject {
        put("subject", string(subject.as_str()));
    }
    put("reason", string(ended.reason.name()));
    put("created_at", string(&time::rfc3339(ended.created_at)));
    put("ended_at", string(&time::rfc3339(ended.ended_at)));
    put("turns", ended.turns.len().to_string());
    if ended.turns_omitted > 0 {
        put("turns_omitted", ended.turns_omitted.to_string());
    }
    let last_seq = ended.turns.last().map_or(0, |(seq, _)| *seq);
    put("last_seq", last_seq.to_string());
    put("state_version", ended.state.version.to_string());
    text.push_str("---\n");
}

/// Formats a string as JSON without control characters, so that it is valid YAML.
///
/// `<` is escaped, so that it is not HTML for a Markdown renderer.
fn string(value: &str) -> String {
    let mut line = String::with_capacity(value.len() + 2);
    for char in Value::from(value).to_string().chars() {
        let code = u32::from(char);
        let is_unprintable = matches!(char, '<' | '\u{fffe}' | '\u{ffff}');
        if char.is_control() || is_hidden(char) || is_unprintable {
            // Longer than in JSON, as in YAML.
            let _ = if code > 0xffff {
                write!(line, "\\U{code:08x}")
            } else {
                write!(line, "\\u{code:04x}")
            };
        } else {
            line.push(char);
        }
    }
    line
}

fn section<'a>(text: &mut String, seq: u64, turn: &'a Turn, tools: &mut HashMap<&'a str, &'a str>) {
    let role = turn.role.name();
    let _ = write!(text, "\n## {seq} · {role}");
    if let Some(timestamp) = turn.timestamp {
        let _ = write!(text, " · {}", time::readable(timestamp));
    }
    text.push_str(if turn.pinned { " · pinned\n" } else { "\n" });
    for part in &turn.parts {
        put_part(text, part, tools);
    }
}

fn put_part<'a>(text: &mut String, part: &'a Part, tools: &mut HashMap<&'a str, &'a str>) {
    match &part.kind {
        PartKind::Text(input) => quoted(text, input),
        PartKind::ToolUse {
            id,
            name,
            input_json,
        } => {
            tools.insert(id, name);
            let _ = write!(text, "\n**call** {}\n", inline(name));
            fenced(text, "json", &pretty(input_json));
        }
        PartKind::ToolResult {
            tool_use_id,
            content,
            parts,
            is_error,
        } => {
            let name = tools
                .get(tool_use_id.as_str())
                .copied()
                .unwrap_or(tool_use_id);
            let what = if *is_error { "error" } else { "result" };
            let _ = write!(text, "\n**{what}** of {}\n", inline(name));
            if !content.is_empty() {
                let is_json = serde_json::from_str::<Value>(content).is_ok();
                let (kind, content) = if is_json {
                    ("json", pretty(content))
                } else {
                    ("text", content.clone())
                };
                fenced(text, kind, &content);
            }
            // Only text and media, to limit nesting.
            for part in parts {
                if matches!(part.kind, PartKind::Text(_) | PartKind::Media { .. }) {
                    put_part(text, part, tools);
                }
            }
        }
        PartKind::Media {
            media_type,
            source,
            name,
        } => media(text, media_type, source, name),
        PartKind::Thinking { redacted: true, .. } => text.push_str("\n*hidden thinking*\n"),
        PartKind::Thinking { text: thought, .. } => {
            text.push_str("\n*thinking*\n");
            quoted(text, thought);
        }
    }
}

fn media(text: &mut String, media_type: &str, source: &MediaSource, name: &str) {
    let kind = inline(if media_type.is_empty() {
        "media"
    } else {
        media_type
    });
    let gap = if name.is_empty() { "" } else { " " };
    let name = inline(name);
    let _ = match source {
        MediaSource::Data(data) => {
            write!(text, "\n\\[{kind}, {}\\]{gap}{name}\n", size(data.len()))
        }
        MediaSource::Uri(uri) if links::has_unsafe_scheme(uri) => {
            write!(text, "\n\\[{kind}\\] {}{gap}{name}\n", inline(uri))
        }
        MediaSource::Uri(uri) => write!(text, "\n[{kind}](<{}>){gap}{name}\n", target(uri)),
    };
}

/// Prefixes each line with `>`, which confines Markdown and HTML to the quote.
fn quoted(text: &mut String, input: &str) {
    text.push('\n');
    for line in links::neutralize_links(&visible(input)).lines() {
        text.push_str(if line.is_empty() { ">" } else { "> " });
        text.push_str(line);
        text.push('\n');
    }
    if input.is_empty() {
        text.push_str(">\n");
    }
}

fn fenced(text: &mut String, kind: &str, content: &str) {
    let content = visible(content);
    let longest = content.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let is_whole = content.ends_with('\n') || content.is_empty();
    let end = if is_whole { "" } else { "\n" };
    let _ = write!(text, "\n{fence}{kind}\n{content}{end}{fence}\n");
}

/// Normalizes line ends, and replaces control characters that a terminal would obey.
fn visible(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' | '\t' => shown.push(char),
            _ if is_hidden(char) => shown.extend(char.escape_default()),
            _ => shown.push(picture(char)),
        }
    }
    shown
}

/// Replaces ASCII control characters by their Unicode pictures.
fn picture(char: char) -> char {
    match char {
        '\0'..'\x20' => char::from_u32(0x2400 + u32::from(char)).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        '\u{80}'..'\u{a0}' => '\u{fffd}',
        _ => char,
    }
}

/// Escapes text for use within a line.
fn inline(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for char in text.chars() {
        if "\\`*_[]<>#&~|".contains(char) {
            line.push('\\');
        }
        if is_hidden(char) {
            // An escaped backslash is shown as one backslash.
            line.extend(['\\'].into_iter().chain(char.escape_default()));
        } else {
            line.push(picture(char));
        }
    }
    line
}

/// Escapes a link target for use in `<>`.
fn target(uri: &str) -> String {
    let escaped = uri.chars().flat_map(|char| match char {
        '<' => "%3C".chars().collect(),
        '>' => "%3E".chars().collect(),
        '\\' => "%5C".chars().collect(),
        '\n' => "%0A".chars().collect(),
        '\r' => "%0D".chars().collect(),
        '\t' => vec![char],
        _ if is_hidden(char) => percent(char),
        _ => vec![picture(char)],
    });
    escaped.collect()
}

fn percent(char: char) -> Vec<char> {
    let mut buffer = [0; 4];
    let bytes = char.encode_utf8(&mut buffer).bytes();
    bytes
        .flat_map(|byte| format!("%{byte:02X}").chars().collect::<Vec<_>>())
        .collect()
}

fn pretty(json: &str) -> String {
    let parsed = serde_json::from_str::<Value>(json).ok();
    let printed = parsed.and_then(|value| serde_json::to_string_pretty(&value).ok());
    printed.unwrap_or_else(|| json.to_owned())
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{} KiB", bytes.div_ceil(1_024)),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
