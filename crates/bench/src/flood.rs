//! Floods a daemon with calls of one kind until stdin is closed.
//!
//! It is a separate process, so that it can be pinned to a core.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::uri::PathAndQuery;
use memoird_proto::v1::{AppendRequest, MessageFormat};
use tokio::task::JoinSet;
use tonic::client::Grpc;

use super::connect::Target;
use super::driver::{Driver, Gauge, Pick, Work};
use super::mix::{CallKind, Mix};
use super::traffic::{Bodies, Call, RawCodec, Rng};
use super::{CommonArgs, Usage, print};

/// Calls in flight: small ones, and those with megabytes.
const IN_FLIGHT: u16 = 1_024;
const LARGE_IN_FLIGHT: u16 = 16;
/// Connections whose responses are not read. Using all that a daemon accepts is another attack.
const UNREAD_CONNECTIONS: u64 = 256;
const CONNECTIONS: u16 = 8;
/// Content before the flood: sessions with turns, and facts.
const SESSIONS: u64 = 50;
const TURNS: u64 = 100;
const TURN_BYTES: usize = 2_000;
/// Sessions of almost 4 MiB, the largest message that gRPC clients accept by default.
const LARGE_SESSIONS: u64 = 8;
const LARGE_TURNS: u64 = 16;
const LARGE_TURN_BYTES: usize = 240 << 10;
const FACTS: u64 = 2_000;
const FACT_BYTES: usize = 200;
/// Number of messages in an array, and their total bytes.
const ARRAY_MESSAGES: usize = 250;
const ARRAY_BYTES: usize = 8_000_000;
/// Pause after a rejected call.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Flood {
    /// Small appends
    Append,
    /// Windows of 100 turns
    Window,
    /// Histories of 100 turns
    Read,
    /// Windows of almost 4 MiB
    LargeWindow,
    /// Histories of almost 4 MiB
    LargeRead,
    /// Recalls among 2,000 facts
    Recall,
    /// Appends of message arrays of 8 MB
    Array,
    /// Histories whose responses are not read
    SlowReader,
    /// No calls: only occupies its core
    #[value(skip)]
    Spin,
}

/// The flood to run.
#[derive(Args)]
pub(super) struct FloodArgs {
    /// Kind of the flood
    #[arg(value_parser = parse)]
    flood: Flood,
}

fn parse(name: &str) -> Result<Flood, String> {
    match name {
        SPIN => Ok(Flood::Spin),
        name => Flood::from_str(name, true),
    }
}

const SPIN: &str = "spin";

impl std::fmt::Display for Flood {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or(SPIN, |value| value.get_name()))
    }
}

/// Floods until stdin is closed, and prints the number of successful calls.
pub(super) async fn run(common: &CommonArgs, args: FloodArgs) -> Result<()> {
    let Some(addr) = &common.connect.addr else {
        return Err(Usage("a flood needs the address of its daemon: --addr").into());
    };
    let target = common.connect.target(addr)?;
    let told = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let done = Arc::<AtomicU64>::default();
    let flood = args.flood.flood(target, Arc::clone(&done));
    tokio::select! {
        _ = told => {}
        () = flood => {}
    }
    print(&done.load(Ordering::Relaxed).to_string())
}

impl Flood {
    /// All floods that make calls.
    pub(super) const ALL: [Self; 8] = [
        Self::Append,
        Self::Window,
        Self::Read,
        Self::LargeWindow,
        Self::LargeRead,
        Self::Recall,
        Self::Array,
        Self::SlowReader,
    ];

    /// Creates the content that the flood needs.
    pub(super) async fn prepare(self, target: &Target) -> Result<()> {
        let driver = driver(target, 32);
        match self {
            Self::Append | Self::Array | Self::Spin => Ok(()),
            Self::Window | Self::Read | Self::SlowReader => {
                let work = work(Mix::APPENDS, TURN_BYTES);
                driver.fill(work, SESSIONS, SESSIONS * TURNS).await
            }
            Self::LargeWindow | Self::LargeRead => {
                let work = work(Mix::APPENDS, LARGE_TURN_BYTES);
                let calls = LARGE_SESSIONS * LARGE_TURNS;
                large_driver(target).fill(work, LARGE_SESSIONS, calls).await
            }
            Self::Recall => driver.fill(work(Mix::Facts, FACT_BYTES), 1, FACTS).await,
        }
    }

