//! A provider's own message array, read into turns and written from them. Bots already have
//! their provider's array, and may send it as it is.
//!
//! A turn that was read knows its format: only there do its extras mean anything. What
//! becomes of it elsewhere is described in `render`.
//!
//! Nothing of a message is lost: what is rendered from its turn is an equal JSON value.
//! So each provider's object, message or part, is split in two. What memoird reads goes
//! to the turn's own fields. What is left of the object is its `extra_json`, empty when
//! nothing is. Where both together do not tell the object's shape, the extra says it in
//! one of three ways, on which rendering relies.
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
//! | OpenAI tool use | `"function": {…}`, `"custom": {…}` | the rest of this inner object |
//! | Anthropic tool result | `"is_error": false` or `null` | not an error, and said so |
//! | responses: tool result | `"output": []` | the output was a list, now the parts |
//! | responses: message | `"type": "message"` | it said so; it need not |
//! | responses: tool use, tool result | `"type": "custom_tool_call"`, `…_output` | not a function's |
//!
//! Without a mark, content was a string (one text part) or, in an OpenAI assistant
//! message without parts beside tool uses, not there. The type of a text in a list is the
//! usual one: `text`, in responses `output_text` of the assistant and else `input_text`.
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
//! | responses: `input_image` | the first of `image_url`, `file_id` that is a string | the URI |
//! | … `input_file` | the first of `file_data`, `file_url`, `file_id` that is a string | the URI |
//! | … `input_text`, `output_text`, where not usual; `text` | `text` | the text |
//! | … `reasoning` | each `text` of `summary`, then of `content` | the thinking's text in pieces |
//! | | `encrypted_content`, if that is a string | the signature; the text of a redacted one |
//! | … a call of [`calls`] that the bot answers, and its output | the field with its id | the id |
//! | | of a call the first of `action`, `actions`, `operation`, `arguments` that is not null | the input, as JSON |
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
//! | `"bytes": [3, 0]` | responses: how long each piece of the reasoning is, where there are several |
//! | `"items": […]` | responses: the turn's items |
//! | `"memoird": …` | the provider's object has a field `memoird`, and this is its value |
//!
//! **For the client alone.** Two fields of a message or an item are not the provider's: see
//! [`client`]. They are taken out before it is read.
//!
//! **Items.** Of OpenAI's responses a turn holds what the assistant did in a row, so that
//! reasoning stays with the calls it led to and parallel calls stay together. A tool use,
//! a tool result and a thinking part are an item each, and have its fields. The text and
//! media parts are the one message of the turn, whose fields are the turn's extra. Where
//! that does not tell the items, `items` does: for each one `null`, the next part is an
//! item by itself, or `[n, {…}]`, the next `n` parts are a message with these fields. An
//! item of another kind is an opaque part; if it is the bot's answer to something, a turn
//! of the role tool.

mod anthropic;
mod calls;
mod client;
mod content;
mod fields;
mod openai;
mod render;
mod responses;
#[cfg(test)]
mod tests;

use memoird_core::error::CoreError;
use memoird_core::json::{VALUES_MAX, has_too_many_values};
use memoird_core::turn::{MessageFormat, Turn};
use serde_json::Value;
use serde_json::error::Category;

pub use render::{RenderOptions, Rendered, render};

use client::ForClient;
use fields::{Fields, JsonPath};

/// Reads a provider's message array: one turn for each message, in order; of OpenAI's
/// responses one for each item, but what the model did in a row is one. An empty array
/// gives no turns.
///
/// # Errors
/// [`CoreError::MessagesInvalid`] with the field and the reason; never with its content.
pub fn parse(format: MessageFormat, messages_json: &str) -> Result<Vec<Turn>, CoreError> {
    if has_too_many_values(messages_json) {
        let problem = format!("more than {VALUES_MAX} JSON values; send fewer messages at once");
        return Err(JsonPath::Messages.refuse(problem));
    }
    let messages = match serde_json::from_str(messages_json) {
        Ok(Value::Array(messages)) => messages,
        Ok(other) => return Err(JsonPath::Messages.expected("a list of messages", Some(&other))),
        Err(error) => return Err(JsonPath::Messages.refuse(syntax_problem(&error))),
    };
    let turn = match format {
        MessageFormat::OpenAi => openai::turn,
        MessageFormat::OpenAiResponses => return responses::turns(messages),
        MessageFormat::Anthropic => anthropic::turn,
    };
    let read = |(index, mut message)| {
        let path = JsonPath::Item(&JsonPath::Messages, index);
        let for_client = ForClient::take(path, &mut message)?;
        let mut turn = turn(Fields::of_item(path, &mut message)?)?;
        for_client.put_to(&mut turn);
        Ok(turn)
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
        // The text of this error would quote the client's data.
        Category::Data | Category::Io => {
            format!("cannot be read at line {line} column {column}")
        }
    }
}
