//! Shortening turns: superseded and long results, or all of a turn without results.
//!
//! Ids and pairs of calls and results stay, and the stored turns do not change.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::history::TurnRecord;
use crate::nonce::Nonce;
use crate::turn::{Part, PartKind, Turn};

use super::content;
use super::cut::{Cut, ReducedTurn, Shortening, ShownTurn, WHOLE};
use super::input::WindowInput;
use super::items::Composer;
use super::{trim, words};

/// Minimum tokens of a result that is worth replacing.
const RESULT_TOKENS_MIN: u32 = 64;

/// A call: the tool's name, and its arguments with sorted fields.
type Call = (String, String);

/// A result of a window with its call.
struct CallOutput {
    seq: u64,
    place: usize,
    call: Call,
    id: String,
    is_error: bool,
}

/// Marks results as superseded if a later call has the same tool and arguments.
pub(super) fn supersede(
    composer: &Composer<'_>,
    made: &mut Cut,
    unit: &[u64],
    input: &WindowInput<'_>,
) {
    let tail = composer.view.tail_from(made.seq);
    let tied = tail.filter(|record| !record.stands_alone() && !made.leaves_out(record.seq));
    let turns: Vec<(&TurnRecord, Turn)> = tied
        .filter_map(|record| Some((record, (input.codec.open)(&record.content)?)))
        .collect();
    let mut decided: BTreeMap<u64, Vec<(usize, Shortening)>> = BTreeMap::new();
    for (answer, by) in superseded(&turns) {
        let record = composer.view.record(answer.seq);
        let may_change = record.is_some_and(|record| !composer.view.is_kept(record));
        let is_small = (composer.counts.get(answer.seq)).is_some_and(|it| it < RESULT_TOKENS_MIN);
        if may_change && !is_small && !unit.contains(&answer.seq) {
            let how = Shortening::Superseded { by: by.into() };
            decided
                .entry(answer.seq)
                .or_default()
                .push((answer.place, how));
        }
    }
    for (seq, mut results) in decided {
        let Some(record) = composer.view.record(seq) else {
            continue;
        };
        results.sort_by_key(|(place, _)| *place);
        set(composer, made, record, results, input);
    }
}

/// Shortens a turn to about `bytes` bytes: its results, or the whole turn if it has none.
///
/// Superseded results do not change. Returns the resulting size in tokens, which is never larger
/// than before.
pub(super) fn trim(
    composer: &Composer<'_>,
    made: &mut Cut,
    record: &TurnRecord,
    bytes: usize,
    input: &WindowInput<'_>,
) -> u64 {
    let places = record.answers().len();
    let each = u32::try_from(bytes / places.max(1)).unwrap_or(u32::MAX);
    let how = Shortening::Trimmed { bytes: each };
    let earlier = made.reduced.get(&record.seq);
    let superseded = earlier.iter().flat_map(|reduced| &reduced.results);
    let mut results: Vec<(usize, Shortening)> = superseded
        .filter(|(_, how)| matches!(how, Shortening::Superseded { .. }))
        .cloned()
        .collect();
    if places == 0 {
        results.push((WHOLE, how));
    } else {
        for place in 0..places {
            if !results.iter().any(|(known, _)| *known == place) {
                results.push((place, how.clone()));
            }
        }
    }
    results.sort_by_key(|(place, _)| *place);
    set(composer, made, record, results, input);
    composer.shown_tokens(made, record)
}

/// Uses the shortened turn if it is shorter than the whole turn.
fn set(
    composer: &Composer<'_>,
    made: &mut Cut,
    record: &TurnRecord,
    results: Vec<(usize, Shortening)>,
    input: &WindowInput<'_>,
) {
    let shown = show(record, &results, input);
    match shown.filter(|shown| shown.tokens < composer.tokens(record)) {
        Some(shown) => {
            let shown = Some(shown);
            made.reduced
                .insert(record.seq, ReducedTurn { results, shown });
        }
        None => drop(made.reduced.remove(&record.seq)),
    }
}

/// Bytes of the text, calls and results of a turn.
pub(super) fn text_bytes(record: &TurnRecord, input: &WindowInput<'_>) -> usize {
    let bytes = |part: &Part| match &part.kind {
        PartKind::Text(text) | PartKind::Thinking { text, .. } => text.len(),
        PartKind::ToolUse { input_json, .. } => input_json.len(),
        PartKind::ToolResult { content, parts, .. } => content.len() + inner_bytes(parts),
        PartKind::Media { .. } => 0,
    };
    let turn = (input.codec.open)(&record.content);
    turn.map_or(0, |turn| turn.parts.iter().map(bytes).sum())
}

pub(super) fn show(
    record: &TurnRecord,
    results: &[(usize, Shortening)],
    input: &WindowInput<'_>,
) -> Option<ShownTurn> {
    let turn = content::said(record, input)?;
    Some(shown(
        reworded(turn, results, input.nonce),
        record.seq,
        input,
    ))
}

