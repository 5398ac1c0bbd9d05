//! Shortening turns: their results, or all of a turn without results.
//!
//! Ids and pairs of calls and results stay, and the stored turns do not change.

use crate::history::TurnRecord;
use crate::nonce::Nonce;
use crate::turn::{Part, PartKind, Turn};

use super::content;
use super::cut::{Cut, ReducedTurn, ShownTurn};
use super::input::WindowInput;
use super::items::Composer;
use super::{trim, words};

/// Shortens a turn to about `bytes` bytes: its results, or the whole turn if it has none.
///
/// Returns the resulting size in tokens, which is never larger than before.
pub(super) fn trim(
    composer: &Composer<'_>,
    made: &mut Cut,
    record: &TurnRecord,
    bytes: usize,
    input: &WindowInput<'_>,
) -> u64 {
    let results = record.answers().len();
    let bytes = u32::try_from(bytes / results.max(1)).unwrap_or(u32::MAX);
    let shown = show(record, bytes, input);
    match shown.filter(|shown| shown.tokens < composer.tokens(record)) {
        Some(shown) => {
            let reduced = ReducedTurn {
                results,
                bytes,
                shown: Some(shown),
            };
            made.reduced.insert(record.seq, reduced);
        }
        None => drop(made.reduced.remove(&record.seq)),
    }
    composer.shown_tokens(made, record)
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

fn inner_bytes(parts: &[Part]) -> usize {
    let bytes = parts.iter().map(|part| match &part.kind {
        PartKind::Text(text) => text.len(),
        // Media count as content even if the provider object has no text.
        _ => part.extra_json.len().max(1),
    });
    bytes.sum()
}

/// The turn with results of about `bytes` bytes each, or as an excerpt of that size without any.
pub(super) fn show(record: &TurnRecord, bytes: u32, input: &WindowInput<'_>) -> Option<ShownTurn> {
    let turn = content::said(record, input)?;
    let is_excerpt = record.answers().is_empty();
    let turn = shortened(turn, is_excerpt, bytes as usize, input.nonce);
    let tokens = (input.weigh)(&turn).max(1);
    Some(ShownTurn {
        content: (input.codec.seal)(turn, record.seq),
        tokens,
    })
}

/// Whether the part is a provider object without text of its own.
fn is_opaque(part: &Part) -> bool {
    matches!(&part.kind, PartKind::Text(text) if text.is_empty() && !part.extra_json.is_empty())
}

/// Shortens the results of a turn, of an excerpt also the other parts, and labels the turn.
fn shortened(mut turn: Turn, is_excerpt: bool, bytes: usize, nonce: Nonce) -> Turn {
    let has_text = |part: &&Part| {
        matches!(part.kind, PartKind::Text(_) | PartKind::ToolUse { .. }) && !is_opaque(part)
    };
    let texts = turn.parts.iter().filter(has_text).count();
    for part in &mut turn.parts {
        if let PartKind::ToolResult { content, parts, .. } = &mut part.kind {
            shorten_result(content, parts, bytes, nonce);
        } else if is_excerpt && !is_opaque(part) {
            shorten(part, bytes / texts.max(1), nonce);
        }
    }
    turn.labelled(if is_excerpt { "excerpt" } else { "trimmed" })
}

/// Shortens a result. A rich result stays rich, because its provider's fields require it.
fn shorten_result(content: &mut String, parts: &mut [Part], bytes: usize, nonce: Nonce) {
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
