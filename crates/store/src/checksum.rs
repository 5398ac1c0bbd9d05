//! Detects damage to stored turns.
//!
//! Next to each turn's content the journal stores a header (the turn without its text and payloads)
//! and a checksum of both, so that damage on disk is detected and costs only the content it hits.
//! The checksums cover generation and seq.
//!
//! If only the content is damaged, a replacement turn is built from the header. If both are
//! damaged, the replacement is a system turn. A tool result that thereby loses its call is not
//! shown. Turns written before schema 5 have no checksum; they are only counted.

use std::sync::{Arc, Mutex};

use crc32fast::Hasher;
use memoird_core::ids::Generation;
use memoird_proto::v1;
use prost::Message;

/// Text of a damaged turn.
pub use memoird_core::quote::DAMAGED_TEXT;

/// Number of turns read that could not be trusted since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnCounts {
    /// No checksum: written by an older memoird.
    pub unchecked: u64,
    /// Content does not match its checksum.
    pub damaged: u64,
}

/// [`TurnCounts`] while turns are counted.
pub type TurnCounters = Mutex<TurnCounts>;

/// Data stored next to the content of a turn.
#[derive(Debug)]
pub struct Protection {
    /// Encoded turn without its text and payloads. Empty if the content does not decode as a turn.
    pub header: Vec<u8>,
    /// Checksum of the header in the upper 32 bits, of the content in the lower 32 bits.
    pub checksum: i64,
}

/// Identifies a turn. Part of its checksums, so that content stored under another turn is detected.
#[derive(Clone, Copy, Debug)]
pub struct TurnKey {
    pub generation: Generation,
    pub seq: u64,
}

/// A turn as read from the store. An older memoird stored neither header nor checksum.
#[derive(Debug)]
pub struct StoredTurn<'a> {
    /// Encoded turn.
    pub content: &'a [u8],
    /// As in [`Protection`].
    pub header: Option<&'a [u8]>,
    /// As in [`Protection`].
    pub checksum: Option<i64>,
}

/// Result of verifying a stored turn.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Matches its checksum.
    Whole,
    /// Has no checksum.
    Unchecked,
    /// The content is damaged. An intact header still identifies the role and the calls.
    Damaged {
        /// Replacement with the same role and calls, and [`DAMAGED_TEXT`] as text.
        ///
        /// `None` if the header is damaged too: see [`unknown_turn`].
        stand_in: Option<Arc<[u8]>>,
    },
}

/// Computes the data to store next to the content of a turn.
pub fn protect(key: TurnKey, content: &[u8]) -> Protection {
    let header = Header::of(content).map_or_else(Vec::new, |header| header.encode_to_vec());
    let checksum = checksum(key, &header, content);
    Protection { header, checksum }
}

/// Verifies a turn against the data stored next to it.
pub fn examine(key: TurnKey, stored: &StoredTurn<'_>) -> Verdict {
    let Some(expected) = stored.checksum else {
        return Verdict::Unchecked;
    };
    let header = stored.header.unwrap_or_default();
    let difference = expected ^ checksum(key, header, stored.content);
    // A damaged header is not needed while the content is intact.
    if difference & CONTENT_MASK == 0 {
        return Verdict::Whole;
    }
    let is_header_whole = difference & !CONTENT_MASK == 0;
    Verdict::Damaged {
        stand_in: is_header_whole.then(|| stand_in(header, key.seq)).flatten(),
    }
}

/// Checksum of a sequence of fields, for rows other than turns.
///
/// Each field is hashed with its length, so that fields cannot run into each other.
#[derive(Clone, Debug, Default)]
pub struct FieldsChecksum(Hasher);

impl FieldsChecksum {
    pub fn bytes(&mut self, field: &[u8]) {
        self.number(field.len() as i64);
        self.0.update(field);
    }

    pub fn number(&mut self, field: i64) {
        self.0.update(&field.to_le_bytes());
    }

