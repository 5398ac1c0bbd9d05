//! Loading sessions from the journal, on demand and after a failed write.

use std::sync::Arc;

use memoird_core::idempotency::{Fingerprint, Keys};
use memoird_core::ids::SessionKey;
use memoird_core::session::{Head, Session};
use memoird_store::{SessionToLoad, Store};
use tokio::sync::mpsc::UnboundedReceiver;

use super::handle::{SessionRef, Sessions};
use super::slot::{Slot, SlotInner, SlotState};
use crate::error::EngineError;
use crate::load_queue::{LoadResult, LoadTurn};
use crate::tenants::Tenant;
use crate::worker::{WorkError, Worker};

/// Number of changes before which a session is read again, after another daemon changed it.
const REFRESHES_MAX: u8 = 3;

impl Sessions {
    /// Returns the slot of a live session.
    ///
    /// Loads a session that is missing in the table, unless the table has every live session.
    pub(super) async fn find(
        &self,
        session: &SessionRef,
    ) -> Result<Option<Arc<Slot>>, EngineError> {
        match self.shared.table.get(&session.key) {
            Some(slot) => Ok(Some(slot)),
            None if self.has_all() => Ok(None),
            None => self.load_missing(session).await,
        }
    }

    /// Whether the table contains every live session.
    fn has_all(&self) -> bool {
        self.shared.cluster.is_none()
    }

    async fn load_missing(&self, session: &SessionRef) -> Result<Option<Arc<Slot>>, EngineError> {
        let _flight = self.shared.single_flight.enter(&session.key).await;
        if let Some(slot) = self.shared.table.get(&session.key) {
            return Ok(Some(slot));
        }
        let wanted = SessionToLoad {
            key: session.key.clone(),
            known: None,
            idempotency_key: None,
        };
        let Some(loaded) = self.read_session(wanted, &session.tenant).await? else {
            return Ok(None);
        };
        Ok(Some(self.insert_known(session, SlotState::Loaded(loaded))))
    }

    /// Loads a session that is only in the journal, unless its slot was replaced.
    ///
    /// `key` is the idempotency key of the command, if any.
    pub(super) async fn load(
        &self,
        slot: &Arc<Slot>,
        key: Option<Fingerprint>,
    ) -> Result<(), EngineError> {
        let _flight = self.shared.single_flight.enter(&slot.key).await;
        if self.is_replaced(slot) {
            Ok(())
        } else {
            self.reload(slot, key).await
        }
    }

    /// Reads a session again before a change, if other daemons keep changing it.
    ///
    /// Otherwise the change would be rejected, and the session would be loaded after that.
    pub(super) async fn refresh(
        &self,
        slot: &Arc<Slot>,
        key: Option<Fingerprint>,
    ) -> Result<(), EngineError> {
        let epoch = {
            let inner = slot.lock();
            if !self.is_probably_outdated(&inner) {
                return Ok(());
            }
            inner.epoch
        };
        let _flight = self.shared.single_flight.enter(&slot.key).await;
        if self.is_replaced(slot) {
            return Ok(());
        }
        {
            let mut inner = slot.lock();
            let revision = inner.head().map_or(0, |head| head.revision);
            // A concurrent call may have read it again.
            if inner.epoch != epoch || !self.is_probably_outdated(&inner) {
                return Ok(());
            }
            inner.outdate(&slot.tenant, u64::MAX, revision);
        }
        self.reload(slot, key).await
    }

    fn is_probably_outdated(&self, inner: &SlotInner) -> bool {
        // A load would discard a running compaction. A change of this daemon in flight shows whether
        // the session is outdated.
        let may_reload = |session: &Session| !session.compaction().running;
        inner.refreshes > 0
            && inner.session().is_some_and(may_reload)
            && self.shared.journal.is_processed(inner.ticket)
    }

