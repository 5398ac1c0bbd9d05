//! Decodes requests, after counting the messages in them.
//!
//! An embedded message takes 2 bytes or more, and hundreds once it is decoded. So messages are
//! counted in the encoded request, limited, and charged to the call's memory.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};

use bytes::Buf;
use memoird_proto::DESCRIPTOR_POOL;
use memoird_proto::prost_reflect::{Kind, MessageDescriptor};
use prost::encoding::{WireType, decode_key, decode_varint};
use prost::{Message, Name};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

use crate::layers::limits::CallPermit;
use crate::wire::refusal::Refusal;
use crate::wire::status;

/// Maximum number of embedded messages and map entries in a request. Calls need far fewer.
pub(crate) const MESSAGES_MAX: usize = 1 << 18;

/// Number of messages that cost nothing extra.
const MESSAGES_FREE: usize = 1 << 10;

/// Memory of a decoded message without its contents, with spare capacity of its list.
const MESSAGE_BYTES: u64 = 512;

/// Maximum levels of embedded messages. `prost` rejects requests with more than 100.
const LEVELS_MAX: usize = 100;

/// Encodes replies of type `R` and decodes requests of type `Q`.
pub(crate) struct RequestCodec<R, Q> {
    permit: Arc<CallPermit>,
    types: PhantomData<fn() -> (R, Q)>,
}

impl<R, Q> RequestCodec<R, Q> {
    /// A codec that charges the memory of requests to this call.
    pub(crate) fn new(permit: Arc<CallPermit>) -> Self {
        Self {
            permit,
            types: PhantomData,
        }
    }
}

impl<R: Message + 'static, Q: Message + Name + Default + 'static> Codec for RequestCodec<R, Q> {
    type Encode = R;
    type Decode = Q;
    type Encoder = ProstEncoder<R>;
    type Decoder = RequestDecoder<Q>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        RequestDecoder {
            permit: Arc::clone(&self.permit),
            types: PhantomData,
        }
    }
}

pub(crate) struct RequestDecoder<Q> {
    permit: Arc<CallPermit>,
    types: PhantomData<fn() -> Q>,
}

impl<Q: Message + Name + Default> Decoder for RequestDecoder<Q> {
    type Item = Q;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Q>, Status> {
        let encoded = source.copy_to_bytes(source.remaining());
        let count = SHAPES.count(&Q::full_name(), &encoded)?;
        if count > MESSAGES_FREE {
            self.permit.add_bytes(count as u64 * MESSAGE_BYTES)?;
        }
        let decoded = Q::decode(encoded);
        let request =
            decoded.map_err(|error| status::malformed(String::new(), error.to_string()))?;
        Ok(Some(request))
    }
}

/// Which fields of each message of the contract are messages.
struct Shapes {
    by_name: HashMap<String, usize>,
    /// Field numbers with the place of the field's message in this list.
    messages: Vec<Vec<(u32, usize)>>,
}

static SHAPES: LazyLock<Shapes> = LazyLock::new(|| {
    let all: Vec<MessageDescriptor> = DESCRIPTOR_POOL.all_messages().collect();
    let names = all.iter().map(|message| message.full_name().to_owned());
    let by_name: HashMap<String, usize> = names.zip(0..).collect();
    let embedded = |message: &MessageDescriptor| {
        let fields = message.fields().filter_map(|field| match field.kind() {
            Kind::Message(kind) => Some((field.number(), by_name[kind.full_name()])),
            _ => None,
        });
        fields.collect()
    };
    let messages = all.iter().map(embedded).collect();
    Shapes { by_name, messages }
});

impl Shapes {
    /// Counts the messages embedded in an encoded message, at any level.
    ///
    /// Stops where the encoding is malformed, which decoding reports.
    ///
    /// # Errors
    /// If there are more than [`MESSAGES_MAX`], or if it contains a group, which no message of the
    /// contract has.
    fn count(&self, name: &str, encoded: &[u8]) -> Result<usize, Refusal> {
        let Some(shape) = self.by_name.get(name) else {
            return Ok(0);
        };
        let mut count = 0;
        self.add(*shape, encoded, LEVELS_MAX, &mut count)?;
        Ok(count)
    }

