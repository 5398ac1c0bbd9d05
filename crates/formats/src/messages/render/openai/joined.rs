//! Messages of the user that stand in a row as one: the chat templates of many open models refuse a
//! second one, and say that roles must alternate.

use serde_json::{Map, Value, json};

use crate::messages::render::extra::add;

/// Stands between two texts.
const BETWEEN: &str = "\n\n";

/// Joins each run of the user's messages, and moves the ends of the turns. Two texts
/// become one that begins with the first, so that what a server has cached of it is of use.
pub(super) fn joined(messages: Vec<Value>, ends: &mut [usize]) -> Vec<Value> {
    let mut joined: Vec<Value> = Vec::with_capacity(messages.len());
    let mut counts = vec![0];
    for message in messages {
        match joined
            .last_mut()
            .filter(|last| is_user(last) && is_user(&message))
        {
            Some(Value::Object(last)) => join(last, message),
            _ => joined.push(message),
        }
        counts.push(joined.len());
    }
    for end in ends {
        *end = counts[*end];
    }
    joined
}

fn is_user(message: &Value) -> bool {
    message.get("role").is_some_and(|role| role == "user")
}

/// The message goes on with what the other one says.
fn join(message: &mut Map<String, Value>, other: Value) {
    let Value::Object(mut other) = other else {
        return;
    };
    let more = other.shift_remove("content").unwrap_or_default();
    let content = message.entry("content").or_insert(Value::Null);
    *content = match (content.take(), more) {
        (Value::String(said), Value::String(more)) => format!("{said}{BETWEEN}{more}").into(),
        (said, more) => [parts(said), parts(more)].concat().into(),
    };
    add(message, other);
}

fn parts(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        _ => Vec::new(),
    }
}
