//! Events that daemons sharing a store publish to each other while a client watches.

use std::collections::BTreeSet;

use memoird_core::ids::TenantId;

/// A subscription to events, by tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventSubscription {
    /// Events of all tenants.
    pub all: bool,
    /// Events of these tenants.
    pub tenants: BTreeSet<TenantId>,
}

/// An event that one process publishes to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedEvent {
    pub tenant: TenantId,
    /// Milliseconds since the event happened.
    pub age_ms: u64,
    /// Opaque to the store. The engine defines the encoding.
    pub body: Vec<u8>,
}

/// Subscriptions and events that a process publishes.
#[derive(Clone, Debug, Default)]
pub struct EventExchange {
    /// Subscription of this process. It receives no events if this is empty.
    pub watched: EventSubscription,
    pub posted: Vec<PostedEvent>,
}

/// Subscriptions and events of the other processes.
#[derive(Clone, Debug, Default)]
pub struct ExchangedEvents {
    pub watched: EventSubscription,
    /// Events with the id of their process, in the order of each process.
    ///
    /// A process that begins to watch receives the events of the last minutes. Each event is
    /// received once.
    pub received: Vec<(u128, PostedEvent)>,
    /// More events remain to be received.
    pub is_more: bool,
}

impl EventSubscription {
    pub fn is_empty(&self) -> bool {
        !self.all && self.tenants.is_empty()
    }

    /// Adds the subscriptions of `other`.
    pub fn join(&mut self, other: Self) {
        self.all |= other.all;
        self.tenants.extend(other.tenants);
    }
}
