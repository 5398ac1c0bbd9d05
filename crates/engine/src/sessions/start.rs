//! Starting a session.
//!
//! Room is reserved first. An eviction at a cap, like the end of an expired generation, is a change
//! set of its own, written before the start. A crash in between leaves a state that clients could
//! have observed anyway.

use std::sync::Arc;

use super::handle::{SessionRef, Sessions};
use super::slot::SessionVersion;
use super::slot::{Slot, SlotState};
use super::update::{Decided, Decision, Effect, Update, UpdateOptions, WaitFor};
use crate::error::EngineError;

impl Sessions {
    /// Starts a session with the decision of a command.
    ///
    /// Of several concurrent first commands, one starts the session. The others get `None` and find
    /// it live. A command that changes nothing starts nothing.
    pub(super) async fn start<T, E: From<EngineError>>(
        &self,
        session: &SessionRef,
        options: UpdateOptions,
        decide: impl FnOnce(&mut Update<'_>) -> Result<Decision<T>, E>,
    ) -> Result<Option<Decided<T>>, E> {
        let _flight = self.shared.single_flight.enter(&session.key).await;
        if self.is_live(session) {
            return Ok(None);
        }
        let keys = if options.key.is_some() {
            Some(self.keys_of(session).await?)
        } else {
            None
        };
        // The end of the previous generation may not have been written after all.
        if self.is_live(session) {
            return Ok(None);
        }
        let now = self.now();
        let (mut fresh, begin) = self.begin(&session.key, now);
        if let Some(keys) = keys {
            fresh.set_keys(keys);
        }
        let policy = session.tenant.policy();
        let version = SessionVersion::first(fresh.head().generation);
        let decision = decide(&mut Update {
            session: &mut fresh,
            key: &session.key,
            tenant: &session.tenant,
            policy: &policy,
            now,
            version,
            is_new: true,
            may_note_use: true,
            sessions: self,
        })?;
        let outcome = decision.outcome;
        let Some(Effect { mut changes, .. }) = decision.effect else {
            let wait = WaitFor::Nothing;
            return Ok(Some(Decided { outcome, wait }));
        };
        changes.insert(0, begin);
        if self.shared.cluster.is_some() {
            // Since the keys were read, another daemon may have used one in a generation that has
            // ended. The store rejects the start only if it uses the same key, so the next command
            // with a key reads them again.
            fresh.take_keys();
        }

        self.shared.tenants.memory().check_session_room()?;
        let reservation = self.reserve(&session.tenant).await?;
        let journal = &self.shared.journal;
        let permit = journal.permit_of(&session.tenant, options.bytes).await?;
        // No await from here on, so that a cancelled call has started the session or not.
        let orders = self.shared.table.orders(&session.tenant.id);
        let tenant = Arc::clone(&session.tenant);
        let state = SlotState::Loaded(fresh);
        let slot = Slot::new(session.key.clone(), tenant, orders, state);
        let mut inner = slot.lock();
        let submitted = self.submit(&slot, &mut inner, permit, changes, None);
        inner.list(&slot);
        self.shared.table.insert(&slot);
        drop(inner);
        reservation.mark_live();
        Ok(Some(Decided {
            outcome,
            wait: WaitFor::Written(submitted),
        }))
    }
}
