//! What the engine answered, made into what a client reads.

use bytes::Bytes;
use memoird_core::change::EndReason;
use memoird_core::state::State;
use memoird_core::time::Timestamp;
use memoird_engine::{
    AppendOutcome, EndedSession, HistoryPage, SessionPage, SessionView, StatsSnapshot,
    TenantSnapshot,
};
use memoird_proto::{spliced, v1};
use memoird_store::encoding::timestamp_to_proto;

use crate::process::Usage;

/// Sessions that an answer about a sweep names.
const ENDED_NAMED_MAX: usize = 1_000;

/// A live session.
pub(crate) fn session_info(view: &SessionView) -> v1::SessionInfo {
    let time = |time: Timestamp| Some(timestamp_to_proto(time));
    v1::SessionInfo {
        session_id: view.session.to_string(),
        generation: view.head.generation.to_string(),
        subject: view.subject().map(ToString::to_string).unwrap_or_default(),
        history_turns: view.head.totals.turns,
        history_bytes: view.head.totals.bytes,
        history_tokens: view.head.totals.tokens,
        last_seq: view.head.last_seq,
        created_at: time(view.head.created_at),
        last_access: time(view.last_access),
        expires_at: time(view.expires_at),
        has_summary: false,
        state_version: view.head.state_version,
        compaction: None,
    }
}

/// What an append did.
pub(crate) fn appended(session_id: String, outcome: &AppendOutcome) -> v1::AppendResponse {
    let record = &outcome.record;
    // A repetition whose session has ended is told which life of it took the turns.
    let ended = || v1::SessionInfo {
        session_id,
        generation: record.generation.to_string(),
        ..v1::SessionInfo::default()
    };
    v1::AppendResponse {
        session: Some(outcome.session.as_ref().map_or_else(ended, session_info)),
        first_seq: record.first_seq,
        last_seq: record.last_seq,
        dropped_turns: record.dropped_turns,
        duplicate: outcome.duplicate,
    }
}

/// Turns, spliced as they are kept.
pub(crate) fn history(page: HistoryPage) -> spliced::GetHistoryResponse {
    spliced::GetHistoryResponse {
        turns: page.turns.into_iter().map(Bytes::from_owner).collect(),
        next_after_seq: page.next_after_seq,
    }
}

/// A page of live sessions.
pub(crate) fn sessions(page: &SessionPage) -> v1::ListSessionsResponse {
    let next = page.next.as_ref().map(|(session, time)| format!("{:x}:{session}", time.0));
    v1::ListSessionsResponse {
        sessions: page.sessions.iter().map(session_info).collect(),
        next_page_token: next.unwrap_or_default(),
    }
}

/// A state after its patch.
pub(crate) fn state(state: &State) -> v1::PatchStateResponse {
    v1::PatchStateResponse { state_json: state.json.to_string(), version: state.version }
}

/// Counts; the sums are those of the tenants that are shown.
pub(crate) fn stats(
    snapshot: StatsSnapshot,
    usage: Usage,
    started_at: Timestamp,
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
        response.tenants.push(tenant_stats(&tenant));
    }
    response
}

/// A tenant with its limits.
pub(crate) fn tenant(tenant: &TenantSnapshot) -> v1::Tenant {
    let seconds = i64::try_from(tenant.session_ttl_ms / 1_000).unwrap_or(i64::MAX);
    let nanos = i32::try_from(tenant.session_ttl_ms % 1_000).unwrap_or(0) * 1_000_000;
    v1::Tenant {
        id: tenant.id.to_string(),
        sessions_live: tenant.sessions_live,
        max_sessions: tenant.max_sessions,
        session_ttl: Some(prost_types::Duration { seconds, nanos }),
        max_history_turns: tenant.max_history_turns,
    }
}

/// What a sweep ended.
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

fn tenant_stats(tenant: &TenantSnapshot) -> v1::TenantStats {
    v1::TenantStats {
        id: tenant.id.to_string(),
        sessions_live: tenant.sessions_live,
        turns_live: tenant.turns_live,
        bytes_live: tenant.bytes_live,
        sessions_created: tenant.sessions_created,
        expired: tenant.expired,
        evicted: tenant.evicted,
        ended: tenant.ended,
        turns_appended: tenant.turns_appended,
    }
}

fn end_reason(reason: EndReason) -> v1::EndReason {
    match reason {
        EndReason::Expired => v1::EndReason::Expired,
        EndReason::Evicted => v1::EndReason::Evicted,
        EndReason::Ended => v1::EndReason::Ended,
        EndReason::Reset => v1::EndReason::Reset,
        EndReason::Shutdown => v1::EndReason::Shutdown,
    }
}
