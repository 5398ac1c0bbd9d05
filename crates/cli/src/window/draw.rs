//! Text output of a window: the bar, its turns, what is omitted and why.

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::window_policy::Policy;
use memoird_proto::v1::{BuildContextResponse, ContextReport, Omission, OmissionReason, Turn};

use super::bar;
use crate::json::short_name;
use crate::{compaction, output, transcript};

/// Metadata key of turns that memoird inserted or shortened.
const MARK: &str = "memoird";
/// Value of [`MARK`] for a summary.
const SUMMARY: &str = "summary";
/// Maximum lines of a summary, and characters of each.
const SUMMARY_LINES_MAX: usize = 6;
const LINE_CHARS_MAX: usize = 78;
/// Width if the terminal reports none, or one too small for text.
const WIDTH: u16 = 80;
const WIDTH_MIN: u16 = 40;
/// Maximum characters of a turn.
const TEXT_CHARS_MAX: usize = 400;
/// Maximum ranges of turns in a line.
const RANGES_MAX: usize = 6;
/// Maximum characters of a note from the daemon.
const NOTE_CHARS_MAX: usize = 400;

pub(super) fn window(window: &BuildContextResponse, has_colours: bool) -> String {
    let report = window.report.clone().unwrap_or_default();
    let session = window.session.clone().unwrap_or_default();
    let mut lines = vec![
        format!(
            "{}, {}, {}\n",
            output::one_line(&session.session_id, 40),
            output::printable(&report.model),
            policy(&report)
        ),
        bar::lines(&report, has_colours).join("\n"),
        String::new(),
        turns(&window.turns, &report),
        String::new(),
    ];
    let summary = summary(window, &report);
    if !summary.is_empty() {
        lines.extend(summary);
        lines.push(String::new());
    }
    let omitted = omitted(&report.omissions);
    if !omitted.is_empty() {
        lines.extend(omitted);
        lines.push(String::new());
    }
    lines.extend(facts(window, &report));
    lines.join("\n")
}

fn policy(report: &ContextReport) -> &'static str {
    match report.policy.and_then(|policy| policy.policy) {
        Some(Policy::SlidingWindow(_)) => "sliding_window",
        Some(Policy::HeadTail(_)) => "head_tail",
        Some(Policy::TokenBudget(_)) => "token_budget",
        Some(Policy::Salience(_)) => "salience",
        None => "unknown policy",
    }
}

/// Formats the turns as lines: seq, role, tokens, text.
fn turns(turns: &[Turn], report: &ContextReport) -> String {
    let row = |(place, turn): (usize, &Turn)| {
        let tokens = report.turn_tokens.get(place).copied().unwrap_or(0);
        [
            // A turn inserted by memoird has no seq.
            match turn.seq {
                0 => "-".to_owned(),
                seq => seq.to_string(),
            },
            short_name("Role", turn.role),
            output::count(tokens),
            marked(turn),
        ]
    };
    let header = ["SEQ", "ROLE", "TOKENS", "TEXT"];
    let width = output::terminal_width().filter(|width| *width >= WIDTH_MIN);
    let rows = turns.iter().enumerate().map(row);
    output::table(&header, rows, &[2], Some(width.unwrap_or(WIDTH)))
}

/// Formats the text of a turn, prefixed with how memoird changed it.
fn marked(turn: &Turn) -> String {
    let line = transcript::one_line(turn);
    let text = match turn.metadata.get(MARK) {
        None => line,
        Some(mark) => format!("[{}] {line}", output::one_line(mark, 20)),
    };
    output::shorten(&text, TEXT_CHARS_MAX)
}

/// Describes the summary: the turns it covers, and its beginning.
fn summary(window: &BuildContextResponse, report: &ContextReport) -> Vec<String> {
    let Some(info) = &report.summary else {
        return Vec::new();
    };
    // Its tokens are listed with the other blocks.
    let stands_for = compaction::stands_for(info);
    let head = format!("summary        {stands_for}");
    let mut lines = vec![output::shorten(&head, WIDTH.into())];
    let is_summary = |turn: &&Turn| turn.metadata.get(MARK).is_some_and(|mark| mark == SUMMARY);
    let turn = window.turns.iter().find(is_summary);
    let part = turn.and_then(|turn| turn.parts.first());
    if let Some(Kind::Text(text)) = part.and_then(|part| part.part.as_ref()) {
        let mut rest = compaction::text_lines(text);
        let shown = rest.by_ref().take(SUMMARY_LINES_MAX);
        lines.extend(shown.map(|line| format!("  {}", output::shorten(&line, LINE_CHARS_MAX))));
        match rest.count() {
            0 => {}
            more => lines.push(format!("  … and {more} more lines (memoird sessions show)")),
        }
    }
    lines
}

