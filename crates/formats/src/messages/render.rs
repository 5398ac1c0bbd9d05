//! Turns, written as a provider's own message array: the way back from reading, and the
//! way across from one provider to another.
//!
//! A turn that came in the format that is asked for is **given back**: the same JSON
//! value, by the marks that the parent module documents. Any other turn, and one whose
//! marks do not fit its parts any more, is **translated**:
//!
//! - The parts that memoird reads are written in the provider's format. Other fields of another
//!   provider's objects are dropped; the fields of a turn that names no format are put
//!   into the provider's objects, where they have no such field yet.
//! - Text that is empty or only white space is left out, and so is a message that would
//!   have nothing; where one must stand, it says `(empty)`.
//! - Media that the provider does not take there becomes a line such as `[image: cat]`.
//! - Thinking goes only to the provider whose signature it has: a turn without a format
//!   can bring signed or redacted thinking for Anthropic; all other thinking is dropped.
//! - An id of a call that the provider would refuse, in Anthropic's messages also one that was
//!   used before, is replaced, the same way in the call and in its result.
//! - A result without its call is a note.
//! - A failed tool's result begins with `Error: ` where the provider has no field for it,
//!   unless it mentions an error early on.

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

use memoird_core::mark::Mark;
use memoird_core::turn::{MessageFormat, Turn};
use serde_json::Value;

use crate::model::MessageRules;

/// The text of a message that must not be empty, and would be.
const EMPTY: &str = "(empty)";
/// Said in the user's stead where the model began.
const LEAD_IN: &str = "(The conversation begins with the assistant.)";

/// What of a provider's request a window makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The system prompt, where the provider takes it apart from the messages: Anthropic's
    /// `system`, the `instructions` of OpenAI's responses. Empty for OpenAI's chat
    /// completions, where it is the first of the messages.
    pub system: String,
    /// The message array.
    pub messages_json: String,
    /// For each turn, how many messages there are up to its end.
    pub ends: Vec<usize>,
}

/// What a call of the model adds to the turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenderOptions<'a> {
    /// The bot's system prompt; may be empty.
    pub system: &'a str,
    /// Indices of the turns after which the provider shall cache. Anthropic only, which
    /// takes 4 in a request: the last ones are set, and those that the bot set are not.
    pub cache_after: &'a [usize],
    /// Indices of turns that do not follow on the one before: what was said between them is
    /// left out without a word.
    pub behind_gap: &'a [usize],
    /// What memoird's own words bear.
    pub mark: Mark,
    /// True where the provider is sent what is made: what it would refuse where it stands now is
    /// left out or said otherwise. False gives back what came in.
    pub is_request: bool,
    /// True where the turns begin a conversation: a result without its call will never have one.
    /// So it is in every request.
    pub is_start: bool,
    /// Rules of the model. They apply to requests.
    pub rules: MessageRules,
}

/// Writes turns as a provider's message array. The turns are in the provider's order: a
/// call without a result stands at the very end, every other call's results follow it.
pub fn render(format: MessageFormat, turns: &[Turn], options: &RenderOptions<'_>) -> Rendered {
    let mut turns = pairs::paired(format, turns, options);
    if options.is_request {
        turns = images::limited(format, turns, &options.rules.images, options.mark);
    }
    let (system, messages, ends) = match format {
        MessageFormat::OpenAi => openai::render(&turns, options),
        MessageFormat::OpenAiResponses => responses::render(&turns, options),
        MessageFormat::Anthropic => anthropic::render(&turns, options),
    };
    // Writing values to a string has no way to fail: all keys are strings.
    let messages_json = serde_json::to_string(&messages).unwrap_or_default();
    Rendered {
        system,
        messages_json,
        ends,
    }
}

/// System prompt, messages and the ends of the turns.
type Parts = (String, Vec<Value>, Vec<usize>);