fn shown(turn: Turn, seq: u64, input: &WindowInput<'_>) -> ShownTurn {
    let tokens = (input.weigh)(&turn).max(1);
    ShownTurn {
        content: (input.codec.seal)(turn, seq),
        tokens,
    }
}

/// Finds results of calls that were repeated later. Returns them with the id of the later call.
fn superseded(turns: &[(&TurnRecord, Turn)]) -> Vec<(CallOutput, String)> {
    let mut calls: BTreeMap<(u64, &str), Call> = BTreeMap::new();
    let mut answers: Vec<CallOutput> = Vec::new();
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
                        answers.push(CallOutput {
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
            // A failure does not supersede an earlier result.
            None if answer.is_error => {}
            None => drop(newest.insert(answer.call, answer.id)),
        }
    }
    old.into_iter().map(|(by, answer)| (answer, by)).collect()
}

/// Normalizes JSON by sorting its fields. Returns other text unchanged.
fn in_order(json: &str) -> String {
    match serde_json::from_str::<Value>(json) {
        Ok(mut value) => {
            value.sort_all_objects();
            value.to_string()
        }
        Err(_) => json.to_owned(),
    }
}

/// Whether a result has no content here.
///
/// There is nothing to shorten, and a provider object stored as a whole is sent back unchanged.
fn says_nothing(part: &Part) -> bool {
    matches!(&part.kind, PartKind::ToolResult { content, parts, .. }
        if content.is_empty() && parts.is_empty())
}

/// Whether the part is a provider object without text of its own.
fn is_opaque(part: &Part) -> bool {
    matches!(&part.kind, PartKind::Text(text) if text.is_empty() && !part.extra_json.is_empty())
}

fn inner_bytes(parts: &[Part]) -> usize {
    let bytes = parts.iter().map(|part| match &part.kind {
        PartKind::Text(text) => text.len(),
        // Media count as content even if the provider object has no text.
        _ => part.extra_json.len().max(1),
    });
    bytes.sum()
}

/// Shortens some results of a turn, and labels the turn.
fn reworded(mut turn: Turn, results: &[(usize, Shortening)], nonce: Nonce) -> Turn {
    let is_old = results
        .iter()
        .any(|(_, how): &(usize, Shortening)| matches!(how, Shortening::Superseded { .. }));
    let whole = results
        .iter()
        .find(|(place, _)| *place == WHOLE)
        .map(|(_, how)| how);
    let has_text = |part: &&Part| {
        matches!(part.kind, PartKind::Text(_) | PartKind::ToolUse { .. }) && !is_opaque(part)
    };
    let texts = turn.parts.iter().filter(has_text).count();
    let mut place = 0;
    for part in &mut turn.parts {
        let is_opaque = is_opaque(part);
        let PartKind::ToolResult { content, parts, .. } = &mut part.kind else {
            if let Some(Shortening::Trimmed { bytes }) = whole.filter(|_| !is_opaque) {
                shorten(part, *bytes as usize / texts.max(1), nonce);
            }
            continue;
        };
        let how = results.iter().find(|(at, _)| *at == place);
        if let Some(how) = how.map(|(_, how)| how).or(whole) {
            reword(content, parts, how, nonce);
        }
        place += 1;
    }
    let label = match (whole.is_some(), is_old) {
        (true, _) => "excerpt",
        (false, true) => "superseded",
        (false, false) => "trimmed",
    };
    turn.labelled(label)
}

/// Shortens a result. A rich result stays rich, because its provider's fields require it.
fn reword(content: &mut String, parts: &mut Vec<Part>, how: &Shortening, nonce: Nonce) {
    match how {
        Shortening::Superseded { by } if parts.is_empty() => {
            *content = words::superseded(by, nonce);
        }
        Shortening::Superseded { by } => {
            *parts = vec![PartKind::Text(words::superseded(by, nonce)).into()];
        }
        Shortening::Trimmed { bytes } => {
            let bytes = *bytes as usize;
            *content = trim::result(content, bytes, nonce);
            let texts = parts
                .iter()
                .filter(|part| matches!(part.kind, PartKind::Text(_)));
            let each = bytes / texts.count().max(1);
            for part in parts {
                match &mut part.kind {
                    PartKind::Text(text) => *text = trim::result(text, each, nonce),
                    _ => shorten(part, each, nonce),
                }
            }
        }
    }
}

/// Shortens a part: text to its head and tail, arguments to shorter JSON, media to a marker.
///
/// Other parts stay unchanged.
fn shorten(part: &mut Part, bytes: usize, nonce: Nonce) {
    let is_opaque = is_opaque(part);
    let media_type = match &mut part.kind {
        PartKind::Text(_) if is_opaque => "",
        PartKind::Text(text) => {
            *text = trim::said(text, bytes, nonce);
            return;
        }
        PartKind::ToolUse { input_json, .. } => {
            *input_json = trim::arguments(input_json, bytes, nonce);
            return;
        }
        PartKind::Media { media_type, .. } => media_type,
        _ => return,
    };
    *part = PartKind::Text(words::media_left_out(media_type, nonce)).into();
}
