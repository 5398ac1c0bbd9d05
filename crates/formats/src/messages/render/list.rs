//! Content lists of OpenAI's two formats.
//!
//! They differ in the type of texts and in the media accepted.

use serde_json::{Map, Value, json};

use super::extra::{typed, with};
use super::media::Media;
use super::pieces::Piece;

/// What a format accepts in a content list.
pub(super) struct ListFormat {
    /// Type of a text part.
    pub(super) text_type: &'static str,
    /// Builds a media part. `None` if the format does not accept the media.
    pub(super) media_part: fn(&Media<'_>) -> Option<Value>,
}

impl ListFormat {
    /// Builds a message. `None` if it has no parts.
    pub(super) fn message(
        &self,
        role: &str,
        parts: Vec<Value>,
        fields: Map<String, Value>,
    ) -> Option<Value> {
        if parts.is_empty() {
            return None;
        }
        let mut message = json!({ "role": role });
        message["content"] = self.content(parts);
        Some(with(message, fields))
    }

    /// Returns the parts as content: a single plain text as a string, otherwise a list.
    pub(super) fn content(&self, mut parts: Vec<Value>) -> Value {
        if let [Value::Object(part)] = &mut parts[..]
            && part.len() == 2
            && part.get("type").is_some_and(|kind| kind == self.text_type)
            && let Some(text @ Value::String(_)) = part.get_mut("text")
        {
            return text.take();
        }
        parts.into()
    }

    /// Converts texts and media to parts.
    pub(super) fn parts(&self, pieces: Vec<Piece<'_>>) -> Vec<Value> {
        let part = |piece| match piece {
            Piece::Text(text, fields) => Some(with(self.text(text.into_owned()), fields)),
            Piece::Media(media, fields) => {
                let part = (self.media_part)(&media).unwrap_or_else(|| self.text(media.label()));
                Some(with(part, fields))
            }
            Piece::Whole(part) => Some(part.into()),
            Piece::ToolUse(..) | Piece::Thinking(..) => None,
        };
        pieces.into_iter().filter_map(part).collect()
    }

    pub(super) fn text(&self, text: String) -> Value {
        typed(self.text_type, "text", text)
    }
}
