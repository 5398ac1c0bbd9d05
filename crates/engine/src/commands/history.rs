//! Reading turns: those that a live history keeps, or all that the journal has.

use std::sync::Arc;

use memoird_core::history::TurnRecord;
use memoird_core::ids::{Generation, SessionId, Subject};
use memoird_store::JournalRange;

use super::Commands;
use crate::error::EngineError;
use crate::sessions::SessionRef;
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
    /// Only turns after this one.
    pub after_seq: u64,
    /// The most turns to read.
    pub turns_max: usize,
    /// Bytes after which no further turn is read.
    pub bytes_max: usize,
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
    /// The `after_seq` of the next page; 0 on the last one.
    pub next_after_seq: u64,
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
            false => self.journal_history(&session, query).await?,
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
        let read = self.shared.sessions.view(session, |session, _| {
            let head = session.head();
            let is_other = query
                .generation
                .is_some_and(|named| named != head.generation);
            (!is_other).then(|| HistoryPage {
                generation: Some(head.generation),
                subject: head.subject.clone(),
                ..page_of(session.history().turns_after(query.after_seq), query)
            })
        });
        read.await
    }

    async fn journal_history(
        &self,
        session: &SessionRef,
        query: HistoryQuery,
    ) -> Result<Option<HistoryPage>, EngineError> {
        let journal_range = JournalRange {
            after_seq: query.after_seq,
            turns_max: query.turns_max,
            bytes_max: query.bytes_max,
        };
        let sessions = &self.shared.sessions;
        let read = sessions.read_journal(session, query.generation, journal_range);
        let page = read.await?;
        Ok(page.map(|page| {
            let last = page.turns.last().filter(|_| page.more);
            HistoryPage {
                generation: page.generation,
                subject: page.subject,
                next_after_seq: last.map_or(0, |(seq, _)| *seq),
                turns: page.turns.into_iter().map(|(_, content)| content).collect(),
            }
        }))
    }
}

fn page_of<'a>(turns: impl Iterator<Item = &'a TurnRecord>, query: HistoryQuery) -> HistoryPage {
    let mut page = HistoryPage::default();
    let mut bytes = 0;
    let mut last_seq = 0;
    for turn in turns {
        if page.turns.len() >= query.turns_max || bytes >= query.bytes_max {
            page.next_after_seq = last_seq;
            break;
        }
        bytes += turn.content.len();
        last_seq = turn.seq;
        page.turns.push(Arc::clone(&turn.content));
    }
    page
}
