//! Validated identifiers. An id can only be constructed by parsing.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::CoreError;

/// Maximum length in bytes of an id that a client chooses.
pub const ID_BYTES_MAX: usize = 256;

/// Maximum length in bytes of a tool call id. Gateways put Gemini's thought signatures into it.
pub const CALL_ID_BYTES_MAX: usize = 4 << 10;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        serialized_as_text!($name, $name::parse);
    };
}

/// Serializes an id as text. Deserializing validates it.
macro_rules! serialized_as_text {
    ($name:ident, $parse:expr) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $parse(&text).map_err(D::Error::custom)
            }
        }
    };
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $field:literal) => {
        name!($(#[$doc])* $name);

        impl $name {
            /// Accepts 1 to [`ID_BYTES_MAX`] bytes of any characters.
            ///
            /// # Errors
            /// [`CoreError::IdInvalid`] if the text is empty or too long.
            pub fn parse(text: &str) -> Result<Self, CoreError> {
                match text.len() {
                    1..=ID_BYTES_MAX => Ok(Self(text.into())),
                    bytes => Err(CoreError::IdInvalid {
                        field: $field,
                        bytes,
                        bytes_max: ID_BYTES_MAX,
                    }),
                }
            }
        }
    };
}

text_id!(
    /// An organisation or bot, determined by the credential of a call.
    TenantId,
    "tenant"
);
text_id!(
    /// The bot's own id of a chat.
    SessionId,
    "session_id"
);
text_id!(
    /// The end user that memories are about.
    Subject,
    "subject"
);

impl TenantId {
    /// The tenant of a daemon that has no keys configured.
    pub fn default_tenant() -> Self {
        Self("default".into())
    }
}

name!(
    /// Name of a hook in the configuration.
    HookName
);

pub const HOOK_NAME_BYTES_MAX: usize = 64;

impl HookName {
    /// Accepts 1 to [`HOOK_NAME_BYTES_MAX`] characters of `a-z`, `0-9`, `-` and `_`.
    ///
    /// The name is part of file names, metric labels and delivery ids.
    ///
    /// # Errors
    /// [`CoreError::HookNameInvalid`] for any other text.
    pub fn parse(text: &str) -> Result<Self, CoreError> {
        let is_good = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        if (1..=HOOK_NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_good) {
            Ok(Self(text.into()))
        } else {
            Err(CoreError::HookNameInvalid {
                text: text.chars().take(80).collect(),
            })
        }
    }
}

/// Id of the delivery of one generation to one hook, by which receivers detect repetitions.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId {
    pub generation: Generation,
    pub hook: HookName,
}

impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.generation, self.hook)
    }
}

impl fmt::Debug for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DeliveryId {
    type Err = CoreError;

    /// # Errors
    /// [`CoreError::DeliveryIdInvalid`] unless the text is `generation/hook`.
    fn from_str(text: &str) -> Result<Self, CoreError> {
        let parsed = text.split_once('/').and_then(|(generation, hook)| {
            Some(Self {
                generation: generation.parse().ok()?,
                hook: HookName::parse(hook).ok()?,
            })
        });
        let invalid = || CoreError::DeliveryIdInvalid {
            text: text.chars().take(120).collect(),
        };
        parsed.ok_or_else(invalid)
    }
}

/// Key of a session. No lookup uses a session id without its tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey {
    pub tenant: TenantId,
    pub session: SessionId,
}

/// Crockford's base 32.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const ULID_LEN: usize = 26;
const RANDOM_BITS: u32 = 80;
/// Maximum backward step of the clock, in milliseconds, across which ids keep increasing.
const STEP_BACK_MS_MAX: u128 = 1_000;

macro_rules! ulid {
    ($(#[$doc:meta])* $name:ident, $invalid:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// Creates an id from milliseconds since 1970 and the lowest 80 bits of `random`.
            pub fn new(ms: i64, random: u128) -> Self {
                let time = u128::from(ms.max(0).unsigned_abs()) << RANDOM_BITS;
                Self(time | (random & ((1 << RANDOM_BITS) - 1)))
            }

            /// Creates an id that sorts after `last`.
            ///
            /// Within the millisecond of `last`, or if the clock stepped back by at most
            /// [`STEP_BACK_MS_MAX`], it is `last` plus one, like the specification's monotonic
            /// ULIDs. After a larger step back, the id takes the time of the clock and sorts before
            /// `last`.
            #[must_use]
            pub fn after(last: Option<Self>, ms: i64, random: u128) -> Self {
                let new = Self::new(ms, random);
                let ahead_ms = |last: Self| (last.0 >> RANDOM_BITS).checked_sub(new.0 >> RANDOM_BITS);
                let is_near = |last: &Self| {
                    ahead_ms(*last).is_some_and(|ahead_ms| ahead_ms <= STEP_BACK_MS_MAX)
                };
                last.filter(is_near).map_or(new, |last| Self(last.0.saturating_add(1)))
            }

            /// The 16 bytes, most significant first, as stored.
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(str::from_utf8(&ulid_text(self.0)).unwrap_or_default())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = CoreError;

            /// # Errors
            #[doc = concat!("[`CoreError::", stringify!($invalid), "`] unless it is a ULID.")]
            fn from_str(text: &str) -> Result<Self, CoreError> {
                let invalid = || CoreError::$invalid { text: text.chars().take(64).collect() };
                ulid_number(text).map(Self).ok_or_else(invalid)
            }
        }

        serialized_as_text!($name, $name::from_str);
    };
}