    /// Like [`Self::load`], but without single flight: for callers that are already in one.
    ///
    /// They must not wait for a second one.
    pub(super) async fn reload(
        &self,
        slot: &Arc<Slot>,
        key: Option<Fingerprint>,
    ) -> Result<(), EngineError> {
        let (ticket, epoch) = {
            let inner = slot.lock();
            if !needs_load(inner.state()) {
                return Ok(());
            }
            (inner.ticket, inner.epoch)
        };
        let journal = &self.shared.journal;
        journal.wait_processed_of_session(ticket).await?;
        let outdated = slot.lock().take_outdated(&slot.tenant);
        let revision = outdated.as_ref().map(|outdated| outdated.revision);
        let saved = if self.shared.journal.is_on() {
            let wanted = SessionToLoad {
                key: slot.key.clone(),
                known: outdated.map(|outdated| outdated.known),
                idempotency_key: key,
            };
            self.read_session(wanted, &slot.tenant).await?
        } else {
            // Without a journal, a session that a panic left half changed is lost.
            None
        };
        let mut inner = slot.lock();
        // It may have ended, been discarded again, or been loaded and changed in the meantime.
        if inner.epoch != epoch || !needs_load(inner.state()) {
            return Ok(());
        }
        match saved {
            Some(mut session) => {
                // If memory has the same version, its last access may be newer than the journaled
                // one.
                let (saved, now) = (session.head(), self.now().steady);
                let version = |head: &Head| (head.generation, head.revision);
                let revision_now = saved.revision;
                let known = inner
                    .head()
                    .filter(|known| version(known) == version(saved));
                let last_access = saved.last_access.min(now);
                session.used_at(known.map_or(last_access, |known| known.last_access));
                if self.shared.cluster.is_some() {
                    // Versions observed earlier may have been stale. Invalidate them.
                    inner.epoch += 1;
                }
                if let Some(revision) = revision {
                    inner.refreshes = if revision_now == revision {
                        inner.refreshes.saturating_sub(1)
                    } else {
                        REFRESHES_MAX
                    };
                }
                inner.set_state(&slot.tenant, SlotState::Loaded(session));
                inner.relist(slot, false);
            }
            None => {
                self.mark_ended(slot, &mut inner, None);
                self.shared.table.remove(slot);
            }
        }
        Ok(())
    }

    /// Reads a live session, together with others of its tenant that are read at the same time.
    async fn read_session(&self, wanted: SessionToLoad, tenant: &Arc<Tenant>) -> LoadResult {
        let store = self.store()?;
        let mut ticket = tenant.loads.push(wanted);
        loop {
            match tenant.loads.turn(&mut ticket).await {
                LoadTurn::Loaded(loaded) => return loaded,
                LoadTurn::Runs(_permit) => {
                    let (sessions, tenant) = (self.clone(), Arc::clone(tenant));
                    let id = tenant.id.clone();
                    let load = move |store: &dyn Store| {
                        sessions.load_waiting(&tenant, store);
                        Ok(())
                    };
                    store.run(Some(&id), load).await?;
                }
            }
        }
    }

    /// Loads sessions of a tenant that wait for it.
    fn load_waiting(&self, tenant: &Tenant, store: &dyn Store) {
        let policy = tenant.policy();
        let (wanted, replies): (Vec<_>, Vec<_>) = tenant
            .loads
            .take()
            .into_iter()
            .map(|load| (load.wanted, Some(load.reply)))
            .unzip();
        let mut replies = replies;
        let read = store.load_all(&wanted, self.keys_since(tenant), &mut |place, saved| {
            let loaded = saved.map(|saved| {
                let mut session = Session::restore(saved);
                session.trim(&policy.limits);
                let secret = &self.shared.nonce_secret;
                session.set_nonce(secret.nonce(session.head().generation));
                Some(session)
            });
            if let Some(reply) = replies.get_mut(place).and_then(Option::take) {
                // The caller may have been cancelled.
                let _ = reply.send(loaded.map_err(|error| EngineError::from(&error)));
            }
        });
        for reply in replies.into_iter().flatten() {
            let not_found = read.as_ref().map(|()| None);
            let _ = reply.send(not_found.map_err(EngineError::from));
        }
    }

    /// Returns the idempotency keys of a session id without a live session.
    pub(super) async fn keys_of(&self, session: &SessionRef) -> Result<Keys, EngineError> {
        if !self.shared.journal.is_on() {
            return Ok(self.shared.ended_keys.get(&session.key));
        }
        if !self.shared.keyed_ids.may_have(&session.key) {
            return Ok(Keys::default());
        }
        self.wait_session_processed(&session.key).await?;
        let since = self.keys_since(&session.tenant);
        let key = session.key.clone();
        let read = move |store: &dyn Store| store.keys(&key, since);
        let store = self.store()?;
        store.run(Some(&session.tenant.id), read).await
    }

