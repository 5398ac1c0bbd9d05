//! Replies as JSON, for `--json`: the contract's own field names, whole numbers as
//! numbers, times in RFC 3339, bytes in base64, fields that are empty left out.

use memoird_proto::v1::media::Source;
use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    DeliveryState, EndReason, Event, GetStatsResponse, HookDelivery, Part, Role, SessionInfo,
    TenantStats, Turn, WatchEventsResponse,
};
use prost_types::Timestamp;
use serde_json::{Map, Value, json};

use super::compaction;

/// A session with all that is known of it.
pub(super) fn session(info: &SessionInfo) -> Value {
    json!({
        "session_id": info.session_id,
        "generation": info.generation,
        "subject": info.subject,
        "history_turns": info.history_turns,
        "history_bytes": info.history_bytes,
        "history_tokens": info.history_tokens,
        "last_seq": info.last_seq,
        "created_at": time(info.created_at.as_ref()),
        "last_access": time(info.last_access.as_ref()),
        "expires_at": time(info.expires_at.as_ref()),
        "has_summary": info.has_summary,
        "state_version": info.state_version,
        "compaction": info.compaction.as_ref().map(compaction::info_json),
    })
}

/// A turn, whole.
pub(super) fn turn(turn: &Turn) -> Value {
    let mut object = Map::new();
    object.insert("seq".to_owned(), turn.seq.into());
    object.insert("role".to_owned(), role(turn.role).into());
    object.insert("timestamp".to_owned(), time(turn.timestamp.as_ref()));
    object.insert("parts".to_owned(), turn.parts.iter().map(part).collect());
    if let Some(salience) = turn.salience {
        object.insert("salience".to_owned(), salience.into());
    }
    if turn.pinned {
        object.insert("pinned".to_owned(), true.into());
    }
    if !turn.metadata.is_empty() {
        object.insert("metadata".to_owned(), json!(turn.metadata));
    }
    put_text(&mut object, "extra_json", &turn.extra_json);
    Value::Object(object)
}

/// Counts and sums.
pub(super) fn stats(stats: &GetStatsResponse) -> Value {
    json!({
        "sessions_live": stats.sessions_live,
        "turns_live": stats.turns_live,
        "bytes_live": stats.bytes_live,
        "sessions_created": stats.sessions_created,
        "expired": stats.expired,
        "evicted": stats.evicted,
        "ended": stats.ended,
        "turns_appended": stats.turns_appended,
        "commits": stats.commits,
        "commit_sets": stats.commit_sets,
        "hooks_pending": stats.hooks_pending,
        "hooks_dead": stats.hooks_dead,
        "cpu_seconds": stats.cpu_seconds,
        "rss_bytes": stats.rss_bytes,
        "started_at": time(stats.started_at.as_ref()),
        "tenants": stats.tenants.iter().map(tenant).collect::<Vec<_>>(),
    })
}

/// What a watcher was told.
pub(super) fn watched(told: &WatchEventsResponse) -> Value {
    let mut object = Map::new();
    match &told.event {
        Some(event) => {
            object.insert("event".to_owned(), self::event(event));
        }
        None => {
            object.insert("missed".to_owned(), told.missed.into());
            put_text(&mut object, "missed_tenant", &told.missed_tenant);
        }
    }
    Value::Object(object)
}

/// What a hook is owed, or got.
pub(super) fn delivery(delivery: &HookDelivery) -> Value {
    json!({
        "id": delivery.id,
        "hook": delivery.hook,
        "tenant": delivery.tenant,
        "session_id": delivery.session_id,
        "generation": delivery.generation,
        "reason": reason(delivery.reason),
        "state": delivery_state(delivery.state),
        "tries": delivery.tries,
        "last_error": delivery.last_error,
        "due_at": time(delivery.due_at.as_ref()),
    })
}

/// A role's short name, such as `user`.
pub(super) fn role_name(number: i32) -> String {
    short_name(&role(number), "ROLE_")
}

/// The short name of why a session ended, such as `expired`.
pub(super) fn reason_name(number: i32) -> String {
    short_name(&reason(number), "END_REASON_")
}

/// The short name of how far a delivery is, such as `dead`.
pub(super) fn delivery_state_name(number: i32) -> String {
    short_name(&delivery_state(number), "DELIVERY_STATE_")
}

/// A time, or null.
pub(super) fn time(timestamp: Option<&Timestamp>) -> Value {
    timestamp.map_or(Value::Null, |timestamp| timestamp.to_string().into())
}

/// The name of a protobuf enum's value without the enum's own name.
pub(super) fn short_name(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase()
}

