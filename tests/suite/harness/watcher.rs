//! A stream of WatchEvents, read one by one with a deadline.

use std::time::Duration;

use memoird_proto::v1::{Event, WatchEventsRequest, WatchEventsResponse};
use serde_json::Value;
use tonic::{Status, Streaming};

use super::Sessions;

/// No event takes so long.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// What is on its way has come by then.
const SOON: Duration = Duration::from_millis(20);

/// Somebody who watches.
#[derive(Debug)]
pub(crate) struct Events(Streaming<WatchEventsResponse>);

impl Events {
    /// Starts to watch: from now on, or after an event.
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

    /// Watches what the client's tenant does from now on.
    pub(crate) async fn now(client: &mut Sessions) -> Self {
        Self::of(client, 0, false).await.expect("it may watch")
    }

    /// The number before the first event of the client's tenant: where this start of the
    /// daemon counts from. There was an event already.
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

    /// What comes next; `None` at the end of the stream.
    pub(crate) async fn message(&mut self) -> Result<Option<WatchEventsResponse>, Status> {
        let next = tokio::time::timeout(WAIT_MAX, self.0.message()).await;
        next.unwrap_or_else(|_| panic!("no event within {WAIT_MAX:?}"))
    }

    /// The next event; none may be missing before it.
    pub(crate) async fn next(&mut self) -> Event {
        let next = self
            .message()
            .await
            .expect("the stream goes on")
            .expect("it has not ended");
        assert_eq!(next.missed, 0, "events were missed");
        next.event.expect("an event")
    }

    /// The next event if there is one now, or very soon.
    pub(crate) async fn soon(&mut self) -> Option<Event> {
        tokio::time::timeout(SOON, self.next()).await.ok()
    }

    /// The events up to the first of this kind, that one included.
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

    /// Reads on until the stream ends; gives why.
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

/// The details of an event.
#[track_caller]
pub(crate) fn detail(event: &Event) -> Value {
    match event.detail_json.as_str() {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {event:?}")),
    }
}
