//! Commands on a session that lives: its JSON, and its reset.

use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::change::ChangeSet;
use memoird_core::ids::{Generation, SessionId, SessionKey};
use memoird_core::session::Session;
use memoird_core::state::State;
use memoird_core::time::Now;

use crate::append::{ATTEMPTS, Attempt};
use crate::cell::{Residence, SessionCell};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::journal::Permit;
use crate::read::SessionView;
use crate::tenant::Tenant;

impl Engine {
    /// Changes the JSON of a live session by an RFC 7396 merge patch.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], what the rules refuse, a journal that cannot be
    /// written.
    pub async fn patch_state(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        patch: &str,
        expected_version: Option<u64>,
    ) -> Result<State, EngineError> {
        let policy = tenant.policy();
        let act = |session: &mut Session, now| {
            let patched = session.patch_state(patch, expected_version, &policy.limits, now)?;
            let (state, change) = patched;
            Ok((
                state,
                ChangeSet {
                    changes: vec![change],
                },
            ))
        };
        // What waits for the disk is the whole state, and not only what the patch says.
        let bytes = patch.len().max(policy.limits.state_bytes);
        Ok(self.command(tenant, session, bytes, act).await?.0)
    }

    /// Clears history and state of a live session: same session, new generation. Hooks
    /// run only where `run_hooks` asks for them. Gives the session, and the generation that
    /// ended.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], or a journal that cannot be written.
    pub async fn reset_session(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        run_hooks: bool,
    ) -> Result<(SessionView, Generation), EngineError> {
        let key = SessionKey {
            tenant: tenant.id.clone(),
            session: session.clone(),
        };
        let act = |session: &mut Session, now| {
            let ended = session.head().generation;
            Ok((ended, self.successor(session, &key, run_hooks, now)))
        };
        let (ended, view) = self.command(tenant, session, 0, act).await?;
        Ok((view, ended))
    }

    /// Does something to a live session, and waits until it is as durable as configured.
    async fn command<T>(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        bytes: usize,
        act: impl Fn(&mut Session, Now) -> Result<(T, ChangeSet), CoreError>,
    ) -> Result<(T, SessionView), EngineError> {
        let not_found = || EngineError::SessionNotFound {
            session: session.clone(),
        };
        let key = SessionKey {
            tenant: tenant.id.clone(),
            session: session.clone(),
        };
        let mut permit = Some(self.shared.journal.permit(bytes).await?);
        for _ in 0..ATTEMPTS {
            let cell = self.shared.table.get(&key).ok_or_else(not_found)?;
            match self.act_on(&cell, &mut permit, &act)? {
                Attempt::Done(outcome, submitted) => {
                    submitted.written().await?;
                    return Ok(outcome);
                }
                Attempt::NeedsEnd => {
                    // The end needs room in the queue as well.
                    drop(permit.take());
                    self.end_if_expired(&cell).await?;
                    permit = Some(self.shared.journal.permit(bytes).await?);
                }
                Attempt::Gone if self.is_gone_for_good(&cell).await => return Err(not_found()),
                _ => self.load(&cell).await?,
            }
        }
        Err(EngineError::NoPlace)
    }

    fn act_on<T>(
        &self,
        cell: &Arc<SessionCell>,
        permit: &mut Option<Permit>,
        act: impl Fn(&mut Session, Now) -> Result<(T, ChangeSet), CoreError>,
    ) -> Result<Attempt<(T, SessionView)>, EngineError> {
        let mut inner = cell.lock();
        if matches!(inner.residence(), Residence::Stored(_) | Residence::Unknown) {
            return Ok(Attempt::NeedsLoad);
        }
        let now = self.shared.machine.now();
        let Some(session) = inner.session_mut() else {
            return Ok(Attempt::Gone);
        };
        if session.is_expired(now.steady, cell.tenant.ttl_ms()) {
            return Ok(Attempt::NeedsEnd);
        }
        let is_open = |session: &Session| session.compaction().opened.is_some();
        let (before, was_open) = (session.head().totals, is_open(session));
        let (outcome, set) = act(session, now)?;
        cell.tenant.stats.count_live(before, session.head().totals);
        // A reset puts another session into its place.
        cell.tenant
            .stats
            .compaction
            .count_open(was_open, is_open(session));
        let view = SessionView::of(&cell.key, session.head(), &cell.tenant, now);
        let permit = permit.take().ok_or(EngineError::NoPlace)?;
        let submitted = self
            .shared
            .journal
            .submit(permit, set, vec![Arc::clone(cell)], 0);
        inner.ticket = submitted.ticket;
        drop(inner);
        cell.tenant.idle.touch(cell, now.steady);
        Ok(Attempt::Done((outcome, view), submitted))
    }
}
