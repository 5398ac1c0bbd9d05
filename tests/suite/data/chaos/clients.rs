//! Clients of one daemon in the chaos rounds.

use crate::harness::{Daemon, Documents, Memories, Sessions};

/// Clients of one daemon.
#[derive(Clone)]
pub(super) struct Clients {
    pub(super) sessions: Sessions,
    pub(super) memories: Memories,
    pub(super) documents: Documents,
}

impl Clients {
    pub(super) fn of(daemon: &Daemon) -> Self {
        Self {
            sessions: daemon.sessions(),
            memories: daemon.memories(),
            documents: daemon.documents(),
        }
    }
}