    fn add(
        &self,
        shape: usize,
        mut encoded: &[u8],
        levels_left: usize,
        count: &mut usize,
    ) -> Result<(), Refusal> {
        while encoded.has_remaining() {
            let Ok((number, wire_type)) = decode_key(&mut encoded) else {
                return Ok(());
            };
            let length = match wire_type {
                WireType::Varint => decode_varint(&mut encoded).map(|_| 0),
                WireType::SixtyFourBit => Ok(8),
                WireType::ThirtyTwoBit => Ok(4),
                WireType::LengthDelimited => decode_varint(&mut encoded),
                WireType::StartGroup | WireType::EndGroup => {
                    return Err(status::malformed(String::new(), "it contains a group"));
                }
            };
            let length = length.ok().and_then(|length| usize::try_from(length).ok());
            let Some((content, rest)) = length.and_then(|length| encoded.split_at_checked(length))
            else {
                return Ok(());
            };
            encoded = rest;
            let is_it = |(field, _): &&(u32, usize)| *field == number;
            if wire_type != WireType::LengthDelimited {
                continue;
            }
            if let Some((_, kind)) = self.messages[shape].iter().find(is_it) {
                *count += 1;
                if *count > MESSAGES_MAX {
                    let problem = format!("it has more than {MESSAGES_MAX} messages");
                    return Err(status::malformed(String::new(), problem));
                }
                if levels_left > 0 {
                    self.add(*kind, content, levels_left - 1, count)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use memoird_proto::v1::{AppendRequest, BuildContextRequest, Part, ToolResult, Turn, part};

    use super::*;

    fn count<M: Message + Name>(message: &M) -> Result<usize, Refusal> {
        SHAPES.count(&M::full_name(), &message.encode_to_vec())
    }

    #[test]
    fn messages_and_map_entries_are_counted_at_every_level() {
        let text = Part {
            part: Some(part::Part::Text("hi".to_owned())),
            ..Part::default()
        };
        let result = ToolResult {
            parts: vec![text.clone(), text.clone()],
            ..ToolResult::default()
        };
        let rich = Part {
            part: Some(part::Part::ToolResult(result)),
            ..Part::default()
        };
        let turn = Turn {
            parts: vec![text, rich],
            metadata: [("a".to_owned(), "b".to_owned())].into(),
            ..Turn::default()
        };
        let append = AppendRequest {
            turns: vec![turn, Turn::default()],
            ..AppendRequest::default()
        };
        // Two turns, two parts, a tool result with two parts, and an entry.
        assert_eq!(count(&append).expect("few"), 8);
        let context = BuildContextRequest {
            append: Some(append),
            ..BuildContextRequest::default()
        };
        assert_eq!(count(&context).expect("few"), 9);
        assert_eq!(count(&AppendRequest::default()).expect("none"), 0);
    }

    #[test]
    fn too_many_messages_and_groups_are_rejected() {
        let turns = |count| AppendRequest {
            turns: vec![Turn::default(); count],
            ..AppendRequest::default()
        };
        assert_eq!(count(&turns(MESSAGES_MAX)).expect("as many"), MESSAGES_MAX);
        let refusal = count(&turns(MESSAGES_MAX + 1)).expect_err("one more");
        assert_eq!(refusal.reason, "REQUEST_MALFORMED");
        // An empty group of field 1.
        let group = SHAPES.count(&AppendRequest::full_name(), &[0x0b, 0x0c]);
        assert_eq!(group.expect_err("a group").reason, "REQUEST_MALFORMED");
        // Decoding reports other malformed bytes.
        for malformed in [&[0xff_u8][..], &[0x12, 0x05, 0x00], &[0x09, 0x00]] {
            let counted = SHAPES.count(&AppendRequest::full_name(), malformed);
            assert_eq!(counted.expect("it is left to decoding"), 0);
        }
    }
}
