//! Ids of calls, as each provider takes them. A conversation that began with another
//! provider, or with a bot's own ids, goes on under names that this one takes.

use std::borrow::Cow;
use std::collections::HashSet;

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
            given: ids.filter(|id| !fits(format, id)).collect(),
        }
    }

    /// The id as the provider takes it: the same for the same id, always.
    pub(super) fn say(&self, id: &'a str) -> Cow<'a, str> {
        if fits(self.format, id) || self.given.contains(id) {
            return id.into();
        }
        let kept = id
            .chars()
            .take(KEPT_CHARS)
            .map(|c| if is_plain(c) { c } else { '_' });
        format!("{}_{:016x}", kept.collect::<String>(), hash(id)).into()
    }
}

fn fits(format: MessageFormat, id: &str) -> bool {
    match format {
        MessageFormat::OpenAi => id.len() <= OPENAI_ID_BYTES_MAX,
        MessageFormat::OpenAiResponses => id.len() <= RESPONSES_ID_BYTES_MAX,
        MessageFormat::Anthropic => !id.is_empty() && id.chars().all(is_plain),
    }
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
