//! How a generation ends: marked under its lock, written, taken out of the table.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashlink::LinkedHashMap;
use memoird_core::change::{Change, ChangeSet, EndReason};
use memoird_core::idempotency::Keys;
use memoird_core::ids::{Generation, SessionId, SessionKey, TenantId};
use memoird_core::session::{Head, Session};
use memoird_core::time::{Now, Steady};

use crate::append::{ATTEMPTS, Attempt};
use crate::cell::{Inner, Residence, SessionCell};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::journal::Permit;
use crate::read::SessionView;
use crate::tenant::Tenant;

/// A generation that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSession {
    /// Whose it was.
    pub tenant: TenantId,
    /// The bot's own id of it.
    pub session: SessionId,
    /// Which life of it.
    pub generation: Generation,
    /// Why it ended.
    pub reason: EndReason,
}

/// Idempotency keys of sessions that ended while there was no journal to keep them: of the
/// sessions that ended last, up to [`RETIRED_KEYS_MAX`] keys.
#[derive(Debug, Default)]
pub(crate) struct RetiredKeys {
    retired: Mutex<Retired>,
}

#[derive(Debug, Default)]
struct Retired {
    sessions: LinkedHashMap<SessionKey, Keys>,
    keys: usize,
}

const RETIRED_KEYS_MAX: usize = 100_000;

impl RetiredKeys {
    fn put(&self, key: &SessionKey, keys: Keys) {
        if keys.is_empty() {
            return;
        }
        let mut retired = self.lock();
        retired.keys += keys.len();
        if let Some(before) = retired.sessions.insert(key.clone(), keys) {
            retired.keys -= before.len();
        }
        while retired.keys > RETIRED_KEYS_MAX {
            let Some((_, oldest)) = retired.sessions.pop_front() else {
                break;
            };
            retired.keys -= oldest.len();
        }
    }

    fn get(&self, key: &SessionKey) -> Keys {
        self.lock().sessions.get(key).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Retired> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Ends the live generation now. Gives the session as it was.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], or a journal that cannot be written.
    pub async fn end_session(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
    ) -> Result<SessionView, EngineError> {
        let not_found = || EngineError::SessionNotFound {
            session: session.clone(),
        };
        let key = SessionKey {
            tenant: tenant.id.clone(),
            session: session.clone(),
        };
        let mut permit = Some(self.shared.journal.permit(0).await?);
        for _ in 0..ATTEMPTS {
            let cell = self.shared.table.get(&key).ok_or_else(not_found)?;
            match self.end_cell(&cell, EndReason::Ended, None, &mut permit)? {
                Attempt::Done((view, ended), submitted) => {
                    submitted.written().await?;
                    return match ended.reason {
                        // It was past its TTL when it was asked to end.
                        EndReason::Expired => Err(not_found()),
                        _ => Ok(view),
                    };
                }
                Attempt::Gone if self.is_gone_for_good(&cell).await => return Err(not_found()),
                _ => self.load(&cell).await?,
            }
        }
        Err(EngineError::NoPlace)
    }

    /// Waits for the end of a session that was found ended. False when it was not true.
    pub(crate) async fn is_gone_for_good(&self, cell: &SessionCell) -> bool {
        let ticket = cell.lock().ticket;
        self.shared.journal.visible(ticket).await;
        cell.lock().is_gone()
    }

    /// Ends a session under its lock. With `idle_since`, only if it is expired and was
    /// not used after that moment; otherwise it is as if it were gone.
    pub(crate) fn end_cell(
        &self,
        cell: &Arc<SessionCell>,
        reason: EndReason,
        idle_since: Option<Steady>,
        permit: &mut Option<Permit>,
    ) -> Result<Attempt<(SessionView, EndedSession)>, EngineError> {
        let mut inner = cell.lock();
        if matches!(inner.residence(), Residence::Unknown) {
            return Ok(Attempt::NeedsLoad);
        }
        let Some(head) = inner.head() else {
            return Ok(Attempt::Gone);
        };
        let now = self.shared.machine.now();
        let is_expired = head.is_expired(now.steady, cell.tenant.ttl_ms());
        if idle_since.is_some_and(|since| !is_expired || head.last_access > since) {
            return Ok(Attempt::Gone);
        }
        let reason = if is_expired {
            EndReason::Expired
        } else {
            reason
        };
        let permit = permit.take().ok_or(EngineError::NoPlace)?;
        let view = SessionView::of(&cell.key, head, &cell.tenant, now);
        let ended = EndedSession {
            tenant: cell.key.tenant.clone(),
            session: cell.key.session.clone(),
            generation: head.generation,
            reason,
        };
        let Some(leaving) = Leaving::of(&inner) else {
            return Ok(Attempt::Gone);
        };
        let set = ChangeSet {
            changes: vec![self.end_of(&cell.key, leaving, reason, now)],
        };
        let submitted = self
            .shared
            .journal
            .submit(permit, set, vec![Arc::clone(cell)], 0);
        inner.ticket = submitted.ticket;
        self.retire(cell, &mut inner, None);
        Ok(Attempt::Done((view, ended), submitted))
    }

