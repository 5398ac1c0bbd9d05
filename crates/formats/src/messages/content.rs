//! Content in the form shared by all formats: a string, a list, or absent; and media.

use memoird_core::error::CoreError;
use memoird_core::ids::ID_BYTES_MAX;
use memoird_core::turn::{MediaSource, Part, PartKind};
use serde_json::{Value, json};

use super::fields::{Fields, JsonPath, OURS};

/// Maximum bytes of a media type. A longer one stays only in the extra.
const MEDIA_TYPE_BYTES_MAX: usize = ID_BYTES_MAX;
/// Maximum bytes of a media part's name. A longer one stays only in the extra.
const NAME_BYTES_MAX: usize = 1_024;

/// Content of a message or a tool result. A field that must be restored stays in the extra.
pub(super) enum Content {
    Absent,
    /// Null, which stays in the extra.
    Null,
    /// A string. Nothing stays in the extra.
    Text(String),
    /// A list. An empty one stays in the extra.
    List(Vec<Part>),
}

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

/// Parses the items of a list, with the path of each for errors.
pub(super) fn read_items(
    path: JsonPath<'_>,
    items: Vec<Value>,
    read: ReadPart,
) -> Result<Vec<Part>, CoreError> {
    let read = |(index, mut item)| read(Fields::of_item(JsonPath::Item(&path, index), &mut item)?);
    items.into_iter().enumerate().map(read).collect()
}

/// Adds a placeholder part if there are none, because a turn needs one.
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

/// Builds a media part. Labels that are too long stay only in the extra.
pub(super) fn media(media_type: &str, source: MediaSource, name: Option<&Value>) -> PartKind {
    let name = name.and_then(Value::as_str).unwrap_or_default();
    PartKind::Media {
        media_type: fit(media_type, MEDIA_TYPE_BYTES_MAX).to_owned(),
        source,
        name: fit(name, NAME_BYTES_MAX).to_owned(),
    }
}

/// Returns a `data:` URI with the provider's own base64.
pub(super) fn base64_source(media_type: &str, data: &str) -> MediaSource {
    let media_type = fit(media_type, MEDIA_TYPE_BYTES_MAX);
    MediaSource::Uri(format!("data:{media_type};base64,{data}"))
}

fn fit(label: &str, bytes_max: usize) -> &str {
    if label.len() <= bytes_max { label } else { "" }
}
