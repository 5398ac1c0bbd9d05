//! The cheapest way to make room: results that are old or very long, in other words. Ids
//! and pairs stay, and so do the stored turns.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::history::TurnRecord;
use crate::mark::Mark;
use crate::turn::{Part, PartKind, Turn};

use super::content;
use super::cut::{Cut, How, Reduced, Shown, WHOLE};
use super::items::Composer;
use super::{Ask, trim, words};

/// A result that takes no more than a few lines is not worth replacing.
const RESULT_TOKENS_MIN: u32 = 64;

/// A call: the tool's name, and its arguments in one order.
type Call = (String, String);

/// A result of a window, and the call that it answers.
struct Answer {
    seq: u64,
    place: usize,
    call: Call,
    id: String,
    is_error: bool,
}

/// Decides which results are shown in other words, beside those that were decided before.
/// Held turns, and the `unit` that is said now, stay as they are.
pub(super) fn reduce(composer: &Composer<'_>, made: &mut Cut, unit: &[u64], ask: &Ask<'_>) {
    let settings = ask.settings;
    let tail = composer.view.tail_from(made.seq);
    let tied = tail.filter(|record| !record.stands_alone() && !made.leaves_out(record.seq));
    let turns: Vec<(&TurnRecord, Turn)> = tied
        .filter_map(|record| Some((record, (ask.codec.open)(&record.content)?)))
        .collect();
    let may_change = |seq: u64| {
        let record = composer.view.record(seq);
        !unit.contains(&seq) && record.is_some_and(|record| !composer.view.is_kept(record))
    };
    let mut decided: BTreeMap<u64, Vec<(usize, How)>> = BTreeMap::new();
    if settings.trim_over_tokens > 0 {
        for (record, turn) in turns.iter().filter(|(record, _)| may_change(record.seq)) {
            for (place, how) in long_results(composer, record, turn, ask) {
                decided.entry(record.seq).or_default().push((place, how));
            }
        }
    }
    if settings.supersede {
        let counts = composer.counts;
        let is_small = |seq| {
            counts
                .get(seq)
                .is_some_and(|tokens| tokens < RESULT_TOKENS_MIN)
        };
        for (answer, by) in superseded(&turns) {
            if may_change(answer.seq) && !is_small(answer.seq) {
                let results = decided.entry(answer.seq).or_default();
                results.retain(|(place, _)| *place != answer.place);
                results.push((answer.place, How::Superseded { by: by.into() }));
            }
        }
    }
    for (seq, mut results) in decided {
        let Some((record, _)) = turns.iter().find(|(record, _)| record.seq == seq) else {
            continue;
        };
        let earlier = made.reduced.get(&seq);
        for (place, how) in earlier.iter().flat_map(|reduced| &reduced.results) {
            let now = results.iter().find(|(decided, _)| decided == place);
            let is_old = now.is_some_and(|(_, how)| matches!(how, How::Superseded { .. }));
            if !is_old || matches!(how, How::Superseded { .. }) {
                results.retain(|(decided, _)| decided != place);
                results.push((*place, how.clone()));
            }
        }
        results.sort_by_key(|(place, _)| *place);
        let shown = show(record, &results, ask);
        let shown = shown.filter(|shown| shown.tokens < composer.tokens(record));
        if shown.is_some() {
            made.reduced.insert(seq, Reduced { results, shown });
        }
    }
}

/// Bytes that a turn says, in words, calls and results.
pub(super) fn text_bytes(record: &TurnRecord, ask: &Ask<'_>) -> u64 {
    let bytes = |part: &Part| match &part.kind {
        PartKind::Text(text) | PartKind::Thinking { text, .. } => text.len(),
        PartKind::ToolUse { input_json, .. } => input_json.len(),
        PartKind::ToolResult { content, parts, .. } => content.len() + inner_bytes(parts),
        PartKind::Media { .. } => 0,
    };
    let turn = (ask.codec.open)(&record.content);
    turn.map_or(0, |turn| turn.parts.iter().map(bytes).sum::<usize>() as u64)
}

/// Of the tokens of a turn those of what it says: a shorter one does not show its media.
pub(super) fn text_tokens(record: &TurnRecord, tokens: u64, ask: &Ask<'_>) -> u64 {
    let is_media = |part: &Part| matches!(part.kind, PartKind::Media { .. });
    let has_media = |part: &Part| match &part.kind {
        PartKind::ToolResult { parts, .. } => parts.iter().any(is_media),
        _ => is_media(part),
    };
    let turn = (ask.codec.open)(&record.content);
    if !turn.is_some_and(|turn| turn.parts.iter().any(has_media)) {
        return tokens;
    }
    let all = How::Trimmed {
        head_bytes: u32::MAX,
        tail_bytes: u32::MAX,
    };
    let shown = show(record, &[(WHOLE, all)], ask);
    shown.map_or(tokens, |shown| shown.tokens)
}

