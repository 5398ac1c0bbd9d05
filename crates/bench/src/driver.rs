//! Keeps a number of calls in flight and counts the responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use hdrhistogram::Histogram;
use http::uri::PathAndQuery;
use memoird_proto::v1::GetStatsResponse;
use tokio::task::JoinSet;
use tonic::Status;
use tonic::client::Grpc;
use tonic::transport::Channel;

use super::clock;
use super::connect::Target;
use super::measure::stats;
use super::mix::{CallKind, Mix};
use super::traffic::{Bodies, Call, PAGE_SESSIONS, RawCodec, Rng};

/// Number of gRPC status codes, including OK.
pub(super) const CODES: usize = 17;
/// Pause after an error, to not overload a server that rejects immediately.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(1);

/// Connections to one daemon, or to several that share a database.
pub(super) struct Driver {
    targets: Vec<Target>,
    route: Route,
    /// Each entry has one connection to each daemon.
    channels: Vec<Vec<Channel>>,
    in_flight: usize,
    prefix: Arc<str>,
}

#[derive(Clone)]
pub(super) struct Work {
    pub(super) mix: Mix,
    pub(super) pick: Pick,
    pub(super) bodies: Bodies,
    pub(super) seed: u64,
}

/// Which of several daemons handles a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Route {
    /// By session, like a balancer with session affinity
    #[default]
    Session,
    /// Any of them, like a balancer without affinity
    Random,
}

/// Chooses the session of the next call.
#[derive(Clone)]
pub(super) enum Pick {
    /// A random one of the first `n`.
    Random(u64),
    /// A new one for each call.
    Fresh(Arc<AtomicU64>),
    /// The first `n` in turn, repeatedly.
    InTurn(u64),
}

pub(super) struct Gauge {
    /// Number of calls started.
    begun: AtomicU64,
    /// Number of calls after which the run ends.
    calls_max: u64,
    /// Number of successful calls.
    pub(super) done: Arc<AtomicU64>,
    /// Whether to end the run.
    pub(super) stop: AtomicBool,
    /// Whether the first error ends the run.
    stops_at_error: bool,
    /// Whether latencies and errors are not recorded.
    only_counts: bool,
}

pub(super) type Tallies = JoinSet<Option<Tally>>;

/// Latencies, sizes and errors of calls.
#[derive(Clone)]
pub(super) struct Tally {
    /// Latencies in microseconds, indexed by call kind.
    latencies: [Histogram<u64>; CallKind::ALL.len()],
    pub(super) reply_bytes: u64,
    pub(super) errors: [u64; CODES],
    pub(super) first_error: Option<Status>,
}

struct Lane {
    /// One client per daemon.
    grpcs: Vec<Grpc<Channel>>,
    route: Route,
    codec: RawCodec,
    target: Target,
    work: Work,
    rng: Rng,
    gauge: Arc<Gauge>,
    /// `None` to only count calls: the histograms take 0.7 MB per lane.
    tally: Option<Tally>,
}

impl Gauge {
    /// Ends the run after this many calls.
    pub(super) fn new(calls_max: u64) -> Self {
        Self {
            begun: AtomicU64::new(0),
            calls_max,
            done: Arc::default(),
            stop: AtomicBool::new(false),
            stops_at_error: false,
            only_counts: false,
        }
    }

    /// Never ends the run. Counts in `done`, without recording latencies.
    pub(super) fn counting(done: Arc<AtomicU64>) -> Self {
        Self {
            done,
            only_counts: true,
            ..Self::new(u64::MAX)
        }
    }
}

impl Driver {
    /// Creates connections, which are opened on first use.
    pub(super) fn new(target: Target, connections: u16, in_flight: u16, prefix: &str) -> Self {
        Self::to_targets(
            vec![target],
            Route::default(),
            connections,
            in_flight,
            prefix,
        )
    }

    /// The same for several daemons, with `connections` connections to each.
    pub(super) fn to_targets(
        targets: Vec<Target>,
        route: Route,
        connections: u16,
        in_flight: u16,
        prefix: &str,
    ) -> Self {
        let to_all = |_| targets.iter().map(Target::another_channel).collect();
        Self {
            channels: (0..connections).map(to_all).collect(),
            targets,
            route,
            in_flight: in_flight.into(),
            prefix: prefix.into(),
        }
    }

    pub(super) fn target(&self) -> &Target {
        &self.targets[0]
    }

    /// Statistics of all daemons: CPU, memory and commits are summed, the rest is of the first.
    pub(super) async fn stats(&self) -> Result<GetStatsResponse> {
        let mut sum = stats(self.target()).await?;
        for target in &self.targets[1..] {
            let one = stats(target).await?;
            sum.cpu_seconds += one.cpu_seconds;
            sum.rss_bytes += one.rss_bytes;
            sum.commits += one.commits;
            sum.commit_sets += one.commit_sets;
        }
        Ok(sum)
    }

