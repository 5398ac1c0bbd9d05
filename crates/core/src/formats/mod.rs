//! A provider's own message array, read into turns. Bots already have such an array;
//! that they may send it as it is spares each of them a translation that it could get
//! wrong.
//!
//! Nothing of a message is lost: what is rendered from its turn is an equal JSON value.
//! So each provider's object, message or part, is split in two. What memoird reads goes
//! to the turn's own fields. What is left of the object is its `extra_json`, empty when
//! nothing is. Where both together do not tell the object's shape, the extra says it in
//! one of three ways; whoever renders a turn relies on them.
//!
//! **Left behind.** A field that was read leaves its name with an empty value, or with
//! the value itself where it has no content. No field of the provider can collide with
//! that, because its own field of this name was read.
//!
//! | in the extra of | field | says |
//! |---|---|---|
//! | message, tool result | `"content": []` | content was a list, now the parts |
//! | message, tool result | `"content": null` | content was null |
//! | OpenAI message | `"role": "developer"` | the turn is `Role::System`, but was not `system` |
//! | OpenAI assistant | `"tool_calls": []` or `null` | it had no calls, and said so |
//! | OpenAI tool use | `"type": "custom"` | not `function`; `input_json` is free text |
//! | OpenAI tool use | `"function": {…}`, `"custom": {…}` | what is left of this inner object |
//! | Anthropic tool result | `"is_error": false` or `null` | not an error, and said so |
//!
//! Without a mark, content was a string (one text part) or, in an OpenAI assistant
//! message without parts beside tool uses, not there.
//!
//! **Hollow.** A text or media part with a `type` in its extra *is* the provider's
//! object, all fields in their places, with an empty string where the content was:
//!
//! | `type` | the empty string is | filled with |
//! |---|---|---|
//! | `image_url` | `image_url.url` | the URI |
//! | `input_audio` | `input_audio.data` | the URI without its head `data:<media_type>;base64,` |
//! | `file` | `file.file_data` if that is a string, else `file.file_id` | the URI |
//! | `refusal` | `refusal` | the text |
//! | `image`, `document` with a source `base64` | `source.data` | as with `input_audio` |
//! | … a source `text` | `source.data` | the data, which is UTF-8 |
//! | … a source `url`, `file` | `source.url`, `source.file_id` | the URI |
//! | any other | none: memoird has no word for this part | |
//!
//! In that head stands the part's own `media_type`. It and the part's `name` are labels
//! made from the object, which still has what they were made from.
//!
//! **The key `memoird`** holds an object of what can be said in no other way:
//!
//! | member | says |
//! |---|---|
//! | `"absent": ["content"]` | an Anthropic tool result without content |
//! | `"absent": ["type"]` | an OpenAI tool call without a type, read as a function |
//! | `"absent": ["signature"]` | Anthropic thinking without a signature |
//! | `"placeholder": true` | no such part: the message had none, and a turn needs one |
//! | `"memoird": …` | the provider's object has a field `memoird`, and this is its value |

mod anthropic;
mod content;
mod fields;
mod openai;
mod responses;
#[cfg(test)]
mod tests;

use serde_json::Value;
use serde_json::error::Category;

use crate::error::CoreError;
use crate::turn::Turn;
use fields::{Fields, Place};

/// The shape of a provider's message array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageFormat {
    /// OpenAI chat completions: the `messages` array.
    OpenAi,
    /// OpenAI responses: the `input` item array.
    OpenAiResponses,
    /// Anthropic messages: the `messages` array.
    Anthropic,
}

/// Reads a provider's message array: one turn for each message, in order; of OpenAI's
/// responses one for each item, but what the model did in a row is one. An empty array
/// gives no turns.
///
/// # Errors
/// [`CoreError::MessagesInvalid`] naming message, field and why; never what was said.
pub fn parse(format: MessageFormat, messages_json: &str) -> Result<Vec<Turn>, CoreError> {
    let messages = match serde_json::from_str(messages_json) {
        Ok(Value::Array(messages)) => messages,
        Ok(other) => return Err(Place::Messages.expected("a list of messages", Some(&other))),
        Err(error) => return Err(Place::Messages.refuse(syntax_problem(&error))),
    };
    let turn = match format {
        MessageFormat::OpenAi => openai::turn,
        MessageFormat::OpenAiResponses => return responses::turns(messages),
        MessageFormat::Anthropic => anthropic::turn,
    };
    let read = |(index, mut message)| {
        turn(Fields::of_item(Place::Item(&Place::Messages, index), &mut message)?)
    };
    messages.into_iter().enumerate().map(read).collect()
}

fn syntax_problem(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    match error.classify() {
        // The library has no kind for this; a stack of any depth is a client's to choose.
        Category::Syntax if error.to_string().starts_with("recursion limit") => {
            format!("nested deeper than 128 levels at line {line} column {column}")
        }
        Category::Syntax | Category::Eof => format!("not JSON: {error}"),
        // Such an error would quote what was sent.
        Category::Data | Category::Io => {
            format!("cannot be read at line {line} column {column}")
        }
    }
}
