//! Merges live sessions and ended generations into pages of one list.
//!
//! A position between two pages has a position in each part. So a page continues exactly, although
//! the parts are ordered and bounded separately.

use std::collections::{HashSet, VecDeque};

use memoird_core::ids::Generation;
use memoird_store::{EndedPosition, SessionOrder};

use super::{LivePosition, SessionState};
use crate::sessions::view::SessionView;

/// Position in a part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartPosition<P> {
    Start,
    /// After this session, whether it was returned or only examined.
    After(P),
    /// After all of the part, or the part is not in the list.
    End,
}

impl<P> PartPosition<P> {
    /// The position to read on from, `None` in it at the start. `None` if nothing is left.
    pub(super) fn after(&self) -> Option<Option<&P>> {
        match self {
            Self::Start => Some(None),
            Self::After(position) => Some(Some(position)),
            Self::End => None,
        }
    }
}

/// Position between two pages of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionListPosition {
    pub live: PartPosition<LivePosition>,
    pub ended: PartPosition<EndedPosition>,
}

impl SessionListPosition {
    /// Returns the given position, or that of the first page.
    pub(super) fn resume(state: SessionState, after: Option<&Self>) -> Self {
        if let Some(after) = after {
            return after.clone();
        }
        let (live, ended) = (PartPosition::Start, PartPosition::Start);
        match state {
            SessionState::Live => Self {
                live,
                ended: PartPosition::End,
            },
            SessionState::Ended => Self {
                live: PartPosition::End,
                ended,
            },
            SessionState::Any => Self { live, ended },
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct SessionPage {
    pub sessions: Vec<SessionView>,
    /// Position of the next page, or `None` on the last one.
    pub next: Option<SessionListPosition>,
    /// Position after each session.
    positions: Vec<SessionListPosition>,
}

impl SessionPage {
    /// Truncates the page to `count` sessions, but at least one.
    pub fn cut(&mut self, count: usize) {
        let count = count.max(1);
        if count >= self.sessions.len() {
            return;
        }
        self.sessions.truncate(count);
        self.positions.truncate(count);
        self.next = self.positions.last().cloned();
    }
}

/// The next sessions of a part, in the order of the list.
pub(super) struct ListPart<P> {
    entries: VecDeque<(P, SessionView)>,
    next: PartPosition<P>,
}

impl<P> Default for ListPart<P> {
    /// A part without sessions.
    fn default() -> Self {
        Self::new(VecDeque::new(), None)
    }
}

impl<P> ListPart<P> {
    /// `next` is the position after the last session examined, `None` if there are no more.
    pub(super) fn new(entries: VecDeque<(P, SessionView)>, next: Option<P>) -> Self {
        Self {
            entries,
            next: next.map_or(PartPosition::End, PartPosition::After),
        }
    }

    /// The position of the next session, or one that precedes it. `None` if there is none.
    fn head(&self) -> Option<&P> {
        match (self.entries.front(), &self.next) {
            (Some((position, _)), _) | (None, PartPosition::After(position)) => Some(position),
            (None, _) => None,
        }
    }

    /// Returns the position of the next page, if the last session taken is at `taken`.
    fn next(self, taken: PartPosition<P>) -> PartPosition<P> {
        if self.entries.is_empty() {
            self.next
        } else {
            taken
        }
    }
}

/// Whether the next session of a list is the live one.
fn is_live_first(order: SessionOrder, live: &LivePosition, ended: &EndedPosition) -> bool {
    match order {
        SessionOrder::Newest => live.at >= ended.at,
        SessionOrder::Oldest => live.at < ended.at,
        // The ended generations of an id precede the live one.
        SessionOrder::Id => live.session < ended.session,
    }
}

/// Merges two parts into a page of up to `count` sessions.
///
/// A session that ended while the parts were read is listed as ended only.
pub(super) fn merge(
    order: SessionOrder,
    start: SessionListPosition,
    (mut live, mut ended): (ListPart<LivePosition>, ListPart<EndedPosition>),
    count: usize,
) -> SessionPage {
    let generation = |(_, view): &(_, SessionView)| view.head.generation;
    let have_ended: HashSet<Generation> = ended.entries.iter().map(generation).collect();
    live.entries
        .retain(|(_, view)| !have_ended.contains(&view.head.generation));
    let (mut page, mut position) = (SessionPage::default(), start);
    while page.sessions.len() < count {
        let takes_live = match (live.head(), ended.head()) {
            (None, None) => break,
            (Some(live), Some(ended)) => is_live_first(order, live, ended),
            (live, _) => live.is_some(),
        };
        // Without an entry, sessions that come next were not read yet.
        let view = if takes_live {
            let Some((at, view)) = live.entries.pop_front() else {
                break;
            };
            position.live = PartPosition::After(at);
            view
        } else {
            let Some((at, view)) = ended.entries.pop_front() else {
                break;
            };
            position.ended = PartPosition::After(at);
            view
        };
        page.sessions.push(view);
        page.positions.push(position.clone());
    }
    let next = SessionListPosition {
        live: live.next(position.live),
        ended: ended.next(position.ended),
    };
    let is_last = next.live == PartPosition::End && next.ended == PartPosition::End;
    page.next = (!is_last).then_some(next);
    page
}
