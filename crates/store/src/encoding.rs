//! The encoding of turns. A turn is encoded once, on arrival.
//!
//! Memory, the journal and replies use the same bytes, a `memoird.v1.Turn`. A turn is encoded
//! before its seq is known. The seq, and the timestamp if the bot sent none, are appended as
//! further fields, which protobuf allows.

use std::sync::Arc;

use memoird_core::history::LiveSet;
use memoird_core::history::TurnRecord;
use memoird_core::session::SavedTurn;
use memoird_core::time::Timestamp;
use memoird_core::turn::MessageFormat;
use memoird_core::turn::{MediaSource, NewTurn, Part, PartKind, Role, Turn};
use memoird_proto::v1;
use prost::Message;
use thiserror::Error;

/// Why a protobuf turn was rejected.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Malformed {
    /// The role is unspecified or unknown.
    #[error("invalid role {0}; use ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL or ROLE_SYSTEM")]
    Role(i32),
    #[error(
        "parts[{0}] is empty; set one of text, tool_use, tool_result, media, thinking, \
         and of media one of data, uri"
    )]
    Part(usize),
    #[error("timestamp is outside the years 1970 to 9999")]
    Timestamp,
}

/// Converts a protobuf turn. Its seq is ignored.
///
/// # Errors
/// [`Malformed`] if it has values outside the contract.
pub fn from_proto(turn: v1::Turn) -> Result<Turn, Malformed> {
    let role = match turn.role() {
        v1::Role::User => Role::User,
        v1::Role::Assistant => Role::Assistant,
        v1::Role::Tool => Role::Tool,
        v1::Role::System => Role::System,
        v1::Role::Unspecified => return Err(Malformed::Role(turn.role)),
    };
    let timestamp = turn.timestamp.map(|time| {
        let nanos = u32::try_from(time.nanos).ok();
        nanos
            .and_then(|nanos| Timestamp::new(time.seconds, nanos))
            .ok_or(Malformed::Timestamp)
    });
    Ok(Turn {
        role,
        parts: parts_from_proto(turn.parts)?,
        timestamp: timestamp.transpose()?,
        salience: turn.salience,
        pinned: turn.pinned,
        metadata: turn.metadata,
        format: format_from_proto(turn.format),
        extra_json: turn.extra_json,
        client_id: turn.client_id,
        client_json: turn.client_json,
    })
}

/// Encodes a turn without its seq.
pub fn encode(turn: Turn) -> NewTurn {
    let mut new = NewTurn::from_turn(&turn);
    new.body = to_proto(turn).encode_to_vec();
    new
}

/// Appends seq and, if missing, timestamp to an encoded turn, which yields the stored bytes.
pub fn seal(turn: &NewTurn, seq: u64, at: Timestamp) -> Arc<[u8]> {
    let place = v1::Turn {
        seq,
        timestamp: turn.timestamp.is_none().then(|| timestamp_to_proto(at)),
        ..v1::Turn::default()
    };
    let mut content = Vec::with_capacity(turn.body.len() + place.encoded_len());
    content.extend_from_slice(&turn.body);
    place.encode_raw(&mut content);
    content.into()
}

/// Encodes a decoded or synthetic turn with a seq.
pub fn encode_with_seq(turn: Turn, seq: u64) -> Arc<[u8]> {
    v1::Turn {
        seq,
        ..to_proto(turn)
    }
    .encode_to_vec()
    .into()
}

/// Decodes a stored turn. `None` if the bytes are damaged.
pub fn open(content: &[u8]) -> Option<Turn> {
    from_proto(v1::Turn::decode(content).ok()?).ok()
}

/// Decodes a stored turn with its seq. `None` if the bytes are damaged.
pub fn open_with_seq(content: &[u8]) -> Option<(u64, Turn)> {
    let turn = v1::Turn::decode(content).ok()?;
    Some((turn.seq, from_proto(turn).ok()?))
}

/// Returns the seq of a stored turn. `None` if the bytes are damaged.
pub fn seq_of(content: &[u8]) -> Option<u64> {
    Some(v1::Turn::decode(content).ok()?.seq)
}

/// Returns the seq of a stored turn if it has this client id.
pub fn seq_of_client_id(content: &[u8], client_id: &str) -> Option<u64> {
    // Avoids decoding: most turns do not contain the bytes at all.
    memchr::memmem::find(content, client_id.as_bytes())?;
    let turn = v1::Turn::decode(content).ok()?;
    (turn.client_id == client_id).then_some(turn.seq)
}

