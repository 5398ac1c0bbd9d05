//! [`Commands`]: the entry point for clients' commands, and their shared state.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use memoird_core::ids::{Generation, SessionId};
use memoird_core::window::WindowSettings;
use tokio::sync::Semaphore;

use crate::blocking::Blocking;
use crate::compaction::CompactionQueue;
use crate::error::EngineError;
use crate::models::ModelRegistry;
use crate::sessions::{
    SessionListPosition, SessionPage, SessionQuery, SessionRef, SessionView, Sessions,
};
use crate::tenants::Tenant;

use super::context::TokenCounting;
use super::copy::{COPIES_MAX, ROOM_PARTS};

/// Handle to the commands. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Commands {
    pub(super) shared: Arc<CommandsInner>,
}

#[derive(Debug)]
pub(super) struct CommandsInner {
    pub(super) sessions: Sessions,
    pub(super) compaction_queue: Arc<CompactionQueue>,
    pub(super) models: Arc<ModelRegistry>,
    pub(super) window_settings: ArcSwap<WindowSettings>,
    pub(super) counting: TokenCounting,
    /// Limits concurrent session copies, across all tenants.
    pub(super) copies: Semaphore,
    /// Limits the memory of copies, in fractions of the maximum for all copies.
    pub(super) copy_room: Semaphore,
}

impl Commands {
    pub(crate) fn new(
        sessions: Sessions,
        compaction_queue: Arc<CompactionQueue>,
        models: Arc<ModelRegistry>,
        window_settings: WindowSettings,
        blocking: Blocking,
    ) -> Self {
        let shared = CommandsInner {
            sessions,
            compaction_queue,
            models,
            window_settings: ArcSwap::from_pointee(window_settings),
            counting: TokenCounting::new(blocking),
            copies: Semaphore::new(COPIES_MAX),
            copy_room: Semaphore::new(ROOM_PARTS),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    pub(crate) fn reconfigure(&self, window_settings: WindowSettings) {
        self.shared.window_settings.store(Arc::new(window_settings));
    }

    /// Reads a live session without its turns.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`].
    pub async fn session(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
    ) -> Result<SessionView, EngineError> {
        let session = SessionRef::new(tenant, session);
        self.shared.sessions.head(&session).await
    }

    /// Lists live sessions, ended generations or both, after the position `after`.
    ///
    /// # Errors
    /// [`EngineError::JournalOff`] for ended generations without a journal, or, for these and in a
    /// cluster, an error of the journal.
    pub async fn sessions(
        &self,
        tenant: &Arc<Tenant>,
        query: &SessionQuery,
        after: Option<&SessionListPosition>,
        count: usize,
    ) -> Result<SessionPage, EngineError> {
        let sessions = &self.shared.sessions;
        sessions.page(tenant, query, after, count).await
    }
    /// Returns the states of ended generations of the tenant, if they have one.
    ///
    /// # Errors
    /// [`EngineError::JournalOff`], or an error of the journal.
    pub async fn states_of_ended(
        &self,
        tenant: &Tenant,
        generations: Vec<Generation>,
    ) -> Result<BTreeMap<Generation, Arc<str>>, EngineError> {
        let sessions = &self.shared.sessions;
        sessions.states_of_ended(tenant, generations).await
    }
}
