//! History pages on the wire: stored turns, also in a provider's format.

use bytes::Bytes;
use memoird_core::turn::{MessageFormat, Turn};
use memoird_engine::{HistoryPage, HistoryScope};
use memoird_formats::messages::{RenderOptions, Rendered, render};
use memoird_proto::{spliced, v1};
use memoird_store::{JournalRange, encoding};
use prost::Message;

use super::refusal::Refusal;
use super::{PAGE_BYTES_MAX, from, status, to};

/// Parses the requested format. `None` for turns only.
///
/// # Errors
/// `FORMAT_INVALID`.
pub(crate) fn format(format: i32) -> Result<Option<MessageFormat>, Refusal> {
    match v1::MessageFormat::try_from(format) {
        Ok(v1::MessageFormat::Unspecified) => Ok(None),
        _ => from::format(format).map(Some),
    }
}

/// Renders the turns of a page in a provider's format, without rewound turns.
///
/// A provider's array has no way to mark these. At the beginning of the live history, which is sent
/// to a provider, a result without its call becomes a note; nothing else is added. The journal is
/// rendered as it was appended.
///
/// # Errors
/// `TURN_DAMAGED`.
fn rendered(
    page: &HistoryPage,
    scope: HistoryScope,
    range: JournalRange,
    format: MessageFormat,
) -> Result<Rendered, Refusal> {
    let opened = page
        .turns
        .iter()
        .map(|turn| encoding::open_with_seq(turn))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(status::turn_damaged)?;
    let stay = opened
        .into_iter()
        .filter(|(seq, _)| page.rewound.binary_search(seq).is_err());
    let (seqs, turns): (Vec<u64>, Vec<Turn>) = stay.unzip();
    let behind_gap: Vec<usize> = seqs
        .iter()
        .enumerate()
        .filter(|(_, seq)| page.gaps.binary_search(seq).is_ok())
        .map(|(index, _)| index)
        .collect();
    let options = RenderOptions {
        behind_gap: &behind_gap,
        is_start: scope == HistoryScope::Live && range.after_seq == 0 && !(range.last && page.more),
        ..RenderOptions::default()
    };
    Ok(render(format, &turns, &options))
}

/// Appends the field `removed` to an encoded turn. Protobuf allows fields in any order.
fn with_mark(turn: &[u8]) -> Bytes {
    let mark = v1::Turn {
        removed: true,
        ..v1::Turn::default()
    };
    [turn, &mark.encode_to_vec()].concat().into()
}

/// Builds the reply with as many turns as fit into [`PAGE_BYTES_MAX`], at least one.
///
/// This includes the same turns in a provider's format.
///
/// # Errors
/// Those of [`rendered`].
pub(crate) fn fitting_reply(
    mut page: HistoryPage,
    (scope, range): (HistoryScope, JournalRange),
    format: Option<MessageFormat>,
) -> Result<spliced::GetHistoryResponse, Refusal> {
    loop {
        let rendered = format
            .map(|format| rendered(&page, scope, range, format))
            .transpose()?;
        let answer = answer(page.clone(), range.last, rendered);
        let (bytes, turns) = (answer.encoded_len(), page.turns.len());
        if bytes <= PAGE_BYTES_MAX || turns <= 1 {
            return Ok(answer);
        }
        let fitting = turns * PAGE_BYTES_MAX / bytes;
        page.keep(fitting.clamp(1, turns - 1), range.last);
    }
}

/// Builds the reply from stored turns. `last` is whether pages run backwards from the end.
fn answer(
    page: HistoryPage,
    last: bool,
    rendered: Option<Rendered>,
) -> spliced::GetHistoryResponse {
    let (next_after_seq, previous_before_seq) = if last {
        (0, page.previous_before_seq())
    } else {
        (page.next_after_seq(), 0)
    };
    let (messages_json, system) = rendered
        .map(|rendered| (rendered.messages_json, rendered.system))
        .unwrap_or_default();
    let is_rewound = |seq: u64| page.rewound.binary_search(&seq).is_ok();
    let turns = page.turns.into_iter().map(|turn| {
        let seq = if page.rewound.is_empty() {
            None
        } else {
            encoding::seq_of(&turn)
        };
        if seq.is_some_and(is_rewound) {
            with_mark(&turn)
        } else {
            Bytes::from_owner(turn)
        }
    });
    spliced::GetHistoryResponse {
        turns: turns.collect(),
        session: page.session.as_ref().map(to::session_info),
        next_after_seq,
        previous_before_seq,
        messages_json,
        system,
    }
}