    /// Marks a session as ended; whoever holds the cell still sees that. Its place goes to
    /// `heir`, where one waits for it.
    pub(crate) fn retire(
        &self,
        cell: &Arc<SessionCell>,
        inner: &mut Inner,
        heir: Option<&TenantId>,
    ) {
        let was = self.leave(cell, inner, heir);
        if let (Residence::Live(mut session), false) = (was, self.shared.journal.is_on())
            && let Some(keys) = session.take_keys()
        {
            self.shared.retired_keys.put(&cell.key, keys);
        }
    }

    /// Takes a session out of the list and the counts, under its lock: whoever holds that
    /// can rely on what it says of both. Gives where the session was.
    pub(crate) fn leave(
        &self,
        cell: &Arc<SessionCell>,
        inner: &mut Inner,
        heir: Option<&TenantId>,
    ) -> Residence {
        let (id, capacity) = (&cell.tenant.id, &self.shared.capacity);
        match (std::mem::take(&mut inner.is_listed), heir) {
            (true, Some(heir)) => capacity.pass_on(id, heir),
            (true, None) => capacity.give_back(id),
            (false, Some(heir)) => capacity.take_anyway(heir),
            (false, None) => {}
        }
        cell.tenant.idle.remove(cell);
        // Whoever looks for it finds it until its end is written, and waits for that.
        if !self.shared.journal.is_waited_for() {
            self.shared.table.remove(cell);
        }
        inner.settle(&cell.tenant, Residence::Gone)
    }

    /// The idempotency keys of a session id that has no live session.
    pub(crate) async fn keys_of(
        &self,
        key: &SessionKey,
        tenant: &Arc<Tenant>,
    ) -> Result<Keys, EngineError> {
        if !self.shared.journal.is_on() {
            return Ok(self.shared.retired_keys.get(key));
        }
        self.shared.journal.all_settled().await;
        let (wanted, since) = (key.clone(), self.keys_since(tenant));
        self.shared
            .journal
            .with_store(move |store| store.keys(&wanted, since))
            .await
    }

    /// Gives a live session the idempotency keys of its id; it was started by an append
    /// without one, when nobody looked.
    pub(crate) async fn load_keys(&self, cell: &Arc<SessionCell>) -> Result<(), EngineError> {
        let _flight = self.shared.flights.enter(&cell.key).await;
        if cell
            .lock()
            .session_mut()
            .is_none_or(|session| session.keys().is_some())
        {
            return Ok(());
        }
        let keys = self.keys_of(&cell.key, &cell.tenant).await?;
        let mut inner = cell.lock();
        if let Some(session) = inner.session_mut()
            && session.keys().is_none()
        {
            session.set_keys(keys);
        }
        Ok(())
    }

    /// The end of a session, with what it owes to hooks. Without a journal the content is
    /// handed over here and now: nobody else will have it.
    pub(crate) fn end_of(
        &self,
        key: &SessionKey,
        leaving: Leaving<'_>,
        reason: EndReason,
        now: Now,
    ) -> Change {
        let owed = self.shared.outbox.owed(&key.tenant, reason);
        if let (Leaving::Whole(session), false) = (&leaving, owed.is_empty()) {
            self.shared.outbox.keep(key, session, reason, now, &owed);
        }
        leaving.head().end(reason, now, owed)
    }

    /// A session begins anew in the place of one that is reset.
    pub(crate) fn successor(
        &self,
        old: &mut Session,
        key: &SessionKey,
        run_hooks: bool,
        now: Now,
    ) -> ChangeSet {
        let end = match run_hooks {
            true => self.end_of(key, Leaving::Whole(old), EndReason::Reset, now),
            false => old.head().end(EndReason::Reset, now, Arc::default()),
        };
        let (mut fresh, begin) = Session::begin(key, self.new_generation(now), now);
        if let Some(keys) = old.take_keys() {
            fresh.set_keys(keys);
        }
        *old = fresh;
        ChangeSet {
            changes: vec![end, begin],
        }
    }

    /// Ends every live session, because the daemon stops and keeps no journal.
    pub(crate) async fn end_all(&self, reason: EndReason) -> Result<(), EngineError> {
        for tenant in self.tenants() {
            while let Some(oldest) = tenant.idle.oldest() {
                let mut permit = Some(self.shared.journal.permit(0).await?);
                let ended = self.end_cell(&oldest.cell, reason, None, &mut permit)?;
                if let Attempt::NeedsLoad = ended {
                    self.load(&oldest.cell).await?;
                }
            }
        }
        Ok(())
    }
}

/// A session that ends, as far as it is in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leaving<'a> {
    /// All of it.
    Whole(&'a Session),
    /// Its head: the rest is in the journal.
    Head(&'a Head),
}

impl<'a> Leaving<'a> {
    pub(crate) fn of(inner: &'a Inner) -> Option<Self> {
        match inner.residence() {
            Residence::Live(session) => Some(Self::Whole(session)),
            Residence::Stored(head) => Some(Self::Head(head)),
            Residence::Unknown | Residence::Gone => None,
        }
    }

    fn head(&self) -> &'a Head {
        match self {
            Self::Whole(session) => session.head(),
            Self::Head(head) => head,
        }
    }
}
