//! Limits the images of a request.
//!
//! A note replaces each image that exceeds the limits of the provider. The newest images are kept.

use std::borrow::Cow;

use memoird_core::nonce::Nonce;
use memoird_core::turn::{MessageFormat, Part, PartKind, Role, Turn};

use super::extra::Extra;
use super::media::{Kind, Media, Source};
use crate::model::ImageLimits;
use crate::tokens::image_side_px;

/// Divisor of the limit: images are removed in steps of one fifth of it.
///
/// So the provider's cache breaks only once for several new images.
const STEPS: usize = 5;

/// Position of an image: its turn, its part, and its part within a result.
type ImagePosition = (usize, usize, Option<usize>);

pub(super) fn limited<'a>(
    format: MessageFormat,
    mut turns: Cow<'a, [Turn]>,
    limits: &ImageLimits,
    nonce: Nonce,
) -> Cow<'a, [Turn]> {
    let out = beyond(&images(format, &turns, limits), limits);
    if out.is_empty() {
        return turns;
    }
    let text = format!("[memoird {nonce}: an image is left out here]");
    let note = Part::from(PartKind::Text(text));
    let shown = turns.to_mut();
    for (turn, part, inner) in out {
        let part = &mut shown[turn].parts[part];
        match (&mut part.kind, inner) {
            (PartKind::ToolResult { parts, .. }, Some(inner)) => parts[inner] = note.clone(),
            _ => *part = note.clone(),
        }
    }
    turns
}

/// Returns the images of the request, oldest first, with their longer side in pixels; 0 if unknown.
fn images(
    format: MessageFormat,
    turns: &[Turn],
    limits: &ImageLimits,
) -> Vec<(ImagePosition, u64)> {
    let mut images = Vec::new();
    if *limits == ImageLimits::NONE {
        return images;
    }
    for (turn_index, turn) in turns.iter().enumerate() {
        if matches!(turn.role, Role::Assistant | Role::System) {
            continue;
        }
        let side = |part: &Part| {
            let media = Media::read(part, &Extra::read(&part.extra_json), turn.format, format)?;
            let is_sent = media.kind == Kind::Image && !matches!(media.source, Source::Elsewhere);
            let PartKind::Media { source, .. } = &part.kind else {
                return None;
            };
            let is_limited = limits.side_px < u64::MAX;
            let side = is_limited.then(|| image_side_px(source)).flatten();
            is_sent.then_some(side.unwrap_or(0))
        };
        for (part_index, part) in turn.parts.iter().enumerate() {
            let inner_parts = match &part.kind {
                PartKind::ToolResult { parts, .. } => parts.as_slice(),
                _ => &[],
            };
            let inner = inner_parts
                .iter()
                .enumerate()
                .map(|(index, part)| (Some(index), part));
            for (index, part) in inner.chain([(None, part)]) {
                images.extend(side(part).map(|side| ((turn_index, part_index, index), side)));
            }
        }
    }
    images
}

fn surplus(images: usize, limit: usize) -> usize {
    let surplus = images.saturating_sub(limit);
    surplus.next_multiple_of((limit / STEPS).max(1)).min(images)
}

/// Returns the images to remove.
///
/// Large images are valid only in a request with few images: if one of the newest is large, all
/// older ones are removed.
fn beyond(images: &[(ImagePosition, u64)], limits: &ImageLimits) -> Vec<ImagePosition> {
    let fits = |side: u64, side_max: u64| side <= side_max;
    let (mut sent, mut out): (Vec<_>, Vec<_>) = images
        .iter()
        .partition(|(_, side)| fits(*side, limits.side_px));
    if sent.len() > limits.many {
        let newest = &sent[sent.len() - limits.many..];
        if newest
            .iter()
            .any(|(_, side)| !fits(*side, limits.side_px_of_many))
        {
            out.extend(sent.drain(..surplus(sent.len(), limits.many)));
        } else {
            out.extend(sent.extract_if(.., |(_, side)| !fits(*side, limits.side_px_of_many)));
        }
    }
    out.extend(sent.drain(..surplus(sent.len(), limits.count)));
    out.into_iter().map(|(place, _)| place).collect()
}
