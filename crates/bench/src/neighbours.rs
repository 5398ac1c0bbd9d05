//! `memoird-bench neighbours`: latency of a tenant's calls while another one floods the daemon.
//!
//! The victim calls at a fixed pace, a fifth of the daemon's capacity, whether responses arrive or
//! not. The flood is another process, pinned to one core. When the victim is measured alone, a
//! process that only spins has that core, so that the machine is the same.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use hdrhistogram::Histogram;
use memoird_proto::v1::AppendRequest;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::connect::Target;
use super::daemon::{NEIGHBOURS, Server, Settings};
use super::driver::{Driver, Gauge, Pick, Work, collect};
use super::flood::Flood;
use super::mix::Mix;
use super::output::{self, figure};
use super::traffic::{Bodies, Rng, turn};
use super::{CommonArgs, Durability, clock, print, print_json, progress, spinner};

/// Goals, as multiples of the latencies without a flood.
const GOAL_P99: f64 = 2.0;
const GOAL_WORST: f64 = 10.0;
/// The victim's pace is the daemon's capacity divided by this number.
const SHARE: f64 = 5.0;
/// Sessions of the victim, and calls in flight while the capacity is measured.
const SESSIONS: u64 = 100;
const IN_FLIGHT: u16 = 64;
const CONNECTIONS: u16 = 4;
const TURN_BYTES: usize = 200;
/// Large enough for windows of 4 MiB.
const CONTEXT_WINDOW: u64 = 4_000_000;
/// Duration of a flood before the measurement.
const WARMUP: Duration = Duration::from_secs(1);

