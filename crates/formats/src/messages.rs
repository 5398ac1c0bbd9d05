//! Parses a provider's message array into turns, and renders turns as such an array.
//!
//! Bots already have their provider's array and can send it unchanged.
//!
//! A parsed turn records its format. Its extras are meaningful only in that format. `render`
//! documents how it is rendered in other formats.
//!
//! Parsing is lossless: rendering a parsed turn yields an equal JSON value. For that, each object
//! of the provider (message or part) is split in two. The fields that memoird interprets become
//! fields of the turn. The rest of the object is stored as `extra_json`, which is empty if nothing
//! remains. If both together do not determine the object's shape, the extra records it in one of
//! three ways, on which rendering relies.
//!
//! **Leftover fields.** A field that was parsed may remain in the extra with an empty value, or
//! with its own value if it has no content. This cannot collide with a field of the provider, since
//! the field of that name was parsed.
//!
//! | in the extra of | field | meaning |
//! |---|---|---|
//! | message, tool result | `"content": []` | content was a list, now the parts |
//! | message, tool result | `"content": null` | content was null |
//! | OpenAI message | `"role": "developer"` | the role of this system turn was `developer` |
//! | OpenAI assistant | `"tool_calls": []` or `null` | an explicit list without calls |
//! | OpenAI tool use | `"type": "custom"` | not `function`; `input_json` is free text |
//! | OpenAI tool use | `"function": {…}`, `"custom": {…}` | the rest of this inner object |
//! | Anthropic tool result | `"is_error": false` or `null` | an explicit value other than true |
//! | responses: tool result | `"output": []` | the output was a list, now the parts |
//! | responses: message | `"type": "message"` | the optional type was present |
//! | responses: tool use, result | `"type": "custom_tool_call"`, `…_output` | not a function's |
//!
//! Without such a field, content was a string (one text part) or, in an OpenAI assistant message
//! without parts besides tool uses, absent. A text in a list has the default type: `text`, or in
//! responses `output_text` for the assistant and `input_text` otherwise.
//!
//! **Hollow objects.** A text or media part with a `type` in its extra *is* the provider's object
//! with all its fields, with an empty string in place of the content:
//!
//! | `type` | empty string | filled with |
//! |---|---|---|
//! | `image_url` | `image_url.url` | the URI |
//! | `input_audio` | `input_audio.data` | the URI without its prefix `data:<media_type>;base64,` |
//! | `file` | `file.file_data` if that is a string, else `file.file_id` | the URI |
//! | `refusal` | `refusal` | the text |
//! | `image`, `document` with a source `base64` | `source.data` | as with `input_audio` |
//! | … a source `text` | `source.data` | the data, which is UTF-8 |
//! | … a source `url`, `file` | `source.url`, `source.file_id` | the URI |
//! | responses: `input_image` | the first of `image_url`, `file_id` that is a string | the URI |
//! | … `input_file` | the first of `file_data`, `file_url`, `file_id` that is a string | the URI |
//! | … `input_text`, `output_text`, unless the default; `text` | `text` | the text |
//! | … `reasoning` | each `text` of `summary`, then of `content` | the thinking's text in pieces |
//! | | `encrypted_content`, if that is a string | the signature; the text of a redacted one |
//! | … a call of [`calls`] that the bot answers, and its output | the field with its id | the id |
//! | | of a call the first of `action`, `actions`, `operation`, `arguments` that is not null | the input, as JSON |
//! | any other | none: memoird does not interpret this part | |
//!
//! The prefix contains the part's own `media_type`. That and the part's `name` are copies of values
//! that the object still contains.
//!
//! **The key `memoird`** holds an object with everything else:
//!
//! | member | meaning |
//! |---|---|
//! | `"absent": ["content"]` | an Anthropic tool result without content |
//! | `"absent": ["type"]` | an OpenAI tool call without a type, parsed as a function |
//! | `"absent": ["signature"]` | Anthropic thinking without a signature |
//! | `"placeholder": true` | the message had no parts; added because a turn needs one |
//! | `"bytes": [3, 0]` | responses: length of each piece of reasoning, if there are several |
//! | `"items": […]` | responses: the turn's items |
//! | `"memoird": …` | the provider's object has a field `memoird`, and this is its value |
//!
//! **Client fields.** Two fields of a message or an item are not the provider's: see [`client`].
//! They are removed before it is parsed.
//!
//! **Items.** A turn holds consecutive items of the assistant in OpenAI's responses, so that
//! reasoning stays with the calls it led to, and parallel calls stay together. A tool use, a tool
//! result and a thinking part are one item each, and have its fields. The text and media parts form
//! the single message of the turn, and the fields of the message are the turn's extra. If that does
//! not describe the items, `items` lists them: `null` means that the next part is an item, and
//! `[n, {…}]` that the next `n` parts are a message with these fields. An item of any other type is
//! an opaque part. If it is the bot's answer to a call, it is a turn of the role tool.

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

/// Parses a provider's message array into turns, in order.
///
/// Each message becomes one turn. In OpenAI's responses, each item does, except that consecutive
/// items of the model become a single turn. An empty array yields no turns.
///
/// # Errors
/// [`CoreError::MessagesInvalid`] with the path of the field and the reason, without its content.
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
        // serde_json has no category for this. Clients can send any nesting depth.
        Category::Syntax if error.to_string().starts_with("recursion limit") => {
            format!("nested deeper than 128 levels at line {line} column {column}")
        }
        Category::Syntax | Category::Eof => format!("not JSON: {error}"),
        // The message of this error would quote client data.
        Category::Data | Category::Io => {
            format!("cannot be read at line {line} column {column}")
        }
    }
}
