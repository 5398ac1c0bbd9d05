//! What is told of compactions, and what may be asked of one.

use memoird_engine::EngineError;
use tonic::Code;
use tonic_types::StatusExt;

use super::*;

#[test]
fn a_call_keeps_up_to_a_thousand_exchanges() {
    for good in [None, Some(0), Some(1), Some(1_000)] {
        assert_eq!(keep_exchanges(good).expect("a good number"), good);
    }
    for bad in [1_001, u32::MAX] {
        let refusal = keep_exchanges(Some(bad)).expect_err("too many");
        assert_eq!(refusal.code(), Code::InvalidArgument);
        let info = refusal.get_details_error_info().expect("a reason");
        assert_eq!(info.reason, "KEEP_EXCHANGES_INVALID");
        assert!(refusal.message().contains("0 to 1000"), "{refusal:?}");
    }
}

#[test]
fn a_failure_says_why_to_people_and_to_programs() {
    let problem = "the provider answers 503".to_owned();
    let failure = EngineError::CompactionFailed { reason: "unavailable", problem };
    let status = status::engine(&failure);
    assert_eq!(status.code(), Code::Unavailable);
    let (message, info) = (status.message(), status.get_details_error_info().expect("a reason"));
    assert!(message.contains("unavailable") && message.contains("answers 503"), "{message}");
    assert_eq!(info.reason, "COMPACTION_FAILED");
    assert_eq!(info.metadata.get("cause").map(String::as_str), Some("unavailable"));
}

#[test]
fn events_tell_all_that_is_known() {
    let compacted = EventKind::Compacted {
        number: 2,
        trigger: "preemptive",
        by: "extractive".into(),
        first_seq: 8,
        through_seq: 21,
        tokens_before: 900,
        tokens_after: 120,
        probe: Probe { identifiers: 8, found: 6 },
    };
    let expected = json!({
        "number": 2, "trigger": "preemptive", "by": "extractive", "first_seq": 8,
        "through_seq": 21, "tokens_before": 900, "tokens_after": 120, "identifiers": 8,
        "identifiers_found": 6, "probe_score": 0.75,
    });
    assert_eq!(told(&compacted), Some(expected));
    let failed = EventKind::CompactionFailed {
        trigger: "command",
        reason: "empty",
        problem: "it says nothing".to_owned(),
        breaker: "open",
    };
    let expected = json!({
        "trigger": "command", "reason": "empty", "error": "it says nothing", "breaker": "open",
    });
    assert_eq!(told(&failed), Some(expected));
    let undone = EventKind::CompactionUndone { number: 3 };
    assert_eq!(told(&undone), Some(json!({ "number": 3 })));
    assert_eq!(told(&EventKind::Created), None);
}