/// Floods to measure, and for how long.
#[derive(Args)]
pub(super) struct NeighboursArgs {
    /// Floods
    #[arg(long, value_enum, value_name = "FLOOD,FLOOD", value_delimiter = ',')]
    #[arg(default_values_t = Flood::ALL)]
    floods: Vec<Flood>,
    /// Seconds of each measurement
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Measurements of each flood, in turn with the victim alone; the median counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Core of the flood
    #[arg(long, value_name = "N", default_value_t = 0)]
    core: u32,
    /// Calls/s of the victim [default: a fifth of the daemon's capacity]
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// When an append is acknowledged
    #[arg(long, value_enum, default_value_t = Durability::Sync)]
    durability: Durability,
    /// Data directory of the daemon [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Clone, Copy)]
struct Latencies {
    samples: u64,
    p99_ms: f64,
    worst_ms: f64,
    failed: u64,
}

/// The victim alone and during a flood, in the same runs.
struct Beside {
    flood: Flood,
    alone: Vec<Latencies>,
    beside: Vec<Latencies>,
    /// Successful calls of the flood per second.
    flood_rate: f64,
}

/// A process that occupies a core until its stdin is closed.
struct Neighbour {
    child: Child,
}

pub(super) async fn run(common: &CommonArgs, args: NeighboursArgs) -> Result<()> {
    let spinner = spinner();
    let settings = Settings {
        durability: args.durability,
        history_turns: 1_000,
        context_window: Some(CONTEXT_WINDOW),
        tenants: &NEIGHBOURS,
        ..Settings::default()
    };
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let server = Server::memoird(&common.daemon()?, settings, &parent).await?;
    let [victim, flood] = NEIGHBOURS.map(|tenant| server.target_of(tenant));
    let (victim, flood) = (victim?, flood?);
    let rate = match args.rate {
        Some(rate) => f64::from(rate),
        None => {
            spinner.set_message("measures what the daemon can do");
            let _alone = args.neighbour(Flood::Spin, &server)?;
            capacity(&victim).await? / SHARE
        }
    };
    let runs = args.runs;
    progress(&format!(
        "the victim appends {rate:.0} times a second, {runs} runs of {} s each",
        args.seconds
    ))?;
    let mut measured = Vec::with_capacity(args.floods.len());
    for kind in args.floods.iter().copied() {
        spinner.set_message(format!("prepares {kind}"));
        kind.prepare(&flood).await?;
        let mut row = Beside::new(kind);
        for run in 1..=args.runs {
            spinner.set_message(format!("{kind}, run {run} of {}", args.runs));
            let spin = args.neighbour(Flood::Spin, &server)?;
            row.alone.push(args.victim(&victim, rate).await?);
            spin.end()?;
            let flood = args.neighbour(kind, &server)?;
            row.beside.push(args.victim(&victim, rate).await?);
            let span = WARMUP.as_secs_f64() + f64::from(args.seconds);
            row.flood_rate = flood.end()? as f64 / span;
        }
        progress(&row.line())?;
        measured.push(row);
    }
    spinner.finish_and_clear();
    if common.json {
        print_json(&json!({
            "victim_calls_per_second": rate,
            "floods": measured.iter().map(Beside::json).collect::<Vec<_>>(),
        }))
    } else {
        print_table(rate, &measured)
    }
}

impl NeighboursArgs {
    fn neighbour(&self, flood: Flood, server: &Server) -> Result<Neighbour> {
        let key_file = server.key_file(NEIGHBOURS[1]);
        let child = Command::new("taskset")
            .args(["--cpu-list", &self.core.to_string()])
            .arg(std::env::current_exe()?)
            .args(["flood", &flood.to_string()])
            .arg(format!("--addr={}", server.addr()?))
            .arg(format!("--key-file={}", key_file.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run taskset (util-linux), which gives the flood its core")?;
        Ok(Neighbour { child })
    }

    async fn victim(&self, target: &Target, rate: f64) -> Result<Latencies> {
        let pace = Duration::from_secs_f64(1.0 / rate);
        at_a_pace(target, pace, WARMUP).await?;
        at_a_pace(target, pace, Duration::from_secs(self.seconds.into())).await
    }
}

impl Neighbour {
    /// Ends the process. Returns the number of its successful calls.
    fn end(mut self) -> Result<u64> {
        // It ends when its stdin is closed.
        drop(self.child.stdin.take());
        let stdout = self.child.stdout.take();
        let output = stdout.map(std::io::read_to_string).transpose()?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the flood ended with {status}");
        }
        let text = output.unwrap_or_default();
        text.trim().parse().context("the flood counts its calls")
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // It has exited already if `end` was called.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures appends per second with the maximum load.
async fn capacity(target: &Target) -> Result<f64> {
    const SPAN: Duration = Duration::from_secs(3);
    let driver = Driver::new(target.clone(), CONNECTIONS, IN_FLIGHT, "v");
    let work = Work {
        mix: Mix::APPENDS,
        pick: Pick::Random(SESSIONS),
        bodies: Bodies::new(1, TURN_BYTES, &mut Rng::new(1)),
        seed: 1,
    };
    let gauge = Arc::new(Gauge::new(u64::MAX));
    let tasks = driver.start(&work, &gauge);
    sleep(SPAN).await;
    gauge.stop.store(true, Ordering::Relaxed);
    if let Some(status) = collect(tasks).await.first_error {
        return Err(status.into());
    }
    Ok(gauge.done.load(Ordering::Relaxed) as f64 / SPAN.as_secs_f64())
}

/// Appends at a fixed pace, whatever the responses are.
async fn at_a_pace(target: &Target, pace: Duration, span: Duration) -> Result<Latencies> {
    let clients: Vec<_> = (0..CONNECTIONS).map(|_| target.sessions_anew()).collect();
    let mut rng = Rng::new(7);
    let turns = vec![turn(0, TURN_BYTES, &mut rng)];
    let (started, mut due) = (clock::monotonic(), Duration::ZERO);
    let mut calls = JoinSet::new();
    for mut client in clients.iter().cycle().cloned() {
        if due >= span {
            break;
        }
        // Timers have a resolution of a millisecond: do not sleep if a call is already due.
        let early = due.saturating_sub(clock::since(started));
        if !early.is_zero() {
            sleep(early).await;
        }
        let request = target.request(AppendRequest {
            session_id: format!("v{}", rng.below(SESSIONS)),
            turns: turns.clone(),
            ..AppendRequest::default()
        });
        let sent = clock::monotonic();
        calls.spawn(async move {
            let answer = client.append(request).await;
            (clock::since(sent), answer.is_ok())
        });
        due += pace;
    }
    let mut latencies_us = Histogram::<u64>::new_with_bounds(1, 600_000_000, 3)?;
    let mut failed = 0;
    for (latency, is_done) in calls.join_all().await {
        let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        latencies_us.saturating_record(latency_us.max(1));
        failed += u64::from(!is_done);
    }
    Ok(Latencies {
        samples: latencies_us.len(),
        p99_ms: latencies_us.value_at_quantile(0.99) as f64 / 1e3,
        worst_ms: latencies_us.max() as f64 / 1e3,
        failed,
    })
}

impl Beside {
    fn new(flood: Flood) -> Self {
        Self {
            flood,
            alone: Vec::new(),
            beside: Vec::new(),
            flood_rate: 0.0,
        }
    }

    /// Latency during the flood, as a multiple of the latency alone.
    fn ratio(&self, of: fn(&Latencies) -> f64) -> f64 {
        median(&self.beside, of) / median(&self.alone, of)
    }

    fn failed(&self) -> u64 {
        self.beside.iter().map(|run| run.failed).sum()
    }

    fn samples(&self) -> u64 {
        self.beside.iter().map(|run| run.samples).sum()
    }

    /// A line to print right after the measurement.
    fn line(&self) -> String {
        let [p99, worst] = [p99, worst].map(|of| {
            let ratio = figure(self.ratio(of), 2);
            format!(
                "{} ms, {ratio} x alone",
                figure(median(&self.beside, of), 2)
            )
        });
        let (flood, samples) = (self.flood, self.samples());
        format!("{flood}: p99 {p99}; worst {worst}; {samples} calls")
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "flood": self.flood.to_string(),
            "flood_calls_per_second": self.flood_rate,
            "p99_ms": [median(&self.alone, p99), median(&self.beside, p99)],
            "p99_ratio": self.ratio(p99),
            "worst_ms": [median(&self.alone, worst), median(&self.beside, worst)],
            "worst_ratio": self.ratio(worst),
            "calls": self.samples(),
            "failed": self.failed(),
        })
    }
}

fn p99(run: &Latencies) -> f64 {
    run.p99_ms
}

fn worst(run: &Latencies) -> f64 {
    run.worst_ms
}

fn median(runs: &[Latencies], of: fn(&Latencies) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print_table(rate: f64, measured: &[Beside]) -> Result<()> {
    let mut table = output::table(&[
        "flood",
        "flood/s",
        "p99 alone",
        "beside",
        "ratio",
        "worst alone",
        "beside",
        "ratio",
        "calls",
        "failed",
    ]);
    for row in measured {
        table.add_row([
            row.flood.to_string(),
            figure(row.flood_rate, 0),
            figure(median(&row.alone, p99), 2),
            figure(median(&row.beside, p99), 2),
            figure(row.ratio(p99), 2),
            figure(median(&row.alone, worst), 2),
            figure(median(&row.beside, worst), 2),
            figure(row.ratio(worst), 2),
            row.samples().to_string(),
            row.failed().to_string(),
        ]);
    }
    let rate = figure(rate, 0);
    print(&format!(
        "appends of one tenant at {rate}/s beside a flood of another, milliseconds\n\
         goals: p99 at most {GOAL_P99} times, worst at most {GOAL_WORST} times as long as alone\n\n{}",
        output::text(table)
    ))
}