    async fn flood(self, target: Target, done: Arc<AtomicU64>) {
        match self {
            Self::Append => drive(&target, work(Mix::APPENDS, FACT_BYTES), done).await,
            Self::Window => drive(&target, work(Mix::Looks, TURN_BYTES), done).await,
            Self::Read => drive(&target, work(READS, TURN_BYTES), done).await,
            Self::LargeWindow => drive_large(&target, Mix::Looks, done).await,
            Self::LargeRead => drive_large(&target, READS, done).await,
            Self::Recall => {
                let pick = Pick::InTurn(1);
                let work = Work {
                    pick,
                    ..work(Mix::Recalls, FACT_BYTES)
                };
                drive(&target, work, done).await;
            }
            Self::Array => arrays(&target, done).await,
            Self::SlowReader => unread(&target, done).await,
            Self::Spin => spin().await,
        }
    }
}

const READS: Mix = Mix::Histories {
    append: 0,
    history: 1,
};

fn driver(target: &Target, in_flight: u16) -> Driver {
    Driver::new(target.clone(), CONNECTIONS, in_flight, "f")
}

/// For the large sessions.
fn large_driver(target: &Target) -> Driver {
    Driver::new(target.clone(), CONNECTIONS, LARGE_IN_FLIGHT, "large-")
}

fn work(mix: Mix, bytes: usize) -> Work {
    Work {
        mix,
        pick: Pick::Random(SESSIONS),
        bodies: Bodies::new(1, bytes, &mut Rng::new(3)),
        seed: 3,
    }
}

async fn drive(target: &Target, work: Work, done: Arc<AtomicU64>) {
    let gauge = Arc::new(Gauge::counting(done));
    let tasks = driver(target, IN_FLIGHT).start(&work, &gauge);
    super::driver::collect(tasks).await;
}

async fn drive_large(target: &Target, mix: Mix, done: Arc<AtomicU64>) {
    let gauge = Arc::new(Gauge::counting(done));
    let work = Work {
        pick: Pick::Random(LARGE_SESSIONS),
        ..work(mix, FACT_BYTES)
    };
    super::driver::collect(large_driver(target).start(&work, &gauge)).await;
}

/// Appends arrays, each task to its own session.
async fn arrays(target: &Target, done: Arc<AtomicU64>) {
    let message = format!(
        r#"{{"role":"user","content":"{}"}}"#,
        "x".repeat(ARRAY_BYTES / ARRAY_MESSAGES - 40)
    );
    let array: Arc<str> = format!("[{}]", vec![message; ARRAY_MESSAGES].join(",")).into();
    let mut tasks = JoinSet::new();
    for number in 0..LARGE_IN_FLIGHT {
        let (target, array, done) = (target.clone(), Arc::clone(&array), Arc::clone(&done));
        let mut client = target.sessions_anew();
        tasks.spawn(async move {
            loop {
                let request = target.request(AppendRequest {
                    session_id: format!("f{number}"),
                    messages_json: array.to_string(),
                    format: MessageFormat::Openai.into(),
                    ..AppendRequest::default()
                });
                answered(&done, client.append(request).await.is_ok()).await;
            }
        });
    }
    tasks.join_all().await;
}

/// Requests histories without reading the responses.
async fn unread(target: &Target, done: Arc<AtomicU64>) {
    let mut tasks = JoinSet::new();
    for number in 0..UNREAD_CONNECTIONS {
        let (target, done) = (target.clone(), Arc::clone(&done));
        let mut grpc = Grpc::new(target.narrow_channel());
        tasks.spawn(async move {
            let mut kept = Vec::new();
            loop {
                let request = target.request(Call {
                    field: CallKind::History.id_field(),
                    session: number % SESSIONS,
                    body: Bytes::new(),
                });
                let path = PathAndQuery::from_static(CallKind::History.path());
                let codec = RawCodec { prefix: "f".into() };
                let answer = match grpc.ready().await {
                    Ok(()) => grpc.server_streaming(request, path, codec).await.ok(),
                    Err(_) => None,
                };
                answered(&done, answer.is_some()).await;
                // Kept unread, but not closed either.
                kept.extend(answer);
            }
        });
    }
    tasks.join_all().await;
}

async fn answered(done: &AtomicU64, is_done: bool) {
    if is_done {
        done.fetch_add(1, Ordering::Relaxed);
    } else {
        tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
    }
}

async fn spin() {
    // The thread ends with the process, which only waits for the runtime's threads.
    std::thread::spawn(|| {
        loop {
            std::hint::spin_loop();
        }
    });
    std::future::pending::<()>().await;
}
