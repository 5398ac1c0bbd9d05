//! A provider of summaries that speaks Anthropic's Messages API, OpenAI's chat completions
//! and memoird's own webhook, counts tokens as well, and answers as it is told.

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

/// What it does with a call for a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    /// A summary of what it was given.
    Well,
    /// The same, once it is let through.
    Held,
    /// Nothing, until the other side gives up.
    Never,
    /// 429, and to come back in so many seconds.
    Busy(u32),
    /// 500, with an error page.
    Broken,
    /// 400, and repeats key and prompt in its error.
    Echoes,
    /// A summary that ends in the middle of its JSON.
    HalfSummary,
    /// An answer that ends in the middle of its JSON.
    HalfAnswer,
    /// `{}`.
    Braces,
    /// An apology.
    Apology,
    /// That a prompt of more bytes than these is too long for it, else a summary.
    Narrow(usize),
    /// Half a status line, and closes.
    Closes,
}

/// A call that came.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) posted: Posted,
    pub(crate) body: Value,
    /// When it came, in milliseconds since 1970.
    pub(crate) at_ms: i64,
}

#[derive(Debug)]
struct State {
    /// What the next calls get, and then all others.
    script: Mutex<(VecDeque<Says>, Says)>,
    key: Mutex<String>,
    calls: Mutex<Vec<Call>>,
    counts: Mutex<Vec<(Call, u64)>>,
    /// Of a quarter of the bytes that it is given, how many percent it counts as tokens; 0:
    /// it is down.
    percent: AtomicU64,
    /// Answers that were sent to their end.
    answered: AtomicUsize,
    /// Calls of [`Says::Held`] that may be answered.
    open: Semaphore,
}

/// A provider that lives as long as the test.
#[derive(Debug)]
pub(crate) struct Summaries {
    port: u16,
    state: Arc<State>,
    /// Ends with it.
    _serving: JoinSet<()>,
}

impl Summaries {
    /// The key that it wants, and the variable of the environment that has it.
    pub(crate) const KEY: &'static str = "sk-summaries-0ddba11-c0ffee";
    const VARIABLE: &'static str = "SUMMARIES_KEY";

    /// Answers all calls in this way.
    pub(crate) async fn start(says: Says) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State {
            script: Mutex::new((VecDeque::new(), says)),
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

    /// A configuration that asks it in these words, with these settings of the summarizer
    /// and of the compaction.
    pub(crate) fn setup(&self, wire: Wire, own: &str, compaction: &str) -> Setup {
        let key = format!("{{ env: {} }}", Self::VARIABLE);
        let summarizer = self.summarizer(wire, &key, own);
        let section = format!("compaction: {{ {compaction} summarizer: {summarizer} }}");
        Setup::default()
            .env(Self::VARIABLE, Self::KEY)
            .section(section)
    }

    /// The summarizer of a configuration.
    pub(crate) fn summarizer(&self, wire: Wire, key: &str, own: &str) -> String {
        wire.summarizer(self.port, key, own)
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on it answers so.
    pub(crate) fn says(&self, says: Says) {
        self.says_first(&[], says);
    }

    /// It answers so, in this order, and then always in that way.
    pub(crate) fn says_first(&self, first: &[Says], then: Says) {
        *self.state.script.lock().expect("no panic") = (first.iter().copied().collect(), then);
    }

    /// It wants another key.
    pub(crate) fn wants_key(&self, key: &str) {
        key.clone_into(&mut self.state.key.lock().expect("no panic"));
    }

    /// It counts so many percent of a quarter of the bytes as tokens; 0: it is down.
    pub(crate) fn counts(&self, percent: u64) {
        self.state.percent.store(percent, Ordering::SeqCst);
    }

    /// Answers so many calls that are held.
    pub(crate) fn let_through(&self, calls: usize) {
        self.state.open.add_permits(calls);
    }

    /// The calls for summaries, answered or not.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.state.calls.lock().expect("no panic").clone()
    }

    /// The calls for counts, and the tokens that were counted.
    pub(crate) fn counted(&self) -> Vec<(Call, u64)> {
        self.state.counts.lock().expect("no panic").clone()
    }

    /// Answers that were sent to their end.
    pub(crate) fn answered(&self) -> usize {
        self.state.answered.load(Ordering::SeqCst)
    }

    /// Waits until so many calls for summaries came.
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

/// The bytes of the answer; `None` where there is none.
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
    let says = {
        let mut script = state.script.lock().expect("no panic");
        script.0.pop_front().unwrap_or(script.1)
    };
    let gave_up = async |stream: &mut TcpStream| {
        let _ = stream.read(&mut [0; 1]).await;
    };
    match says {
        Says::Never => {
            gave_up(stream).await;
            return None;
        }
        Says::Held => tokio::select! {
            permit = state.open.acquire() => permit.expect("it stays open").forget(),
            () = gave_up(stream) => return None,
        },
        _ => {}
    }
    Some(wire.answer(says, &call.body, &key))
}