    /// Adds a field that may be missing. `add` adds the present one.
    pub fn optional<T>(&mut self, field: Option<T>, add: impl FnOnce(&mut Self, T)) {
        self.number(field.is_some().into());
        if let Some(field) = field {
            add(self, field);
        }
    }

    /// Returns the 32 bits of the checksum.
    pub fn finish(self) -> i64 {
        self.0.finalize().into()
    }
}

const CONTENT_MASK: i64 = 0xffff_ffff;

/// Checksum of a part of a turn. That of its content is the lower half of [`Protection::checksum`].
pub fn part_checksum(key: TurnKey, part: &[u8]) -> i64 {
    let mut hasher = Hasher::new();
    hasher.update(&key.generation.to_bytes());
    hasher.update(&key.seq.to_le_bytes());
    hasher.update(part);
    hasher.finalize().into()
}

fn checksum(key: TurnKey, header: &[u8], content: &[u8]) -> i64 {
    part_checksum(key, header) << 32 | part_checksum(key, content)
}

fn stand_in(header: &[u8], seq: u64) -> Option<Arc<[u8]>> {
    let mut turn = v1::Turn::decode(header)
        .ok()
        .filter(|turn| turn.role != 0)?;
    turn.seq = seq;
    let mut is_marked = false;
    for part in &mut turn.parts {
        match &mut part.part {
            Some(v1::part::Part::ToolUse(call)) => call.input_json = "{}".to_owned(),
            Some(v1::part::Part::ToolResult(result)) => {
                result.content = DAMAGED_TEXT.to_owned();
                result.is_error = true;
                is_marked = true;
            }
            _ => {}
        }
    }
    if !is_marked {
        turn.parts.insert(0, damaged_part());
    }
    Some(turn.encode_to_vec().into())
}

/// Builds the replacement for a turn that has no readable content or header.
///
/// Its author and calls are unknown, so callers pass the system role unless the position of the
/// turn implies a different one.
pub fn unknown_turn(seq: u64, role: v1::Role) -> Arc<[u8]> {
    let turn = v1::Turn {
        role: role.into(),
        parts: vec![damaged_part()],
        seq,
        ..v1::Turn::default()
    };
    turn.encode_to_vec().into()
}

fn damaged_part() -> v1::Part {
    v1::Part {
        part: Some(v1::part::Part::Text(DAMAGED_TEXT.to_owned())),
        extra_json: String::new(),
    }
}

/// A `memoird.v1.Turn` without its text and payloads.
///
/// Fields missing here are skipped when a full turn is decoded as a header, so that is cheap.
#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(int32, tag = "1")]
    role: i32,
    #[prost(message, repeated, tag = "2")]
    parts: Vec<HeaderPart>,
    #[prost(message, optional, tag = "3")]
    timestamp: Option<prost_types::Timestamp>,
    #[prost(float, optional, tag = "5")]
    salience: Option<f32>,
    #[prost(bool, tag = "6")]
    pinned: bool,
    #[prost(string, tag = "11")]
    client_id: String,
}

/// A `memoird.v1.Part` that is a tool call or a tool result.
#[derive(Clone, PartialEq, Message)]
struct HeaderPart {
    #[prost(message, optional, tag = "2")]
    tool_use: Option<HeaderCall>,
    #[prost(message, optional, tag = "3")]
    tool_result: Option<HeaderResult>,
}

#[derive(Clone, PartialEq, Message)]
struct HeaderCall {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct HeaderResult {
    #[prost(string, tag = "1")]
    tool_use_id: String,
}

impl Header {
    fn of(content: &[u8]) -> Option<Self> {
        let mut header = Self::decode(content).ok()?;
        header
            .parts
            .retain(|part| part.tool_use.is_some() || part.tool_result.is_some());
        Some(header)
    }
}

#[cfg(test)]
mod tests {
    use memoird_core::turn::{NewTurn, PartKind, Role, Turn};

    use super::*;
    use crate::encoding::{encode, open_with_seq, seal};

