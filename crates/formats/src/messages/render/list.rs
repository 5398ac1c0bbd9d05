//! Content lists as both of OpenAI's formats have them; they differ in the name of a text
//! and in what they take of media.

use serde_json::{Map, Value, json};

use super::extra::{typed, with};
use super::media::Media;
use super::pieces::Piece;

/// What one of the formats takes in a content list.
pub(super) struct ListFormat {
    /// The type of a text.
    pub(super) text_type: &'static str,
    /// What it takes of media; `None` where it takes nothing.
    pub(super) media_part: fn(&Media<'_>) -> Option<Value>,
}

impl ListFormat {
    /// A message of these pieces, unless it would have none.
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

    /// A list of parts; a lone text needs none.
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

    /// The texts and media of these pieces.
    pub(super) fn parts(&self, pieces: Vec<Piece<'_>>) -> Vec<Value> {
        let part = |piece| match piece {
            Piece::Text(text, fields) => Some(with(self.text(text.into_owned()), fields)),
            Piece::Media(media, fields) => {
                let part = (self.media_part)(&media);
                let part = part.unwrap_or_else(|| self.text(media.label()));
                Some(with(part, fields))
            }
            Piece::Whole(part) => Some(part.into()),
            Piece::ToolUse(..) | Piece::Thinking(..) => None,
        };
        pieces.into_iter().filter_map(part).collect()
    }

    /// A text as a part.
    pub(super) fn text(&self, text: String) -> Value {
        typed(self.text_type, "text", text)
    }
}
