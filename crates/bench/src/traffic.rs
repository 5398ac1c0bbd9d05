//! What a load sends, encoded before it starts, so that the client takes as little
//! as it can of the cores that it shares with the server.
//!
//! Every request is the id of a session or subject, and a body that was encoded beforehand;
//! only facts and what is recalled are made call by call, because each is another one.
//! Replies are measured and thrown away.

use std::io::{Cursor, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, BufMut, Bytes};
use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    AppendRequest, GetContextRequest, ListSessionsRequest, MemoryKind, NearDuplicate, Part,
    RecallRequest, RememberRequest, Role, Turn, WindowPolicy,
};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::mix::CallKind;

/// The number of different appends, which are sent again and again.
const BODIES: usize = 64;
/// A prefix and the digits of a number.
const ID_BYTES_MAX: usize = 64;
const WORDS: [&str; 24] = [
    "the", "flight", "is", "booked", "for", "two", "please", "change", "my", "seat", "to", "a",
    "window", "and", "tell", "me", "what", "it", "costs", "again", "tomorrow", "evening", "in",
    "Lisbon",
];

/// Words of a fact, the first ones more often, and words of a query.
const VOCABULARY: u64 = 20_000;
const QUERY_WORDS: usize = 4;
/// Sessions of a page of a list.
pub(super) const PAGE_SESSIONS: u32 = 10;
/// A word of the vocabulary has three of these.
const SYLLABLES: [&str; 28] = [
    "ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu", "va",
    "we", "xi", "yo", "zu", "bra", "cle", "dri", "flo", "gru", "pla", "ste", "tri",
];

/// A small generator of random numbers: fast, and the same for the same seed.
#[derive(Clone)]
pub(super) struct Rng(u64);

/// One request.
pub(super) struct Call {
    /// The number of the field that its id is in.
    pub(super) field: u8,
    /// Which session, or which subject.
    pub(super) session: u64,
    /// All but its id.
    pub(super) body: Bytes,
}

/// Requests without their session ids, to choose from.
#[derive(Clone)]
pub(super) struct Bodies {
    appends: Arc<[Bytes]>,
    contexts: Arc<[Bytes]>,
    /// Bytes of a fact, and facts that were said.
    fact_bytes: usize,
    facts: Arc<AtomicU64>,
    /// Of the vectors of facts and queries; 0: they have none.
    dimensions: usize,
}

/// Writes requests and drops replies.
#[derive(Clone)]
pub(super) struct RawCodec {
    /// What session ids start with.
    pub(super) prefix: Arc<str>,
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

impl Bodies {
    /// Appends, by turns and bytes of a turn, and windows without an append.
    pub(super) fn new(turns: usize, bytes: usize, rng: &mut Rng) -> Self {
        let appends = append_requests(turns, bytes, rng);
        let appends = appends
            .into_iter()
            .map(|append| append.encode_to_vec().into())
            .collect();
        Self {
            appends,
            contexts: Arc::new([Bytes::new()]),
            fact_bytes: bytes,
            facts: Arc::default(),
            dimensions: 0,
        }
    }

    /// The same, with vectors of so many dimensions beside facts and queries.
    pub(super) fn with_vectors(self, dimensions: u16) -> Self {
        Self {
            dimensions: dimensions.into(),
            ..self
        }
    }

    /// The same with windows that append as many turns first, chosen by this policy.
    pub(super) fn with_windows(
        turns: usize,
        bytes: usize,
        policy: Option<WindowPolicy>,
        rng: &mut Rng,
    ) -> Self {
        let bodies = Self::new(turns, bytes, rng);
        let context = |append| {
            let append = Some(append);
            let request = GetContextRequest {
                append,
                policy,
                ..GetContextRequest::default()
            };
            request.encode_to_vec().into()
        };
        let contexts = append_requests(turns, bytes, rng)
            .into_iter()
            .map(context)
            .collect();
        Self { contexts, ..bodies }
    }

    /// The body of the next call of this kind.
    pub(super) fn draw(&self, kind: CallKind, rng: &mut Rng) -> Bytes {
        let bodies = match kind {
            CallKind::Append => &self.appends,
            CallKind::Context => &self.contexts,
            CallKind::History => return Bytes::new(),
            CallKind::Remember => return self.fact(rng),
            CallKind::Recall => return self.query(rng),
            CallKind::List => return page(),
        };
        let body = usize::try_from(rng.below(bodies.len() as u64)).unwrap_or(0);
        bodies.get(body).cloned().unwrap_or_default()
    }

    /// A fact that was not said before.
    fn fact(&self, rng: &mut Rng) -> Bytes {
        let mut content = self.facts.fetch_add(1, Ordering::Relaxed).to_string();
        while content.len() < self.fact_bytes {
            content.push(' ');
            push_word(&mut content, rng);
        }
        let kind = MemoryKind::Project.into();
        RememberRequest {
            kind,
            content,
            vector: vector(self.dimensions, rng),
            // It is not compared with all others first.
            near_duplicate: match self.dimensions {
                0 => NearDuplicate::Unspecified.into(),
                _ => NearDuplicate::Keep.into(),
            },
            ..RememberRequest::default()
        }
        .encode_to_vec()
        .into()
    }

