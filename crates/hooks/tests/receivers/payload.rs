//! The exact payload, because users write programs against it.

use std::collections::BTreeMap;
use std::sync::Arc;

use memoird_core::change::EndReason;
use memoird_core::compaction::{
    CompletedCall, StandingInstruction, Summary, SummaryBody, UserTurn,
};
use memoird_core::time::Timestamp;
use memoird_core::turn::{MediaSource, Part, PartKind, Role, Turn};
use memoird_engine::HookCall;
use memoird_hooks::payload::payload;
use serde_json::{Value, json};

use crate::kit::{call, call_of};

fn parsed(call: &HookCall) -> Value {
    serde_json::from_str(&payload(call)).expect("JSON")
}

fn with(call: HookCall, change: impl FnOnce(&mut memoird_engine::SessionContent)) -> HookCall {
    let mut ended = (*call.content).clone();
    change(&mut ended);
    HookCall {
        content: Arc::new(ended),
        ..call
    }
}

#[test]
fn payload_contains_all_session_fields() {
    let expected = json!({
        "version": 1,
        "delivery": format!("{}/receiver", call().content.generation),
        "attempt": 1,
        "hook": "receiver",
        "tenant": "acme",
        "session_id": "telegram:4711",
        "generation": call().content.generation.to_string(),
        "subject": "ann",
        "reason": "expired",
        "created_at": "2023-11-14T22:13:20Z",
        "ended_at": "2023-11-14T22:15:00.005Z",
        "last_seq": 2,
        "state": serde_json::from_str::<Value>(r#"{"step":2,"price":1.10}"#).unwrap(),
        "state_version": 3,
        "summary": null,
        "turns_omitted": 0,
        "turns": [
            {"seq": 1, "role": "ROLE_USER", "timestamp": null,
             "parts": [{"text": "Hi, \"you\"\nthere"}]},
            {"seq": 2, "role": "ROLE_ASSISTANT", "timestamp": null,
             "parts": [{"text": "Hallo, Grüße 🦀"}]},
        ],
    });
    assert_eq!(parsed(&call()), expected);
    // Numbers of the state keep their digits, and fields keep their order.
    assert!(payload(&call()).starts_with(r#"{"version":1,"delivery":"#));
    assert!(payload(&call()).contains(r#""state":{"step":2,"price":1.10},"#));
}

#[test]
fn payload_contains_whole_summary() {
    let lines = |what: &str| vec![what.to_owned(), format!("\"{what}\"\n")];
    let summary = Summary {
        number: 3,
        first_seq: 9,
        through_seq: 14,
        turns: 12,
        made_at: Timestamp::new(1_700_000_050, 0).expect("a moment"),
        by: "openai/gpt".into(),
        body: SummaryBody {
            standing: vec![StandingInstruction {
                seq: 2,
                said_at: 1_700_000_000,
                text: "\"a\"\n".into(),
                score: 1.0,
                count: 1,
            }],
            user_turns: vec![UserTurn {
                seq: 9,
                said_at: 1_700_000_020,
                text: "b".into(),
                opens: true,
            }],
            done: vec![CompletedCall {
                seq: 10,
                text: "c".into(),
            }],
            open_questions: lines("d"),
            written: "e".into(),
            recent: "f".into(),
            until: 1_700_000_040,
            starts: lines("not a part of the payload"),
            is_answered: false,
            following: 0,
        },
        text: "# What was said\n".into(),
    };
    let expected = json!({
        "text": "# What was said\n",
        "number": 3,
        "turns": 12,
        "through_seq": 14,
        "made_at": "2023-11-14T22:14:10Z",
        "by": "openai/gpt",
        "standing_instructions": ["\"a\"\n"],
        "user_turns": ["b"],
        "done": ["c"],
        "open_questions": ["d", "\"d\"\n"],
        "details": "e",
        "recent": "f",
    });
    let shown = parsed(&with(call(), |ended| {
        ended.summary = Some(Arc::new(summary));
    }));
    assert_eq!(shown["summary"], expected);
    assert_eq!(
        shown["turns"],
        parsed(&call())["turns"],
        "the turns stay as they are"
    );
}

#[test]
fn turn_has_all_parts_and_no_empty_fields() {
    let image = PartKind::Media {
        media_type: "image/png".into(),
        source: MediaSource::Data(vec![255, 254, 253, 0]),
        name: String::new(),
    };
    let file = PartKind::Media {
        media_type: String::new(),
        source: MediaSource::Uri("gs://a".into()),
        name: "a.pdf".into(),
    };
    let result = PartKind::ToolResult {
        tool_use_id: "c1".into(),
        content: "ok".into(),
        parts: vec![image.into()],
        is_error: true,
    };
    let call_of_tool = PartKind::ToolUse {
        id: "c1".into(),
        name: "f".into(),
        input_json: "{ }".into(),
    };
    let thinking = PartKind::Thinking {
        text: "hm".into(),
        signature: "s".into(),
        redacted: false,
    };
    let text = Part {
        kind: PartKind::Text(String::new()),
        extra_json: r#"{"a":1}"#.into(),
    };
    let turn = Turn {
        timestamp: Timestamp::new(1_700_000_000, 1_500),
        salience: Some(0.3),
        pinned: true,
        metadata: BTreeMap::from([("lang".to_owned(), "de".to_owned())]),
        extra_json: r#"{"b":2}"#.into(),
        client_id: "m1".into(),
        client_json: "[1]".into(),
        ..Turn::new(
            Role::Tool,
            vec![
                text,
                call_of_tool.into(),
                result.into(),
                file.into(),
                thinking.into(),
            ],
        )
    };
    let expected = json!([{
        "seq": 1,
        "role": "ROLE_TOOL",
        "timestamp": "2023-11-14T22:13:20.000001500Z",
        "parts": [
            {"text": "", "extra_json": r#"{"a":1}"#},
            {"tool_use": {"id": "c1", "name": "f", "input_json": "{ }"}},
            {"tool_result": {"tool_use_id": "c1", "content": "ok", "is_error": true, "parts": [
                {"media": {"media_type": "image/png", "name": "", "data": "//79AA=="}}]}},
            {"media": {"media_type": "", "name": "a.pdf", "uri": "gs://a"}},
            {"thinking": {"text": "hm", "signature": "s", "redacted": false}},
        ],
        "salience": 0.3,
        "pinned": true,
        "metadata": {"lang": "de"},
        "extra_json": r#"{"b":2}"#,
        "client_id": "m1",
        "client_json": "[1]",
    }]);
    assert_eq!(parsed(&call_of(vec![turn]))["turns"], expected);
}

#[test]
fn session_without_subject_and_turns_is_valid() {
    let names = [
        (EndReason::Expired, "expired"),
        (EndReason::Evicted, "evicted"),
        (EndReason::Ended, "ended"),
        (EndReason::Reset, "reset"),
        (EndReason::Shutdown, "shutdown"),
    ];
    for (reason, name) in names {
        let shown = parsed(&with(call_of(Vec::new()), |ended| {
            ended.reason = reason;
            ended.subject = None;
            ended.turns_omitted = 9;
        }));
        assert_eq!(shown["reason"], name);
        assert_eq!(shown["subject"], Value::Null);
        assert_eq!(
            (&shown["last_seq"], &shown["turns_omitted"]),
            (&json!(0), &json!(9))
        );
        assert_eq!(shown["turns"], json!([]));
    }
}

#[test]
fn damaged_state_does_not_affect_other_fields() {
    let damaged = with(call(), |ended| ended.state.json = "{\"a".into());
    let shown = parsed(&damaged);
    assert_eq!(shown["state"], Value::Null);
    assert_eq!(shown["turns"].as_array().map(Vec::len), Some(2));
}
