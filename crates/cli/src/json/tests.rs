//! Tests of the JSON form of replies, and of parsing it.

use memoird_proto::v1::media::Source;
use memoird_proto::v1::part::Part as Choice;
use memoird_proto::v1::{
    Budget, Media, Memory, MemoryKind, MemoryOrigin, MemorySource, Part, Polarity, RecallHit, Role,
    SessionInfo, ToolUse, Turn, Visibility,
};
use prost_types::{Duration, Timestamp};
use serde_json::json;

use super::*;

const REQUIRED: [&str; 2] = ["id", "importance"];

fn at(seconds: i64, nanos: i32) -> Option<Timestamp> {
    Some(Timestamp { seconds, nanos })
}

#[test]
fn turn_json_roundtrips() {
    let call = ToolUse {
        id: "c1".into(),
        name: "f".into(),
        input_json: "{ }".into(),
    };
    let image = Media {
        media_type: "image/png".into(),
        source: Some(Source::Data(vec![255, 254, 253, 0].into())),
        name: String::new(),
    };
    let parts = [
        Choice::Text("a\nb".into()),
        Choice::ToolUse(call),
        Choice::Media(image),
    ];
    let shown = of(&Turn {
        seq: 3,
        role: Role::Assistant as i32,
        parts: parts
            .into_iter()
            .map(|part| Part {
                part: Some(part),
                extra_json: String::new(),
            })
            .collect(),
        timestamp: at(0, 0),
        ..Turn::default()
    });
    let expected = json!({
        "seq": 3, "role": "ROLE_ASSISTANT", "timestamp": "1970-01-01T00:00:00Z",
        "parts": [
            {"text": "a\nb"},
            {"tool_use": {"id": "c1", "name": "f", "input_json": "{ }"}},
            {"media": {"media_type": "image/png", "name": "", "data": "//79AA=="}},
        ],
    });
    assert_eq!(shown, expected);
    assert_eq!(short_name("Role", Role::Tool as i32), "tool");
    assert_eq!(short_name("Role", 77), "77");
}

#[test]
fn missing_fields_are_null_or_default() {
    let info = of(&SessionInfo::default());
    assert_eq!(info["created_at"], Value::Null);
    assert_eq!(info["compaction"], Value::Null);
    assert_eq!(info["history_turns"], json!(0));
    assert_eq!(info["has_summary"], json!(false));
    let budget = of(&Budget {
        context_window: Some(0),
        ..Budget::default()
    });
    assert_eq!(budget["context_window"], json!(0));
    assert_eq!(budget["safety_headroom"], Value::Null);
    let turn = of(&Turn::default());
    let expected = json!({"seq": 0, "role": "ROLE_UNSPECIFIED", "timestamp": null, "parts": []});
    assert_eq!(turn, expected);
    let hit = of(&RecallHit {
        memory: Some(Memory::default()),
        age: Some(Duration {
            seconds: 90,
            nanos: 0,
        }),
        ..RecallHit::default()
    });
    assert_eq!(hit["age"], "90s");
    assert_eq!(hit["memory"].get("tags"), None);
    assert_eq!(hit["memory"]["content"], "");
}

fn full() -> Memory {
    Memory {
        id: "01ARYZ6S410000000000000000".into(),
        subject: "ann\n\u{1b}".into(),
        kind: MemoryKind::Feedback.into(),
        visibility: Visibility::Team.into(),
        polarity: Polarity::Correction.into(),
        content: "„Tee“, \"black\"\nno \\ sugar \u{1f375}".into(),
        tags: vec!["a b".into(), "c".into()],
        importance: 0.1,
        source: Some(MemorySource {
            session_id: "chat".into(),
            generation: "01ARYZ6S410000000000000001".into(),
            seqs: vec![1, u64::MAX],
        }),
        observed_at: at(1, 5),
        created_at: at(2, 120_000_000),
        updated_at: at(253_402_300_799, 999_999_999),
        expires_at: at(0, 0),
        superseded_by: "01ARYZ6S410000000000000002".into(),
        reinforced: u64::MAX,
        recall_count: 9_007_199_254_740_993,
        last_recalled_at: at(7, 1_000),
        pinned: true,
        pinned_by_dream: true,
        origin: MemoryOrigin::Extraction.into(),
        external_key: "a/b".into(),
        metadata_json: "{\"n\": 1.50}".into(),
    }
}

fn again(line: &str) -> serde_json::Result<Memory> {
    read(line.as_bytes(), &REQUIRED)
}

#[test]
fn memory_json_roundtrips() {
    let bare = Memory {
        id: "01ARYZ6S410000000000000000".into(),
        subject: "ann".into(),
        kind: MemoryKind::User.into(),
        visibility: Visibility::Private.into(),
        ..Memory::default()
    };
    let small = Memory {
        importance: f32::MIN_POSITIVE,
        ..bare.clone()
    };
    for memory in [full(), bare, small] {
        let line = of(&memory).to_string();
        assert!(!line.contains('\n'), "{line}");
        let read = again(&line).expect("a memory");
        assert_eq!(read, memory);
        assert_eq!(of(&read).to_string(), line);
    }
    let other = again(r#"{"id": "x", "importance": 0.50}"#).expect("a memory");
    assert!((other.importance - 0.5).abs() < f32::EPSILON);
}

#[test]
fn unsupported_fields_are_rejected() {
    let with = |name: &str, value: Value| {
        let mut line = of(&full());
        line[name] = value;
        again(&line.to_string()).expect_err(name).to_string()
    };
    assert!(with("colour", "red".into()).contains("colour"));
    assert!(with("kind", "MEMORY_KIND_JOKE".into()).contains("MEMORY_KIND_JOKE"));
    assert!(with("created_at", "yesterday".into()).contains("time"));
    assert!(!with("reinforced", json!(-1)).is_empty());
    let error = again("{\"id\": \"x\"}").expect_err("incomplete");
    assert!(error.to_string().contains("importance"), "{error}");
}