/// Decodes a stored turn into its record and the ids of the calls it answers.
///
/// `None` if the bytes are damaged.
pub fn decode_saved(seq: u64, content: Arc<[u8]>) -> Option<SavedTurn> {
    let opened = open(&content)?;
    let turn = NewTurn::from_turn(&opened);
    let record = TurnRecord::new(&turn, seq, content);
    Some((record, turn.links.results))
}

pub fn timestamp_to_proto(time: Timestamp) -> prost_types::Timestamp {
    let nanos = i32::try_from(time.nanos()).unwrap_or(0);
    prost_types::Timestamp {
        seconds: time.seconds(),
        nanos,
    }
}

fn parts_from_proto(parts: Vec<v1::Part>) -> Result<Vec<Part>, Malformed> {
    let part = |(place, part): (usize, v1::Part)| {
        let empty = Malformed::Part(place);
        Ok(Part {
            kind: kind_from_proto(part.part.ok_or(empty)?, empty)?,
            extra_json: part.extra_json,
        })
    };
    parts.into_iter().enumerate().map(part).collect()
}

fn kind_from_proto(part: v1::part::Part, empty: Malformed) -> Result<PartKind, Malformed> {
    use v1::part::Part as Proto;
    Ok(match part {
        Proto::Text(text) => PartKind::Text(text),
        Proto::ToolUse(call) => PartKind::ToolUse {
            id: call.id,
            name: call.name,
            input_json: call.input_json,
        },
        Proto::ToolResult(result) => PartKind::ToolResult {
            tool_use_id: result.tool_use_id,
            content: result.content,
            // Recursion is bounded by the protobuf decoder's limit of 100 levels. The check of the
            // turn rejects more than one level.
            parts: parts_from_proto(result.parts)?,
            is_error: result.is_error,
        },
        Proto::Media(media) => PartKind::Media {
            media_type: media.media_type,
            source: match media.source.ok_or(empty)? {
                v1::media::Source::Data(data) => MediaSource::Data(data.into()),
                v1::media::Source::Uri(uri) => MediaSource::Uri(uri),
            },
            name: media.name,
        },
        Proto::Thinking(thinking) => PartKind::Thinking {
            text: thinking.text,
            signature: thinking.signature,
            redacted: thinking.redacted,
        },
    })
}

/// Encodes a turn as a message, without its seq.
pub fn to_proto(turn: Turn) -> v1::Turn {
    let role = match turn.role {
        Role::User => v1::Role::User,
        Role::Assistant => v1::Role::Assistant,
        Role::Tool => v1::Role::Tool,
        Role::System => v1::Role::System,
    };
    v1::Turn {
        role: role.into(),
        parts: turn.parts.into_iter().map(part_to_proto).collect(),
        timestamp: turn.timestamp.map(timestamp_to_proto),
        seq: 0,
        salience: turn.salience,
        pinned: turn.pinned,
        metadata: turn.metadata,
        extra_json: turn.extra_json,
        format: turn
            .format
            .map_or(0, |format| format_to_proto(format).into()),
        removed: false,
        client_id: turn.client_id,
        client_json: turn.client_json,
    }
}

/// Converts a message format. `None` if it is unspecified or unknown.
pub fn format_from_proto(format: i32) -> Option<MessageFormat> {
    match v1::MessageFormat::try_from(format) {
        Ok(v1::MessageFormat::Openai) => Some(MessageFormat::OpenAi),
        Ok(v1::MessageFormat::OpenaiResponses) => Some(MessageFormat::OpenAiResponses),
        Ok(v1::MessageFormat::Anthropic) => Some(MessageFormat::Anthropic),
        Ok(v1::MessageFormat::Unspecified) | Err(_) => None,
    }
}

pub fn format_to_proto(format: MessageFormat) -> v1::MessageFormat {
    match format {
        MessageFormat::OpenAi => v1::MessageFormat::Openai,
        MessageFormat::OpenAiResponses => v1::MessageFormat::OpenaiResponses,
        MessageFormat::Anthropic => v1::MessageFormat::Anthropic,
    }
}

