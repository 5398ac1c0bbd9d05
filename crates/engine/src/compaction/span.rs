//! Reading the turns of a span: from memory where all of them are there, else from the
//! journal, which has those that first in, first out has dropped.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use memoird_core::ids::SessionKey;
use memoird_core::session::Snapshot;
use memoird_core::turn::Role;
use memoird_store::{JournalRange, encoding};

use super::attempt::Ended;
use crate::cell::SessionCell;
use crate::engine::Engine;

/// Turns and bytes that one summary newly stands for, at most: the rest comes with the next.
const TURNS_MAX: usize = 5_000;
const BYTES_MAX: usize = 32 << 20;
/// Turns of one page.
const PAGE_TURNS: usize = 500;
const PAGE_BYTES: usize = 4 << 20;

type Turns = Vec<(u64, Arc<[u8]>)>;

/// The turns to be summarized, and the last turn that a summary of them stands for: of about
/// so many bytes at most.
pub(super) async fn read(
    engine: &Engine,
    cell: &SessionCell,
    snapshot: &Snapshot,
    bytes_max: usize,
) -> Result<(Turns, u64), Ended> {
    let (mut turns, through_seq) = read_all(engine, cell, snapshot).await?;
    let mut bytes = 0;
    let mut is_in = |(_, content): &(u64, Arc<[u8]>)| {
        bytes += content.len();
        bytes <= bytes_max
    };
    let count = turns.iter().take_while(|turn| is_in(turn)).count();
    if count < turns.len() {
        let mut first = turns[..=count].to_vec();
        if let Some(seq) = last_boundary(&mut first) {
            turns = first;
            return Ok((turns, seq));
        }
    }
    Ok((turns, through_seq))
}

async fn read_all(
    engine: &Engine,
    cell: &SessionCell,
    snapshot: &Snapshot,
) -> Result<(Turns, u64), Ended> {
    let span = snapshot.span;
    let here: BTreeSet<u64> = snapshot
        .turns
        .iter()
        .map(|(seq, _)| *seq)
        .chain(snapshot.apart.iter().copied())
        .collect();
    let is_whole = (span.first_seq..=span.through_seq).all(|seq| here.contains(&seq));
    if is_whole || !engine.shared.journal.is_on() {
        return Ok((snapshot.turns.clone(), span.through_seq));
    }
    read_journal(engine, cell, snapshot).await
}

async fn read_journal(
    engine: &Engine,
    cell: &SessionCell,
    snapshot: &Snapshot,
) -> Result<(Turns, u64), Ended> {
    engine.shared.journal.all_settled().await;
    let span = snapshot.span;
    let (mut turns, mut bytes, mut after_seq): (Turns, usize, u64) =
        (Vec::new(), 0, span.first_seq - 1);
    while after_seq < span.through_seq {
        let key: SessionKey = cell.key.clone();
        let (generation, range) = (
            Some(snapshot.generation),
            JournalRange {
                after_seq,
                turns_max: PAGE_TURNS,
                bytes_max: PAGE_BYTES,
            },
        );
        let page = engine
            .shared
            .journal
            .with_store(move |store| store.journal(&key, generation, range));
        let page = page
            .await
            .map_err(Ended::Refused)?
            .ok_or(Ended::Discarded)?;
        let Some((last, _)) = page.turns.last() else {
            break;
        };
        after_seq = *last;
        let wanted = page
            .turns
            .into_iter()
            .filter(|(seq, _)| *seq <= span.through_seq);
        for (seq, content) in wanted {
            bytes += content.len();
            turns.push((seq, content));
        }
        if turns.len() >= TURNS_MAX || bytes >= BYTES_MAX {
            break;
        }
    }
    let through_seq = match after_seq >= span.through_seq {
        true => span.through_seq,
        false => last_boundary(&mut turns).ok_or(Ended::Discarded)?,
    };
    turns.retain(|(seq, content)| {
        snapshot.apart.binary_search(seq).is_err()
            && encoding::open(content).is_none_or(|turn| turn.role != Role::System)
    });
    Ok((turns, through_seq))
}

/// Drops the exchange that was not read whole, or where all is one exchange the unit; gives
/// the last turn of what is left.
fn last_boundary(turns: &mut Turns) -> Option<u64> {
    let mut open: HashSet<Box<str>> = HashSet::new();
    let (mut exchange, mut unit) = (None, None);
    for (place, (_, content)) in turns.iter().enumerate() {
        let Some(turn) = encoding::open(content) else {
            continue;
        };
        let links = turn.links();
        if links.results.is_empty() {
            let is_exchange = turn.role == Role::User;
            if is_exchange {
                // A call that the user did not wait for stays without a result.
                open.clear();
                exchange = Some(place).filter(|place| *place > 0).or(exchange);
            }
            if open.is_empty() && place > 0 {
                unit = Some(place);
            }
        }
        links.results.iter().for_each(|id| {
            open.remove(id);
        });
        open.extend(links.uses);
    }
    turns.truncate(exchange.or(unit)?);
    turns.last().map(|(seq, _)| *seq)
}
