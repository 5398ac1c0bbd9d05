//! A fake embedding provider with OpenAI's `/v1/embeddings` and a short list of synonyms.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Seed, eventually};

const DIMENSIONS: usize = 256;
/// More calls than any test makes.
const ALL: usize = 1 << 20;
/// Synonyms.
const SAME: [(&str, &str); 4] = [
    ("automobile", "car"),
    ("physician", "doctor"),
    ("feline", "cat"),
    ("beverage", "drink"),
];

#[derive(Debug)]
struct State {
    /// Permits for replies. Calls without a permit wait.
    open: Semaphore,
    is_down: AtomicBool,
    calls: Mutex<Vec<Vec<String>>>,
}

/// A provider that runs until the end of the test.
#[derive(Debug)]
pub(crate) struct Embeddings {
    address: String,
    state: Arc<State>,
    /// Stops the server when dropped.
    _serving: JoinSet<()>,
}

impl Embeddings {
    /// Starts a provider that answers all calls.
    pub(crate) async fn start() -> Self {
        Self::at("127.0.0.1:0").await
    }

    /// The same at this address, once it is free.
    pub(crate) async fn at(address: &str) -> Self {
        let listener = eventually("the address is free", async || {
            TcpListener::bind(address).await.ok()
        });
        let provider = Self::on(listener.await);
        provider.let_through(ALL);
        provider
    }

    /// Starts a provider that accepts calls but holds all replies.
    pub(crate) async fn holding() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.expect("a free port"))
    }

    fn on(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("an address").to_string();
        let (open, is_down) = (Semaphore::new(0), AtomicBool::new(false));
        let state = Arc::new(State {
            open,
            is_down,
            calls: Mutex::default(),
        });
        let mut serving = JoinSet::new();
        let shared = Arc::clone(&state);
        serving.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let state = Arc::clone(&shared);
                open.spawn(async move { serve(stream, &state).await });
            }
        });
        Self {
            address,
            state,
            _serving: serving,
        }
    }

    /// Configuration that uses this provider with this model.
    pub(crate) fn section(&self, model: &str) -> String {
        format!(
            "long_term: {{ query_wait: 10s, embedder: {{ openai: {{ \
             base_url: 'http://{}/v1', model: {model}, batch: 4 }} }} }}",
            self.address
        )
    }

    /// Releases `calls` more replies.
    pub(crate) fn let_through(&self, calls: usize) {
        self.state.open.add_permits(calls);
    }

    /// Makes it return errors, or work again.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.state.is_down.store(is_down, Ordering::SeqCst);
    }

    /// The texts of every call, answered or not.
    pub(crate) fn calls(&self) -> Vec<Vec<String>> {
        self.state
            .calls
            .lock()
            .expect("no test panicked with it")
            .clone()
    }
}

async fn serve(mut stream: TcpStream, state: &State) {
    let Some(body) = read(&mut stream).await else {
        return;
    };
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let texts: Vec<String> = match &body["input"] {
        Value::Array(texts) => texts
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        text => vec![text.as_str().expect("a text").to_owned()],
    };
    state
        .calls
        .lock()
        .expect("no test panicked with it")
        .push(texts.clone());
    if state.is_down.load(Ordering::SeqCst) {
        let _ = stream
            .write_all(&answer("503 Service Unavailable", "{}"))
            .await;
        return;
    }
    let Ok(permit) = state.open.acquire().await else {
        return;
    };
    permit.forget();
    let model = body["model"].as_str().expect("a model");
    let data: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| json!({ "index": index, "embedding": vector(model, text) }))
        .collect();
    let said = json!({ "object": "list", "model": model, "data": data }).to_string();
    let _ = stream.write_all(&answer("200 OK", &said)).await;
    let _ = stream.shutdown().await;
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n");
    format!("{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}").into_bytes()
}

async fn read(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 65_536];
    loop {
        let count = stream
            .read(&mut chunk)
            .await
            .ok()
            .filter(|count| *count > 0)?;
        bytes.extend_from_slice(&chunk[..count]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let mut lengths = head
            .lines()
            .filter_map(|line| line.strip_prefix("content-length: "));
        let length: usize = lengths.next()?.trim().parse().ok()?;
        if bytes.len() >= end + 4 + length {
            return Some(bytes.split_off(end + 4));
        }
    }
}

/// The sum of a vector per word. Synonyms have the same vector.
///
/// Vectors differ between models.
fn vector(model: &str, text: &str) -> Vec<f32> {
    // The offset makes texts without a common word slightly similar.
    let mut vector = vec![0.1; DIMENSIONS];
    let lower = text.to_lowercase();
    for word in lower
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| word.len() > 2)
    {
        let same = SAME.iter().find(|(other, _)| *other == word);
        let meaning = same.map_or(word, |(_, meaning)| meaning);
        for (number, byte) in vector.iter_mut().zip(direction(model, meaning)) {
            *number += if byte & 1 == 0 { 1.0 } else { -1.0 };
        }
    }
    vector
}

/// Bytes derived from a meaning by FNV-1a (Fowler, Noll and Vo).
///
/// See <http://www.isthe.com/chongo/tech/comp/fnv/>.
fn direction(model: &str, meaning: &str) -> Vec<u8> {
    let hash = model
        .bytes()
        .chain(meaning.bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    Seed::new(hash).bytes(DIMENSIONS)
}
