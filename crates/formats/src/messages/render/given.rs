//! What giving back is to all providers: content that was a string, a list, or not there.
//! Everything here answers `None` when the marks do not fit the parts: a bot may set any
//! extra, and a window may have shortened a result. Such a turn is translated.

use memoird_core::turn::{MediaSource, Part, PartKind};
use serde_json::Value;

use super::extra::Extra;

/// Writes one part of a content list.
pub(super) type WritePart = fn(&Part, Extra) -> Option<Value>;

/// The content of a message, where it has one. The mark is what was left of the field.
pub(super) fn content(
    mark: Option<&Value>,
    parts: &[&Part],
    write: WritePart,
) -> Option<Option<Value>> {
    match mark {
        None => {
            if let [
                Part {
                    kind: PartKind::Text(text),
                    extra_json,
                },
            ] = parts
                && extra_json.is_empty()
            {
                return Some(Some(text.as_str().into()));
            }
            let list = list(parts.iter().copied(), write)?;
            Some((!list.is_empty()).then(|| list.into()))
        }
        Some(Value::Array(_)) => Some(Some(list(parts.iter().copied(), write)?.into())),
        Some(Value::Null) if list(parts.iter().copied(), write)?.is_empty() => {
            Some(Some(Value::Null))
        }
        Some(_) => None,
    }
}

/// The content of a tool's result.
pub(super) fn result_content(
    mark: Option<&Value>,
    text: &str,
    parts: &[Part],
    write: WritePart,
) -> Option<Value> {
    match (mark, text.is_empty(), parts.is_empty()) {
        (_, false, false) => None,
        (Some(Value::Null), true, true) => Some(Value::Null),
        (Some(Value::Array(_)), true, _) | (None, true, false) => {
            list(parts, write).map(Value::from)
        }
        (None | Some(Value::Array(_)), _, true) => Some(text.into()),
        _ => None,
    }
}

fn list<'a>(parts: impl IntoIterator<Item = &'a Part>, write: WritePart) -> Option<Vec<Value>> {
    let mut list = Vec::new();
    for part in parts {
        let extra = Extra::read(&part.extra_json);
        if !extra.is_placeholder() {
            list.push(write(part, extra)?);
        }
    }
    Some(list)
}

/// A text that is the provider's object: a refusal, or one that memoird has no word for.
pub(super) fn object(mut extra: Extra, text: &str, hollow: &[(&str, &str)]) -> Option<Value> {
    let kind = extra.kind()?;
    match hollow.iter().find(|(name, _)| *name == kind) {
        Some((_, field)) => extra.fill(&[field], text)?,
        None if text.is_empty() => {}
        None => return None,
    }
    Some(extra.rest.into())
}

/// The URI of a media part.
pub(super) fn uri(source: &MediaSource) -> Option<&str> {
    match source {
        MediaSource::Uri(uri) => Some(uri),
        MediaSource::Data(_) => None,
    }
}

/// The content of a URI that holds it.
pub(super) fn base64<'a>(media_type: &str, source: &'a MediaSource) -> Option<&'a str> {
    uri(source)?
        .strip_prefix("data:")?
        .strip_prefix(media_type)?
        .strip_prefix(";base64,")
}