    /// Waits until every change of a session id submitted so far is written or rejected.
    ///
    /// While one is pending, the table contains its slot, or a newer one with the same id.
    pub(crate) async fn wait_session_processed(&self, key: &SessionKey) -> Result<(), EngineError> {
        let Some(slot) = self.shared.table.get(key) else {
            return Ok(());
        };
        let ticket = slot.lock().ticket;
        let journal = &self.shared.journal;
        journal.wait_processed_of_session(ticket).await
    }

    /// Loads the idempotency keys of a live session that lacks the one in `key`.
    ///
    /// A session started by an append without a key has none, and one that was loaded for another
    /// call may only have the key of that call.
    pub(super) async fn load_keys(
        &self,
        session: &SessionRef,
        slot: &Arc<Slot>,
        key: Option<Fingerprint>,
    ) -> Result<(), EngineError> {
        let _flight = self.shared.single_flight.enter(&slot.key).await;
        let is_covered = |session: &Session| key.is_none_or(|key| session.covers_key(&key));
        let epoch = {
            let inner = slot.lock();
            if inner.session().is_none_or(is_covered) {
                return Ok(());
            }
            inner.epoch
        };
        let keys = self.keys_of(session).await?;
        let mut inner = slot.lock();
        let is_same = inner.epoch == epoch;
        if let Some(session) = inner.session_mut()
            && is_same
            && !is_covered(session)
        {
            session.set_keys(keys);
        }
        Ok(())
    }

    /// Whether another slot has replaced this one in the table. Marks this one as ended if so.
    ///
    /// That happens when a session is started after an end that is later not written. The journal
    /// then rejects the start, too, and the new slot is reloaded as the old session. In a cluster,
    /// also true for a slot that was dropped from memory.
    fn is_replaced(&self, slot: &Arc<Slot>) -> bool {
        let mut inner = slot.lock();
        let is_replaced = match self.shared.cluster {
            // It may also have been dropped from memory.
            Some(_) => !self.shared.table.has(slot),
            None => inner.listed.is_none() && self.shared.table.has_other(slot),
        };
        if is_replaced {
            inner.set_state(&slot.tenant, SlotState::Ended);
        }
        is_replaced
    }

    /// Reloads a session after a failed write, and corrects the orders and the counts.
    ///
    /// No session with its id starts concurrently.
    async fn restore(&self, slot: &Arc<Slot>) -> Result<(), EngineError> {
        let _flight = self.shared.single_flight.enter(&slot.key).await;
        if self.is_replaced(slot) {
            return Ok(());
        }
        self.reload(slot, None).await?;
        let mut inner = slot.lock();
        // Without a head, it has ended or was discarded again.
        if inner.head().is_none() {
            return Ok(());
        }
        if inner.listed.is_some() {
            inner.relist(slot, false);
        } else {
            // Its end was not written.
            self.shared.census.count_unconditionally(&slot.tenant.id);
            inner.list(slot);
            self.shared.table.insert(slot);
        }
        Ok(())
    }
}

fn needs_load(state: &SlotState) -> bool {
    matches!(state, SlotState::OnDisk(_) | SlotState::Stale(_))
}

/// Worker that reloads sessions after failed writes.
pub(super) struct ReloadWorker {
    sessions: Sessions,
    failed: UnboundedReceiver<Arc<Slot>>,
    next: Option<Arc<Slot>>,
}

impl ReloadWorker {
    pub(super) fn new(sessions: Sessions, failed: UnboundedReceiver<Arc<Slot>>) -> Self {
        Self {
            sessions,
            failed,
            next: None,
        }
    }
}

impl Worker for ReloadWorker {
    fn name(&self) -> &'static str {
        "reloader"
    }

    async fn wait(&mut self) {
        self.next = self.failed.recv().await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let Some(slot) = self.next.take() else {
            return Ok(());
        };
        if let Err(error) = self.sessions.restore(&slot).await {
            // Others are tried first.
            let _ = self.sessions.shared.failed.send(slot);
            return Err(error.into());
        }
        // Its room may have been reassigned in the meantime.
        Ok(self.sessions.enforce_caps().await?)
    }
}
