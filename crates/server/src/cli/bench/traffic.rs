//! What a load sends, encoded before it starts, so that the client takes as little
//! as it can of the cores that it shares with the server.
//!
//! Every request is `session_id`, the first field of all of them, and a body that
//! was encoded beforehand; replies are measured and thrown away.

use std::io::{Cursor, Write};
use std::str::FromStr;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{AppendRequest, Part, Role, Turn};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// So many different appends are sent again and again.
const BODIES: usize = 64;
/// A prefix and the digits of a number.
const ID_BYTES_MAX: usize = 64;
const WORDS: [&str; 24] = [
    "the", "flight", "is", "booked", "for", "two", "please", "change", "my", "seat", "to", "a",
    "window", "and", "tell", "me", "what", "it", "costs", "again", "tomorrow", "evening", "in",
    "Lisbon",
];

/// How many appends come on how many reads of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mix {
    /// The weight of appends.
    pub(super) append: u32,
    /// The weight of reads.
    pub(super) history: u32,
}

/// A small generator of random numbers: fast, and the same for the same seed.
#[derive(Clone)]
pub(super) struct Rng(u64);

/// One request.
pub(super) struct Call {
    /// Which session.
    pub(super) session: u64,
    /// All but its id.
    pub(super) body: Bytes,
}

/// Writes requests and drops replies.
#[derive(Clone)]
pub(super) struct RawCodec {
    /// What session ids start with.
    pub(super) prefix: Arc<str>,
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "not of the form append:history, such as 9:1".to_owned();
        let (append, history) = text.split_once(':').ok_or_else(wrong)?;
        let weight = |text: &str| text.trim().parse::<u16>().map(u32::from).map_err(|_| wrong());
        let mix = Self { append: weight(append)?, history: weight(history)? };
        if mix.append + mix.history == 0 {
            return Err("one of the two must be more than 0".to_owned());
        }
        Ok(mix)
    }
}

impl Mix {
    /// Nothing but appends.
    pub(super) const APPENDS: Self = Self { append: 1, history: 0 };

    /// True for an append.
    pub(super) fn draw(self, rng: &mut Rng) -> bool {
        self.history == 0 || rng.below(u64::from(self.append + self.history)) < self.append.into()
    }
}

impl std::fmt::Display for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.append, self.history)
    }
}

impl Rng {
    /// The stream of a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number (SplitMix64).
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below a bound.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// The bodies of appends of so many turns of so many bytes each.
pub(super) fn append_bodies(turns: usize, bytes: usize, rng: &mut Rng) -> Arc<[Bytes]> {
    (0..BODIES)
        .map(|_| {
            let turns = (0..turns).map(|index| turn(index, bytes, rng)).collect();
            AppendRequest { turns, ..AppendRequest::default() }.encode_to_vec().into()
        })
        .collect()
}

/// A turn of plain text: the person's and the model's in turns.
pub(super) fn turn(index: usize, bytes: usize, rng: &mut Rng) -> Turn {
    let role = if index.is_multiple_of(2) { Role::User } else { Role::Assistant };
    let text = Part { part: Some(Kind::Text(text(bytes, rng))), extra_json: String::new() };
    Turn { role: role as i32, parts: vec![text], ..Turn::default() }
}

/// Words, to the byte as long as asked.
fn text(bytes: usize, rng: &mut Rng) -> String {
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        let word = rng.below(WORDS.len() as u64);
        text.push_str(usize::try_from(word).map_or("", |index| WORDS[index]));
        text.push(' ');
    }
    text.truncate(bytes);
    text
}

impl Codec for RawCodec {
    type Encode = Call;
    type Decode = u64;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        self.clone()
    }

    fn decoder(&mut self) -> Self {
        self.clone()
    }
}

impl Encoder for RawCodec {
    type Item = Call;
    type Error = Status;

    fn encode(&mut self, call: Call, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        encode(&self.prefix, &call, to);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = u64;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<u64>, Status> {
        let bytes = from.remaining();
        from.advance(bytes);
        Ok(Some(bytes as u64))
    }
}

fn encode(prefix: &str, call: &Call, to: &mut impl BufMut) {
    /// Field 1, a string.
    const SESSION_ID: u8 = 1 << 3 | 2;
    let mut id = Cursor::new([0; ID_BYTES_MAX]);
    // A prefix of ours and twenty digits always fit.
    let _ = write!(id, "{prefix}{}", call.session);
    let length = u8::try_from(id.position()).unwrap_or(0);
    to.put_slice(&[SESSION_ID, length]);
    to.put_slice(&id.get_ref()[..usize::from(length)]);
    to.put_slice(&call.body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_two_weights() {
        assert_eq!("9:1".parse(), Ok(Mix { append: 9, history: 1 }));
        assert_eq!("1:0".parse(), Ok(Mix::APPENDS));
        assert_eq!("0:3".parse::<Mix>().map(|mix| mix.to_string()), Ok("0:3".to_owned()));
        for text in ["", "9", "9:", "0:0", "-1:2", "1:2:3", "a:b", "99999:1"] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_mix_is_drawn_by_its_weights() {
        let mut rng = Rng::new(7);
        let drawn = |mix: Mix, rng: &mut Rng| (0..10_000).filter(|_| mix.draw(rng)).count();
        assert_eq!(drawn(Mix { append: 1, history: 0 }, &mut rng), 10_000);
        assert_eq!(drawn(Mix { append: 0, history: 1 }, &mut rng), 0);
        let appends = drawn(Mix { append: 9, history: 1 }, &mut rng);
        assert!((8_800..9_200).contains(&appends), "{appends}");
    }

    #[test]
    fn what_is_sent_is_the_contract() {
        let bodies = append_bodies(3, 200, &mut Rng::new(1));
        let call = Call { session: 1_234_567, body: bodies[5].clone() };
        let mut sent = Vec::new();
        encode("bench-000001-", &call, &mut sent);
        let request = AppendRequest::decode(sent.as_slice()).expect("an append");
        assert_eq!(request.session_id, "bench-000001-1234567");
        assert_eq!(request.turns.len(), 3);
        for turn in &request.turns {
            let Some(Kind::Text(text)) = &turn.parts[0].part else { panic!("no text") };
            assert_eq!(text.len(), 200);
        }
        assert_eq!(request.turns[1].role, Role::Assistant as i32);
        assert_eq!(bodies, append_bodies(3, 200, &mut Rng::new(1)), "a seed repeats");
    }
}