/// Formats one line per reason, in order of occurrence.
fn omitted(omissions: &[Omission]) -> Vec<String> {
    let mut reasons: Vec<i32> = Vec::new();
    for omission in omissions {
        if !reasons.contains(&omission.reason) {
            reasons.push(omission.reason);
        }
    }
    let line = |reason: i32| {
        let of_reason = omissions.iter();
        let ranges = merged(of_reason.filter(|omission| omission.reason == reason));
        let length = |(first, last): &(u64, u64)| last.saturating_add(1).saturating_sub(*first);
        let count: u64 = ranges.iter().map(length).sum();
        let turns = output::counted(count, "turn", "turns");
        let why = why(OmissionReason::try_from(reason).unwrap_or_default());
        format!("{turns} {why}: {}", named(&ranges))
    };
    reasons.into_iter().map(line).collect()
}

fn why(reason: OmissionReason) -> &'static str {
    match reason {
        OmissionReason::Unspecified => "not as said",
        OmissionReason::Dropped => "dropped from the history",
        OmissionReason::Cut => "before the cut",
        OmissionReason::Salience => "left out as least important",
        OmissionReason::Superseded => "superseded by a newer result",
        OmissionReason::Trimmed => "trimmed to head and tail",
        OmissionReason::Summarized => "summarized",
        OmissionReason::Excerpt => "shown as an excerpt",
    }
}

/// Merges ranges of turns that overlap or touch, in ascending order.
fn merged<'a>(omissions: impl Iterator<Item = &'a Omission>) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = omissions
        .map(|omission| (omission.first_seq, omission.last_seq))
        .collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

fn named(ranges: &[(u64, u64)]) -> String {
    let name = |(first, last): &(u64, u64)| {
        if first == last {
            format!("{first}")
        } else {
            format!("{first}-{last}")
        }
    };
    let names: Vec<String> = ranges.iter().take(RANGES_MAX).map(name).collect();
    match ranges.len().saturating_sub(RANGES_MAX) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// Describes the next cut.
fn next_cut(report: &ContextReport) -> Vec<String> {
    let Some(next) = &report.next_cut else {
        return Vec::new();
    };
    let at = output::count(next.at_tokens);
    let when = match next.in_turns {
        Some(turns) => format!(", in about {}", output::counted(turns, "turn", "turns")),
        None => String::new(),
    };
    let mut lines = vec![format!("next cut       above {at} tokens{when}")];
    let left = output::count(next.tokens_after);
    if next.omissions.is_empty() {
        return lines;
    }
    lines.push(format!("  now it would leave {left} tokens:"));
    if next.summary_ready {
        lines.push("  a summary is ready".to_owned());
    }
    lines.extend(
        omitted(&next.omissions)
            .into_iter()
            .map(|line| format!("  {line}")),
    );
    lines
}

/// Formats the remaining facts of the report.
fn facts(window: &BuildContextResponse, report: &ContextReport) -> Vec<String> {
    let share = report.stable_prefix_tokens as f64 * 100.0 / report.tokens_total.max(1) as f64;
    let included = output::count(report.turns_included.into());
    let omitted = output::count(report.turns_omitted.into());
    let stable = output::count(report.stable_prefix_tokens);
    let total = output::count(report.tokens_total);
    let factor = output::figure(report.token_factor, 3);
    let margin = output::figure(report.token_margin * 100.0, 0);
    let mut facts = vec![
        format!("turns          {included} in the window, {omitted} not"),
        format!("stable prefix  {stable} of {total} tokens ({share:.0} %)"),
        format!("counts         times {factor}, may be off by {margin} %"),
    ];
    if !report.cache_breakpoints.is_empty() {
        facts.push(format!("cache          {}", breakpoints(window, report)));
    }
    facts.extend(next_cut(report));
    let system = report.tokens_by_block.unwrap_or_default().system;
    if system == 0 {
        let note = "system prompt and tools come with the bot's own calls";
        facts.push(format!("note           {note}"));
    }
    let head = if report.degraded { "degraded" } else { "note" };
    for note in &report.notes {
        let note = output::one_line(note, NOTE_CHARS_MAX);
        facts.push(format!("{head:<15}{note}"));
    }
    facts
}

/// Describes the cache breakpoints, by message or else by turn.
fn breakpoints(window: &BuildContextResponse, report: &ContextReport) -> String {
    let has_messages = !window.messages_json.is_empty();
    let name = |place: &u32| match window.turns.get(*place as usize) {
        Some(turn) if !has_messages && turn.seq > 0 => turn.seq.to_string(),
        _ => place.to_string(),
    };
    let places: Vec<String> = report.cache_breakpoints.iter().map(name).collect();
    let what = if has_messages { "messages" } else { "turns" };
    format!("may break after {what} {}", places.join(", "))
}

#[cfg(test)]
mod tests;
