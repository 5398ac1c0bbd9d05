//! The JSON payload for programs and webhooks when a session ends.
//!
//! This is a stable contract: users write code against it. Fields may be added, but the meaning of
//! these does not change while `version` is 1. The payload is one object. Times are RFC 3339 in
//! UTC, ids are strings, and numbers are integers unless stated otherwise.
//!
//! | field | content |
//! |---|---|
//! | `version` | 1 |
//! | `delivery` | `GENERATION/HOOK`, the same for every retry: ignore a delivery that was already processed |
//! | `attempt` | 1 for the first attempt |
//! | `hook` | name of the hook in the configuration |
//! | `tenant` | tenant of the session |
//! | `session_id` | the session id chosen by the bot |
//! | `generation` | generation of the session, a ULID |
//! | `subject` | owner of the memories extracted from the session; `null` if the bot named none |
//! | `reason` | `expired`, `evicted`, `ended`, `reset` or `shutdown` |
//! | `created_at`, `ended_at` | time of start and end |
//! | `last_seq` | seq of the last turn; 0 if there is none |
//! | `state` | the session's free-form JSON object at its end |
//! | `state_version` | number of changes to the state |
//! | `summary` | summary that replaced the oldest turns in windows; `null` if nothing was compacted |
//! | `turns_omitted` | number of turns missing in `turns`: over the size limit, or dropped without a journal |
//! | `turns` | the turns, oldest first |
//!
//! The turns covered by a summary are in `turns` as well. A summary has
//!
//! | field | content |
//! |---|---|
//! | `text` | the text as the model read it |
//! | `number` | number in the generation, from 1 |
//! | `turns` | number of turns it covers |
//! | `through_seq` | seq of the last of them |
//! | `made_at` | time of creation |
//! | `by` | its author: `extractive`, or a provider and its model |
//! | `standing_instructions`, `user_turns`, `done`, `open_questions` | lists of texts |
//! | `details`, `recent` | a model's text about the turns, and about the last of them; may be empty |
//!
//! A turn has the fields of the contract's `Turn`. Unset fields are omitted.
//!
//! | field | content |
//! |---|---|
//! | `seq` | position in the generation, from 1 |
//! | `role` | `ROLE_USER`, `ROLE_ASSISTANT`, `ROLE_TOOL` or `ROLE_SYSTEM` |
//! | `timestamp` | time of the message; `null` if unknown |
//! | `parts` | objects with one of `text` (a string), `tool_use` (`id`, `name`, `input_json`), `tool_result` (`tool_use_id`, `content`, `parts`, `is_error`), `media` (`media_type`, `name`, and `uri` or, in base64, `data`), `thinking` (`text`, `signature`, `redacted`); optionally `extra_json` |
//! | `salience` | 0 to 1, as set by the bot |
//! | `pinned` | `true` |
//! | `metadata` | the bot's labels, strings |
//! | `extra_json` | the provider's own fields, JSON in a string |
//! | `client_id`, `client_json` | the client's own id of the message, and its additional data, JSON in a string |

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memoird_core::compaction::Summary;
use memoird_core::ids::Subject;
use memoird_core::turn::{MediaSource, Part, PartKind, Turn};
use memoird_engine::{HookCall, HookError};
use serde_json::{Value, json};

use crate::time::rfc3339_exact;

pub const VERSION: u32 = 1;

/// Formats the payload of a call.
///
/// Turns are serialized one at a time: content may be tens of megabytes, and a tree of JSON values
/// takes several times as much memory.
pub fn payload(call: &HookCall) -> String {
    let mut text = head(call).to_string();
    // The closing brace of the head follows the turns.
    text.pop();
    text.push_str(r#","turns":["#);
    for (index, (seq, content)) in call.content.turns.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&turn(*seq, content).to_string());
    }
    text.push_str("]}");
    text
}

/// Formats the payload on a blocking thread and passes it to `then`.
///
/// # Errors
/// A [`HookError`] that is retried, if the runtime is stopping.
pub(crate) async fn payload_on_blocking_thread<T: Send + 'static>(
    call: &HookCall,
    then: impl FnOnce(String) -> T + Send + 'static,
) -> Result<T, HookError> {
    let call = call.clone();
    let made = tokio::task::spawn_blocking(move || then(payload(&call))).await;
    made.map_err(|_| HookError::later("the payload could not be formatted"))
}