fn event(event: &Event) -> Value {
    let mut object = Map::new();
    object.insert("event_id".to_owned(), event.event_id.into());
    object.insert("time".to_owned(), time(event.time.as_ref()));
    for (name, text) in [
        ("kind", &event.kind),
        ("tenant", &event.tenant),
        ("session_id", &event.session_id),
        ("generation", &event.generation),
    ] {
        object.insert(name.to_owned(), text.as_str().into());
    }
    if event.reason() != EndReason::Unspecified {
        object.insert("reason".to_owned(), reason(event.reason).into());
    }
    put_text(&mut object, "detail_json", &event.detail_json);
    Value::Object(object)
}

fn reason(number: i32) -> String {
    let name = EndReason::try_from(number).map(|reason| reason.as_str_name().to_owned());
    name.unwrap_or_else(|_| number.to_string())
}

fn delivery_state(number: i32) -> String {
    let name = DeliveryState::try_from(number).map(|state| state.as_str_name().to_owned());
    name.unwrap_or_else(|_| number.to_string())
}

fn role(number: i32) -> String {
    match Role::try_from(number) {
        Ok(role) => role.as_str_name().to_owned(),
        Err(_) => number.to_string(),
    }
}

fn tenant(stats: &TenantStats) -> Value {
    json!({
        "id": stats.id,
        "sessions_live": stats.sessions_live,
        "turns_live": stats.turns_live,
        "bytes_live": stats.bytes_live,
        "sessions_created": stats.sessions_created,
        "expired": stats.expired,
        "evicted": stats.evicted,
        "ended": stats.ended,
        "turns_appended": stats.turns_appended,
    })
}

fn part(part: &Part) -> Value {
    let mut object = Map::new();
    match &part.part {
        None => {}
        Some(Kind::Text(text)) => {
            object.insert("text".to_owned(), text.as_str().into());
        }
        Some(Kind::ToolUse(call)) => {
            let call = json!({"id": call.id, "name": call.name, "input_json": call.input_json});
            object.insert("tool_use".to_owned(), call);
        }
        Some(Kind::ToolResult(result)) => {
            let result = json!({
                "tool_use_id": result.tool_use_id,
                "content": result.content,
                "parts": result.parts.iter().map(self::part).collect::<Vec<_>>(),
                "is_error": result.is_error,
            });
            object.insert("tool_result".to_owned(), result);
        }
        Some(Kind::Media(media)) => {
            let (field, source) = match &media.source {
                None => ("uri", Value::Null),
                Some(Source::Uri(uri)) => ("uri", uri.as_str().into()),
                Some(Source::Data(data)) => ("data", base64(data).into()),
            };
            let media = json!({"media_type": media.media_type, "name": media.name, field: source});
            object.insert("media".to_owned(), media);
        }
        Some(Kind::Thinking(thinking)) => {
            let thinking = json!({
                "text": thinking.text,
                "signature": thinking.signature,
                "redacted": thinking.redacted,
            });
            object.insert("thinking".to_owned(), thinking);
        }
    }
    put_text(&mut object, "extra_json", &part.extra_json);
    Value::Object(object)
}

/// Puts a text, unless it is empty.
pub(super) fn put_text(object: &mut Map<String, Value>, field: &str, text: &str) {
    if !text.is_empty() {
        object.insert(field.to_owned(), text.into());
    }
}

/// Base64 with padding, as JSON of protobuf writes bytes.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            if place <= chunk.len() {
                let digit = bits >> (18 - 6 * place) & 63;
                text.push(char::from(ALPHABET[digit as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use memoird_proto::v1::{Media, ToolUse};

    #[test]
    fn bytes_are_base64() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[255, 254, 253, 0]), "//79AA==");
    }

    #[test]
    fn a_turn_keeps_all_it_has() {
        let call = ToolUse {
            id: "c1".into(),
            name: "f".into(),
            input_json: "{ }".into(),
        };
        let image = Media {
            media_type: "image/png".into(),
            source: Some(Source::Data(vec![1].into())),
            name: String::new(),
        };
        let parts = [
            Kind::Text("a\nb".into()),
            Kind::ToolUse(call),
            Kind::Media(image),
        ];
        let shown = turn(&Turn {
            seq: 3,
            role: Role::Assistant as i32,
            parts: parts
                .into_iter()
                .map(|part| Part {
                    part: Some(part),
                    extra_json: String::new(),
                })
                .collect(),
            timestamp: Some(Timestamp {
                seconds: 0,
                nanos: 0,
            }),
            ..Turn::default()
        });
        let expected = json!({
            "seq": 3, "role": "ROLE_ASSISTANT", "timestamp": "1970-01-01T00:00:00Z",
            "parts": [
                {"text": "a\nb"},
                {"tool_use": {"id": "c1", "name": "f", "input_json": "{ }"}},
                {"media": {"media_type": "image/png", "name": "", "data": "AQ=="}},
            ],
        });
        assert_eq!(shown, expected);
        assert_eq!(role_name(Role::Tool as i32), "tool");
        assert_eq!(role_name(77), "77");
    }
}
