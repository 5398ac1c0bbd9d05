//! Reads a `WatchEvents` stream one event at a time, with deadlines.

use std::time::Duration;

use memoird_proto::v1::{Event, WatchEventsRequest, WatchEventsResponse};
use serde_json::Value;
use tonic::{Status, Streaming};

use super::Sessions;

/// Longer than any event takes to arrive.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Events that were already sent arrive within this time.
const SOON: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Events(Streaming<WatchEventsResponse>);

impl Events {
    /// Subscribes after an event id. 0: from now on.
    pub(crate) async fn of(
        client: &mut Sessions,
        after_event_id: u64,
        all_tenants: bool,
    ) -> Result<Self, Status> {
        let request = WatchEventsRequest {
            after_event_id,
            all_tenants,
            ..WatchEventsRequest::default()
        };
        Ok(Self(client.watch_events(request).await?.into_inner()))
    }

    /// Subscribes to the client's tenant from now on.
    pub(crate) async fn now(client: &mut Sessions) -> Self {
        Self::of(client, 0, false).await.expect("it may watch")
    }

    /// The id before the first event of the client's tenant since the daemon started.
    ///
    /// At least one event must have happened.
    pub(crate) async fn epoch(client: &mut Sessions) -> u64 {
        let mut all = Self::of(client, 1, false).await.expect("it may watch");
        let mut missed = 0;
        loop {
            let next = all.message().await.expect("it goes on").expect("one");
            missed += next.missed;
            if let Some(event) = next.event {
                return event.event_id - 1 - missed;
            }
        }
    }

    /// Returns the next message, or `None` at the end of the stream.
    pub(crate) async fn message(&mut self) -> Result<Option<WatchEventsResponse>, Status> {
        let next = tokio::time::timeout(WAIT_MAX, self.0.message()).await;
        next.unwrap_or_else(|_| panic!("no event within {WAIT_MAX:?}"))
    }

    /// Returns the next event. Panics if events were missed before it.
    pub(crate) async fn next(&mut self) -> Event {
        let next = self
            .message()
            .await
            .expect("the stream goes on")
            .expect("it has not ended");
        assert_eq!(next.missed, 0, "events were missed");
        next.event.expect("an event")
    }

    /// Returns the next event if it arrives within [`SOON`].
    pub(crate) async fn soon(&mut self) -> Option<Event> {
        tokio::time::timeout(SOON, self.next()).await.ok()
    }

    /// Returns the events up to and including the first of this kind.
    pub(crate) async fn until(&mut self, kind: &str) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await;
            let is_last = event.kind == kind;
            events.push(event);
            if is_last {
                return events;
            }
        }
    }

    /// Reads until the stream ends, and returns its status.
    pub(crate) async fn ending(&mut self) -> Option<Status> {
        loop {
            match self.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }
}

#[track_caller]
pub(crate) fn detail(event: &Event) -> Value {
    match event.detail_json.as_str() {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {event:?}")),
    }
}
