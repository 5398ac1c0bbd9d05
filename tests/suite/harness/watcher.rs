//! Reads a `WatchEvents` stream one event at a time, with deadlines.

use std::time::Duration;

use memoird_proto::DESCRIPTOR_POOL;
use memoird_proto::prost_reflect::{DynamicMessage, ReflectMessage, SerializeOptions};
use memoird_proto::v1::{Event, WatchEventsRequest, WatchEventsResponse};
use prost::{Message, Name};
use serde_json::Value;
use tonic::{Status, Streaming};

use super::Sessions;

/// Longer than any event takes to arrive.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Events that were already sent arrive within this time.
const SOON: Duration = Duration::from_millis(20);

/// The cursor before all events that a daemon remembers.
pub(crate) const ALL: &str = "1-0";

#[derive(Debug)]
pub(crate) struct Events(Streaming<WatchEventsResponse>);

impl Events {
    /// Subscribes after a cursor. Empty: from now on.
    pub(crate) async fn after(client: &mut Sessions, cursor: &str) -> Result<Self, Status> {
        let request = WatchEventsRequest {
            after_cursor: cursor.to_owned(),
            all_tenants: false,
        };
        Ok(Self(client.watch_events(request).await?.into_inner()))
    }

    /// Subscribes to all tenants from now on.
    pub(crate) async fn of_all_tenants(client: &mut Sessions) -> Result<Self, Status> {
        let request = WatchEventsRequest {
            after_cursor: String::new(),
            all_tenants: true,
        };
        Ok(Self(client.watch_events(request).await?.into_inner()))
    }

    /// Subscribes to the client's tenant from now on.
    pub(crate) async fn now(client: &mut Sessions) -> Self {
        Self::after(client, "").await.expect("it may watch")
    }

    /// The id before the oldest event of the client's tenant that the daemon remembers.
    ///
    /// At least one event must have happened.
    pub(crate) async fn epoch(client: &mut Sessions) -> u64 {
        let mut all = Self::after(client, ALL).await.expect("it may watch");
        all.next().await.event_id - 1
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
            let is_last = event.word() == kind;
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

/// Details of an event by their proto names, those of a summary among them.
pub(crate) fn detail(event: &Event) -> Value {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .skip_default_fields(false)
        .stringify_64_bit_integers(false);
    let descriptor = DESCRIPTOR_POOL.get_message_by_name(&Event::full_name());
    let bytes = event.encode_to_vec();
    let message = DynamicMessage::decode(descriptor.expect("known"), &*bytes).expect("an event");
    let kinds = message.descriptor().oneofs().next().expect("the kind");
    let kind = kinds.fields().find(|field| message.has_field(field));
    let kind = message.get_field(&kind.expect("a kind")).into_owned();
    let kind = kind.as_message().expect("a message");
    let detail = kind.serialize_with_options(serde_json::value::Serializer, &options);
    let mut detail = detail.expect("JSON");
    let fields = detail.as_object_mut().expect("an object");
    if let Some(Value::Object(summary)) = fields.remove("summary") {
        fields.extend(summary);
    }
    detail
}
