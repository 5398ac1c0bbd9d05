//! Compaction on the wire: requests, results, and the summary of a session's oldest turns.

use memoird_core::breaker::BreakerState;
use memoird_core::compaction::Summary;
use memoird_engine::{CompactionOutcome, EngineError, SessionDetail, SessionView};
use memoird_proto::v1;
use memoird_store::encoding::timestamp_to_proto;

use super::refusal::Refusal;
use super::{status, text_or_empty, to};
use crate::rpc::Role;

const KEEP_EXCHANGES_MAX: u32 = 1_000;

/// Validates the number of exchanges to keep.
pub(crate) fn keep_exchanges(asked: Option<u32>) -> Result<Option<u32>, Refusal> {
    match asked {
        Some(keep) if keep > KEEP_EXCHANGES_MAX => {
            let problem = format!("keep_exchanges is {keep}, expected 0 to {KEEP_EXCHANGES_MAX}");
            Err(status::invalid(
                "KEEP_EXCHANGES_INVALID",
                "keep_exchanges",
                problem,
            ))
        }
        asked => Ok(asked),
    }
}

/// State of compaction of a session, with defaults if there was none.
pub(super) fn info(view: &SessionView) -> v1::CompactionInfo {
    let breaker = breaker_state(view.breaker).into();
    let Some(status) = view.head.compaction.as_deref() else {
        return v1::CompactionInfo {
            breaker,
            ..Default::default()
        };
    };
    v1::CompactionInfo {
        breaker,
        consecutive_failures: status.failures,
        last_error: for_bots(&status.last_error).to_owned(),
        running: status.running,
        summaries: status.summaries,
        through_seq: status.through_seq,
    }
}

/// Failure reasons with a description by memoird itself.
///
/// Other descriptions may quote a summarizer or a file system. They are logged, and bots receive
/// only the reason.
const OWN_WORDS: &[&str] = &[
    "cut_off",
    "discarded",
    "empty",
    "field_missing",
    "longer_than_the_span",
    "no_summarizer",
    "over_budget",
    "panicked",
    "provider_down",
    "refusal",
    "timeout",
];

/// Whether this role may see the description of a failure.
pub(super) fn may_know(role: Role, reason: &str) -> bool {
    role == Role::Admin || OWN_WORDS.contains(&reason)
}

/// Reduces a session's last error to what bots may see.
fn for_bots(last_error: &str) -> &str {
    match last_error.split_once(": ") {
        Some((reason, _)) if !may_know(Role::Bot, reason) => reason,
        _ => last_error,
    }
}

/// Reduces an error to what this role may see.
pub(crate) fn failure(error: EngineError, role: Role) -> EngineError {
    match error {
        EngineError::CompactionFailed { reason, .. } if !may_know(role, reason) => {
            let problem = "see the daemon's log".to_owned();
            EngineError::CompactionFailed { reason, problem }
        }
        other => other,
    }
}

/// Whether a summary replaces the oldest exchanges.
pub(super) fn has_summary(view: &SessionView) -> bool {
    let status = view.head.compaction.as_ref();
    status.is_some_and(|status| status.through_seq > 0)
}

pub(super) fn summary_info(summary: &Summary) -> v1::SummaryInfo {
    v1::SummaryInfo {
        number: summary.number,
        first_seq: summary.first_seq,
        through_seq: summary.through_seq,
        turns: summary.turns,
        made_at: Some(timestamp_to_proto(summary.made_at)),
        ..made_by(&summary.by)
    }
}

/// What made a summary: `extractive`, or the provider and its model.
pub(super) fn made_by(by: &str) -> v1::SummaryInfo {
    let (made_by, model) = match by {
        "extractive" => (v1::SummaryMaker::Extractive, ""),
        model => (v1::SummaryMaker::Model, model),
    };
    v1::SummaryInfo {
        made_by: made_by.into(),
        model: model.to_owned(),
        ..Default::default()
    }
}

pub(super) fn breaker_state(state: BreakerState) -> v1::BreakerState {
    match state {
        BreakerState::Closed => v1::BreakerState::Closed,
        BreakerState::Open => v1::BreakerState::Open,
        BreakerState::HalfOpen => v1::BreakerState::HalfOpen,
    }
}

/// Details of a session, with the error description that this role may see.
pub(crate) fn detail(detail: &SessionDetail, role: Role) -> v1::GetSessionResponse {
    let summary = detail.summary.as_deref();
    let mut session = to::session_info(&detail.session);
    if let (Role::Admin, Some(info), Some(status)) = (
        role,
        &mut session.compaction,
        &detail.session.head.compaction,
    ) {
        info.last_error = status.last_error.to_string();
    }
    v1::GetSessionResponse {
        session: Some(session),
        summary: summary.map(summary_info),
        summary_text: text_or_empty(summary.map(|summary| &summary.text)),
    }
}

pub(crate) fn compacted(outcome: &CompactionOutcome) -> v1::CompactSessionResponse {
    let summary = outcome.summary.as_deref();
    v1::CompactSessionResponse {
        session: Some(to::session_info(&outcome.session)),
        first_seq: summary.map_or(0, |summary| summary.first_seq),
        last_seq: summary.map_or(0, |summary| summary.through_seq),
        summary: text_or_empty(summary.map(|summary| &summary.text)),
        summary_info: summary.map(summary_info),
        tokens_before: outcome.tokens_before,
        tokens_after: outcome.tokens_after,
        is_new: outcome.is_new,
    }
}

#[cfg(test)]
mod tests;
