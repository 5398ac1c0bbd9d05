//! Looking at sessions without touching them. What is answered is true: a read that saw
//! something not yet written waits until it is.

use std::sync::Arc;

use memoird_core::compaction::{BreakerView, Summary};
use memoird_core::ids::{Generation, SessionId, SessionKey, Subject};
use memoird_core::session::Head;
use memoird_core::time::{Now, Steady, Timestamp};
use memoird_store::{JournalPage, JournalRange};

use crate::append::ATTEMPTS;
use crate::cell::{Residence, SessionCell};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::tenant::Tenant;

/// What is known of a live session.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// The bot's own id of it.
    pub session: SessionId,
    /// All but the turns.
    pub head: Head,
    /// When it was last touched.
    pub last_access: Timestamp,
    /// When it expires if nothing touches it.
    pub expires_at: Timestamp,
    /// What the breaker of its compaction lets through.
    pub breaker: BreakerView,
}

/// A page of live sessions, most recently used first.
#[derive(Clone, Debug, Default)]
pub struct SessionPage {
    /// The sessions.
    pub sessions: Vec<SessionView>,
    /// Where the next page goes on; `None` on the last one.
    pub next: Option<(SessionId, Steady)>,
}

/// Which turns of a session to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryScope {
    /// What the history of the live generation keeps.
    Live,
    /// All turns of a generation, of an ended one too.
    Journal,
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
    /// At most so many turns.
    pub turns_max: usize,
    /// No further turn once so many bytes were read.
    pub bytes_max: usize,
}

/// Turns, oldest first.
#[derive(Clone, Debug, Default)]
pub struct HistoryPage {
    /// Which generation's; of every page that the engine gives it is there.
    pub generation: Option<Generation>,
    /// Whose memories its facts become, where it knows.
    pub subject: Option<Subject>,
    /// Encoded as they were when they arrived.
    pub turns: Vec<Arc<[u8]>>,
    /// The `after_seq` of the next page; 0 on the last one.
    pub next_after_seq: u64,
}

/// A turn's seq, and its content as it was encoded when it arrived.
pub(crate) type SeqTurn = (u64, Arc<[u8]>);

/// What was seen under a lock, and whether it is true yet.
struct Seen<T> {
    what: T,
    ticket: u64,
    epoch: u32,
}

impl SessionView {
    pub(crate) fn of(key: &SessionKey, head: &Head, tenant: &Tenant, now: Now) -> Self {
        let expires_at = Steady(head.last_access.0.saturating_add(tenant.ttl_ms()));
        let breaker = head
            .compaction
            .as_ref()
            .map_or(BreakerView::Closed, |status| {
                status.breaker(now.steady, head.last_seq, &tenant.policy().compaction)
            });
        Self {
            breaker,
            session: key.session.clone(),
            last_access: now.wall_of(head.last_access),
            expires_at: now.wall_of(expires_at),
            head: head.clone(),
        }
    }

    /// Whose memories its facts become.
    pub fn subject(&self) -> Option<&Subject> {
        self.head.subject.as_ref()
    }
}

impl Engine {
    /// Looks at one live session.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`].
    pub async fn session(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
    ) -> Result<SessionView, EngineError> {
        self.look(tenant, session, |cell, now| {
            let inner = cell.lock();
            let head = inner.head()?;
            let view = SessionView::of(&cell.key, head, &cell.tenant, now);
            Some(Seen {
                what: view,
                ticket: inner.ticket,
                epoch: inner.epoch,
            })
        })
        .await
    }

    /// A session with its summary, and the turns behind that with their seqs.
    pub(crate) async fn session_and_turns(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
    ) -> Result<(SessionView, Option<Arc<Summary>>, Vec<SeqTurn>), EngineError> {
        self.look(tenant, session, |cell, now| {
            let inner = cell.lock();
            let Residence::Live(session) = inner.residence() else {
                return None;
            };
            let view = SessionView::of(&cell.key, session.head(), &cell.tenant, now);
            let through = session.compaction().through_seq;
            let turns = session.history().turns_after(through);
            let turns = turns
                .map(|turn| (turn.seq, Arc::clone(&turn.content)))
                .collect();
            let what = (view, session.summary().cloned(), turns);
            Some(Seen {
                what,
                ticket: inner.ticket,
                epoch: inner.epoch,
            })
        })
        .await
    }

