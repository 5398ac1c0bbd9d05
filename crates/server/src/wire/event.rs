//! Converts events for watchers.

use memoird_core::change::EndReason;
use memoird_core::time::Timestamp;
use memoird_engine::{Event, EventCursor, EventKind, WatchFrom, WatchItem};
use memoird_proto::v1;
use memoird_store::encoding::timestamp_to_proto;
use serde_json::{Value, json};

use super::to::end_reason;
use super::{compaction, text_or_empty};
use crate::rpc::Role;

/// Offset of event ids in this run of the daemon.
///
/// It exceeds all earlier ids, so that a position in another run is never mistaken for one in this
/// run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch(u64);

/// Maximum average rate of a tenant's events per millisecond since the start.
///
/// Keeps ids below 2^53, the largest integer that JavaScript represents exactly.
const EVENTS_PER_MS: u64 = 1 << 10;

impl Epoch {
    pub(crate) fn begin(now: Timestamp) -> Self {
        let ms = u64::try_from(now.as_ms()).unwrap_or_default();
        Self(ms.saturating_mul(EVENTS_PER_MS))
    }

    /// The id of an event with this number, counted by the engine from 1.
    pub(crate) fn id(self, number: u64) -> u64 {
        self.0.saturating_add(number)
    }

    /// Converts an event id to a position. Ids of other runs select all events.
    pub(crate) fn watch_from(self, after_event_id: u64) -> WatchFrom {
        match after_event_id {
            0 => WatchFrom::Now,
            id => WatchFrom::After(id.checked_sub(self.0).unwrap_or(u64::MAX)),
        }
    }
}

/// How a watcher receives events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventView {
    pub(crate) epoch: Epoch,
    /// An admin also receives the output of hooks.
    pub(crate) role: Role,
}

/// Converts an event, or a gap in the events, for a watcher.
pub(crate) fn event(
    seen: WatchItem,
    cursor: Option<&EventCursor>,
    view: EventView,
) -> v1::WatchEventsResponse {
    let cursor = cursor.map(EventCursor::to_string).unwrap_or_default();
    match seen {
        WatchItem::Missed { tenant, count } => v1::WatchEventsResponse {
            event: None,
            missed: count,
            missed_tenant: tenant.id.to_string(),
            cursor,
        },
        WatchItem::Event { tenant, event } => {
            let (kind, reason, detail) = event_kind(&event, view.role);
            let event = v1::Event {
                event_id: view.epoch.id(event.id),
                time: Some(timestamp_to_proto(event.at)),
                kind,
                tenant: tenant.id.to_string(),
                session_id: event.session.to_string(),
                generation: event.generation.to_string(),
                reason: reason.into(),
                detail_json: text_or_empty(detail),
            };
            v1::WatchEventsResponse {
                event: Some(event),
                cursor,
                ..Default::default()
            }
        }
    }
}

/// Returns the kind of an event, why the generation ended, and the details for this role.
///
/// Kinds and details are named as the variants of [`EventKind`] and their fields.
pub(super) fn event_kind(event: &Event, role: Role) -> (String, v1::EndReason, Option<Value>) {
    if let EventKind::Ended(reason) = &event.kind {
        let kind = match reason {
            EndReason::Expired => "expired",
            EndReason::Evicted => "evicted",
            EndReason::Ended | EndReason::Reset | EndReason::Shutdown => "ended",
        };
        return (kind.to_owned(), end_reason(*reason), None);
    }
    let none = v1::EndReason::Unspecified;
    // Serialization cannot fail for this type.
    let variant = match serde_json::to_value(&event.kind).unwrap_or_default() {
        Value::Object(variant) => variant,
        name => return (snake_case(name.as_str().unwrap_or_default()), none, None),
    };
    let (name, mut detail) = variant.into_iter().next().unwrap_or_default();
    if let Some(fields) = detail.as_object_mut() {
        // Only admins receive text of a provider, a program or a service.
        let may_know = match &event.kind {
            EventKind::CompactionFailed { reason, .. } => compaction::may_know(role, reason),
            _ => role == Role::Admin,
        };
        if let Some(problem) = fields.remove("problem").filter(|_| may_know) {
            fields.insert("error".to_owned(), problem);
        }
        if fields.get("client_ids") == Some(&json!([])) {
            fields.remove("client_ids");
        }
        if let Some(hook) = fields.get("hook").and_then(Value::as_str) {
            let delivery = format!("{}/{hook}", event.generation);
            fields.insert("delivery".to_owned(), delivery.into());
        }
    }
    (snake_case(&name), none, Some(detail))
}

/// Converts the name of a variant, such as `TurnUpdated`.
fn snake_case(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    for character in name.chars() {
        if character.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(character.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_id_of_other_run_selects_all_events() {
        let before = Epoch::begin(Timestamp::from_ms(1_800_000_000_000));
        let ours = Epoch::begin(Timestamp::from_ms(1_800_000_000_200));
        assert!(matches!(ours.watch_from(0), WatchFrom::Now));
        assert!(matches!(ours.watch_from(ours.id(7)), WatchFrom::After(7)));
        let from = ours.watch_from(before.id(7));
        assert!(matches!(from, WatchFrom::After(u64::MAX)));
        assert!(ours.id(1_000_000) < 1 << 53);
    }
}
