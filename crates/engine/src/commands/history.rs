//! The `GetHistory` command: reads turns from the live history or the journal.

use std::sync::Arc;

use memoird_core::history::{History, TurnRecord};
use memoird_core::ids::{Generation, SessionId, Subject};
use memoird_core::session::Session;
use memoird_store::{JournalRange, encoding};

use super::handle::Commands;
use crate::error::EngineError;
use crate::sessions::{SessionRef, SessionView};
use crate::tenants::Tenant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryScope {
    /// Turns in the history of the live generation.
    Live,
    /// All turns of a generation, live or ended.
    Journal,
    /// [`Self::Journal`] if there is a journal, else [`Self::Live`].
    Longest,
}

#[derive(Clone, Copy, Debug)]
pub struct HistoryQuery {
    pub scope: HistoryScope,
    /// `None` selects the live generation or, in the journal, the newest one.
    pub generation: Option<Generation>,
    pub range: JournalRange,
}

/// Turns, oldest first.
#[derive(Clone, Debug, Default)]
pub struct HistoryPage {
    /// Always set by the engine.
    pub generation: Option<Generation>,
    /// Owner of the memories extracted from the generation, if known.
    pub subject: Option<Subject>,
    /// Turns, encoded as they were received.
    pub turns: Vec<Arc<[u8]>>,
    /// Seqs of the rewound turns, ascending. Only if the range includes them.
    pub rewound: Vec<u64>,
    /// Seqs of turns before which the history dropped others, ascending. Empty for the journal.
    pub gaps: Vec<u64>,
    /// The session, if the turns are from its live generation.
    pub session: Option<SessionView>,
    /// First and last seq, or 0 on an empty page.
    pub seqs: (u64, u64),
    pub more: bool,
}

impl HistoryPage {
    /// The `after_seq` of the next page. 0 on the last page.
    pub fn next_after_seq(&self) -> u64 {
        if self.more { self.seqs.1 } else { 0 }
    }

    /// Truncates the page to its first turns, or its last ones if it was read from the end.
    ///
    /// The next page starts with the turns left out.
    pub fn keep(&mut self, count: usize, last: bool) {
        let left_out = self.turns.len().saturating_sub(count);
        if left_out == 0 || count == 0 {
            return;
        }
        if last {
            self.turns.drain(..left_out);
        } else {
            self.turns.truncate(count);
        }
        let seq = |turn: Option<&Arc<[u8]>>| turn.and_then(|turn| encoding::seq_of(turn));
        let (first, newest) = (seq(self.turns.first()), seq(self.turns.last()));
        self.seqs = (first.unwrap_or(self.seqs.0), newest.unwrap_or(self.seqs.1));
        self.more = true;
    }

    /// The `before_seq` of the next page if pages are read from the end. 0 on the last page.
    pub fn previous_before_seq(&self) -> u64 {
        if self.more { self.seqs.0 } else { 0 }
    }
}

impl Commands {
    /// Reads turns of a session.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::GenerationNotFound`], or an error of the
    /// journal.
    pub async fn history(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        query: HistoryQuery,
    ) -> Result<HistoryPage, EngineError> {
        let session = SessionRef::new(tenant, session);
        let is_live = match query.scope {
            HistoryScope::Live => true,
            HistoryScope::Journal => false,
            HistoryScope::Longest => !self.shared.sessions.have_journal(),
        };
        let page = if is_live {
            let read = |session: &Session, view| live_page(session, view, query);
            self.shared.sessions.view(&session, read).await?
        } else {
            match self.newest_in_memory(&session, query).await? {
                Some(page) => Some(page),
                None => self.journal_history(&session, query).await?,
            }
        };
        page.ok_or_else(|| EngineError::GenerationNotFound {
            session: session.key.session.clone(),
            generation: query.generation,
        })
    }

    /// Serves a journal query for the newest turns from memory, if the history has all of them.
    ///
    /// Their seqs must be contiguous: a missing one may have been dropped, or be a result without a
    /// call, which only the journal stores. Makes the cost independent of the journal's length.
    async fn newest_in_memory(
        &self,
        session: &SessionRef,
        query: HistoryQuery,
    ) -> Result<Option<HistoryPage>, EngineError> {
        let sessions = &self.shared.sessions;
        if !query.range.last || query.range.with_rewound || !sessions.have_journal() {
            return Ok(None);
        }
        let read = |session: &Session, view| live_page(session, view, query);
        let page = match sessions.view_in_memory(session, read).await {
            Err(EngineError::SessionNotFound { .. }) => None,
            page => page?.flatten(),
        };
        Ok(page.filter(|page| {
            let newest = page.session.as_ref().map(|view| view.head.newest_seq);
            let (first, last) = page.seqs;
            let is_whole = last - first + 1 == page.turns.len() as u64;
            page.more && is_whole && newest == Some(last)
        }))
    }