pub(crate) fn turn(seq: u64, turn: &Turn) -> Value {
    let mut object = json!({
        "seq": seq,
        "role": format!("ROLE_{}", turn.role.name().to_uppercase()),
        "timestamp": turn.timestamp.map(rfc3339_exact),
        "parts": turn.parts.iter().map(part).collect::<Vec<_>>(),
    });
    if let Some(salience) = turn.salience {
        object["salience"] = salience.into();
    }
    if turn.pinned {
        object["pinned"] = true.into();
    }
    if !turn.metadata.is_empty() {
        object["metadata"] = json!(turn.metadata);
    }
    for (name, value) in [
        ("client_id", &turn.client_id),
        ("client_json", &turn.client_json),
    ] {
        if !value.is_empty() {
            object[name] = value.as_str().into();
        }
    }
    with_extra(object, &turn.extra_json)
}

/// The text of a summary, and its sections as data.
pub(crate) fn summary(summary: &Summary) -> Value {
    let body = &summary.body;
    json!({
        "text": &*summary.text,
        "number": summary.number,
        "turns": summary.turns,
        "through_seq": summary.through_seq,
        "made_at": rfc3339_exact(summary.made_at),
        "by": &*summary.by,
        "standing_instructions": body.standing.iter().map(|one| &one.text).collect::<Vec<_>>(),
        "user_turns": body.user_turns.iter().map(|turn| &turn.text).collect::<Vec<_>>(),
        "done": body.done.iter().map(|done| &done.text).collect::<Vec<_>>(),
        "open_questions": body.open_questions,
        "details": body.written,
        "recent": body.recent,
    })
}

/// All fields but the turns.
fn head(call: &HookCall) -> Value {
    let ended = &call.content;
    // The state was validated when it was patched. A journal that was tampered with must not make
    // the whole payload invalid.
    let state: Value = serde_json::from_str(&ended.state.json).unwrap_or(Value::Null);
    json!({
        "version": VERSION,
        "delivery": call.delivery.to_string(),
        "attempt": call.attempt,
        "hook": call.delivery.hook.as_str(),
        "tenant": ended.tenant.as_str(),
        "session_id": ended.session.as_str(),
        "generation": ended.generation.to_string(),
        "subject": ended.subject.as_ref().map(Subject::as_str),
        "reason": ended.reason.name(),
        "created_at": rfc3339_exact(ended.created_at),
        "ended_at": rfc3339_exact(ended.ended_at),
        "last_seq": ended.turns.last().map_or(0, |(seq, _)| *seq),
        "state": state,
        "state_version": ended.state.version,
        "summary": ended.summary.as_deref().map(summary),
        "turns_omitted": ended.turns_omitted,
    })
}

fn part(part: &Part) -> Value {
    let (field, content) = match &part.kind {
        PartKind::Text(text) => ("text", text.as_str().into()),
        PartKind::ToolUse {
            id,
            name,
            input_json,
        } => (
            "tool_use",
            json!({"id": id, "name": name, "input_json": input_json}),
        ),
        PartKind::ToolResult {
            tool_use_id,
            content,
            parts,
            is_error,
        } => {
            let result = json!({
                "tool_use_id": tool_use_id,
                "content": content,
                "parts": parts.iter().map(self::part).collect::<Vec<_>>(),
                "is_error": is_error,
            });
            ("tool_result", result)
        }
        PartKind::Media {
            media_type,
            source,
            name,
        } => {
            let (field, source) = match source {
                MediaSource::Uri(uri) => ("uri", uri.clone()),
                MediaSource::Data(data) => ("data", STANDARD.encode(data)),
            };
            (
                "media",
                json!({"media_type": media_type, "name": name, field: source}),
            )
        }
        PartKind::Thinking {
            text,
            signature,
            redacted,
        } => (
            "thinking",
            json!({"text": text, "signature": signature, "redacted": redacted}),
        ),
    };
    with_extra(json!({field: content}), &part.extra_json)
}

/// Adds the provider's own fields, if there are any.
fn with_extra(mut object: Value, extra_json: &str) -> Value {
    if !extra_json.is_empty() {
        object["extra_json"] = extra_json.into();
    }
    object
}