ulid!(
    /// One lifetime of a session, from its first turn to its end.
    ///
    /// A ULID (<https://github.com/ulid/spec>), so generations sort by start time.
    Generation,
    GenerationInvalid
);
ulid!(
    /// A ULID, so memories sort by creation time.
    MemoryId,
    MemoryIdInvalid
);
ulid!(
    /// Known only to the holder of the lease.
    LeaseId,
    LeaseInvalid
);

ulid!(
    /// A ULID, so erasure jobs sort by request time.
    ErasureId,
    ErasureIdInvalid
);

fn ulid_text(number: u128) -> [u8; ULID_LEN] {
    let mut text = [0_u8; ULID_LEN];
    let mut rest = number;
    for digit in text.iter_mut().rev() {
        *digit = ALPHABET[(rest & 31) as usize];
        rest >>= 5;
    }
    text
}

fn ulid_number(text: &str) -> Option<u128> {
    if text.len() != ULID_LEN || text.as_bytes()[0] > b'7' {
        return None;
    }
    text.bytes().try_fold(0_u128, |sum, byte| {
        let digit = ALPHABET
            .iter()
            .position(|&known| known == byte.to_ascii_uppercase())?;
        Some(sum << 5 | digit as u128)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_round_trips_as_text_and_bytes() {
        let generation = Generation::new(1_700_000_000_000, u128::MAX);
        assert_eq!(
            generation.to_string().parse::<Generation>().unwrap(),
            generation
        );
        assert_eq!(Generation::from_bytes(generation.to_bytes()), generation);
        // The example timestamp of the ULID specification.
        assert!(
            Generation::new(1_469_918_176_385, 0)
                .to_string()
                .starts_with("01ARYZ6S41")
        );
        assert!("not a ulid".parse::<Generation>().is_err());
        assert!("8ZZZZZZZZZZZZZZZZZZZZZZZZZ".parse::<Generation>().is_err());
    }

    #[test]
    fn memory_ids_sort_in_creation_order() {
        let first = MemoryId::after(None, 1_700_000_000_000, 7);
        assert_eq!(first, MemoryId::new(1_700_000_000_000, 7));
        let mut last = first;
        for random in [u128::MAX, 0, 7, 8] {
            for ms in [1_700_000_000_000, 1_699_999_999_999, 1_699_999_999_000] {
                let next = MemoryId::after(Some(last), ms, random);
                assert_eq!(next.0, last.0 + 1, "{ms} {random}");
                last = next;
            }
        }
        let later = MemoryId::after(Some(last), 1_700_000_000_001, 0);
        assert_eq!(later, MemoryId::new(1_700_000_000_001, 0));
        // The clock was set back by more than the tolerance.
        let earlier = MemoryId::after(Some(last), 1_699_999_998_999, 5);
        assert_eq!(earlier, MemoryId::new(1_699_999_998_999, 5));
        // The last id of a millisecond is followed by one of the next millisecond.
        let full = MemoryId::new(5, u128::MAX);
        assert_eq!(MemoryId::after(Some(full), 5, 3), MemoryId::new(6, 0));
        let end = MemoryId(u128::MAX);
        assert_eq!(
            MemoryId::after(Some(end), i64::MAX, 3),
            end,
            "nothing overflows"
        );
    }

    #[test]
    fn delivery_id_contains_generation_and_hook() {
        let text = "01ARYZ6S410000000000000000/git-1";
        assert_eq!(text.parse::<DeliveryId>().unwrap().to_string(), text);
        for bad in [
            "",
            "git",
            "01ARYZ6S410000000000000000/",
            "01ARYZ6S410000000000000000/A",
        ] {
            assert!(bad.parse::<DeliveryId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn session_id_allows_any_characters_up_to_256_bytes() {
        for good in ["a", "telegram:4711", "a/b\n\u{1f600}\0", &"x".repeat(256)] {
            assert_eq!(SessionId::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", &"x".repeat(257)] {
            assert!(SessionId::parse(bad).is_err());
        }
    }
}
