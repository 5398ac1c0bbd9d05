//! Reading sessions without counting as a use.
//!
//! A reply is durable: if a view contains unwritten changes, the call waits for them.

use std::sync::Arc;

use memoird_core::breaker::BreakerState;
use memoird_core::change::EndReason;
use memoird_core::idempotency::Fingerprint;
use memoird_core::ids::{Generation, SessionId, SessionKey, Subject};
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::{Head, Session};
use memoird_core::time::{Now, Steady, Timestamp};
use memoird_store::{EndedGeneration, JournalPage, JournalRange, Store};

use super::freshness::ObservedVersion;
use super::handle::{ATTEMPTS_MAX, SessionRef, Sessions};
use super::slot::{Slot, SlotInner};
use crate::error::EngineError;
use crate::tenants::{NEVER_MS, Tenant};

/// A session without its turns. It is live, except in lists of ended generations.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// The client's session id.
    pub session: SessionId,
    pub head: Head,
    pub last_access: Timestamp,
    /// Expiry time if the session is not used again. `None` if it never expires.
    pub expires_at: Option<Timestamp>,
    pub breaker: BreakerState,
    /// When and why the generation ended.
    pub ended: Option<(Timestamp, EndReason)>,
}

impl SessionView {
    pub(super) fn new(key: &SessionKey, head: &Head, tenant: &Tenant, now: Now) -> Self {
        let ttl_ms = Some(tenant.ttl_ms(head)).filter(|ttl_ms| *ttl_ms != NEVER_MS);
        let expires_at = ttl_ms.map(|ttl_ms| head.last_access.0.saturating_add(ttl_ms));
        let breaker = head
            .compaction
            .as_ref()
            .map_or(BreakerState::Closed, |status| {
                status.breaker(now.steady, head.last_seq, &tenant.policy().compaction)
            });
        Self {
            breaker,
            session: key.session.clone(),
            last_access: now.wall_of(head.last_access),
            expires_at: expires_at.map(|at| now.wall_of(Steady(at))),
            head: head.clone(),
            ended: None,
        }
    }

    pub(super) fn of_ended(ended: &EndedGeneration, tenant: &Tenant, now: Now) -> Self {
        Self {
            expires_at: None,
            ended: Some((ended.at.wall, ended.reason)),
            ..Self::new(&ended.key, &ended.head, tenant, now)
        }
    }

    /// Owner of the memories extracted from the session.
    pub fn subject(&self) -> Option<&Subject> {
        self.head.subject.as_ref()
    }
}

impl Sessions {
    /// Reads a live session without its turns.
    pub(crate) async fn head(&self, session: &SessionRef) -> Result<SessionView, EngineError> {
        let view = |inner: &SlotInner, now| {
            let head = inner.head()?;
            Some(SessionView::new(&session.key, head, &session.tenant, now))
        };
        self.read_durable(session, view).await
    }

    /// Reads a live session with its turns, loading them if needed.
    pub(crate) async fn view<T>(
        &self,
        session: &SessionRef,
        view: impl Fn(&Session, SessionView) -> T,
    ) -> Result<T, EngineError> {
        let view = |inner: &SlotInner, now| {
            let loaded = inner.session()?;
            let head = SessionView::new(&session.key, loaded.head(), &session.tenant, now);
            Some(view(loaded, head))
        };
        self.read_durable(session, view).await
    }

    /// Reads a live session with its turns. Returns `None` if they are not in memory.
    pub(crate) async fn view_in_memory<T>(
        &self,
        session: &SessionRef,
        view: impl Fn(&Session, SessionView) -> T,
    ) -> Result<Option<T>, EngineError> {
        let view = |inner: &SlotInner, now| {
            let head = SessionView::new(&session.key, inner.head()?, &session.tenant, now);
            Some(inner.session().map(|loaded| view(loaded, head)))
        };
        self.read_durable(session, view).await
    }

    /// Reads a session under its lock, repeatedly until the observed version is durable.
    ///
    /// `read` returns `None` if the session must be loaded first.
    async fn read_durable<T>(
        &self,
        session: &SessionRef,
        read: impl Fn(&SlotInner, Now) -> Option<T>,
    ) -> Result<T, EngineError> {
        for _ in 0..ATTEMPTS_MAX {
            let slot = self
                .find(session)
                .await?
                .ok_or_else(|| session.not_found())?;
            self.check_expiry(session, &slot).await?;
            let (seen, version, has_ended) = {
                let inner = slot.lock();
                let seen = read(&inner, self.now());
                (seen, ObservedVersion::new(&inner), inner.has_ended())
            };
            match seen.zip(version) {
                Some((seen, version)) => {
                    if self.is_current(&slot, version).await? {
                        return Ok(seen);
                    }
                }
                None if has_ended && self.has_durably_ended(&slot).await => {
                    self.check_gone(session, &slot)?;
                }
                None => self.load(&slot, None).await?,
            }
        }
        Err(EngineError::RetriesExhausted)
    }

    /// Fails with [`EngineError::SessionNotFound`] if the session is past its TTL.
    ///
    /// Also ends it, except in a cluster: there the leader does, so that a call that starts no
    /// session ends none at the other daemons.
    pub(super) async fn check_expiry(
        &self,
        session: &SessionRef,
        slot: &Arc<Slot>,
    ) -> Result<(), EngineError> {
        if self.shared.cluster.is_none() {
            // If the end cannot be written, the session counts as ended, too.
            return match self.end_if_expired(slot).await {
                Ok(false) => Ok(()),
                Ok(true) | Err(_) => Err(session.not_found()),
            };
        }
        let expired = {
            let (inner, now) = (slot.lock(), self.now().steady);
            let is_expired = inner
                .head()
                .is_some_and(|head| head.is_expired(now, slot.tenant.ttl_ms(head)));
            ObservedVersion::new(&inner).filter(|_| is_expired)
        };
        match expired {
            // Otherwise another daemon has used it in the meantime.
            Some(version) if self.is_current(slot, version).await? => Err(session.not_found()),
            _ => Ok(()),
        }
    }

    /// Returns an error for a session whose slot has ended.
    ///
    /// In a cluster, drops the slot instead, because another daemon may have started the session
    /// again.
    pub(super) fn check_gone(
        &self,
        session: &SessionRef,
        slot: &Arc<Slot>,
    ) -> Result<(), EngineError> {
        if self.shared.cluster.is_none() {
            return Err(session.not_found());
        }
        self.shared.table.remove(slot);
        Ok(())
    }

    /// Reads a generation's turns from the journal, including everything submitted so far.
    ///
    /// Returns `None` if there is no such generation.
    pub(crate) async fn read_journal(
        &self,
        session: &SessionRef,
        generation: Option<Generation>,
        range: JournalRange,
    ) -> Result<Option<JournalPage>, EngineError> {
        self.wait_session_processed(&session.key).await?;
        let key = session.key.clone();
        let read = move |store: &dyn Store| store.journal(&key, generation, range);
        let store = self.store()?;
        store.run(Some(&session.tenant.id), read).await
    }

    /// Seqs of the turns that the rewind with this idempotency key removed from a generation.
    pub(crate) async fn rewound_by(
        &self,
        session: &SessionRef,
        generation: Generation,
        key: Fingerprint,
    ) -> Result<SeqRanges, EngineError> {
        self.wait_session_processed(&session.key).await?;
        let read = move |store: &dyn Store| store.rewound_by(generation, &key);
        let store = self.store()?;
        store.run(Some(&session.tenant.id), read).await
    }
}
