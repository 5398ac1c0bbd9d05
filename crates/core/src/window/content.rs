//! The content of a window's turns: the stored bytes, unless a rule changes how a turn is shown.

use std::sync::Arc;

use crate::history::TurnRecord;
use crate::quote;
use crate::turn::{PartKind, Turn};

use super::cut::Cut;
use super::input::WindowInput;
use super::items::{Composer, Item, Kind};
use super::{reduce, words};

/// The content of an item, or `None` if nothing of it remains.
pub(super) fn content(cut: &Cut, item: &Item<'_>, input: &WindowInput<'_>) -> Option<Arc<[u8]>> {
    let record = item.record;
    match item.kind {
        Kind::Whole if record.is_marked => Some((input.codec.seal)(said(record, input)?, item.seq)),
        Kind::Whole => Some(Arc::clone(&record.content)),
        Kind::Gap(gap) => Some((input.codec.seal)(words::gap(gap, input.nonce), 0)),
        Kind::Pause(before) => {
            let turn = words::pause(before, record.said_at, input.nonce);
            Some((input.codec.seal)(turn, 0))
        }
        Kind::ReducedTurn => Some(Arc::clone(&cut.reduced_turn(item.seq)?.content)),
        Kind::Abandoned => {
            let turn = words::abandoned(record.open_uses().map(|id| &**id), input.nonce);
            Some((input.codec.seal)(turn, 0))
        }
        Kind::ResultsFor(_) | Kind::Rest => {
            let shown = cut.reduced_turn(item.seq);
            let opened = match shown {
                Some(shown) => (input.codec.open)(&shown.content),
                None => said(record, input),
            };
            let turn = split(opened?, record, item.kind);
            (!turn.parts.is_empty()).then(|| (input.codec.seal)(turn, item.seq))
        }
    }
}

/// The turn verbatim, with imitations of memoird's own text neutralized.
pub(super) fn said(record: &TurnRecord, input: &WindowInput<'_>) -> Option<Turn> {
    let mut turn = (input.codec.open)(&record.content)?;
    if record.is_marked {
        quote::unmark(&mut turn, input.nonce);
    }
    Some(turn)
}

/// Recreates the shortened turns of a cut after a restart.
pub(super) fn remake(composer: &Composer<'_>, cut: &mut Cut, input: &WindowInput<'_>) {
    for (&seq, reduced) in &mut cut.reduced {
        if reduced.shown.is_none()
            && let Some(record) = composer.view.record(seq)
        {
            reduced.shown = reduce::show(record, &reduced.results, input);
        }
    }
}

/// Keeps only the results for the calls of one turn, or everything but the results.
fn split(mut turn: Turn, record: &TurnRecord, kind: Kind) -> Turn {
    let mut place = 0;
    turn.parts.retain(|part| {
        if !matches!(part.kind, PartKind::ToolResult { .. }) {
            return kind == Kind::Rest;
        }
        let answers = record.answers().get(place).copied();
        place += 1;
        matches!(kind, Kind::ResultsFor(call) if answers == Some(call))
    });
    turn
}
