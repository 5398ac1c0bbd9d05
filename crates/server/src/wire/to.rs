//! Builds replies from the results of the engine.

use std::collections::BTreeMap;
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::idempotency::KeyRecord;
use memoird_core::ids::TenantId;
use memoird_core::outbox::DeliveryState;
use memoird_core::time::Timestamp;
use memoird_engine::{
    AppendOutcome, DeliveryView, EndOutcome, EndedSession, PatchOutcome, RewindOutcome,
    SessionListPosition, SessionOrder, SessionView, StatsSnapshot, TenantSnapshot,
    TurnUpdateOutcome,
};
use memoird_proto::v1;
use memoird_store::DeliveryCount;
use memoird_store::encoding::timestamp_to_proto;
use memoird_store::verify::FileCheck;
use prost::Message;

use super::refusal::Refusal;
use super::{compaction, session_token, status, text_or_empty};
use crate::process::Usage;

/// Maximum number of sessions listed in the reply to a sweep.
const ENDED_NAMED_MAX: usize = 1_000;

pub(crate) fn session_info(view: &SessionView) -> v1::SessionInfo {
    let time = |time: Timestamp| Some(timestamp_to_proto(time));
    let options = view.head.options.as_ref();
    v1::SessionInfo {
        session_id: view.session.to_string(),
        generation: view.head.generation.to_string(),
        subject: text_or_empty(view.subject()),
        history_turns: view.head.totals.turns,
        history_bytes: view.head.totals.bytes,
        history_tokens: view.head.totals.tokens,
        last_seq: view.head.newest_seq,
        created_at: time(view.head.created_at),
        last_access: time(view.last_access),
        expires_at: view.expires_at.and_then(time),
        has_summary: compaction::has_summary(view),
        state_version: view.head.state_version,
        compaction: Some(compaction::info(view)),
        state_json: String::new(),
        labels: labels(view),
        ttl_class: text_or_empty(options.and_then(|options| options.ttl_class.as_ref())),
        keep_all: options.is_some_and(|options| options.keep_all),
        ended_at: view.ended.and_then(|(at, _)| time(at)),
        end_reason: view
            .ended
            .map_or(v1::EndReason::Unspecified, |(_, reason)| end_reason(reason))
            .into(),
    }
}