    /// Reads a range of a live generation without rewound turns, from memory or the journal.
    pub(super) async fn earlier_turns(
        &self,
        session: &SessionRef,
        generation: Generation,
        range: JournalRange,
    ) -> Result<HistoryPage, EngineError> {
        let query = HistoryQuery {
            scope: HistoryScope::Longest,
            generation: Some(generation),
            range,
        };
        let read = |session: &Session, view| live_page(session, view, query);
        let in_memory = self.shared.sessions.view_in_memory(session, read).await?;
        let is_whole = |page: &HistoryPage| {
            let (first, last) = page.seqs;
            let is_contiguous = last - first + 1 == page.turns.len() as u64;
            let has_end = page.more || last + 1 == range.before_seq;
            first == range.after_seq + 1 && is_contiguous && has_end
        };
        match in_memory.flatten().filter(is_whole) {
            Some(page) => Ok(page),
            None => {
                self.history(&session.tenant, &session.key.session, query)
                    .await
            }
        }
    }

    async fn journal_history(
        &self,
        session: &SessionRef,
        query: HistoryQuery,
    ) -> Result<Option<HistoryPage>, EngineError> {
        let sessions = &self.shared.sessions;
        let read = sessions.read_journal(session, query.generation, query.range);
        let Some(page) = read.await? else {
            return Ok(None);
        };
        let live = match sessions.head(session).await {
            Ok(live) => Some(live).filter(|live| Some(live.head.generation) == page.generation),
            Err(EngineError::SessionNotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let seq = |turn: Option<&(u64, Arc<[u8]>)>| turn.map_or(0, |(seq, _)| *seq);
        Ok(Some(HistoryPage {
            generation: page.generation,
            subject: page.subject,
            session: live,
            seqs: (seq(page.turns.first()), seq(page.turns.last())),
            gaps: Vec::new(),
            more: page.more,
            rewound: page.rewound,
            turns: page.turns.into_iter().map(|(_, content)| content).collect(),
        }))
    }
}

/// Reads from the live history. Returns `None` if the query names another generation.
fn live_page(session: &Session, view: SessionView, query: HistoryQuery) -> Option<HistoryPage> {
    let head = session.head();
    let is_meant = query
        .generation
        .is_none_or(|named| named == head.generation);
    is_meant.then(|| HistoryPage {
        generation: Some(head.generation),
        subject: head.subject.clone(),
        session: Some(view),
        ..page_of(session.history(), query.range)
    })
}

fn page_of(history: &History, range: JournalRange) -> HistoryPage {
    let turns = history
        .turns_after(range.after_seq)
        .take_while(|turn| turn.seq < range.before_seq);
    let is_gap = |first, last| history.has_gap(first, last);
    if !range.last {
        return page_in_order(turns, range, is_gap);
    }
    let in_order: Vec<&TurnRecord> = turns.collect();
    let newest_first = in_order.into_iter().rev();
    let mut page = page_in_order(newest_first, range, |last, first| is_gap(first, last));
    page.turns.reverse();
    page.gaps.reverse();
    page.seqs = (page.seqs.1, page.seqs.0);
    page
}

/// `is_gap` returns whether the history dropped a turn between two adjacent ones in this order.
fn page_in_order<'a>(
    turns: impl Iterator<Item = &'a TurnRecord>,
    range: JournalRange,
    is_gap: impl Fn(u64, u64) -> bool,
) -> HistoryPage {
    let mut page = HistoryPage::default();
    let mut bytes = 0;
    for turn in turns {
        if page.turns.len() >= range.turns_max || bytes >= range.bytes_max {
            page.more = true;
            break;
        }
        bytes += turn.content.len();
        if page.turns.is_empty() {
            page.seqs.0 = turn.seq;
        }
        let before = std::mem::replace(&mut page.seqs.1, turn.seq);
        if before > 0 && is_gap(before, turn.seq) {
            page.gaps.push(before.max(turn.seq));
        }
        page.turns.push(Arc::clone(&turn.content));
    }
    page
}
