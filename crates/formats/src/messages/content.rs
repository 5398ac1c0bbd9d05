//! What all formats have in common: content that is a string or a list, content
//! that is not there, and media.

use memoird_core::error::CoreError;
use memoird_core::ids::ID_BYTES_MAX;
use memoird_core::turn::{MediaSource, Part, PartKind};
use serde_json::{Value, json};

use super::fields::{Fields, JsonPath, OURS};

/// The most bytes of a media type; a longer one stays in the extra only.
const MEDIA_TYPE_BYTES_MAX: usize = ID_BYTES_MAX;
/// The most bytes of a media part's name; a longer one stays in the extra only.
const NAME_BYTES_MAX: usize = 1_024;

/// The content of a message or of a tool result, with what it left in the extra.
pub(super) enum Content {
    /// There is none.
    Absent,
    /// It is null, and stays so in the extra.
    Null,
    /// A string; nothing is left.
    Text(String),
    /// A list; an empty one is left.
    List(Vec<Part>),
}

/// Reads one item of a content list.
pub(super) type ReadPart = fn(Fields<'_>) -> Result<Part, CoreError>;

impl Content {
    pub(super) fn into_parts(self) -> Vec<Part> {
        match self {
            Self::Absent | Self::Null => Vec::new(),
            Self::Text(text) => vec![PartKind::Text(text).into()],
            Self::List(parts) => parts,
        }
    }

    pub(super) fn into_result(self, tool_use_id: String, is_error: bool) -> PartKind {
        let (content, parts) = match self {
            Self::Text(text) => (text, Vec::new()),
            other => (String::new(), other.into_parts()),
        };
        PartKind::ToolResult {
            tool_use_id,
            content,
            parts,
            is_error,
        }
    }
}

/// Reads the items of a list, each knowing its path.
pub(super) fn read_items(
    path: JsonPath<'_>,
    items: Vec<Value>,
    read: ReadPart,
) -> Result<Vec<Part>, CoreError> {
    let read = |(index, mut item)| read(Fields::of_item(JsonPath::Item(&path, index), &mut item)?);
    items.into_iter().enumerate().map(read).collect()
}

/// A turn needs a part; a message without any gets one that says so.
pub(super) fn at_least_one(mut parts: Vec<Part>) -> Vec<Part> {
    if parts.is_empty() {
        let extra_json = json!({ OURS: { "placeholder": true } }).to_string();
        parts.push(Part {
            kind: PartKind::Text(String::new()),
            extra_json,
        });
    }
    parts
}

/// A media part's fields; labels that it does not take are left to the extra.
pub(super) fn media(media_type: &str, source: MediaSource, name: Option<&Value>) -> PartKind {
    let name = name.and_then(Value::as_str).unwrap_or_default();
    PartKind::Media {
        media_type: fit(media_type, MEDIA_TYPE_BYTES_MAX).to_owned(),
        source,
        name: fit(name, NAME_BYTES_MAX).to_owned(),
    }
}

/// A URI that holds the content itself, encoded as the provider's message has it.
pub(super) fn base64_source(media_type: &str, data: &str) -> MediaSource {
    let media_type = fit(media_type, MEDIA_TYPE_BYTES_MAX);
    MediaSource::Uri(format!("data:{media_type};base64,{data}"))
}

fn fit(label: &str, bytes_max: usize) -> &str {
    if label.len() <= bytes_max { label } else { "" }
}