fn labels(view: &SessionView) -> BTreeMap<String, String> {
    let options = view.head.options.iter();
    let labels = options.flat_map(|options| &options.labels);
    labels
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

/// Converts the result of a rewind.
///
/// # Errors
/// `TURN_DAMAGED`.
pub(crate) fn rewound(
    session_id: String,
    outcome: &RewindOutcome,
) -> Result<v1::RewindSessionResponse, Refusal> {
    let RewindOutcome {
        session,
        record,
        removed,
        duplicate,
    } = outcome;
    let turns = removed.newest.iter().map(|turn| {
        let turn = v1::Turn::decode(&**turn).map_err(|_| status::turn_damaged())?;
        Ok(v1::Turn {
            removed: true,
            ..turn
        })
    });
    Ok(v1::RewindSessionResponse {
        session: Some(session_of(session_id, session.as_ref(), record)),
        removed: turns.collect::<Result<_, Refusal>>()?,
        removed_turns: removed.count,
        removed_forgotten: removed.is_forgotten,
        first_seq: record.first_seq,
        last_seq: record.last_seq,
        dropped_turns: record.dropped_turns,
        duplicate: *duplicate,
    })
}

pub(crate) fn copied(target: String, outcome: &AppendOutcome) -> v1::CopySessionResponse {
    let record = &outcome.record;
    v1::CopySessionResponse {
        session: Some(session_of(target, outcome.session.as_ref(), record)),
        turns: record.last_seq + 1 - record.first_seq,
        dropped_turns: record.dropped_turns,
        duplicate: outcome.duplicate,
    }
}

/// Converts an updated turn.
///
/// # Errors
/// `TURN_DAMAGED`.
pub(crate) fn turn_updated(
    session_id: String,
    outcome: &TurnUpdateOutcome,
) -> Result<v1::UpdateTurnResponse, Refusal> {
    let turn = outcome.content.as_deref().map(v1::Turn::decode);
    let turn = turn.transpose().map_err(|_| status::turn_damaged())?;
    Ok(v1::UpdateTurnResponse {
        turn: turn.map(|turn| v1::Turn {
            removed: outcome.is_removed,
            ..turn
        }),
        session: Some(live_or_id(session_id, outcome.session.as_ref())),
        duplicate: outcome.duplicate,
    })
}

pub(crate) fn reset(session_id: String, outcome: &EndOutcome) -> v1::ResetSessionResponse {
    v1::ResetSessionResponse {
        session: Some(live_or_id(session_id, outcome.session.as_ref())),
        ended_generation: outcome.ended_generation.to_string(),
        duplicate: outcome.duplicate,
    }
}

pub(crate) fn ended(session_id: String, outcome: &EndOutcome) -> v1::EndSessionResponse {
    let before = outcome.session.as_ref().map(session_info);
    let session = before.unwrap_or_else(|| v1::SessionInfo {
        session_id,
        generation: outcome.ended_generation.to_string(),
        ..v1::SessionInfo::default()
    });
    v1::EndSessionResponse {
        session: Some(session),
        duplicate: outcome.duplicate,
    }
}

fn live_or_id(session_id: String, view: Option<&SessionView>) -> v1::SessionInfo {
    view.map_or_else(
        || v1::SessionInfo {
            session_id,
            ..v1::SessionInfo::default()
        },
        session_info,
    )
}

pub(crate) fn appended(session_id: String, outcome: &AppendOutcome) -> v1::AppendResponse {
    let record = &outcome.record;
    v1::AppendResponse {
        session: Some(session_of(session_id, outcome.session.as_ref(), record)),
        first_seq: record.first_seq,
        last_seq: record.last_seq,
        dropped_turns: record.dropped_turns,
        duplicate: outcome.duplicate,
    }
}

/// Converts the session after a command.
///
/// If it has ended, a repeat returns only the generation that got the turns.
fn session_of(
    session_id: String,
    view: Option<&SessionView>,
    record: &KeyRecord,
) -> v1::SessionInfo {
    let ended = || v1::SessionInfo {
        session_id,
        generation: record.generation.to_string(),
        ..v1::SessionInfo::default()
    };
    view.map_or_else(ended, session_info)
}

pub(crate) fn verified(checks: &[FileCheck]) -> v1::VerifyResponse {
    let file = |check: &FileCheck| v1::VerifiedFile {
        path: check.path.display().to_string(),
        bytes: check.bytes,
        turns_whole: check.turns.whole,
        turns_unchecked: check.turns.unchecked,
        turns_damaged: check.turns.damaged,
        damages: check.damages.clone(),
        damages_total: check.damages_total,
    };
    v1::VerifyResponse {
        files: checks.iter().map(file).collect(),
    }
}

pub(crate) fn sessions(
    sessions: Vec<v1::SessionInfo>,
    next: Option<&SessionListPosition>,
    order: SessionOrder,
) -> v1::ListSessionsResponse {
    let next = next.map(|place| session_token::format(place, order));
    v1::ListSessionsResponse {
        sessions,
        next_page_token: next.unwrap_or_default(),
    }
}

pub(crate) fn session_updated(
    session_id: String,
    outcome: &PatchOutcome,
) -> v1::UpdateSessionResponse {
    let session = match &outcome.session {
        Some((view, state)) => v1::SessionInfo {
            state_json: state.json.to_string(),
            ..session_info(view)
        },
        None => live_or_id(session_id, None),
    };
    v1::UpdateSessionResponse {
        session: Some(session),
        duplicate: outcome.duplicate,
    }
}

/// Totals are sums over the tenants and deliveries passed in.
pub(crate) fn stats<'a>(
    snapshot: StatsSnapshot,
    deliveries: impl Iterator<Item = &'a DeliveryCount>,
    usage: Usage,
    started_at: Timestamp,
    refused: impl Fn(&TenantId) -> u64,
) -> v1::GetStatsResponse {
    let mut response = v1::GetStatsResponse {
        commits: snapshot.commits,
        commit_sets: snapshot.commit_sets,
        cpu_seconds: usage.cpu_seconds,
        rss_bytes: usage.rss_bytes,
        started_at: Some(timestamp_to_proto(started_at)),
        ..v1::GetStatsResponse::default()
    };
    for tenant in snapshot.tenants {
        response.sessions_live += tenant.sessions_live;
        response.turns_live += tenant.turns_live;
        response.bytes_live += tenant.bytes_live;
        response.sessions_created += tenant.sessions_created;
        response.expired += tenant.expired;
        response.evicted += tenant.evicted;
        response.ended += tenant.ended;
        response.turns_appended += tenant.turns_appended;
        let calls_refused = refused(&tenant.id);
        response.tenants.push(tenant_stats(&tenant, calls_refused));
    }
    for delivery in deliveries {
        match delivery.state {
            DeliveryState::Pending => response.hooks_pending += delivery.count,
            DeliveryState::Dead => response.hooks_dead += delivery.count,
            DeliveryState::Done => {}
        }
    }
    response
}

