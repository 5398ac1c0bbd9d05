//! A fake summary and token-count provider with scripted replies.
//!
//! It implements Anthropic's Messages API, OpenAI's chat completions and memoird's webhook.

mod wire;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::service::{Posted, read};
use super::{Setup, eventually, wall_ms};
pub(crate) use wire::Wire;

/// Reply to a summary request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SummaryReply {
    /// A summary of the input.
    Well,
    /// The same, once it is released.
    Held,
    /// No reply, until the client disconnects.
    Never,
    /// Status 429 with `Retry-After` in seconds.
    Busy(u32),
    /// Status 500 with an error page.
    Broken,
    /// Status 400 with an error that repeats key and prompt.
    Echoes,
    /// A summary whose JSON is truncated.
    HalfSummary,
    /// A response body whose JSON is truncated.
    HalfAnswer,
    Braces,
    Apology,
    /// An error for prompts above this number of bytes, otherwise a summary.
    Narrow(usize),
    /// Half a status line, and a closed connection.
    Closes,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) posted: Posted,
    pub(crate) body: Value,
    /// Time of arrival, in milliseconds since 1970.
    pub(crate) at_ms: i64,
}

#[derive(Debug)]
struct State {
    /// Replies to the next calls, and the reply to all later ones.
    script: Mutex<(VecDeque<SummaryReply>, SummaryReply)>,
    key: Mutex<String>,
    calls: Mutex<Vec<Call>>,
    counts: Mutex<Vec<(Call, u64)>>,
    /// Token counts, in percent of a quarter of the input's bytes. 0: count requests fail.
    percent: AtomicU64,
    /// Number of replies sent completely.
    answered: AtomicUsize,
    /// Permits for replies of [`SummaryReply::Held`].
    open: Semaphore,
}

/// A provider that runs until the end of the test.
#[derive(Debug)]
pub(crate) struct Summaries {
    port: u16,
    state: Arc<State>,
    /// Stops the server when dropped.
    _serving: JoinSet<()>,
}

impl Summaries {
    /// The API key it accepts, and the environment variable with it.
    pub(crate) const KEY: &'static str = "sk-summaries-0ddba11-c0ffee";
    const VARIABLE: &'static str = "SUMMARIES_KEY";

    /// Starts a provider that always replies in this way.
    pub(crate) async fn start(kind: SummaryReply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State {
            script: Mutex::new((VecDeque::new(), kind)),
            key: Mutex::new(Self::KEY.to_owned()),
            calls: Mutex::default(),
            counts: Mutex::default(),
            percent: AtomicU64::new(0),
            answered: AtomicUsize::new(0),
            open: Semaphore::new(0),
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
            port,
            state,
            _serving: serving,
        }
    }

    /// A configuration that uses this provider's API `wire`.
    ///
    /// `own` has more settings of the summarizer, `compaction` of the compaction.
    pub(crate) fn setup(&self, wire: Wire, own: &str, compaction: &str) -> Setup {
        let key = format!("{{ env: {} }}", Self::VARIABLE);
        let summarizer = self.summarizer(wire, &key, own);
        let section = format!("compaction: {{ {compaction} summarizer: {summarizer} }}");
        Setup::default()
            .env(Self::VARIABLE, Self::KEY)
            .section(section)
    }

    /// The summarizer section of a configuration.
    pub(crate) fn summarizer(&self, wire: Wire, key: &str, own: &str) -> String {
        wire.summarizer(self.port, key, own)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Replies in this way from now on.
    pub(crate) fn set_reply(&self, kind: SummaryReply) {
        self.set_replies(&[], kind);
    }

    /// Replies in these ways in order, and then always in the last way.
    pub(crate) fn set_replies(&self, first: &[SummaryReply], then: SummaryReply) {
        *self.state.script.lock().expect("no panic") = (first.iter().copied().collect(), then);
    }

    /// Accepts only this key from now on.
    pub(crate) fn wants_key(&self, key: &str) {
        key.clone_into(&mut self.state.key.lock().expect("no panic"));
    }

    /// Counts tokens as this percentage of a quarter of the bytes. 0: count requests fail.
    pub(crate) fn counts(&self, percent: u64) {
        self.state.percent.store(percent, Ordering::SeqCst);
    }

    /// Releases `calls` held replies.
    pub(crate) fn let_through(&self, calls: usize) {
        self.state.open.add_permits(calls);
    }

    /// All summary requests, answered or not.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.state.calls.lock().expect("no panic").clone()
    }

    /// All count requests with the returned counts.
    pub(crate) fn counted(&self) -> Vec<(Call, u64)> {
        self.state.counts.lock().expect("no panic").clone()
    }

    pub(crate) fn answered(&self) -> usize {
        self.state.answered.load(Ordering::SeqCst)
    }

    /// Waits for at least `times` summary requests.
    pub(crate) async fn was_asked(&self, times: usize) {
        eventually("the provider is asked", async || {
            (self.calls().len() >= times).then_some(())
        })
        .await;
    }
}

async fn serve(mut stream: TcpStream, state: &State) {
    let Some(posted) = read(&mut stream).await else {
        return;
    };
    let Some(answer) = answer(&mut stream, posted, state).await else {
        return;
    };
    if stream.write_all(&answer).await.is_ok() && stream.shutdown().await.is_ok() {
        state.answered.fetch_add(1, Ordering::SeqCst);
    }
}

/// The bytes of the reply, or `None` for no reply.
async fn answer(stream: &mut TcpStream, posted: Posted, state: &State) -> Option<Vec<u8>> {
    let path = posted.head.split(' ').nth(1).unwrap_or_default().to_owned();
    let body: Value = serde_json::from_slice(&posted.body).expect("JSON");
    let call = Call {
        posted,
        body,
        at_ms: wall_ms(),
    };
    let key = state.key.lock().expect("no panic").clone();
    if let Some(field) = wire::count_field(&path) {
        let percent = state.percent.load(Ordering::SeqCst);
        let tokens = call.posted.body.len() as u64 * percent / 400;
        state.counts.lock().expect("no panic").push((call, tokens));
        return Some(match percent {
            0 => wire::reply("503 Service Unavailable", "", "{}"),
            _ => wire::reply("200 OK", "", &format!("{{\"{field}\":{tokens}}}")),
        });
    }
    let Some(wire) = Wire::of(&path) else {
        return Some(wire::reply("404 Not Found", "", "{}"));
    };
    state.calls.lock().expect("no panic").push(call.clone());
    if !wire.has_key(&call.posted, &key) {
        return Some(wire.error("401 Unauthorized", "invalid_api_key", "Incorrect API key"));
    }
    let kind = {
        let mut script = state.script.lock().expect("no panic");
        script.0.pop_front().unwrap_or(script.1)
    };
    let gave_up = async |stream: &mut TcpStream| {
        let _ = stream.read(&mut [0; 1]).await;
    };
    match kind {
        SummaryReply::Never => {
            gave_up(stream).await;
            return None;
        }
        SummaryReply::Held => tokio::select! {
            permit = state.open.acquire() => permit.expect("it stays open").forget(),
            () = gave_up(stream) => return None,
        },
        _ => {}
    }
    Some(wire.answer(kind, &call.body, &key))
}
