//! Reads items of a conversation, page by page of its turns.

use bytes::Bytes;
use memoird_core::turn::Turn;
use memoird_proto::v1;
use memoird_store::encoding;

use super::error::{no_conversation, no_item, of_conversation};
use super::items::{self, Item, Position};
use crate::services::{ApiCall, session};
use crate::wire::refusal::Refusal;
use crate::wire::{PAGE_BYTES_MAX, status};

/// Turns per page of a search for an id that memoird has not made.
const SCAN_TURNS: u32 = 1_000;

/// Direction and start of a read.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) is_ascending: bool,
    /// Only turns after this seq, or before it if descending. 0 for all.
    pub(super) seq: u64,
}

/// Turns with their items, in the direction of the read.
struct Page {
    turns: Vec<(Turn, Vec<Item>)>,
    bytes: usize,
    /// Where the next page starts.
    next: Option<u64>,
}

/// Items in the direction of the read, and whether there are more.
pub(super) struct ItemList {
    pub(super) items: Vec<Item>,
    pub(super) has_more: bool,
}

/// Reads a page. Reserves memory for it, and fails unless the session is live.
async fn page(
    call: &ApiCall<()>,
    conversation: &str,
    start: Start,
    turns_max: u32,
) -> Result<Page, Refusal> {
    let mut request = v1::GetHistoryRequest {
        session_id: conversation.to_owned(),
        scope: v1::HistoryScope::Longest.into(),
        ..v1::GetHistoryRequest::default()
    };
    if start.is_ascending {
        (request.after_seq, request.limit) = (start.seq, turns_max);
    } else {
        (request.before_seq, request.last) = (start.seq, turns_max);
    }
    // The turns, and the same as items.
    call.permit
        .reserve_response(3 * PAGE_BYTES_MAX as u64)
        .await?;
    let read = session::get_history(call.with(request)).await;
    let read = read.map_err(of_conversation(conversation))?;
    let info = read.session.ok_or_else(|| no_conversation(conversation))?;
    let next = if start.is_ascending {
        read.next_after_seq
    } else {
        read.previous_before_seq
    };
    let bytes = read.turns.iter().map(Bytes::len).sum();
    let open = move || {
        let opened = read.turns.iter().map(|stored| {
            let (seq, turn) = encoding::open_with_seq(stored).ok_or_else(status::turn_damaged)?;
            let mut items = items::of_turn(&info.generation, seq, &turn)?;
            if !start.is_ascending {
                items.reverse();
            }
            Ok((turn, items))
        });
        let mut turns = opened.collect::<Result<Vec<_>, Refusal>>()?;
        if !start.is_ascending {
            turns.reverse();
        }
        Ok(turns)
    };
    let turns = call
        .api
        .heavy
        .run(&call.caller.tenant.id, bytes, open)
        .await?;
    Ok(Page {
        turns,
        bytes,
        next: Some(next).filter(|next| *next > 0),
    })
}

/// Lists up to `limit` items after a position, or before it if descending.
pub(super) async fn list(
    call: &ApiCall<()>,
    conversation: &str,
    is_ascending: bool,
    after: Option<Position>,
    limit: usize,
) -> Result<ItemList, Refusal> {
    let is_wanted = |item: &Item| match after {
        None => true,
        Some(after) if is_ascending => item.position > after,
        Some(after) => item.position < after,
    };
    // The turn of the position may have more items.
    let mut start = Start {
        is_ascending,
        seq: match after {
            None => 0,
            Some((seq, _)) if is_ascending => seq.saturating_sub(1),
            Some((seq, _)) => seq.saturating_add(1),
        },
    };
    let (mut items, mut bytes) = (Vec::new(), 0);
    // One more, to know whether there is one. A turn may have none.
    let turns_max = u32::try_from(limit + 1).unwrap_or(SCAN_TURNS);
    loop {
        let page = page(call, conversation, start, turns_max).await?;
        bytes += page.bytes;
        let found = page.turns.into_iter().flat_map(|(_, items)| items);
        items.extend(found.filter(is_wanted));
        let is_full = items.len() > limit || (bytes >= PAGE_BYTES_MAX && !items.is_empty());
        let Some(next) = page.next.filter(|_| !is_full) else {
            let has_more = items.len() > limit || page.next.is_some();
            items.truncate(limit);
            return Ok(ItemList { items, has_more });
        };
        start.seq = next;
    }
}

/// Finds an item, with its turn and all items of that.
pub(super) async fn find(
    call: &ApiCall<()>,
    conversation: &str,
    generation: &str,
    id: &str,
) -> Result<(Turn, Vec<Item>, usize), Refusal> {
    let position = items::position_in(id, generation);
    let (mut start, turns_max) = match position {
        Some((0, _)) => return Err(no_item(id)),
        Some((seq, _)) => (
            Start {
                is_ascending: true,
                seq: seq - 1,
            },
            1,
        ),
        None => (
            Start {
                is_ascending: false,
                seq: 0,
            },
            SCAN_TURNS,
        ),
    };
    loop {
        let page = page(call, conversation, start, turns_max).await?;
        for (turn, items) in page.turns {
            if let Some(index) = items.iter().position(|item| item.id == id) {
                return Ok((turn, items, index));
            }
        }
        match page.next.filter(|_| position.is_none()) {
            Some(next) => start.seq = next,
            None => return Err(no_item(id)),
        }
    }
}