pub(crate) fn swept(ended: &[EndedSession]) -> v1::SweepNowResponse {
    let session = |ended: &EndedSession| v1::EndedSession {
        tenant: ended.tenant.to_string(),
        session_id: ended.session.to_string(),
        generation: ended.generation.to_string(),
        reason: end_reason(ended.reason).into(),
    };
    v1::SweepNowResponse {
        ended: ended.len() as u64,
        sessions: ended.iter().take(ENDED_NAMED_MAX).map(session).collect(),
    }
}

/// Builds a page of hook deliveries, for a requested `size`.
pub(crate) fn deliveries(listed: &[DeliveryView], size: usize) -> v1::ListHookDeliveriesResponse {
    let next = listed.last().filter(|_| listed.len() == size);
    v1::ListHookDeliveriesResponse {
        deliveries: listed.iter().map(delivery).collect(),
        next_page_token: text_or_empty(next.map(|last| &last.delivery.id)),
    }
}

pub(crate) fn delivery(view: &DeliveryView) -> v1::HookDelivery {
    let DeliveryView { delivery, due_at } = view;
    let state = match delivery.state {
        DeliveryState::Pending => v1::DeliveryState::Pending,
        DeliveryState::Done => v1::DeliveryState::Done,
        DeliveryState::Dead => v1::DeliveryState::Dead,
    };
    v1::HookDelivery {
        id: delivery.id.to_string(),
        hook: delivery.id.hook.to_string(),
        tenant: delivery.key.tenant.to_string(),
        session_id: delivery.key.session.to_string(),
        generation: delivery.id.generation.to_string(),
        reason: end_reason(delivery.reason).into(),
        state: state.into(),
        tries: delivery.tries,
        last_error: delivery.last_error.clone(),
        due_at: Some(timestamp_to_proto(*due_at)),
    }
}

fn tenant_stats(tenant: &TenantSnapshot, calls_refused: u64) -> v1::TenantStats {
    v1::TenantStats {
        calls_refused,
        id: tenant.id.to_string(),
        sessions_live: tenant.sessions_live,
        turns_live: tenant.turns_live,
        bytes_live: tenant.bytes_live,
        sessions_created: tenant.sessions_created,
        expired: tenant.expired,
        evicted: tenant.evicted,
        ended: tenant.ended,
        turns_appended: tenant.turns_appended,
        max_sessions: tenant.max_sessions,
        session_ttl: Some(duration(Duration::from_millis(tenant.session_ttl_ms))),
        max_history_turns: tenant.max_history_turns,
    }
}

/// Converts a duration, limited to protobuf's maximum.
pub(crate) fn duration(duration: Duration) -> prost_types::Duration {
    /// Ten thousand years (google/protobuf/duration.proto).
    const MAX: Duration = Duration::from_secs(315_576_000_000);
    // Cannot fail for durations up to the maximum.
    prost_types::Duration::try_from(duration.min(MAX)).unwrap_or_default()
}

pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

pub(super) fn end_reason(reason: EndReason) -> v1::EndReason {
    match reason {
        EndReason::Expired => v1::EndReason::Expired,
        EndReason::Evicted => v1::EndReason::Evicted,
        EndReason::Ended => v1::EndReason::Ended,
        EndReason::Reset => v1::EndReason::Reset,
        EndReason::Shutdown => v1::EndReason::Shutdown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_duration_matches_proto_limit() {
        let longest = duration(Duration::MAX);
        assert_eq!((longest.seconds, longest.nanos), (315_576_000_000, 0));
        let short = duration(Duration::from_millis(1_500));
        assert_eq!((short.seconds, short.nanos), (1, 500_000_000));
    }
}
