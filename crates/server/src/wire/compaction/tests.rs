//! Tests of compaction requests, results and events.

use std::sync::Arc;

use memoird_core::breaker::BreakerState;
use memoird_core::compaction::Trigger;
use memoird_core::compaction::{CompactionStatus, SummaryBody};
use memoird_core::history::Totals;
use memoird_core::ids::{Generation, SessionId};
use memoird_core::session::Head;
use memoird_core::time::{Steady, Timestamp};
use memoird_engine::{EngineError, Event, EventKind};
use memoird_proto::v1::event::Kind;
use tonic::Code;
use tonic_types::StatusExt;

use super::*;
use crate::rpc::Role;
use crate::wire::event;

fn view(status: Option<CompactionStatus>, breaker: BreakerState) -> SessionView {
    let head = Head {
        generation: Generation::new(1, 1),
        subject: None,
        created_at: Timestamp::from_ms(1_000),
        last_access: Steady(0),
        last_seq: 40,
        newest_seq: 40,
        revision: 1,
        state_version: 0,
        totals: Totals::default(),
        partial: false,
        compaction: status.map(Arc::new),
        options: None,
    };
    let (last_access, expires_at) = (Timestamp::from_ms(2_000), Timestamp::from_ms(3_000));
    let session = SessionId::parse("chat").expect("an id");
    SessionView {
        session,
        head,
        last_access,
        expires_at: Some(expires_at),
        breaker,
        ended: None,
    }
}

fn summary() -> Arc<Summary> {
    Arc::new(Summary {
        number: 2,
        first_seq: 12,
        through_seq: 30,
        turns: 28,
        made_at: Timestamp::from_ms(5_000),
        by: "extractive".into(),
        body: SummaryBody::default(),
        text: "in short".into(),
    })
}

#[test]
fn session_info_contains_compaction_status() {
    let fine = to::session_info(&view(None, BreakerState::Closed));
    let info = fine.compaction.expect("always told");
    assert_eq!(
        (info.breaker(), fine.has_summary, info.running),
        (v1::BreakerState::Closed, false, false)
    );
    let status = CompactionStatus {
        summaries: 2,
        through_seq: 30,
        failures: 3,
        last_error: "empty: it says nothing".into(),
        running: true,
        ..CompactionStatus::default()
    };
    let bad = to::session_info(&view(Some(status), BreakerState::HalfOpen));
    let expected = v1::CompactionInfo {
        breaker: v1::BreakerState::HalfOpen.into(),
        consecutive_failures: 3,
        last_error: "empty: it says nothing".into(),
        running: true,
        summaries: 2,
        through_seq: 30,
    };
    assert!(bad.has_summary);
    assert_eq!(bad.compaction, Some(expected));
}

#[test]
fn session_detail_and_compaction_return_summary_and_text() {
    let session = view(None, BreakerState::Closed);
    let summary = summary();
    let detailed = SessionDetail {
        session: session.clone(),
        summary: Some(Arc::clone(&summary)),
    };
    let told = detail(&detailed, Role::Bot);
    let info = told.summary.expect("a summary");
    assert_eq!(
        (info.number, info.first_seq, info.through_seq, info.turns),
        (2, 12, 30, 28)
    );
    assert_eq!(
        (info.made_by(), info.made_at.map(|at| at.seconds)),
        (v1::SummaryMaker::Extractive, Some(5))
    );
    assert_eq!(told.summary_text, "in short");

    let mut outcome = CompactionOutcome {
        session,
        summary: Some(summary),
        is_new: true,
        tokens_before: 900,
        tokens_after: 100,
    };
    let told = compacted(&outcome);
    assert_eq!(
        (told.first_seq, told.last_seq, &*told.summary),
        (12, 30, "in short")
    );
    assert_eq!(
        (told.tokens_before, told.tokens_after, told.is_new),
        (900, 100, true)
    );
    (outcome.summary, outcome.is_new) = (None, false);
    let nothing = compacted(&outcome);
    assert_eq!(
        (nothing.first_seq, nothing.last_seq, &*nothing.summary),
        (0, 0, "")
    );
    assert!(nothing.summary_info.is_none() && !nothing.is_new);
}

#[test]
fn keep_exchanges_is_limited_to_a_thousand() {
    for good in [None, Some(0), Some(1), Some(1_000)] {
        assert_eq!(keep_exchanges(good).expect("a good number"), good);
    }
    for bad in [1_001, u32::MAX] {
        let refusal = keep_exchanges(Some(bad)).expect_err("too many");
        let refusal = tonic::Status::from(refusal);
        assert_eq!(refusal.code(), Code::InvalidArgument);
        let info = refusal.get_details_error_info().expect("a reason");
        assert_eq!(info.reason, "KEEP_EXCHANGES_INVALID");
        assert!(refusal.message().contains("0 to 1000"), "{refusal:?}");
    }
}