fn part_to_proto(part: Part) -> v1::Part {
    use v1::part::Part as Proto;
    let kind = match part.kind {
        PartKind::Text(text) => Proto::Text(text),
        PartKind::ToolUse {
            id,
            name,
            input_json,
        } => Proto::ToolUse(v1::ToolUse {
            id,
            name,
            input_json,
        }),
        PartKind::ToolResult {
            tool_use_id,
            content,
            parts,
            is_error,
        } => {
            let parts = parts.into_iter().map(part_to_proto).collect();
            Proto::ToolResult(v1::ToolResult {
                tool_use_id,
                content,
                parts,
                is_error,
            })
        }
        PartKind::Media {
            media_type,
            source,
            name,
        } => {
            let source = Some(match source {
                MediaSource::Data(data) => v1::media::Source::Data(data.into()),
                MediaSource::Uri(uri) => v1::media::Source::Uri(uri),
            });
            Proto::Media(v1::Media {
                media_type,
                source,
                name,
            })
        }
        PartKind::Thinking {
            text,
            signature,
            redacted,
        } => Proto::Thinking(v1::Thinking {
            text,
            signature,
            redacted,
        }),
    };
    v1::Part {
        part: Some(kind),
        extra_json: part.extra_json,
    }
}

#[derive(Clone, PartialEq, Message)]
struct LiveSetRow {
    #[prost(uint64, optional, tag = "1")]
    anchor: Option<u64>,
    #[prost(uint64, tag = "2")]
    floor: u64,
    #[prost(uint64, repeated, tag = "3")]
    pinned: Vec<u64>,
    #[prost(uint64, repeated, tag = "4")]
    holes: Vec<u64>,
    #[prost(string, repeated, tag = "5")]
    departed: Vec<String>,
    #[prost(bool, tag = "6")]
    departed_overflow: bool,
    #[prost(uint64, repeated, tag = "7")]
    preamble: Vec<u64>,
}

pub fn encode_live_set(kept: &LiveSet) -> Vec<u8> {
    LiveSetRow {
        anchor: kept.anchor,
        floor: kept.floor,
        pinned: kept.pinned.clone(),
        holes: kept.holes.clone(),
        departed: kept.departed.iter().map(ToString::to_string).collect(),
        departed_overflow: kept.departed_overflow,
        preamble: kept.preamble.clone(),
    }
    .encode_to_vec()
}

/// Decodes a live set. `None` if the row is damaged.
pub fn decode_live_set(row: &[u8]) -> Option<LiveSet> {
    let row = LiveSetRow::decode(row).ok()?;
    Some(LiveSet {
        anchor: row.anchor,
        floor: row.floor,
        pinned: row.pinned,
        holes: row.holes,
        departed: row.departed.into_iter().map(Into::into).collect(),
        departed_overflow: row.departed_overflow,
        preamble: row.preamble,
    })
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_round_trips_through_encoding() {
        let result = PartKind::ToolResult {
            tool_use_id: "x".into(),
            content: String::new(),
            parts: vec![PartKind::Text("rich".into()).into()],
            is_error: true,
        };
        let media = PartKind::Media {
            media_type: "image/png".into(),
            source: MediaSource::Data(vec![0, 255]),
            name: "a".into(),
        };
        let mut turn = Turn::new(Role::User, vec![result.into(), media.into()]);
        turn.metadata.insert("b".into(), "1".into());
        turn.extra_json = r#"{"name":"n"}"#.into();
        turn.salience = Some(0.5);
        turn.client_id = "m1".into();
        turn.client_json = r#"{ "id":"m1" }"#.into();
        let sealed = seal(&encode(turn.clone()), 7, Timestamp::new(5, 6).unwrap());
        let read = v1::Turn::decode(&*sealed).unwrap();
        assert_eq!(read.seq, 7);
        turn.timestamp = Timestamp::new(5, 6);
        assert_eq!(
            from_proto(read).unwrap(),
            turn,
            "the time of arrival is put to it"
        );

        turn.timestamp = Timestamp::new(1, 999_999_999);
        let sealed = seal(&encode(turn.clone()), 8, Timestamp::new(5, 6).unwrap());
        assert_eq!(
            from_proto(v1::Turn::decode(&*sealed).unwrap()).unwrap(),
            turn
        );
    }

    #[test]
    fn values_outside_the_contract_are_refused() {
        let good = to_proto(Turn::new(
            Role::User,
            vec![PartKind::Text("a".into()).into()],
        ));
        let with = |change: fn(&mut v1::Turn)| {
            let mut turn = good.clone();
            change(&mut turn);
            from_proto(turn).unwrap_err()
        };
        assert_eq!(with(|turn| turn.role = 99), Malformed::Role(99));
        assert_eq!(with(|turn| turn.role = 0), Malformed::Role(0));
        assert_eq!(with(|turn| turn.parts[0].part = None), Malformed::Part(0));
        let year_10000 = |turn: &mut v1::Turn| {
            turn.timestamp = Some(prost_types::Timestamp {
                seconds: i64::MAX,
                nanos: 0,
            });
        };
        assert_eq!(with(year_10000), Malformed::Timestamp);
    }
}
