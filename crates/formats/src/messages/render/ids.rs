//! Call ids, in the form that each provider accepts.
//!
//! A conversation that began with another provider, or with the bot's own ids, continues with valid
//! ids. Some bots restart counting in each message, while Anthropic accepts an id only once per
//! request.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};

use memoird_core::turn::{MessageFormat, PartKind, Turn};

/// Maximum length of `tool_calls[].id`, as stated by OpenAI's error for longer ones.
const OPENAI_ID_BYTES_MAX: usize = 40;
/// Maximum length of `call_id`, as stated by OpenAI's error for longer ones.
const RESPONSES_ID_BYTES_MAX: usize = 64;
/// Leading characters retained of a replaced id. A hash follows.
const KEPT_CHARS: usize = 20;

/// Maps call ids to those for one provider.
pub(super) struct Ids<'a> {
    format: MessageFormat,
    /// Ids in turns that came in this format. They are unchanged, so that calls and results match.
    given: HashSet<&'a str>,
    /// Earlier uses of the other ids, if the provider accepts an id only once per request.
    uses: RefCell<HashMap<&'a str, Uses>>,
}

/// Calls with the same id.
#[derive(Default)]
struct Uses {
    count: u32,
    /// Numbers of those that have no result yet.
    open: VecDeque<u32>,
}

impl<'a> Ids<'a> {
    pub(super) fn new(format: MessageFormat, turns: &'a [Turn]) -> Self {
        let given = turns.iter().filter(|turn| turn.format == Some(format));
        let ids = given
            .flat_map(|turn| &turn.parts)
            .filter_map(|part| match &part.kind {
                PartKind::ToolUse { id, .. }
                | PartKind::ToolResult {
                    tool_use_id: id, ..
                } => Some(id.as_str()),
                _ => None,
            });
        Self {
            format,
            given: ids
                .filter(|id| takes_once(format) || !fits(format, id))
                .collect(),
            uses: RefCell::default(),
        }
    }

    /// Returns the provider's id for a call. The same id gives the same result.
    ///
    /// If the provider accepts an id only once, repeated ones are numbered, so turns must be read
    /// in order.
    pub(super) fn of_call(&self, id: &'a str) -> Cow<'a, str> {
        if !takes_once(self.format) {
            return self.say(id, 1);
        }
        let mut all_uses = self.uses.borrow_mut();
        let uses = all_uses.entry(id).or_default();
        uses.count += 1;
        uses.open.push_back(uses.count);
        self.say(id, uses.count)
    }

    /// Returns the provider's id for the call that a result answers.
    pub(super) fn of_result(&self, id: &'a str) -> Cow<'a, str> {
        let mut uses = self.uses.borrow_mut();
        let number = uses.get_mut(id).map(|uses| {
            let oldest = uses.open.pop_front();
            oldest.unwrap_or(uses.count)
        });
        self.say(id, number.unwrap_or(1))
    }

    fn say(&self, id: &'a str, number: u32) -> Cow<'a, str> {
        if (number == 1 && fits(self.format, id)) || self.given.contains(id) {
            return id.into();
        }
        let kept = id
            .chars()
            .take(KEPT_CHARS)
            .map(|c| if is_plain(c) { c } else { '_' });
        let hash = hash(id).wrapping_add(u64::from(number - 1));
        format!("{}_{hash:016x}", kept.collect::<String>()).into()
    }
}

fn fits(format: MessageFormat, id: &str) -> bool {
    match format {
        MessageFormat::OpenAi => id.len() <= OPENAI_ID_BYTES_MAX,
        MessageFormat::OpenAiResponses => id.len() <= RESPONSES_ID_BYTES_MAX,
        MessageFormat::Anthropic => !id.is_empty() && id.chars().all(is_plain),
    }
}

/// Whether an id may be used for only one call per request.
fn takes_once(format: MessageFormat) -> bool {
    format == MessageFormat::Anthropic
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// FNV-1a with 64 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>
///
/// It must be stable across versions, but need not be secure.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
