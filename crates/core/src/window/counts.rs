//! Tokens of turns, counted once. Beside the turns and not in them, because most sessions
//! are never asked for a window.

use std::collections::{BTreeMap, VecDeque};

use crate::history::View;

/// What counts turns: turns counted on one scale need not be counted on it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaleId(pub u32);

/// The tokens of a history's turns on one scale.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    pub(super) scale: ScaleId,
    /// The seq of the first in `tail`.
    base: u64,
    /// By seq; 0 for one that was not counted.
    tail: VecDeque<u32>,
    /// Of turns before `base`.
    apart: BTreeMap<u64, u32>,
    total: u64,
}

impl Counts {
    /// None yet, of a history whose tail begins at `base`.
    pub(super) fn new(scale: ScaleId, base: u64) -> Self {
        Self { scale, base, tail: VecDeque::new(), apart: BTreeMap::new(), total: 0 }
    }

    /// A turn's tokens, where they were counted.
    pub(super) fn get(&self, seq: u64) -> Option<u32> {
        let found = match seq.checked_sub(self.base) {
            Some(place) => self.tail.get(usize::try_from(place).ok()?).copied(),
            None => self.apart.get(&seq).copied(),
        };
        found.filter(|&tokens| tokens > 0)
    }

    /// Notes a turn's tokens, at least 1.
    pub(super) fn put(&mut self, seq: u64, tokens: u64) {
        let tokens = u32::try_from(tokens.max(1)).unwrap_or(u32::MAX);
        let before = match seq.checked_sub(self.base) {
            None => self.apart.insert(seq, tokens).unwrap_or(0),
            Some(place) => {
                let place = usize::try_from(place).unwrap_or(usize::MAX);
                while self.tail.len() <= place {
                    self.tail.push_back(0);
                }
                std::mem::replace(&mut self.tail[place], tokens)
            }
        };
        self.total = self.total + u64::from(tokens) - u64::from(before);
    }

    /// Forgets turns that the history does not show any more.
    pub(super) fn forget(&mut self, view: &View<'_>) {
        let front = view.front_seq();
        if front <= self.base {
            return;
        }
        while self.base < front
            && let Some(tokens) = self.tail.pop_front()
        {
            if tokens > 0 {
                self.apart.insert(self.base, tokens);
            }
            self.base += 1;
        }
        self.base = front;
        let gone = |seq: u64| view.record(seq).is_none();
        self.total -=
            self.apart.extract_if(.., |&seq, _| gone(seq)).map(|(_, t)| u64::from(t)).sum::<u64>();
    }

    /// The turns that have no count yet, ascending.
    pub(super) fn missing<'a>(
        &self,
        view: &View<'a>,
    ) -> impl Iterator<Item = &'a crate::history::TurnRecord> {
        let next = self.base + self.tail.len() as u64;
        let apart = view.apart.iter().copied().filter(|record| self.get(record.seq).is_none());
        let apart: Vec<_> = apart.collect();
        apart.into_iter().chain(view.tail_from(next))
    }

    /// Of all turns that are counted.
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}
