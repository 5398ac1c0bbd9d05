//! Reading turns: those that a live history keeps, or all that the journal has.

use std::sync::Arc;

use memoird_core::history::{History, TurnRecord};
use memoird_core::ids::{Generation, SessionId, Subject};
use memoird_core::session::Session;
use memoird_store::{JournalRange, encoding};

use super::Commands;
use crate::error::EngineError;
use crate::sessions::{SessionRef, SessionView};
use crate::tenants::Tenant;

/// Which turns of a session to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryScope {
    /// What the history of the live generation keeps.
    Live,
    /// All turns of a generation, of an ended one too.
    Journal,
    /// [`Self::Journal`] where there is a journal, else [`Self::Live`].
    Longest,
}

/// Which turns to read.
#[derive(Clone, Copy, Debug)]
pub struct HistoryQuery {
    /// From where.
    pub scope: HistoryScope,
    /// Of which generation; `None`: the live one, in the journal else the newest.
    pub generation: Option<Generation>,
    /// Which turns of it.
    pub range: JournalRange,
}

/// Turns, oldest first.
#[derive(Clone, Debug, Default)]
pub struct HistoryPage {
    /// Which generation's; the engine always says which.
    pub generation: Option<Generation>,
    /// Whose memories its facts become, where it knows.
    pub subject: Option<Subject>,
    /// Encoded as they were when they arrived.
    pub turns: Vec<Arc<[u8]>>,
    /// The seqs of those that were rewound, ascending; only where the range asks for them.
    pub rewound: Vec<u64>,
    /// The seqs of those before which the history has dropped some, ascending. A journal has all.
    pub gaps: Vec<u64>,
    /// The session, where these are turns of its live generation.
    pub session: Option<SessionView>,
    /// The first and the last of them; 0 where there is none.
    pub seqs: (u64, u64),
    /// True when there are more turns in that range.
    pub more: bool,
}

impl HistoryPage {
    /// Only turns after this one are on the next page; 0 on the last one.
    pub fn next_after_seq(&self) -> u64 {
        if self.more { self.seqs.1 } else { 0 }
    }

    /// Leaves turns out: keeps the first `count`, and of a page that was read from the end (`last`) the
    /// last. The next page begins with those that were left out.
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

    /// Only turns before this one are on the page before, where pages are read from the end; 0 on
    /// the first one.
    pub fn previous_before_seq(&self) -> u64 {
        if self.more { self.seqs.0 } else { 0 }
    }
}

impl Commands {
    /// Reads turns.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::GenerationNotFound`], or a journal
    /// that cannot be read.
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
        let page = match is_live {
            true => self.live_history(&session, query).await?,
            false => match self.newest_in_memory(&session, query).await? {
                Some(page) => Some(page),
                None => self.journal_history(&session, query).await?,
            },
        };
        page.ok_or_else(|| EngineError::GenerationNotFound {
            session: session.key.session.clone(),
            generation: query.generation,
        })
    }

    async fn live_history(
        &self,
        session: &SessionRef,
        query: HistoryQuery,
    ) -> Result<Option<HistoryPage>, EngineError> {
        let sessions = &self.shared.sessions;
        let read = |session: &Session, view| live_page(session, view, query);
        sessions.view(session, read).await
    }

    /// The newest turns of a journal, where the history in memory has all of them, without a seq
    /// between them that it does not have: it may have been dropped, or be a result that answers no
    /// call, which only the journal keeps. Then they cost the same at any length of the journal.
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

    /// Reads a range of a live generation without rewound turns: from memory if the history has all
    /// of them, else from the journal.
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

/// `None` where the query is of another generation.
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
    let turns = history.turns_after(range.after_seq);
    let turns = turns.take_while(|turn| turn.seq < range.before_seq);
    let is_gap = |first, last| history.has_gap(first, last);
    if !range.last {
        return page_in_order(turns, range, is_gap);
    }
    let newest_first: Vec<&TurnRecord> = turns.collect();
    let newest_first = newest_first.into_iter().rev();
    let mut page = page_in_order(newest_first, range, |last, first| is_gap(first, last));
    page.turns.reverse();
    page.gaps.reverse();
    page.seqs = (page.seqs.1, page.seqs.0);
    page
}

/// `is_gap`: whether the history dropped a turn between one and the next in this order.
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
