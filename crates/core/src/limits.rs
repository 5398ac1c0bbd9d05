//! A limit on everything, and all of them in one place.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::config::{AsText, Problems, Size};
use crate::error::CoreError;
use crate::options::{LABELS_MAX, SessionOptions};

/// Default of [`Limits::turn_bytes`]: an image of 15 MB as base64, about the most that providers take.
const TURN_BYTES: usize = 20 << 20;
/// The same for less memory than [`MEMORY_FOR_MEDIA`]: this share of it, but no less than before.
const TURN_SHARE: u64 = 32;
const TURN_BYTES_MIN: usize = 1 << 20;
/// Memory for sessions, in bytes, from which on the default holds.
const MEMORY_FOR_MEDIA: u64 = 512 << 20;
/// Turns of the maximum size that the automatic `max_history_bytes` has room for.
const LARGE_TURNS: usize = 2;
/// Smallest automatic value of [`Limits::max_history_bytes`].
const HISTORY_BYTES_MIN: usize = 4 << 20;
/// Bytes of history per token of the largest context window. A token of English or JSON has about
/// four encoded bytes, and half of the history has to be left when the next cut comes.
const HISTORY_BYTES_PER_TOKEN: u64 = 8;

/// A cap that no history reaches. Products with percentages do not overflow.
const OUT_OF_REACH: usize = usize::MAX >> 16;

/// What the clients of a tenant may send and keep. Sizes in bytes. In a configuration file it
/// is the section `limits`; the two caps of a history stand in `short_term`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Turns a history keeps, the anchor not counted. At least 1.
    #[serde(skip)]
    pub max_history_turns: usize,
    /// Encoded bytes of those turns. At least 1.
    #[serde(skip)]
    pub max_history_bytes: usize,
    /// One turn, encoded. A tenant's own `max_history_bytes` may be less, and limits its turns.
    #[serde(skip)]
    pub turn_bytes: usize,
    /// Turns of one append.
    pub turns_per_append: usize,
    /// Parts of one turn, those inside tool results counted.
    pub parts_per_turn: usize,
    /// Labels of one turn.
    pub metadata_entries: usize,
    /// Names and values of those labels.
    #[serde(with = "AsText::<Size>")]
    pub metadata_bytes: usize,
    /// What a client keeps beside a turn, for itself.
    #[serde(with = "AsText::<Size>")]
    pub client_json_bytes: usize,
    /// The free-form JSON of a session.
    #[serde(with = "AsText::<Size>")]
    pub state_bytes: usize,
    /// Turns kept by a pin, with those they must travel with; always less than
    /// `max_history_turns`.
    pub pinned_turns: usize,
    /// Encoded bytes of those turns; never more than half of `max_history_bytes`.
    #[serde(with = "AsText::<Size>")]
    pub pinned_bytes: usize,
    /// Calls that left the history unanswered and whose results are still taken.
    #[serde(skip)]
    pub departed_calls: usize,
    /// Labels of a session.
    #[serde(skip)]
    pub labels: usize,
    /// Idempotency keys remembered per session.
    #[serde(skip)]
    pub idempotency_keys: usize,
    /// How long an idempotency key is remembered, in milliseconds.
    #[serde(skip)]
    pub idempotency_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_history_turns: 1_000,
            max_history_bytes: HISTORY_BYTES_MIN,
            turn_bytes: TURN_BYTES,
            turns_per_append: 256,
            parts_per_turn: 128,
            metadata_entries: 64,
            metadata_bytes: 16 << 10,
            client_json_bytes: 256 << 10,
            state_bytes: 64 << 10,
            pinned_turns: 10,
            pinned_bytes: 256 << 10,
            departed_calls: 256,
            labels: LABELS_MAX,
            idempotency_keys: 1_024,
            idempotency_ms: 24 * 60 * 60 * 1_000,
        }
    }
}

impl Limits {
    /// Returns the automatic value of `turn_bytes` for `memory_bytes` of memory for sessions (0: no
    /// limit): 20 MiB, or below 512 MiB of memory 1/32 of it, at least 1 MiB.
    pub fn turn_bytes_for(memory_bytes: u64) -> usize {
        match memory_bytes {
            1..MEMORY_FOR_MEDIA => {
                let share = usize::try_from(memory_bytes / TURN_SHARE).unwrap_or(TURN_BYTES);
                share.max(TURN_BYTES_MIN)
            }
            _ => TURN_BYTES,
        }
    }

