//! Limits on everything that clients send or store.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::config::{AsText, Problems, Size};
use crate::error::CoreError;
use crate::options::{LABELS_MAX, SessionOptions};

/// Default of [`Limits::turn_bytes`]: a 15 MB image in base64, about the largest providers accept.
const TURN_BYTES: usize = 20 << 20;
/// With less memory than [`MEMORY_FOR_MEDIA`], the default is the memory divided by this.
const TURN_SHARE: u64 = 32;
const TURN_BYTES_MIN: usize = 1 << 20;
/// Minimum memory for sessions, in bytes, for the default [`TURN_BYTES`].
const MEMORY_FOR_MEDIA: u64 = 512 << 20;
/// Number of maximum-size turns that the automatic `max_history_bytes` has room for.
const LARGE_TURNS: usize = 2;
/// Smallest automatic value of [`Limits::max_history_bytes`].
const HISTORY_BYTES_MIN: usize = 4 << 20;
/// Bytes of history per token of the largest context window.
///
/// A token of English or JSON has about four encoded bytes, and half of the history must remain
/// when the next cut is made.
const HISTORY_BYTES_PER_TOKEN: u64 = 8;

/// A cap that no history reaches, small enough that multiplying by percentages does not overflow.
const OUT_OF_REACH: usize = usize::MAX >> 16;

/// Limits for data that the clients of a tenant send and store. Sizes are in bytes.
///
/// The configuration section `limits`, except for the two caps of a history, which are in
/// `short_term`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Maximum turns of a history, not counting the anchor. At least 1.
    #[serde(skip)]
    pub max_history_turns: usize,
    /// Maximum encoded bytes of those turns. At least 1.
    #[serde(skip)]
    pub max_history_bytes: usize,
    /// Encoded size of one turn. A smaller `max_history_bytes` of a tenant limits its turns too.
    #[serde(skip)]
    pub turn_bytes: usize,
    pub turns_per_append: usize,
    /// Parts of one turn, including those inside tool results.
    pub parts_per_turn: usize,
    pub metadata_entries: usize,
    /// Names and values of those entries.
    #[serde(with = "AsText::<Size>")]
    pub metadata_bytes: usize,
    /// `client_json` of one turn, without base64 media.
    #[serde(with = "AsText::<Size>")]
    pub client_json_bytes: usize,
    #[serde(with = "AsText::<Size>")]
    pub state_bytes: usize,
    /// Turns retained by pins, with their units. Always less than `max_history_turns`.
    pub pinned_turns: usize,
    /// Encoded bytes of those turns. At most half of `max_history_bytes`.
    #[serde(with = "AsText::<Size>")]
    pub pinned_bytes: usize,
    /// Calls dropped from the history without a result for which results are still accepted.
    #[serde(skip)]
    pub departed_calls: usize,
    /// Labels of a session.
    #[serde(skip)]
    pub labels: usize,
    #[serde(skip)]
    pub idempotency_keys: usize,
    /// Retention of an idempotency key in milliseconds.
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
    /// Returns the automatic value of `turn_bytes` for `memory_bytes` of memory for sessions.
    ///
    /// It is 20 MiB. Below 512 MiB of memory it is 1/32 of the memory, but at least 1 MiB. 0 means
    /// no memory limit.
    pub fn turn_bytes_for(memory_bytes: u64) -> usize {
        match memory_bytes {
            1..MEMORY_FOR_MEDIA => {
                let share = usize::try_from(memory_bytes / TURN_SHARE).unwrap_or(TURN_BYTES);
                share.max(TURN_BYTES_MIN)
            }
            _ => TURN_BYTES,
        }
    }

    /// Returns the automatic value of `max_history_bytes`.
    ///
    /// It is 8 bytes per token of the largest `context_window`, but at least 4 MiB and two turns of
    /// `turn_bytes`.
    pub fn history_bytes_for(context_window: u64, turn_bytes: usize) -> usize {
        let wanted_bytes = context_window.saturating_mul(HISTORY_BYTES_PER_TOKEN);
        // Cap the value, so that products with percentages do not overflow.
        let bytes = usize::try_from(wanted_bytes)
            .unwrap_or(usize::MAX)
            .min(OUT_OF_REACH);
        let turns = turn_bytes.saturating_mul(LARGE_TURNS).min(OUT_OF_REACH);
        bytes.max(turns).max(HISTORY_BYTES_MIN)
    }

    /// Reports invalid values of the limits that have a configuration key.
    pub fn check(&self, problems: &mut Problems) {
        problems.at_least_one("turns_per_append", self.turns_per_append);
        problems.at_least_one("parts_per_turn", self.parts_per_turn);
        problems.at_least_one("state_bytes", self.state_bytes);
    }

    /// Returns the limits that apply to a session with these options.
    ///
    /// With `keep_all`, the history caps are out of reach, and appends check the size instead.
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

    /// Effective turn limit: a turn larger than its history could not be retained.
    pub fn turn_bytes_effective(&self) -> usize {
        self.turn_bytes.min(self.max_history_bytes)
    }

    /// Checks the encoded size of the turn at `index` of an append.
    ///
    /// # Errors
    /// [`CoreError::TurnTooLarge`] with the setting that limits it.
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
            setting: if self.turn_bytes < self.max_history_bytes {
                "limits.turn_bytes"
            } else {
                "max_history_bytes, in short_term or the tenant's limits"
            },
        })
    }

    /// Effective pin limit: at least one turn of the history is left for the conversation.
    pub fn pinned_turns_effective(&self) -> usize {
        self.pinned_turns
            .min(self.max_history_turns.saturating_sub(1))
    }

    /// Effective pin limit: at least half of the history is left for the conversation.
    pub fn pinned_bytes_effective(&self) -> usize {
        self.pinned_bytes.min(self.max_history_bytes / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_bytes_grow_with_context_window_from_4_mib() {
        let bytes = |context_window| Limits::history_bytes_for(context_window, 1 << 20);
        assert_eq!(bytes(8_192), 4 << 20);
        assert_eq!(bytes(524_288), 4 << 20);
        assert_eq!(bytes(1_048_576), 8 << 20);
        assert_eq!(bytes(2_000_000), 16_000_000);
        assert_eq!(bytes(u64::MAX), OUT_OF_REACH);
    }

    #[test]
    fn history_bytes_have_room_for_two_largest_turns() {
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
