//! Converts events for watchers.

use memoird_core::change::EndReason;
use memoird_core::ids::HookName;
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
                kind: kind.to_owned(),
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
pub(super) fn event_kind(
    event: &Event,
    role: Role,
) -> (&'static str, v1::EndReason, Option<Value>) {
    let none = v1::EndReason::Unspecified;
    let delivery = |hook: &HookName| format!("{}/{hook}", event.generation);
    match &event.kind {
        EventKind::Created => ("created", none, None),
        EventKind::Appended {
            first_seq,
            last_seq,
            dropped_turns,
            client_ids,
        } => {
            let mut detail = json!({
                "first_seq": first_seq, "last_seq": last_seq, "dropped_turns": dropped_turns,
            });
            if !client_ids.is_empty() {
                detail["client_ids"] = json!(client_ids);
            }
            ("appended", none, Some(detail))
        }
        EventKind::Ended(reason) => {
            let kind = match reason {
                EndReason::Expired => "expired",
                EndReason::Evicted => "evicted",
                EndReason::Ended | EndReason::Reset | EndReason::Shutdown => "ended",
            };
            (kind, end_reason(*reason), None)
        }
        EventKind::Erased => ("erased", none, None),
        EventKind::Compacted {
            number,
            trigger,
            by,
            first_seq,
            through_seq,
            tokens_before,
            tokens_after,
        } => {
            let detail = json!({
                "number": number, "trigger": trigger, "by": by, "first_seq": first_seq,
                "through_seq": through_seq, "tokens_before": tokens_before,
                "tokens_after": tokens_after,
            });
            ("compacted", none, Some(detail))
        }
        EventKind::CompactionFailed {
            trigger,
            reason,
            problem,
            breaker,
        } => {
            let mut detail = json!({ "trigger": trigger, "reason": reason, "breaker": breaker });
            if compaction::may_know(role, reason) {
                detail["error"] = json!(problem);
            }
            ("compaction_failed", none, Some(detail))
        }
        EventKind::Rewound {
            after_seq,
            through_seq,
        } => {
            let detail = json!({ "after_seq": after_seq, "through_seq": through_seq });
            ("rewound", none, Some(detail))
        }
        EventKind::TurnUpdated { seq } => {
            let detail = json!({ "seq": seq });
            ("turn_updated", none, Some(detail))
        }
        EventKind::CompactionUndone { number } => {
            ("compaction_undone", none, Some(json!({ "number": number })))
        }
        EventKind::Learned {
            by,
            first_seq,
            through_seq,
            kept,
            refused,
            tokens,
        } => {
            let detail = json!({
                "by": by, "first_seq": first_seq, "through_seq": through_seq, "kept": kept,
                "refused": refused, "tokens": tokens,
            });
            ("learned", none, Some(detail))
        }
        EventKind::ExtractionFailed {
            reason,
            problem,
            gave_up,
        } => {
            let mut detail = json!({ "reason": reason, "gave_up": gave_up });
            // Only admins receive text of a provider.
            if role == Role::Admin {
                detail["error"] = json!(problem);
            }
            ("extraction_failed", none, Some(detail))
        }
        EventKind::HookDelivered { hook, tries } => {
            let detail = json!({
                "hook": hook.as_str(), "delivery": delivery(hook), "tries": tries,
            });
            ("hook_delivered", none, Some(detail))
        }
        EventKind::HookFailed {
            hook,
            tries,
            problem,
            gave_up,
        } => {
            let mut detail = json!({
                "hook": hook.as_str(), "delivery": delivery(hook), "tries": tries,
                "gave_up": gave_up,
            });
            // Only admins receive text of a program or a service.
            if role == Role::Admin {
                detail["error"] = json!(problem);
            }
            ("hook_failed", none, Some(detail))
        }
    }
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