/// Shows the results of a turn with at most about so many tokens each, or where it `is_whole` all
/// that it says. Gives the tokens that this saves.
pub(super) fn shrink(
    composer: &Composer<'_>,
    made: &mut Cut,
    record: &TurnRecord,
    size: u32,
    is_whole: bool,
    ask: &Ask<'_>,
) -> u64 {
    let tokens = composer.tokens(record);
    let before = made.reduced_turn(record.seq);
    let before = before.map_or(tokens, |shown| shown.tokens);
    if before <= size.into() {
        return 0;
    }
    let said = text_tokens(record, tokens, ask);
    let bytes = text_bytes(record, ask) * u64::from(size) / said.max(1);
    let parts = if is_whole {
        1
    } else {
        record.answers().len().max(1)
    };
    let bytes = u32::try_from(bytes / parts as u64).unwrap_or(u32::MAX);
    let how = How::Trimmed {
        head_bytes: bytes / 3 * 2,
        tail_bytes: bytes / 3,
    };
    let earlier = made.reduced.get(&record.seq);
    let superseded = earlier.iter().flat_map(|reduced| &reduced.results);
    let mut results: Vec<(usize, How)> = superseded
        .filter(|(_, how)| matches!(how, How::Superseded { .. }))
        .cloned()
        .collect();
    if is_whole {
        results.push((WHOLE, how));
    } else {
        for place in 0..record.answers().len() {
            if !results.iter().any(|(known, _)| *known == place) {
                results.push((place, how.clone()));
            }
        }
    }
    results.sort_by_key(|(place, _)| *place);
    let shown = show(record, &results, ask).filter(|shown| shown.tokens < before);
    let Some(shown) = shown else { return 0 };
    let saved = before - shown.tokens;
    let shown = Some(shown);
    made.reduced.insert(record.seq, Reduced { results, shown });
    saved
}

/// A turn with its results trimmed or superseded.
pub(super) fn show(record: &TurnRecord, results: &[(usize, How)], ask: &Ask<'_>) -> Option<Shown> {
    let turn = content::said(record, ask)?;
    Some(shown(reworded(turn, results, ask.mark), record.seq, ask))
}

/// An excerpt of a turn, with about `bytes` bytes of its text.
pub(super) fn excerpt(record: &TurnRecord, bytes: u32, ask: &Ask<'_>) -> Option<Shown> {
    let mut turn = content::said(record, ask)?;
    let is_text = |part: &&Part| matches!(part.kind, PartKind::Text(_));
    let each = bytes as usize / turn.parts.iter().filter(is_text).count().max(1);
    for part in &mut turn.parts {
        shorten(part, each * 2 / 3, each / 3, ask.mark);
    }
    Some(shown(words::labelled(turn, "excerpt"), record.seq, ask))
}

fn shown(turn: Turn, seq: u64, ask: &Ask<'_>) -> Shown {
    let tokens = (ask.weigh)(&turn).max(1);
    Shown {
        content: (ask.codec.seal)(turn, seq),
        tokens,
    }
}

/// Results whose call was made again later, with the id of that later call.
fn superseded(turns: &[(&TurnRecord, Turn)]) -> Vec<(Answer, String)> {
    let mut calls: BTreeMap<(u64, &str), Call> = BTreeMap::new();
    let mut answers: Vec<Answer> = Vec::new();
    for (record, turn) in turns {
        let mut place = 0;
        for part in &turn.parts {
            match &part.kind {
                PartKind::ToolUse {
                    id,
                    name,
                    input_json,
                } => {
                    calls.insert((record.seq, id), (name.clone(), in_order(input_json)));
                }
                PartKind::ToolResult {
                    tool_use_id,
                    is_error,
                    ..
                } => {
                    let of = record.answers().get(place).copied().unwrap_or(0);
                    let call = calls.get(&(of, tool_use_id.as_str()));
                    if let Some(call) = call.filter(|_| !says_nothing(part)) {
                        answers.push(Answer {
                            seq: record.seq,
                            place,
                            call: call.clone(),
                            id: tool_use_id.clone(),
                            is_error: *is_error,
                        });
                    }
                    place += 1;
                }
                PartKind::Text(_) | PartKind::Media { .. } | PartKind::Thinking { .. } => {}
            }
        }
    }
    let mut newest: BTreeMap<Call, String> = BTreeMap::new();
    let mut old = Vec::new();
    for answer in answers.into_iter().rev() {
        match newest.get(&answer.call) {
            Some(by) => old.push((by.clone(), answer)),
            // A failure does not make an earlier answer old.
            None if answer.is_error => {}
            None => drop(newest.insert(answer.call, answer.id)),
        }
    }
    old.into_iter().map(|(by, answer)| (answer, by)).collect()
}

/// Arguments as a value with its fields in one order; text that is no JSON as it is.
fn in_order(json: &str) -> String {
    match serde_json::from_str::<Value>(json) {
        Ok(mut value) => {
            value.sort_all_objects();
            value.to_string()
        }
        Err(_) => json.to_owned(),
    }
}

