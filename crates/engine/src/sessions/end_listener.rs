//! What hooks learn when a session ends.

use std::fmt::Debug;
use std::sync::Arc;

use memoird_core::change::EndReason;
use memoird_core::ids::{HookName, SessionKey, TenantId};
use memoird_core::session::{Head, Session};
use memoird_core::time::Now;

/// Receives the ends of sessions.
pub(crate) trait EndListener: Debug + Send + Sync + 'static {
    /// The hooks to deliver this end to.
    fn hooks_for_end(&self, tenant: &TenantId, reason: EndReason) -> Arc<[HookName]>;

    /// Called with an ending session, under its lock. Without a journal, its content is then lost.
    fn session_ending(&self, ending: &Ending<'_>, hooks_to_call: &[HookName]);

    /// Called when new pending deliveries are in the journal.
    fn deliveries_added(&self);
}

/// An ending session, as far as it is in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending<'a> {
    pub(crate) key: &'a SessionKey,
    pub(crate) head: &'a Head,
    /// The whole session, if it is loaded.
    pub(crate) session: Option<&'a Session>,
    pub(crate) reason: EndReason,
    pub(crate) at: Now,
}
