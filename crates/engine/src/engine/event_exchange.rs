//! Exchanges events with other daemons through the shared journal, while they are watched.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::time::{Steady, Timestamp};
use memoird_store::{EventExchange, EventSubscription, PostedEvent, Store};
use tracing::warn;

use crate::events::EventMessage;
use crate::machine::Machine;
use crate::store_handle::StoreHandle;
use crate::tenants::Tenant;
use crate::watch::Events;
use crate::worker::{WorkError, Worker};

const PAUSE: Duration = Duration::from_millis(250);
/// Maximum number of events posted at once, across all tenants.
const EVENTS_POSTED_MAX: usize = 1_024;
/// When a daemon watches all tenants, events up to this old are still posted to it.
///
/// Longer than it takes to learn about a new watcher.
const RECENT_MS: i64 = 10_000;

/// Worker that publishes watches and events to other daemons, and receives theirs.
pub(crate) struct EventExchanger {
    pub(crate) store: StoreHandle,
    pub(crate) events: Events,
    pub(crate) machine: Arc<dyn Machine>,
    /// What other daemons watch.
    pub(crate) watched: EventSubscription,
    /// Whether there is more to post or to receive, so the next step runs without a pause.
    pub(crate) has_more: bool,
}

/// A tenant, and the number of its last event being posted.
type PostedUpTo = (Arc<Tenant>, u64);

impl Worker for EventExchanger {
    fn name(&self) -> &'static str {
        "events"
    }

    async fn wait(&mut self) {
        if self.has_more {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = self.events.signal.first_watcher_added.notified() => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let (posted, posted_up_to) = self.to_post();
        self.has_more = posted.len() >= EVENTS_POSTED_MAX;
        let watched = self.events.signal.watched();
        let exchange = EventExchange { watched, posted };
        let call = move |store: &dyn Store| store.exchange_events(exchange);
        let reply = self.store.run(None, call).await?;
        for (tenant, number) in posted_up_to {
            tenant.events.note_posted(number);
        }
        self.has_more |= reply.is_more;
        self.watched = reply.watched;
        if !reply.received.is_empty() {
            let now = self.machine.now().steady;
            let received = reply.received.into_iter();
            received.for_each(|(node, event)| self.receive(node, &event, now));
            self.events.signal.notify();
        }
        Ok(())
    }
}

impl EventExchanger {
    /// Collects the events that other daemons watch and that have not been posted yet.
    fn to_post(&self) -> (Vec<PostedEvent>, Vec<PostedUpTo>) {
        let tenants = &self.events.tenants;
        let now = self.machine.now().wall;
        let recent = Timestamp::from_ms(now.as_ms().saturating_sub(RECENT_MS));
        let all = self.watched.all.then(|| tenants.all());
        let named = self
            .watched
            .tenants
            .iter()
            .map(|name| (tenants.get_or_insert(name), Timestamp::from_ms(i64::MIN)));
        let others = all
            .into_iter()
            .flatten()
            .filter(|tenant| !self.watched.tenants.contains(&tenant.id));
        let wanted = named.chain(others.map(|tenant| (tenant, recent)));
        let (mut posted, mut posted_up_to) = (Vec::new(), Vec::new());
        for (tenant, since) in wanted {
            let events = tenant
                .events
                .to_post(since, EVENTS_POSTED_MAX - posted.len());
            let Some(last) = events.last() else {
                continue;
            };
            posted_up_to.push((Arc::clone(&tenant), last.number));
            posted.extend(events.iter().map(|event| PostedEvent {
                tenant: tenant.id.clone(),
                age_ms: event.age_ms(now),
                body: serde_json::to_vec(event).unwrap_or_default(),
            }));
            if posted.len() >= EVENTS_POSTED_MAX {
                break;
            }
        }
        (posted, posted_up_to)
    }

    fn receive(&self, node: u128, event: &PostedEvent, now: Steady) {
        match serde_json::from_slice::<EventMessage>(&event.body) {
            Ok(message) => {
                let happened = Steady(now.0.saturating_sub(event.age_ms));
                let tenant = self.events.tenants.get_or_insert(&event.tenant);
                tenant.events.push_of_other(node, message, happened);
            }
            // A newer daemon may have event kinds that this version lacks. The event is skipped.
            Err(error) => {
                warn!(tenant = %event.tenant, %error, "skipped an event of another daemon: \
                    unknown kind");
            }
        }
    }
}
