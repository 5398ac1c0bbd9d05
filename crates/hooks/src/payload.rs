//! The JSON that programs and web services get when a session ends: a contract, since
//! people write their own code against it.
//!
//! One object. Fields may be added; none of these changes its meaning while `version`
//! is 1. Times are RFC 3339 in UTC, ids are text, numbers are whole where nothing else is
//! said.
//!
//! | field | what it is |
//! |---|---|
//! | `version` | 1 |
//! | `delivery` | `GENERATION/HOOK`, the same at every repetition: do nothing when you have seen it |
//! | `attempt` | 1 for the first try |
//! | `hook` | the hook's name in the configuration |
//! | `tenant` | whose session it was |
//! | `session_id` | the bot's own id of the chat |
//! | `generation` | which life of the session, a ULID |
//! | `subject` | whose memories its facts become; `null` when the bot named none |
//! | `reason` | `expired`, `evicted`, `ended`, `reset` or `shutdown` |
//! | `created_at`, `ended_at` | when it started and when it ended |
//! | `last_seq` | the seq of its last turn; 0 without any |
//! | `state` | the session's free-form JSON object, as it stands |
//! | `state_version` | how often the state changed |
//! | `summary` | what stood for the oldest turns in windows; `null` where nothing was compacted |
//! | `turns_omitted` | turns that are missing in `turns`: too many bytes, or dropped without a journal |
//! | `turns` | the turns, oldest first |
//!
//! A summary stands for turns that are in `turns` all the same. It has
//!
//! | field | what it is |
//! |---|---|
//! | `text` | what it says, as the model read it |
//! | `number` | which one of the generation it is, from 1 |
//! | `turns` | how many turns it stands for |
//! | `through_seq` | the last of them |
//! | `made_at` | when it was made |
//! | `by` | what made it: `extractive`, or a provider and its model |
//! | `standing_instructions`, `user_turns`, `done`, `open_questions` | lists of texts |
//! | `details`, `recent` | what a model wrote about the turns, and their end: texts, perhaps empty |
//!
//! A turn, in the words of the contract's `Turn`; what it has not is left out:
//!
//! | field | what it is |
//! |---|---|
//! | `seq` | its place in the generation, from 1 |
//! | `role` | `ROLE_USER`, `ROLE_ASSISTANT`, `ROLE_TOOL` or `ROLE_SYSTEM` |
//! | `timestamp` | when it was said; `null` when unknown |
//! | `parts` | objects with one of `text` (a string), `tool_use` (`id`, `name`, `input_json`), `tool_result` (`tool_use_id`, `content`, `parts`, `is_error`), `media` (`media_type`, `name`, and `uri` or, in base64, `data`), `thinking` (`text`, `signature`, `redacted`); and perhaps `extra_json` |
//! | `salience` | 0 to 1, as the bot gave it |
//! | `pinned` | `true` |
//! | `metadata` | the bot's labels, strings |
//! | `extra_json` | the provider's own fields, JSON in a string |
//! | `client_id`, `client_json` | the client's own id of the message, and what else it keeps with it, JSON in a string |

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memoird_core::compaction::Summary;
use memoird_core::ids::Subject;
use memoird_core::turn::{MediaSource, Part, PartKind, Turn};
use memoird_engine::{HookCall, HookError};
use serde_json::{Value, json};

use crate::time::rfc3339_exact;

/// The version that the payload names.
pub const VERSION: u32 = 1;

/// The payload of a call. Of its turns, only one at a time stands in memory beside the
/// text: content may be tens of megabytes, and a tree of it several times that.
pub fn payload(call: &HookCall) -> String {
    let mut text = head(call).to_string();
    // The brace that ends the head comes after the turns.
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

/// Makes the payload and passes it to `then`, on a thread where a long computation blocks no
/// other task.
///
/// # Errors
/// [`HookError`], to be tried again, when the runtime is stopping.
pub(crate) async fn payload_aside<T: Send + 'static>(
    call: &HookCall,
    then: impl FnOnce(String) -> T + Send + 'static,
) -> Result<T, HookError> {
    let call = call.clone();
    let made = tokio::task::spawn_blocking(move || then(payload(&call))).await;
    made.map_err(|_| HookError::later("the payload could not be made"))
}

/// A turn, whole.
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

/// A summary: its text, and its sections as data.
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

/// All but the turns.
fn head(call: &HookCall) -> Value {
    let ended = &call.content;
    // It was parsed when it was patched; a journal that was tampered with must not make
    // the whole payload unreadable.
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

/// The object, and what the provider had beside it, where there is any.
fn with_extra(mut object: Value, extra_json: &str) -> Value {
    if !extra_json.is_empty() {
        object["extra_json"] = extra_json.into();
    }
    object
}
