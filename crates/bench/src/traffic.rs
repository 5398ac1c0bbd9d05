//! Encoded requests of a load.
//!
//! Requests are encoded before the load starts, so that the client uses little of the CPU that it
//! shares with the server. A request is the id of a session or subject, and an encoded body. Only
//! facts and queries are created per call, because each must be different. Responses are counted
//! and discarded.

use std::io::{Cursor, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, BufMut, Bytes};
use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    AppendRequest, BuildContextRequest, ListSessionsRequest, MemoryKind, NearDuplicate, Part,
    RecallRequest, RememberRequest, Role, Turn, WindowPolicy,
};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::mix::CallKind;

/// Number of different appends, which are sent repeatedly.
const BODIES: usize = 64;
/// Maximum bytes of a prefix and the digits of a number.
const ID_BYTES_MAX: usize = 64;
const WORDS: [&str; 24] = [
    "the", "flight", "is", "booked", "for", "two", "please", "change", "my", "seat", "to", "a",
    "window", "and", "tell", "me", "what", "it", "costs", "again", "tomorrow", "evening", "in",
    "Lisbon",
];

/// Number of words to choose from for facts, lower ones more often; and words per query.
const VOCABULARY: u64 = 20_000;
const QUERY_WORDS: usize = 4;
pub(super) const PAGE_SESSIONS: u32 = 10;
/// Words of the vocabulary have three of these.
const SYLLABLES: [&str; 28] = [
    "ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu", "va",
    "we", "xi", "yo", "zu", "bra", "cle", "dri", "flo", "gru", "pla", "ste", "tri",
];

/// A small and fast random number generator with a seed.
#[derive(Clone)]
pub(super) struct Rng(u64);

pub(super) struct Call {
    /// Number of the field that has the id.
    pub(super) field: u8,
    /// Number of the session or subject.
    pub(super) session: u64,
    /// All other fields, encoded.
    pub(super) body: Bytes,
}

/// Requests without their session ids, to choose from.
#[derive(Clone)]
pub(super) struct Bodies {
    appends: Arc<[Bytes]>,
    contexts: Arc<[Bytes]>,
    /// Bytes of a fact, and the number of facts already sent.
    fact_bytes: usize,
    facts: Arc<AtomicU64>,
    /// Dimensions of the vectors of facts and queries; 0 for none.
    dimensions: usize,
    /// Prefix and number of the next append's idempotency key, if appends have one.
    keys: Option<(u64, Arc<AtomicU64>)>,
}

/// Encodes requests and discards responses.
#[derive(Clone)]
pub(super) struct RawCodec {
    pub(super) prefix: Arc<str>,
}

impl Rng {
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
    /// Appends with this many turns of this size, and windows without an append.
    pub(super) fn new(turns: usize, bytes: usize, rng: &mut Rng) -> Self {
        let requests = append_requests(turns, bytes, rng);
        let appends = requests
            .into_iter()
            .map(|append| append.encode_to_vec().into())
            .collect();
        Self {
            appends,
            contexts: Arc::new([Bytes::new()]),
            fact_bytes: bytes,
            facts: Arc::default(),
            dimensions: 0,
            keys: None,
        }
    }

    /// The same, with an idempotency key for each append, as the clients of the project send.
    pub(super) fn with_keys(self, rng: &mut Rng) -> Self {
        Self {
            keys: Some((rng.next(), Arc::default())),
            ..self
        }
    }

    /// The same, with vectors for facts and queries.
    pub(super) fn with_vectors(self, dimensions: u16) -> Self {
        Self {
            dimensions: dimensions.into(),
            ..self
        }
    }

    /// Windows with this policy that first append this many turns.
    pub(super) fn with_windows(
        turns: usize,
        bytes: usize,
        policy: Option<WindowPolicy>,
        rng: &mut Rng,
    ) -> Self {
        let bodies = Self::new(turns, bytes, rng);
        let context = |append| {
            let append = Some(append);
            let request = BuildContextRequest {
                append,
                policy,
                ..BuildContextRequest::default()
            };
            request.encode_to_vec().into()
        };
        let contexts = append_requests(turns, bytes, rng)
            .into_iter()
            .map(context)
            .collect();
        Self { contexts, ..bodies }
    }

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
        let body = bodies.get(body).cloned().unwrap_or_default();
        match (&self.keys, kind) {
            (Some((prefix, next)), CallKind::Append) => {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let named = AppendRequest {
                    idempotency_key: format!("{prefix:016x}{number:016x}"),
                    ..AppendRequest::default()
                };
                // Fields of a message may be in any order.
                let mut keyed = named.encode_to_vec();
                keyed.extend_from_slice(&body);
                keyed.into()
            }
            _ => body,
        }
    }

    /// A new fact.
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
            // Skip the comparison with existing facts.
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

fn page() -> Bytes {
    let request = ListSessionsRequest {
        page_size: PAGE_SESSIONS,
        ..ListSessionsRequest::default()
    };
    request.encode_to_vec().into()
}

/// A random vector with equally distributed components.
#[allow(clippy::cast_precision_loss, reason = "a number below 2,001")]
fn vector(dimensions: usize, rng: &mut Rng) -> Vec<f32> {
    let value = |_| (rng.below(2_001) as f32 - 1_000.0) / 1_000.0;
    (0..dimensions).map(value).collect()
}

fn push_word(text: &mut String, rng: &mut Rng) {
    // Random twice, so that some words are much more frequent, as in natural language.
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

/// A text turn, alternating between user and assistant.
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

/// Random words with exactly this many bytes.
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
    /// Wire type of a string.
    const STRING: u8 = 2;
    let mut id = Cursor::new([0; ID_BYTES_MAX]);
    // The prefix and twenty digits always fit.
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
    fn encoded_calls_decode_as_contract_requests() {
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
        let context = BuildContextRequest::decode(&*sent(CallKind::Context)).expect("a window");
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
        assert_eq!(
            bodies.appends, again.appends,
            "equal seeds draw equal bodies"
        );
    }
}