    /// Lists live sessions, most recently used first, from behind `after`.
    pub async fn sessions(
        &self,
        tenant: &Arc<Tenant>,
        after: Option<(&SessionId, Steady)>,
        count: usize,
    ) -> SessionPage {
        let entries = tenant.idle.page(after, count);
        let next = entries.last().filter(|_| entries.len() == count);
        let next = next.map(|entry| (entry.cell.key.session.clone(), entry.last_access));
        let now = self.shared.machine.now();
        let (mut seen, mut ticket) = (Vec::with_capacity(entries.len()), 0);
        for entry in entries {
            let inner = entry.cell.lock();
            let head = inner
                .head()
                .filter(|head| !head.is_expired(now.steady, tenant.ttl_ms()));
            let view = head.map(|head| SessionView::of(&entry.cell.key, head, tenant, now));
            if view.is_some() || matches!(inner.residence(), Residence::Unknown) {
                ticket = ticket.max(inner.ticket);
                let epoch = inner.epoch;
                drop(inner);
                seen.push((entry.cell, view, epoch));
            }
        }
        self.shared.journal.visible(ticket).await;
        let mut sessions = Vec::with_capacity(seen.len());
        for (cell, view, epoch) in seen {
            let is_true = cell.lock().epoch == epoch;
            match view.filter(|_| is_true) {
                Some(view) => sessions.push(view),
                // What was seen was not written; what is so instead stands in the journal.
                None => sessions.extend(self.session(tenant, &cell.key.session).await.ok()),
            }
        }
        SessionPage { sessions, next }
    }

    /// Reads turns.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::GenerationNotFound`], or a
    /// journal that cannot be read.
    pub async fn history(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        query: HistoryQuery,
    ) -> Result<HistoryPage, EngineError> {
        match query.scope {
            HistoryScope::Live => self.live_history(tenant, session, query).await,
            HistoryScope::Journal => self.journal_history(tenant, session, query).await,
        }
    }

    async fn live_history(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        query: HistoryQuery,
    ) -> Result<HistoryPage, EngineError> {
        let not_found = || EngineError::GenerationNotFound {
            session: session.clone(),
            generation: query.generation,
        };
        let page = self.look(tenant, session, |cell, _| {
            let inner = cell.lock();
            let Residence::Live(session) = inner.residence() else {
                return None;
            };
            let is_other = query
                .generation
                .is_some_and(|named| named != session.head().generation);
            let what = (!is_other).then(|| HistoryPage {
                generation: Some(session.head().generation),
                subject: session.head().subject.clone(),
                ..take_page(session.history().turns_after(query.after_seq), query)
            });
            Some(Seen {
                what,
                ticket: inner.ticket,
                epoch: inner.epoch,
            })
        });
        page.await?.ok_or_else(not_found)
    }

    async fn journal_history(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        query: HistoryQuery,
    ) -> Result<HistoryPage, EngineError> {
        self.shared.journal.all_settled().await;
        let key = SessionKey {
            tenant: tenant.id.clone(),
            session: session.clone(),
        };
        let range = JournalRange {
            after_seq: query.after_seq,
            turns_max: query.turns_max,
            bytes_max: query.bytes_max,
        };
        let read = self
            .shared
            .journal
            .with_store(move |store| store.journal(&key, query.generation, range));
        let page = read.await?.ok_or_else(|| EngineError::GenerationNotFound {
            session: session.clone(),
            generation: query.generation,
        })?;
        let last = page
            .turns
            .last()
            .filter(|_| page.more)
            .map_or(0, |(seq, _)| *seq);
        let turns = page.turns.into_iter().map(|(_, content)| content).collect();
        let JournalPage {
            generation,
            subject,
            ..
        } = page;
        Ok(HistoryPage {
            generation,
            subject,
            turns,
            next_after_seq: last,
        })
    }

    /// Looks at a session under its lock, as often as it takes to see something that is
    /// true. `see` gives `None` when the session has to be loaded first.
    async fn look<T>(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        see: impl Fn(&SessionCell, Now) -> Option<Seen<T>>,
    ) -> Result<T, EngineError> {
        let not_found = || EngineError::SessionNotFound {
            session: session.clone(),
        };
        let key = SessionKey {
            tenant: tenant.id.clone(),
            session: session.clone(),
        };
        for _ in 0..ATTEMPTS {
            let cell = self.shared.table.get(&key).ok_or_else(not_found)?;
            if self.end_if_expired(&cell).await? {
                return Err(not_found());
            }
            let Some(seen) = see(&cell, self.shared.machine.now()) else {
                let is_gone = cell.lock().is_gone();
                match is_gone && self.is_gone_for_good(&cell).await {
                    // It is about to be taken out of the table, where it still is there.
                    true => tokio::task::yield_now().await,
                    false => self.load(&cell).await?,
                }
                continue;
            };
            self.shared.journal.visible(seen.ticket).await;
            if cell.lock().epoch == seen.epoch {
                return Ok(seen.what);
            }
        }
        Err(EngineError::NoPlace)
    }
}

fn take_page<'a>(
    turns: impl Iterator<Item = &'a memoird_core::history::TurnRecord>,
    query: HistoryQuery,
) -> HistoryPage {
    let (mut page, mut bytes, mut last) = (HistoryPage::default(), 0, 0);
    for turn in turns {
        if page.turns.len() >= query.turns_max || bytes >= query.bytes_max {
            page.next_after_seq = last;
            break;
        }
        bytes += turn.content.len();
        last = turn.seq;
        page.turns.push(Arc::clone(&turn.content));
    }
    page
}
