//! Exchanges events with other daemons through the shared journal, while they are watched.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::time::{Steady, Timestamp};
use memoird_store::{EventExchange, PostedEvent, Store, Watched};
use tracing::warn;

use crate::events::ToldEvent;
use crate::hooks::Outbox;
use crate::machine::Machine;
use crate::tenants::Tenant;
use crate::watch::Events;
use crate::worker::{WorkError, Worker};

const PAUSE: Duration = Duration::from_millis(250);
/// Maximum number of events posted at once, across all tenants.
const POSTED_MAX: usize = 1_024;
/// When a daemon watches all tenants, events up to this old are still posted to it.
///
/// Longer than it takes to learn about a new watcher.
const RECENT_MS: i64 = 10_000;

/// Worker that publishes watches and events to other daemons, and receives theirs.
pub(crate) struct EventExchanger {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) events: Events,
    pub(crate) machine: Arc<dyn Machine>,
    /// What other daemons watch.
    pub(crate) watched: Watched,
    /// Whether there is more to post or to receive, so the next step runs without a pause.
    pub(crate) is_behind: bool,
}

/// A tenant, and the number of its last event being posted.
type Told = (Arc<Tenant>, u64);

impl Worker for EventExchanger {
    fn name(&self) -> &'static str {
        "events"
    }

    async fn wait(&mut self) {
        if self.is_behind {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = self.events.signal().began() => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let (posted, told) = self.to_post();
        self.is_behind = posted.len() >= POSTED_MAX;
        let watched = self.events.signal().watched();
        let exchange = EventExchange { watched, posted };
        let asked = self
            .outbox
            .with_store(move |store: &dyn Store| store.exchange_events(exchange));
        let answer = asked.await.map_err(|error| WorkError(error.to_string()))?;
        for (tenant, number) in told {
            tenant.events.note_posted(number);
        }
        self.is_behind |= answer.is_more;
        self.watched = answer.watched;
        if !answer.received.is_empty() {
            let now = self.machine.now().steady;
            let received = answer.received.into_iter();
            received.for_each(|(node, event)| self.receive(node, &event, now));
            self.events.signal().notify();
        }
        Ok(())
    }
}

impl EventExchanger {
    /// Collects the events that other daemons watch and that have not been posted yet.
    fn to_post(&self) -> (Vec<PostedEvent>, Vec<Told>) {
        let tenants = self.events.tenants();
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
        let (mut posted, mut told) = (Vec::new(), Vec::new());
        for (tenant, since) in wanted {
            let events = tenant.events.to_post(since, POSTED_MAX - posted.len());
            let Some(last) = events.last() else {
                continue;
            };
            told.push((Arc::clone(&tenant), last.number));
            posted.extend(events.iter().map(|event| PostedEvent {
                tenant: tenant.id.clone(),
                age_ms: event.age_ms(now),
                body: serde_json::to_vec(event).unwrap_or_default(),
            }));
            if posted.len() >= POSTED_MAX {
                break;
            }
        }
        (posted, told)
    }

    fn receive(&self, node: u128, event: &PostedEvent, now: Steady) {
        match serde_json::from_slice::<ToldEvent>(&event.body) {
            Ok(told) => {
                let happened = Steady(now.0.saturating_sub(event.age_ms));
                let tenant = self.events.tenants().get_or_insert(&event.tenant);
                tenant.events.push_of_other(node, told, happened);
            }
            // A newer daemon may have event kinds that this version lacks. The event is skipped.
            Err(error) => {
                warn!(tenant = %event.tenant, %error, "an event of another daemon is not known here");
            }
        }
    }
}
