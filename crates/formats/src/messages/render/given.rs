//! What giving back is to all providers: content that was a string, a list, or not there.
//! Everything here answers `None` when the marks do not fit the parts: a bot may set any
//! extra, and a window may have shortened a result. Such a turn is translated.

use memoird_core::turn::{MediaSource, Part, PartKind};
use serde_json::Value;

use super::extra::{Extra, typed, with};

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

/// Where the content of an object of one type stands, hollow when the part has it.
pub(super) struct Hollow {
    /// The object's type.
    kind: &'static str,
    /// Paths of fields; the content is in the first one that is a string.
    paths: &'static [&'static [&'static str]],
    content: HollowContent,
}

/// What fills a hollow object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HollowContent {
    /// A part's text. A part of media is no such object, and the other way round: the same
    /// type without its content is a part that memoird has no word for.
    Text,
    /// The URI of media.
    Uri,
    /// The content of media in base64, without the URI's head.
    Base64,
}

impl Hollow {
    /// A sound, as both of OpenAI's formats have it.
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

/// A text or media part of a content list. `text_type` is the type of a text that has no
/// object of its own.
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
            // An object that memoird has no word for.
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