    /// Returns the automatic value of `max_history_bytes` for models with windows of up to
    /// `context_window` tokens and turns of up to `turn_bytes` bytes: 8 bytes per token, at least
    /// two such turns and 4 MiB.
    pub fn history_bytes_for(context_window: u64, turn_bytes: usize) -> usize {
        let bytes = context_window.saturating_mul(HISTORY_BYTES_PER_TOKEN);
        // A larger value would be out of reach anyway, and its products must not overflow.
        let bytes = usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .min(OUT_OF_REACH);
        let turns = turn_bytes.saturating_mul(LARGE_TURNS).min(OUT_OF_REACH);
        bytes.max(turns).max(HISTORY_BYTES_MIN)
    }

    /// Adds the problems of the limits that have a key.
    pub fn check(&self, problems: &mut Problems) {
        problems.at_least_one("turns_per_append", self.turns_per_append);
        problems.at_least_one("parts_per_turn", self.parts_per_turn);
        problems.at_least_one("state_bytes", self.state_bytes);
    }

    /// Those of a session of which this was decided: where it keeps all of its history, the caps of
    /// first in, first out are out of reach. What bounds it then is looked at before turns are added.
    pub fn of_session(&self, options: Option<&SessionOptions>) -> Cow<'_, Self> {
        match options {
            Some(options) if options.keep_all => Cow::Owned(Self {
                max_history_turns: OUT_OF_REACH,
                max_history_bytes: OUT_OF_REACH,
                ..self.clone()
            }),
            _ => Cow::Borrowed(self),
        }
    }

    /// The turn limit that applies: a turn larger than its history could not stay.
    pub fn turn_bytes_effective(&self) -> usize {
        self.turn_bytes.min(self.max_history_bytes)
    }

    /// Checks the encoded bytes of the turn at `index` of an append.
    ///
    /// # Errors
    /// [`CoreError::TurnTooLarge`], naming the setting that limits it.
    pub fn check_turn_bytes(&self, index: usize, actual: usize) -> Result<(), CoreError> {
        let limit = self.turn_bytes_effective();
        if actual <= limit {
            return Ok(());
        }
        Err(CoreError::TurnTooLarge {
            index,
            what: "encoded bytes",
            actual,
            limit,
            setting: match self.turn_bytes < self.max_history_bytes {
                true => "limits.turn_bytes",
                false => "max_history_bytes, in short_term or the tenant's limits",
            },
        })
    }

    /// The pin limit that applies: one place is always left for the conversation.
    pub fn pinned_turns_effective(&self) -> usize {
        self.pinned_turns
            .min(self.max_history_turns.saturating_sub(1))
    }

    /// The pin limit that applies: half of the history is always left.
    pub fn pinned_bytes_effective(&self) -> usize {
        self.pinned_bytes.min(self.max_history_bytes / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_bytes_grow_with_the_context_window_from_4_mib() {
        let bytes = |context_window| Limits::history_bytes_for(context_window, 1 << 20);
        assert_eq!(bytes(8_192), 4 << 20);
        assert_eq!(bytes(524_288), 4 << 20);
        assert_eq!(bytes(1_048_576), 8 << 20);
        assert_eq!(bytes(2_000_000), 16_000_000);
        assert_eq!(bytes(u64::MAX), OUT_OF_REACH);
    }

    #[test]
    fn history_bytes_have_room_for_two_of_the_largest_turns() {
        assert_eq!(Limits::history_bytes_for(1_048_576, 20 << 20), 40 << 20);
        assert_eq!(Limits::history_bytes_for(0, usize::MAX), OUT_OF_REACH);
    }

    #[test]
    fn turn_bytes_shrink_below_512_mib_of_memory() {
        for (memory_mib, turn_mib) in [(0, 20), (4_096, 20), (512, 20), (256, 8), (64, 2), (1, 1)] {
            let bytes = Limits::turn_bytes_for(memory_mib << 20);
            assert_eq!(bytes, turn_mib << 20, "{memory_mib} MiB");
        }
        assert!(Limits::turn_bytes_for((512 << 20) - 1) < 20 << 20);
    }
}