    fn key() -> TurnKey {
        TurnKey {
            generation: Generation::new(7, 7),
            seq: 9,
        }
    }

    fn sealed(role: Role, parts: Vec<PartKind>) -> Arc<[u8]> {
        let mut plain = Turn::new(role, parts.into_iter().map(Into::into).collect());
        plain.pinned = true;
        plain.client_id = "m1".into();
        plain.client_json = r#""hello""#.into();
        let turn: NewTurn = encode(plain);
        seal(&turn, key().seq, memoird_core::time::Timestamp::from_ms(5))
    }

    fn verdict(key: TurnKey, content: &[u8], protection: &Protection) -> Verdict {
        let stored = StoredTurn {
            content,
            header: Some(&protection.header),
            checksum: Some(protection.checksum),
        };
        examine(key, &stored)
    }

    fn call() -> PartKind {
        PartKind::ToolUse {
            id: "x".into(),
            name: "look".into(),
            input_json: r#"{"secret":1}"#.into(),
        }
    }

    fn result() -> PartKind {
        PartKind::ToolResult {
            tool_use_id: "x".into(),
            content: "found".into(),
            parts: vec![PartKind::Text("rich".into()).into()],
            is_error: false,
        }
    }

    #[test]
    fn every_bit_flip_of_content_is_detected_and_header_survives() {
        let text = PartKind::Text("hello".into());
        for (role, parts) in [
            (Role::User, vec![text.clone()]),
            (Role::Assistant, vec![text, call()]),
            (Role::Tool, vec![result()]),
        ] {
            let content = sealed(role, parts);
            let protection = protect(key(), &content);
            assert_eq!(verdict(key(), &content, &protection), Verdict::Whole);
            let (_, whole) = open_with_seq(&content).expect("a turn");
            for bit in 0..content.len() * 8 {
                let mut flipped = content.to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let Verdict::Damaged {
                    stand_in: Some(stand_in),
                } = verdict(key(), &flipped, &protection)
                else {
                    panic!("bit {bit} of a turn of {role:?} was not noticed");
                };
                let (seq, turn) = open_with_seq(&stand_in).expect("a turn");
                assert_eq!((seq, turn.role, turn.pinned), (key().seq, role, true));
                assert_eq!(turn.timestamp, whole.timestamp);
                assert_eq!((&*turn.client_id, &*turn.client_json), ("m1", ""));
                let (links, expected) = (turn.links(), whole.links());
                assert_eq!(
                    (links.uses, links.results),
                    (expected.uses, expected.results)
                );
                let said = format!("{:?}", turn.parts);
                assert!(said.contains(DAMAGED_TEXT), "{said}");
                for lost in ["hello", "secret", "found", "rich"] {
                    assert!(!said.contains(lost), "{said}");
                }
                assert!(
                    turn.check(0, &memoird_core::limits::Limits::default())
                        .is_ok()
                );
            }
        }
    }

    #[test]
    fn content_at_wrong_seq_is_damaged() {
        let content = sealed(Role::Tool, vec![result()]);
        let protection = protect(key(), &content);
        let moved = TurnKey { seq: 8, ..key() };
        let none = Verdict::Damaged { stand_in: None };
        assert_eq!(verdict(moved, &content, &protection), none);
    }

    #[test]
    fn damaged_header_is_tolerated_unless_content_is_damaged_too() {
        let content = sealed(Role::User, vec![PartKind::Text("hello".into())]);
        let mut protection = protect(key(), &content);
        protection.header[0] ^= 1;
        assert_eq!(verdict(key(), &content, &protection), Verdict::Whole);
        let none = Verdict::Damaged { stand_in: None };
        assert_eq!(verdict(key(), &content[1..], &protection), none);
    }

    #[test]
    fn turn_without_checksum_is_unchecked() {
        let stored = StoredTurn {
            content: b"anything",
            header: None,
            checksum: None,
        };
        assert_eq!(examine(key(), &stored), Verdict::Unchecked);
    }
}