/// The results of a turn that are too long, and how each is shown.
fn long_results(
    composer: &Composer<'_>,
    record: &TurnRecord,
    turn: &Turn,
    ask: &Ask<'_>,
) -> Vec<(usize, How)> {
    let settings = ask.settings;
    let tokens = composer.tokens(record);
    if tokens <= settings.trim_over_tokens.into() {
        return Vec::new();
    }
    let results = turn.parts.iter().filter_map(|part| match &part.kind {
        PartKind::ToolResult { content, parts, .. } => Some(content.len() + inner_bytes(parts)),
        _ => None,
    });
    let sizes: Vec<usize> = results.collect();
    let bytes: usize = sizes.iter().sum();
    // So many bytes are a token here.
    let bytes_of = |part: u32| {
        u32::try_from(u64::from(part) * bytes as u64 / tokens.max(1)).unwrap_or(u32::MAX)
    };
    let how = How::Trimmed {
        head_bytes: bytes_of(settings.trim_head_tokens),
        tail_bytes: bytes_of(settings.trim_tail_tokens),
    };
    let over = bytes_of(settings.trim_over_tokens) as usize;
    let long = sizes
        .into_iter()
        .enumerate()
        .filter(|(_, size)| *size > over);
    long.map(|(place, _)| (place, how.clone())).collect()
}

/// True for a result that says nothing here: there is nothing to shorten, and where it is an object
/// of its provider's that is kept whole, that is given back whatever stands beside it.
fn says_nothing(part: &Part) -> bool {
    matches!(&part.kind, PartKind::ToolResult { content, parts, .. }
        if content.is_empty() && parts.is_empty())
}

/// True for an object of its provider's that has no words of its own.
fn is_opaque(part: &Part) -> bool {
    matches!(&part.kind, PartKind::Text(text) if text.is_empty() && !part.extra_json.is_empty())
}

fn inner_bytes(parts: &[Part]) -> usize {
    let bytes = parts.iter().map(|part| match &part.kind {
        PartKind::Text(text) => text.len(),
        // An image or a document is something, also where its provider's object says nothing.
        _ => part.extra_json.len().max(1),
    });
    bytes.sum()
}

/// A turn with some of its results in other words.
fn reworded(mut turn: Turn, results: &[(usize, How)], mark: Mark) -> Turn {
    let is_old = |(_, how): &(usize, How)| matches!(how, How::Superseded { .. });
    let is_old = results.iter().any(is_old);
    let whole = results.iter().find(|(place, _)| *place == WHOLE);
    let whole = whole.map(|(_, how)| how);
    let mut place = 0;
    for part in &mut turn.parts {
        let is_opaque = is_opaque(part);
        let PartKind::ToolResult { content, parts, .. } = &mut part.kind else {
            if let Some(How::Trimmed {
                head_bytes,
                tail_bytes,
            }) = whole.filter(|_| !is_opaque)
            {
                shorten(part, *head_bytes as usize, *tail_bytes as usize, mark);
            }
            continue;
        };
        let how = results.iter().find(|(at, _)| *at == place);
        if let Some(how) = how.map(|(_, how)| how).or(whole) {
            reword(content, parts, how, mark);
        }
        place += 1;
    }
    let label = match (whole.is_some(), is_old) {
        (true, _) => "excerpt",
        (false, true) => "superseded",
        (false, false) => "trimmed",
    };
    words::labelled(turn, label)
}

/// A result that was rich stays rich: its provider's fields say so.
fn reword(content: &mut String, parts: &mut Vec<Part>, how: &How, mark: Mark) {
    match how {
        How::Superseded { by } if parts.is_empty() => *content = words::superseded(by, mark),
        How::Superseded { by } => *parts = vec![PartKind::Text(words::superseded(by, mark)).into()],
        How::Trimmed {
            head_bytes,
            tail_bytes,
        } => {
            let (head, tail) = (*head_bytes as usize, *tail_bytes as usize);
            *content = trim::trim(content, head, tail, mark);
            let each = parts.len().max(1);
            for part in parts {
                shorten(part, head / each, tail / each, mark);
            }
        }
    }
}

/// Text by its head and tail, a call's arguments as smaller JSON, media by a line; other parts as
/// they are.
fn shorten(part: &mut Part, head: usize, tail: usize, mark: Mark) {
    let is_opaque = is_opaque(part);
    let media_type = match &mut part.kind {
        PartKind::Text(_) if is_opaque => "",
        PartKind::Text(text) => {
            *text = trim::trim(text, head, tail, mark);
            return;
        }
        PartKind::ToolUse { input_json, .. } => {
            *input_json = trim::trim_arguments(input_json, head + tail, mark);
            return;
        }
        PartKind::Media { media_type, .. } => media_type,
        _ => return,
    };
    *part = PartKind::Text(words::media_left_out(media_type, mark)).into();
}
