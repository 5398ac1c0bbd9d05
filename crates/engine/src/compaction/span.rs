//! Reads the turns to summarize: from memory if it has all of them, else from the journal.
//!
//! The journal also has turns that were dropped from the history.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use memoird_core::session::Snapshot;
use memoird_core::turn::Role;
use memoird_store::{JournalRange, encoding};

use super::Compaction;
use super::attempt::CompactionError;
use crate::sessions::SessionRef;

/// Maximum turns and bytes newly covered by one summary. The next one covers the rest.
const TURNS_MAX: usize = 5_000;
const BYTES_MAX: usize = 32 << 20;
/// Turns and bytes per page.
const PAGE_TURNS: usize = 500;
const PAGE_BYTES: usize = 4 << 20;

type Turns = Vec<(u64, Arc<[u8]>)>;

impl Compaction {
    /// Reads the turns to summarize, up to about `bytes_max` bytes, and the last seq they cover.
    pub(super) async fn read_span(
        &self,
        session: &SessionRef,
        snapshot: &Snapshot,
        bytes_max: usize,
    ) -> Result<(Turns, u64), CompactionError> {
        let span = snapshot.span;
        let seqs = snapshot.turns.iter().map(|(seq, _)| *seq);
        let in_memory: BTreeSet<u64> = seqs.chain(snapshot.apart.iter().copied()).collect();
        let is_whole = (span.first_seq..=span.through_seq).all(|seq| in_memory.contains(&seq));
        let (turns, through_seq) = if is_whole || !self.sessions().have_journal() {
            (snapshot.turns.clone(), span.through_seq)
        } else {
            self.read_span_from_journal(session, snapshot).await?
        };
        let mut bytes = 0;
        let fits = |(_, content): &&(u64, Arc<[u8]>)| {
            bytes += content.len();
            bytes <= bytes_max
        };
        let count = turns.iter().take_while(fits).count();
        if count < turns.len() {
            let mut first = turns[..=count].to_vec();
            if let Some(seq) = cut_at_boundary(&mut first) {
                return Ok((first, seq));
            }
        }
        Ok((turns, through_seq))
    }

    async fn read_span_from_journal(
        &self,
        session: &SessionRef,
        snapshot: &Snapshot,
    ) -> Result<(Turns, u64), CompactionError> {
        let span = snapshot.span;
        let mut turns = Turns::new();
        let mut bytes = 0;
        let mut after_seq = span.first_seq - 1;
        while after_seq < span.through_seq && turns.len() < TURNS_MAX && bytes < BYTES_MAX {
            let range = JournalRange {
                after_seq,
                turns_max: PAGE_TURNS,
                bytes_max: PAGE_BYTES,
                ..JournalRange::ALL
            };
            let generation = Some(snapshot.generation);
            let page = self
                .sessions()
                .read_journal(session, generation, range)
                .await?
                .ok_or(CompactionError::Discarded)?;
            let Some((last_seq, _)) = page.turns.last() else {
                break;
            };
            after_seq = *last_seq;
            for (seq, content) in page.turns {
                if seq <= span.through_seq {
                    bytes += content.len();
                    turns.push((seq, content));
                }
            }
        }
        let through_seq = if after_seq >= span.through_seq {
            span.through_seq
        } else {
            cut_at_boundary(&mut turns).ok_or(CompactionError::Discarded)?
        };
        turns.retain(|(seq, _)| snapshot.apart.binary_search(seq).is_err());
        Ok((turns, through_seq))
    }
}

/// Drops the last exchange, which may be incomplete. Returns the last remaining seq.
///
/// If there is only one exchange, drops its last tool unit instead.
fn cut_at_boundary(turns: &mut Turns) -> Option<u64> {
    let mut open: HashSet<Box<str>> = HashSet::new();
    let (mut exchange, mut unit) = (None, None);
    for (index, (_, content)) in turns.iter().enumerate() {
        let Some(turn) = encoding::open(content) else {
            continue;
        };
        let links = turn.links();
        if links.results.is_empty() && links.refs.is_empty() {
            let is_exchange = turn.role == Role::User;
            if is_exchange {
                // A call that the user did not wait for never gets a result.
                open.clear();
                exchange = Some(index).filter(|index| *index > 0).or(exchange);
            }
            if open.is_empty() && index > 0 {
                unit = Some(index);
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
