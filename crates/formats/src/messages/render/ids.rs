//! Ids of calls, as each provider takes them. A conversation that began with another
//! provider, or with a bot's own ids, goes on under names that this one takes: some bots count
//! their calls anew in each message, and Anthropic takes an id once in a request.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};

use memoird_core::turn::{MessageFormat, PartKind, Turn};

/// What OpenAI takes as `tool_calls[].id`; it refuses a longer one by this number.
const OPENAI_ID_BYTES_MAX: usize = 40;
/// What OpenAI takes as `call_id`; it refuses a longer one by this number.
const RESPONSES_ID_BYTES_MAX: usize = 64;
/// Characters that are kept of an id that is replaced; a hash follows.
const KEPT_CHARS: usize = 20;

/// The ids of calls as one provider gets them.
pub(super) struct Ids<'a> {
    format: MessageFormat,
    /// Ids that are given back, whatever they are: their other halves must match.
    given: HashSet<&'a str>,
    /// The uses so far of the others, where the provider takes an id once in a request.
    uses: RefCell<HashMap<&'a str, Uses>>,
}

/// Calls with one id.
#[derive(Default)]
struct Uses {
    count: u32,
    /// Those without a result so far.
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

    /// The id of a call as the provider takes it: the same for the same id. One that was used
    /// before is numbered, where it may be used once: turns are to be read in their order.
    pub(super) fn of_call(&self, id: &'a str) -> Cow<'a, str> {
        if !takes_once(self.format) {
            return self.say(id, 1);
        }
        let mut uses = self.uses.borrow_mut();
        let uses = uses.entry(id).or_default();
        uses.count += 1;
        uses.open.push_back(uses.count);
        self.say(id, uses.count)
    }

    /// The id of the call that a result answers.
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

/// True where an id names one call in a request.
fn takes_once(format: MessageFormat) -> bool {
    format == MessageFormat::Anthropic
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// FNV-1a, 64 bits: the same in every version, and no secret depends on it.
/// <http://www.isthe.com/chongo/tech/comp/fnv/>
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
