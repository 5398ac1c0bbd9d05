//! Events that daemons which share a store tell each other, as long as somebody watches.

use std::collections::BTreeSet;

use memoird_core::ids::TenantId;

/// Whose events are watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Those of all tenants.
    pub all: bool,
    /// Those of these.
    pub tenants: BTreeSet<TenantId>,
}

/// An event of one process, for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedEvent {
    /// Whose event.
    pub tenant: TenantId,
    /// How long ago it happened, in milliseconds.
    pub age_ms: u64,
    /// What happened; only the processes know how it is encoded.
    pub body: Vec<u8>,
}

/// What a process tells the others, and asks them.
#[derive(Clone, Debug, Default)]
pub struct EventExchange {
    /// What is watched here. Where nothing is, nothing is received.
    pub watched: Watched,
    /// What happened here.
    pub posted: Vec<PostedEvent>,
}

/// What others told.
#[derive(Clone, Debug, Default)]
pub struct ExchangedEvents {
    /// What is watched elsewhere.
    pub watched: Watched,
    /// What they posted, with the number of the process, in the order of each process. A process that
    /// begins to watch is given what was posted in the last minutes; nothing is given twice.
    pub received: Vec<(u128, PostedEvent)>,
    /// There is more to receive.
    pub is_more: bool,
}

impl Watched {
    /// True where nobody watches.
    pub fn is_empty(&self) -> bool {
        !self.all && self.tenants.is_empty()
    }

    /// Watches what the other one does, too.
    pub fn join(&mut self, other: Self) {
        self.all |= other.all;
        self.tenants.extend(other.tenants);
    }
}