    /// Starts the tasks. They end when the gauge stops them or there is no work left.
    pub(super) fn start(&self, work: &Work, gauge: &Arc<Gauge>) -> Tallies {
        let mut tasks = JoinSet::new();
        for (index, channels) in self
            .channels
            .iter()
            .cycle()
            .take(self.in_flight)
            .enumerate()
        {
            let lane = Lane {
                grpcs: channels.iter().cloned().map(Grpc::new).collect(),
                route: self.route,
                codec: RawCodec {
                    prefix: Arc::clone(&self.prefix),
                },
                target: self.target().clone(),
                work: work.clone(),
                rng: Rng::new(work.seed ^ (index as u64) << 32),
                gauge: Arc::clone(gauge),
                tally: (!gauge.only_counts).then(Tally::default),
            };
            tasks.spawn(lane.run());
        }
        tasks
    }

    /// Makes `calls` calls to the first `sessions` sessions in turn. Ends with the first error.
    pub(super) async fn fill(&self, work: Work, sessions: u64, calls: u64) -> Result<()> {
        let pick = Pick::InTurn(sessions);
        let gauge = Gauge {
            stops_at_error: true,
            ..Gauge::new(calls)
        };
        let tasks = self.start(&Work { pick, ..work }, &Arc::new(gauge));
        match collect(tasks).await.first_error {
            Some(status) => Err(status.into()),
            None => Ok(()),
        }
    }
}

/// Waits for the tasks and adds up their tallies.
pub(super) async fn collect(mut tasks: Tallies) -> Tally {
    let mut sum = Tally::default();
    while let Some(ended) = tasks.join_next().await {
        // Tasks are never cancelled, so the error is a panic.
        let tally = ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        tally.iter().for_each(|tally| sum.add(tally));
    }
    sum
}

impl Lane {
    async fn run(mut self) -> Option<Tally> {
        while let Some(session) = self.next_session() {
            let kind = self.work.mix.draw(&mut self.rng);
            let started = clock::monotonic();
            let reply = self.call(session, kind).await;
            match reply {
                Ok(bytes) => {
                    self.gauge.done.fetch_add(1, Ordering::Relaxed);
                    if let Some(tally) = &mut self.tally {
                        tally.record(kind, clock::since(started), bytes);
                    }
                }
                Err(status) => {
                    if let Some(tally) = &mut self.tally {
                        tally.fail(status);
                    }
                    if self.gauge.stops_at_error {
                        self.gauge.stop.store(true, Ordering::Relaxed);
                    }
                    tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                }
            }
        }
        self.tally
    }

    async fn call(&mut self, session: u64, kind: CallKind) -> Result<u64, Status> {
        let body = self.work.bodies.draw(kind, &mut self.rng);
        let session = match kind {
            // Ten session ids have this number as their prefix.
            CallKind::List => session / u64::from(PAGE_SESSIONS),
            _ => session,
        };
        let request = self.target.request(Call {
            field: kind.id_field(),
            session,
            body,
        });
        let count = self.grpcs.len() as u64;
        let place = match self.route {
            Route::Session => session % count,
            Route::Random => self.rng.below(count),
        };
        let grpc = &mut self.grpcs[usize::try_from(place).unwrap_or_default()];
        grpc.ready()
            .await
            .map_err(|error| Status::from_error(Box::new(error)))?;
        let path = PathAndQuery::from_static(kind.path());
        Ok(grpc
            .unary(request, path, self.codec.clone())
            .await?
            .into_inner())
    }

    fn next_session(&mut self) -> Option<u64> {
        if self.gauge.stop.load(Ordering::Relaxed) {
            return None;
        }
        let call = self.gauge.begun.fetch_add(1, Ordering::Relaxed);
        if call >= self.gauge.calls_max {
            return None;
        }
        match &self.work.pick {
            Pick::Random(sessions) => Some(self.rng.below(*sessions)),
            Pick::Fresh(next) => Some(next.fetch_add(1, Ordering::Relaxed)),
            Pick::InTurn(sessions) => Some(call % sessions),
        }
    }
}

impl Tally {
    /// Latencies of calls of this kind in microseconds.
    pub(super) fn of(&self, kind: CallKind) -> &Histogram<u64> {
        &self.latencies[kind as usize]
    }

    /// Latencies of all calls in microseconds.
    pub(super) fn all(&self) -> Histogram<u64> {
        let [first, others @ ..] = &self.latencies;
        let mut all = first.clone();
        for latencies in others {
            // All have the same bounds, so adding cannot fail.
            let _ = all.add(latencies);
        }
        all
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (sum, latencies) in self.latencies.iter_mut().zip(&other.latencies) {
            // Both have the same bounds, so adding cannot fail.
            let _ = sum.add(latencies);
        }
        self.reply_bytes += other.reply_bytes;
        for (sum, errors) in self.errors.iter_mut().zip(other.errors) {
            *sum += errors;
        }
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
    }

    pub(super) fn record(&mut self, kind: CallKind, latency: Duration, reply_bytes: u64) {
        let histogram = &mut self.latencies[kind as usize];
        let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        histogram.saturating_record(latency_us.max(1));
        self.reply_bytes += reply_bytes;
    }

    fn fail(&mut self, status: Status) {
        self.errors[status.code() as usize] += 1;
        self.first_error.get_or_insert(status);
    }
}

impl Default for Tally {
    fn default() -> Self {
        let histogram = || {
            Histogram::new_with_bounds(1, 60_000_000, 3)
                .expect("the bounds are constants that make a histogram")
        };
        Self {
            latencies: std::array::from_fn(|_| histogram()),
            reply_bytes: 0,
            errors: [0; CODES],
            first_error: None,
        }
    }
}