#[test]
fn compaction_failure_has_message_and_reason() {
    let problem = "the provider answers 503".to_owned();
    let failure = EngineError::CompactionFailed {
        reason: "unavailable",
        problem,
    };
    let status = tonic::Status::from(Refusal::from(failure));
    assert_eq!(status.code(), Code::Unavailable);
    let (message, info) = (
        status.message(),
        status.get_details_error_info().expect("a reason"),
    );
    assert!(
        message.contains("unavailable") && message.contains("answers 503"),
        "{message}"
    );
    assert_eq!(info.reason, "COMPACTION_FAILED");
    assert_eq!(
        info.metadata.get("cause").map(String::as_str),
        Some("unavailable")
    );
}

fn event_for_bots(kind: EventKind) -> Kind {
    let event = Event {
        id: 1,
        at: Timestamp::from_ms(1_000),
        session: SessionId::parse("chat").expect("an id"),
        generation: Generation::new(1, 1),
        kind,
    };
    event::kind(&event, Role::Bot)
}

fn failed(reason: &'static str, problem: &str) -> EventKind {
    EventKind::CompactionFailed {
        trigger: Trigger::Command,
        reason: reason.into(),
        problem: problem.to_owned(),
        breaker: BreakerState::Open,
    }
}

fn failed_for_bots(reason: &str, error: &str) -> Kind {
    Kind::CompactionFailed(v1::CompactionFailed {
        trigger: v1::CompactionTrigger::Command.into(),
        reason: reason.to_owned(),
        breaker: v1::BreakerState::Open.into(),
        error: error.to_owned(),
    })
}

#[test]
fn compaction_events_have_all_fields() {
    let compacted = EventKind::Compacted {
        number: 2,
        trigger: Trigger::Preemptive,
        by: "openai:small".into(),
        first_seq: 8,
        through_seq: 21,
        turns: 20,
        tokens_before: 900,
        tokens_after: 120,
    };
    let expected = v1::SessionCompacted {
        trigger: v1::CompactionTrigger::Preemptive.into(),
        summary: Some(v1::SummaryInfo {
            number: 2,
            first_seq: 8,
            through_seq: 21,
            turns: 20,
            made_at: None,
            made_by: v1::SummaryMaker::Model.into(),
            model: "openai:small".to_owned(),
        }),
        tokens_before: 900,
        tokens_after: 120,
    };
    assert_eq!(event_for_bots(compacted), Kind::Compacted(expected));
    let told = event_for_bots(failed("empty", "it says nothing"));
    assert_eq!(told, failed_for_bots("empty", "it says nothing"));
    let undone = EventKind::CompactionUndone { number: 3 };
    let expected = v1::CompactionUndone { number: 3 };
    assert_eq!(event_for_bots(undone), Kind::CompactionUndone(expected));
}

#[test]
fn provider_error_text_is_returned_to_operators_only() {
    let of = |last_error: &str| CompactionStatus {
        failures: 1,
        last_error: last_error.into(),
        ..CompactionStatus::default()
    };
    for (error, for_bots) in [
        (
            "provider_failed: openai: 503 (their words)",
            "provider_failed",
        ),
        ("too_long: 400 Bad Request (their words)", "too_long"),
        ("not_written: /data is full", "not_written"),
        (
            "timeout: no summary within 5s",
            "timeout: no summary within 5s",
        ),
        ("", ""),
    ] {
        let look = |role| {
            let detailed = SessionDetail {
                session: view(Some(of(error)), BreakerState::Closed),
                summary: None,
            };
            let session = detail(&detailed, role).session.expect("a session");
            session.compaction.expect("always told").last_error
        };
        assert_eq!(
            (look(Role::Bot), look(Role::Admin)),
            (for_bots.into(), error.into())
        );
    }
    let error = || EngineError::CompactionFailed {
        reason: "provider_failed",
        problem: "their words".to_owned(),
    };
    let told = |role| failure(error(), role).to_string();
    assert!(
        !told(Role::Bot).contains("their words") && told(Role::Bot).contains("provider_failed")
    );
    assert!(told(Role::Admin).contains("their words"));
    let told = event_for_bots(failed("provider_failed", "their words"));
    assert_eq!(told, failed_for_bots("provider_failed", ""));
}
