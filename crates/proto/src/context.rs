//! The reply of `BuildContext` as the server encodes it.
//!
//! Its turns are spliced from shared storage, without a list per reply.

use std::fmt::Debug;

use bytes::{Buf, BufMut};
use prost::encoding::encoded_len_varint;
use prost::encoding::{DecodeContext, WireType, encode_key, encode_varint, key_len};
use prost::{DecodeError, Message};

use crate::v1;

/// Number of the field `turns`.
const TURNS: u32 = 1;

/// Encoded turns, in order.
pub trait EncodedTurns: Debug + Send + Sync {
    /// Calls `give` with each turn.
    fn each(&self, give: &mut dyn FnMut(&[u8]));
}

impl<T: AsRef<[u8]> + Debug + Send + Sync> EncodedTurns for Vec<T> {
    fn each(&self, give: &mut dyn FnMut(&[u8])) {
        self.iter().for_each(|turn| give(turn.as_ref()));
    }
}

/// Encodes to the same bytes as [`v1::BuildContextResponse`].
#[derive(Debug)]
pub struct BuildContextResponse {
    pub turns: Box<dyn EncodedTurns>,
    /// All other fields. Its own turns are encoded after `turns`.
    pub rest: v1::BuildContextResponse,
}

impl Message for BuildContextResponse {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.turns.each(&mut |turn| {
            encode_key(TURNS, WireType::LengthDelimited, buf);
            encode_varint(turn.len() as u64, buf);
            buf.put_slice(turn);
        });
        self.rest.encode_raw(buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        self.rest.merge_field(tag, wire_type, buf, ctx)
    }

    fn encoded_len(&self) -> usize {
        let mut len = self.rest.encoded_len();
        self.turns.each(&mut |turn| {
            len += key_len(TURNS) + encoded_len_varint(turn.len() as u64) + turn.len();
        });
        len
    }

    fn clear(&mut self) {
        self.turns = Box::new(Vec::<&[u8]>::new());
        self.rest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_on_the_wire() {
        let turn = |text: &str| v1::Turn {
            extra_json: text.repeat(100),
            seq: text.len() as u64,
            ..v1::Turn::default()
        };
        let turns = vec![turn("one"), turn(""), turn("three")];
        let rest = v1::BuildContextResponse {
            system: "be kind".into(),
            memories_text: "none".into(),
            ..v1::BuildContextResponse::default()
        };
        let spliced = BuildContextResponse {
            turns: Box::new(turns.iter().map(Message::encode_to_vec).collect::<Vec<_>>()),
            rest: rest.clone(),
        };
        let whole = v1::BuildContextResponse { turns, ..rest };
        assert_eq!(spliced.encode_to_vec(), whole.encode_to_vec());
    }
}
