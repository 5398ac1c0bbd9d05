//! Converts events for watchers.

use memoird_core::compaction::Trigger;
use memoird_core::time::Timestamp;
use memoird_engine::{Event, EventCursor, EventKind, WatchItem};
use memoird_proto::v1;
use memoird_proto::v1::event::Kind;
use memoird_store::encoding::timestamp_to_proto;

use super::compaction;
use super::to::{count, end_reason};
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
            let event = v1::Event {
                event_id: view.epoch.id(event.id),
                time: Some(timestamp_to_proto(event.at)),
                tenant: tenant.id.to_string(),
                session_id: event.session.to_string(),
                generation: event.generation.to_string(),
                kind: Some(kind(&event, view.role)),
            };
            v1::WatchEventsResponse {
                event: Some(event),
                cursor,
                ..Default::default()
            }
        }
    }
}

/// Converts the kind of an event. Only admins receive text of a provider, a program or a service.
pub(super) fn kind(event: &Event, role: Role) -> Kind {
    let for_admins = |problem: &str| match role {
        Role::Admin => problem.to_owned(),
        Role::Bot => String::new(),
    };
    let delivery_id = |hook| format!("{}/{hook}", event.generation);
    match event.kind.clone() {
        EventKind::Created => Kind::Created(v1::SessionCreated {}),
        EventKind::Appended {
            first_seq,
            last_seq,
            dropped_turns,
            client_ids,
        } => Kind::Appended(v1::TurnsAppended {
            first_seq,
            last_seq,
            dropped_turns,
            client_ids: client_ids.into_iter().map(String::from).collect(),
        }),
        EventKind::Rewound {
            after_seq,
            through_seq,
        } => Kind::Rewound(v1::SessionRewound {
            after_seq,
            through_seq,
        }),
        EventKind::TurnUpdated { seq } => Kind::TurnUpdated(v1::TurnUpdated { seq }),
        EventKind::Ended(reason) => Kind::Ended(v1::SessionEnded {
            reason: end_reason(reason).into(),
        }),
        EventKind::Erased => Kind::Erased(v1::SessionErased {}),
        EventKind::Compacted {
            number,
            trigger: cause,
            by,
            first_seq,
            through_seq,
            turns,
            tokens_before,
            tokens_after,
        } => Kind::Compacted(v1::SessionCompacted {
            trigger: trigger(cause).into(),
            summary: Some(v1::SummaryInfo {
                number,
                first_seq,
                through_seq,
                turns,
                ..compaction::made_by(&by)
            }),
            tokens_before,
            tokens_after,
        }),
        EventKind::CompactionFailed {
            trigger: cause,
            reason,
            problem,
            breaker,
        } => Kind::CompactionFailed(v1::CompactionFailed {
            trigger: trigger(cause).into(),
            breaker: compaction::breaker_state(breaker).into(),
            error: if compaction::may_know(role, &reason) {
                problem
            } else {
                String::new()
            },
            reason: reason.into_owned(),
        }),
        EventKind::CompactionUndone { number } => {
            Kind::CompactionUndone(v1::CompactionUndone { number })
        }
        EventKind::HookDelivered { hook, tries } => Kind::HookDelivered(v1::HookDelivered {
            delivery_id: delivery_id(&hook),
            hook: hook.to_string(),
            tries,
        }),
        EventKind::HookFailed {
            hook,
            tries,
            problem,
            gave_up,
        } => Kind::HookFailed(v1::HookFailed {
            delivery_id: delivery_id(&hook),
            hook: hook.to_string(),
            tries,
            gave_up,
            error: for_admins(&problem),
        }),
        EventKind::Learned {
            by,
            first_seq,
            through_seq,
            kept,
            refused,
            tokens,
        } => Kind::Learned(v1::FactsLearned {
            model: by.into(),
            first_seq,
            through_seq,
            accepted: count(kept),
            rejected: count(refused),
            tokens,
        }),
        EventKind::ExtractionFailed {
            reason,
            problem,
            gave_up,
        } => Kind::ExtractionFailed(v1::ExtractionFailed {
            reason: reason.into_owned(),
            gave_up,
            error: for_admins(&problem),
        }),
    }
}

fn trigger(trigger: Trigger) -> v1::CompactionTrigger {
    match trigger {
        Trigger::Preemptive => v1::CompactionTrigger::Preemptive,
        Trigger::Reactive => v1::CompactionTrigger::Reactive,
        Trigger::History => v1::CompactionTrigger::History,
        Trigger::Command => v1::CompactionTrigger::Command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_ids_of_a_later_run_are_higher() {
        let before = Epoch::begin(Timestamp::from_ms(1_800_000_000_000));
        let ours = Epoch::begin(Timestamp::from_ms(1_800_000_000_200));
        assert!(before.id(100_000) < ours.id(1));
        assert!(ours.id(1_000_000) < 1 << 53);
    }
}