    fn query(&self, rng: &mut Rng) -> Bytes {
        let mut query = String::new();
        for _ in 0..QUERY_WORDS {
            push_word(&mut query, rng);
            query.push(' ');
        }
        RecallRequest {
            query,
            vector: vector(self.dimensions, rng),
            ..RecallRequest::default()
        }
        .encode_to_vec()
        .into()
    }
}

/// Of a list.
fn page() -> Bytes {
    let request = ListSessionsRequest {
        page_size: PAGE_SESSIONS,
        ..ListSessionsRequest::default()
    };
    request.encode_to_vec().into()
}

/// A direction, none more often than another one in each of the dimensions.
#[allow(clippy::cast_precision_loss, reason = "a number below 2,001")]
fn vector(dimensions: usize, rng: &mut Rng) -> Vec<f32> {
    let value = |_| (rng.below(2_001) as f32 - 1_000.0) / 1_000.0;
    (0..dimensions).map(value).collect()
}

fn push_word(text: &mut String, rng: &mut Rng) {
    // Twice at random: some words come much more often than others, as in any language.
    let bound = rng.below(VOCABULARY) + 1;
    let mut word = rng.below(bound);
    for _ in 0..3 {
        let count = SYLLABLES.len() as u64;
        text.push_str(usize::try_from(word % count).map_or("", |index| SYLLABLES[index]));
        word /= count;
    }
}

fn append_requests(turns: usize, bytes: usize, rng: &mut Rng) -> Vec<AppendRequest> {
    let request = |_| {
        let turns = (0..turns).map(|index| turn(index, bytes, rng)).collect();
        AppendRequest {
            turns,
            ..AppendRequest::default()
        }
    };
    (0..BODIES).map(request).collect()
}

/// A turn of plain text: the person's and the model's in turns.
pub(super) fn turn(index: usize, bytes: usize, rng: &mut Rng) -> Turn {
    let role = if index.is_multiple_of(2) {
        Role::User
    } else {
        Role::Assistant
    };
    let text = Part {
        part: Some(Kind::Text(text(bytes, rng))),
        extra_json: String::new(),
    };
    Turn {
        role: role as i32,
        parts: vec![text],
        ..Turn::default()
    }
}

/// Words, to the byte as long as asked.
pub(super) fn text(bytes: usize, rng: &mut Rng) -> String {
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
    /// What is behind the field's number: that it is a string.
    const STRING: u8 = 2;
    let mut id = Cursor::new([0; ID_BYTES_MAX]);
    // A prefix of ours and twenty digits always fit.
    let _ = write!(id, "{prefix}{}", call.session);
    let length = u8::try_from(id.position()).unwrap_or(0);
    to.put_slice(&[call.field << 3 | STRING, length]);
    to.put_slice(&id.get_ref()[..usize::from(length)]);
    to.put_slice(&call.body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_the_contract() {
        let bodies = Bodies::with_windows(3, 200, None, &mut Rng::new(1));
        let sent = |kind| {
            let body = bodies.draw(kind, &mut Rng::new(5));
            let mut sent = Vec::new();
            let call = Call {
                field: kind.id_field(),
                session: 1_234_567,
                body,
            };
            encode("bench-000001-", &call, &mut sent);
            sent
        };
        let append = sent(CallKind::Append);
        let request = AppendRequest::decode(&*append).expect("an append");
        assert_eq!(request.session_id, "bench-000001-1234567");
        assert_eq!(request.turns.len(), 3);
        for turn in &request.turns {
            let Some(Kind::Text(text)) = &turn.parts[0].part else {
                panic!("no text")
            };
            assert_eq!(text.len(), 200);
        }
        assert_eq!(request.turns[1].role, Role::Assistant as i32);
        let context = GetContextRequest::decode(&*sent(CallKind::Context)).expect("a window");
        assert_eq!(context.session_id, request.session_id);
        let inner = context.append.expect("an append in it");
        assert_eq!((inner.turns.len(), &*inner.session_id), (3, ""));
        let fact = RememberRequest::decode(&*sent(CallKind::Remember)).expect("a fact");
        assert_eq!(
            (&fact.subject, fact.kind()),
            (&request.session_id, MemoryKind::Project)
        );
        assert!((200..220).contains(&fact.content.len()), "{}", fact.content);
        let list = ListSessionsRequest::decode(&*sent(CallKind::List)).expect("a list");
        assert_eq!(list.id_prefix, request.session_id);
        assert_eq!(list.page_size, PAGE_SESSIONS);
        let recall = RecallRequest::decode(&*sent(CallKind::Recall)).expect("a recall");
        assert_eq!(recall.subjects, [request.session_id.as_str()]);
        assert_eq!(recall.query.split_whitespace().count(), QUERY_WORDS);
        let again = Bodies::with_windows(3, 200, None, &mut Rng::new(1));
        assert_eq!(bodies.appends, again.appends, "a seed repeats");
    }
}
