//! Renders turns as a provider's message array.
//!
//! A turn that came in the target format is **restored**: it yields an equal JSON value, from the
//! extras documented in the parent module. Any other turn, or one with extras that no longer fit
//! its parts, is **translated**:
//!
//! - The parts that memoird interprets are written in the provider's format. Other fields of
//!   another provider's objects are dropped. The fields of a turn without a format are added to the
//!   provider's objects, unless present.
//! - Text that is empty or only white space is dropped, as is a message without content. If a
//!   message is required, its text is `(empty)`.
//! - Media that the provider does not accept there becomes a line such as `[image: cat]`.
//! - Thinking is sent only to the provider that signed it. A turn without a format can have signed
//!   or redacted thinking for Anthropic. All other thinking is dropped.
//! - A call id that the provider would reject is replaced in the call and its result. For
//!   Anthropic's messages, that includes ids used before.
//! - A note replaces a result without its call.
//! - The result of a failed tool begins with `Error: ` if the provider has no field for it, unless
//!   an error is mentioned early in the text.

mod anthropic;
mod extra;
mod given;
mod ids;
mod images;
mod list;
mod media;
mod openai;
mod pairs;
mod pieces;
mod responses;

use memoird_core::nonce::Nonce;
use memoird_core::turn::{MessageFormat, Turn};
use serde_json::Value;

use crate::model::MessageRules;

/// Text of a required message without content.
const EMPTY: &str = "(empty)";
/// Inserted as the user's message if the model began.
const LEAD_IN: &str = "(The conversation begins with the assistant.)";

/// The rendered messages of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// System prompt, if it is separate from the messages.
    ///
    /// That is Anthropic's `system`, or the `instructions` of OpenAI's responses. Empty for
    /// OpenAI's chat completions, where the system prompt is the first message.
    pub system: String,
    pub messages_json: String,
    /// Per turn, the number of messages up to its end.
    pub ends: Vec<usize>,
}

/// Settings for rendering turns for a call of the model.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenderOptions<'a> {
    /// The bot's system prompt. May be empty.
    pub system: &'a str,
    /// Indices of the turns after which the provider should cache. Anthropic only.
    ///
    /// The provider accepts 4 breakpoints per request, so the last ones are set. If any are given,
    /// the bot's own are removed.
    pub cache_after: &'a [usize],
    /// Indices of turns before which turns are missing without a marker.
    pub behind_gap: &'a [usize],
    /// Nonce for text inserted by memoird.
    pub nonce: Nonce,
    /// Whether the messages are sent to the provider.
    ///
    /// If so, content that it would reject at its current position is dropped or rephrased.
    /// Otherwise messages are restored exactly.
    pub is_request: bool,
    /// Whether the turns begin a conversation. True for every request.
    ///
    /// Then a result without its call will never have one.
    pub is_start: bool,
    /// Rules of the model. Applied to requests only.
    pub rules: MessageRules,
}

/// Renders turns as a provider's message array.
///
/// The turns must be in the provider's order: a call without a result is at the very end, and
/// results directly follow all other calls.
pub fn render(format: MessageFormat, turns: &[Turn], options: &RenderOptions<'_>) -> Rendered {
    let mut turns = pairs::paired(format, turns, options);
    if options.is_request {
        turns = images::limited(format, turns, &options.rules.images, options.nonce);
    }
    let (system, messages, ends) = match format {
        MessageFormat::OpenAi => openai::render(&turns, options),
        MessageFormat::OpenAiResponses => responses::render(&turns, options),
        MessageFormat::Anthropic => anthropic::render(&turns, options),
    };
    // Cannot fail, since all keys are strings.
    let messages_json = serde_json::to_string(&messages).unwrap_or_default();
    Rendered {
        system,
        messages_json,
        ends,
    }
}

/// System prompt, messages and the ends of the turns.
type Parts = (String, Vec<Value>, Vec<usize>);
