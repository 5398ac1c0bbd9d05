//! Restoring objects that came in the target format, for all providers.
//!
//! All functions return `None` if the extra does not fit the parts: a bot may set any extra, and a
//! window may have shortened a result. Such a turn is translated instead.

use memoird_core::turn::{MediaSource, Part, PartKind};
use serde_json::Value;

use super::extra::{Extra, typed, with};

/// Writes one part of a content list.
pub(super) type WritePart = fn(&Part, Extra) -> Option<Value>;

/// Returns the content of a message, if it has one. `mark` is the leftover field.
pub(super) fn content(
    mark: Option<&Value>,
    parts: &[&Part],
    write: WritePart,
) -> Option<Option<Value>> {
    match mark {
        None => {
            if let [part] = parts
                && let PartKind::Text(text) = &part.kind
                && part.extra_json.is_empty()
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

/// Location of the content in a type of object, and thus of the hole in a hollow one.
pub(super) struct Hollow {
    kind: &'static str,
    /// Paths of fields. The first that is a string has the content.
    paths: &'static [&'static [&'static str]],
    content: HollowContent,
}

/// The content of a hollow object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HollowContent {
    /// Text of the part.
    ///
    /// A media part of this type is not hollow but opaque, as is a text part of a media type.
    Text,
    /// URI of media.
    Uri,
    /// Base64 of media, without the prefix of the URI.
    Base64,
}

impl Hollow {
    /// Audio in both of OpenAI's formats.
    pub(super) const AUDIO: Self = Self {
        kind: "input_audio",
        paths: &[&["input_audio", "data"]],
        content: HollowContent::Base64,
    };

    pub(super) const fn text(
        kind: &'static str,
        paths: &'static [&'static [&'static str]],
    ) -> Self {
        Self {
            kind,
            paths,
            content: HollowContent::Text,
        }
    }

    pub(super) const fn uri(kind: &'static str, paths: &'static [&'static [&'static str]]) -> Self {
        Self {
            kind,
            paths,
            content: HollowContent::Uri,
        }
    }

    fn fill(&self, extra: &mut Extra, content: &str) -> Option<()> {
        let path = self.paths.iter().find(|path| extra.has_text(path))?;
        extra.fill(path, content)
    }
}

/// Restores a text or media part. `text_type` is the type of a text without an object of its own.
pub(super) fn part(
    part: &Part,
    mut extra: Extra,
    text_type: &str,
    hollows: &[Hollow],
) -> Option<Value> {
    let is_text = matches!(part.kind, PartKind::Text(_));
    let hollow = hollows.iter().find(|hollow| {
        extra.kind() == Some(hollow.kind) && is_text == (hollow.content == HollowContent::Text)
    });
    match &part.kind {
        PartKind::Text(text) if extra.kind().is_none() => {
            return Some(with(typed(text_type, "text", text.clone()), extra.rest));
        }
        PartKind::Text(text) => match hollow {
            Some(hollow) => hollow.fill(&mut extra, text)?,
            // An opaque object.
            None if text.is_empty() => {}
            None => return None,
        },
        PartKind::Media {
            media_type, source, ..
        } => {
            let hollow = hollow?;
            let content = match hollow.content {
                HollowContent::Base64 => base64(media_type, source)?,
                _ => uri(source)?,
            };
            hollow.fill(&mut extra, content)?;
        }
        _ => return None,
    }
    Some(extra.rest.into())
}

pub(super) fn uri(source: &MediaSource) -> Option<&str> {
    match source {
        MediaSource::Uri(uri) => Some(uri),
        MediaSource::Data(_) => None,
    }
}

/// Returns the base64 content of a `data:` URI.
pub(super) fn base64<'a>(media_type: &str, source: &'a MediaSource) -> Option<&'a str> {
    uri(source)?
        .strip_prefix("data:")?
        .strip_prefix(media_type)?
        .strip_prefix(";base64,")
}
