//! Parses the path, query and body of a request.

use http::HeaderValue;
use memoird_core::json::{VALUES_MAX, has_too_many_values};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::error::invalid;
use crate::wire::refusal::Refusal;
use crate::wire::status;

const METADATA_PAIRS_MAX: usize = 16;
const METADATA_KEY_CHARS_MAX: usize = 64;
const METADATA_VALUE_CHARS_MAX: usize = 512;

const PAGE_DEFAULT: usize = 20;
const PAGE_MAX: usize = 100;

#[derive(Debug, Default, Deserialize)]
pub(super) struct NewConversation {
    pub(super) metadata: Option<Value>,
    pub(super) items: Option<Vec<Box<RawValue>>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NewItems {
    pub(super) items: Option<Vec<Box<RawValue>>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ConversationUpdate {
    /// Absent and null differ.
    #[serde(default, deserialize_with = "value_or_null")]
    pub(super) metadata: Option<Value>,
}

/// Ids of a path, empty if absent.
pub(super) struct Path {
    pub(super) conversation: String,
    pub(super) item: String,
}

/// Which items to list.
pub(super) struct ListQuery {
    pub(super) limit: usize,
    pub(super) is_ascending: bool,
    /// Id of the last item of the previous page.
    pub(super) after: Option<String>,
}

impl Path {
    pub(super) fn parse(path: &str) -> Result<Self, Refusal> {
        let mut steps = path.split('/').skip(3).map(decoded);
        let conversation = steps.next().transpose()?.unwrap_or_default();
        let item = steps.nth(1).transpose()?.unwrap_or_default();
        Ok(Self { conversation, item })
    }
}

/// Decodes a step of a path.
fn decoded(step: &str) -> Result<String, Refusal> {
    let mut bytes = Vec::with_capacity(step.len());
    let mut rest = step.as_bytes();
    while let Some((byte, more)) = rest.split_first() {
        rest = more;
        let hex = more.get(..2).filter(|_| *byte == b'%');
        let hex = hex.and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &more[2..];
            }
            None => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| invalid("path", "an id in it is not UTF-8"))
}

impl ListQuery {
    pub(super) fn parse(query: &str) -> Result<Self, Refusal> {
        let mut parsed = Self {
            limit: PAGE_DEFAULT,
            is_ascending: false,
            after: None,
        };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "limit" => {
                    let limit = value.parse().ok();
                    let limit = limit.filter(|limit| (1..=PAGE_MAX).contains(limit));
                    let problem = "expected a number of 1 to 100";
                    parsed.limit = limit.ok_or_else(|| invalid("limit", problem))?;
                }
                "order" => match &*value {
                    "asc" => parsed.is_ascending = true,
                    "desc" => parsed.is_ascending = false,
                    _ => return Err(invalid("order", "expected asc or desc")),
                },
                "after" => parsed.after = Some(value.into_owned()).filter(|id| !id.is_empty()),
                // `include` asks for details that only OpenAI's own tools have.
                _ => {}
            }
        }
        Ok(parsed)
    }
}

fn value_or_null<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(value).map(Some)
}

/// Parses the body of a request. An empty one is an empty object.
pub(super) fn parse<T: DeserializeOwned>(received: &[u8]) -> Result<T, Refusal> {
    let text = std::str::from_utf8(received).map_err(|_| invalid("", "it is not UTF-8"))?;
    let text = if text.trim().is_empty() { "{}" } else { text };
    if has_too_many_values(text) {
        let problem = format!("more than {VALUES_MAX} JSON values; send fewer items at once");
        return Err(invalid("", problem));
    }
    if !text.trim_start().starts_with('{') {
        return Err(invalid("", "expected a JSON object"));
    }
    serde_json::from_str(text).map_err(|error| invalid("", error.to_string()))
}

/// Checks metadata by OpenAI's rules. Null is empty.
pub(super) fn metadata(value: Option<Value>) -> Result<Map<String, Value>, Refusal> {
    let metadata = match value {
        None | Some(Value::Null) => return Ok(Map::new()),
        Some(Value::Object(metadata)) => metadata,
        Some(_) => return Err(invalid("metadata", "expected an object of strings")),
    };
    if metadata.len() > METADATA_PAIRS_MAX {
        let problem = format!("{} pairs, and the maximum is 16", metadata.len());
        return Err(invalid("metadata", problem));
    }
    for (key, value) in &metadata {
        let chars = key.chars().count();
        if !(1..=METADATA_KEY_CHARS_MAX).contains(&chars) {
            let problem = format!("a key of {chars} characters; expected 1 to 64");
            return Err(invalid("metadata", problem));
        }
        let path = format!("metadata.{key}");
        let Value::String(text) = value else {
            return Err(invalid(path, "expected a string"));
        };
        let chars = text.chars().count();
        if chars > METADATA_VALUE_CHARS_MAX {
            let problem = format!("a value of {chars} characters, and the maximum is 512");
            return Err(invalid(path, problem));
        }
    }
    Ok(metadata)
}

/// The key of a request that may be repeated. Empty if there is none.
pub(super) fn idempotency_key(header: Option<&HeaderValue>) -> Result<String, Refusal> {
    let Some(header) = header else {
        return Ok(String::new());
    };
    let key = header.to_str().map(str::to_owned);
    key.map_err(|_| status::metadata_invalid("idempotency-key", "expected ASCII characters"))
}

#[cfg(test)]
mod tests {
    use memoird_fuzz::Target;
    use tonic::{Code, Status};

    use super::super::items;
    use super::*;

    const GENERATION: &str = "01JDVB3Z6X8Q0N5T2Y4W7R9KMC";

    /// Every accepted item is one item again, and can be deleted or is rejected.
    fn check(input: &[u8]) -> Result<(), Refusal> {
        let body: NewConversation = parse(input)?;
        let turns = items::turns(&body.items.unwrap_or_default())?;
        for (turn, seq) in turns.iter().zip(1..) {
            let made = items::of_turn(GENERATION, seq, turn)?;
            let [item] = &made[..] else {
                panic!("{} items of {turn:?}", made.len());
            };
            assert!(!item.id.is_empty());
            assert_eq!(item.json["id"], *item.id);
            let deleted = items::deleted(turn, &made)?;
            let deleted = memoird_store::encoding::from_proto(deleted).expect("a turn");
            assert_eq!(deleted.links().uses, turn.links().uses);
            assert_eq!(deleted.links().results, turn.links().results);
            let left = items::of_turn(GENERATION, seq, &deleted)?;
            assert!(left.is_empty());
        }
        metadata(body.metadata).map(drop)
    }

    #[test]
    fn fuzz_conversations() {
        let target = Target {
            name: "conversations",
            crate_dir: env!("CARGO_MANIFEST_DIR"),
            words: &[
                r#""memoird":{"items":[]}"#,
                r#""memoird_client_json":1,"#,
                r#""id":"","#,
                r#""content":[]"#,
                r#""role":"assistant","#,
                r#""type":"reasoning","#,
                r#""type":"function_call_output","#,
                "null",
                "\\u0000",
            ],
        };
        target.check(|input| {
            if let Err(refusal) = check(input) {
                assert_eq!(Status::from(refusal).code(), Code::InvalidArgument);
            }
        });
    }

    #[test]
    fn path_is_decoded() {
        let path = Path::parse("/v1/conversations/a%2Fb+c%/items/%C3%BC").expect("a path");
        assert_eq!((&*path.conversation, &*path.item), ("a/b+c%", "\u{fc}"));
        assert!(Path::parse("/v1/conversations/%ff").is_err());
    }
}
