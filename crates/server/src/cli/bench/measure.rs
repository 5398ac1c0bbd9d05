//! Measures servers: one, or several in alternating slices of the same run, so that
//! what else happens on the machine happens to all of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::ProgressBar;
use memoird_proto::v1::{GetStatsRequest, GetStatsResponse};
use tokio::time::sleep;

use super::driver::{Driver, Gauge, Tally, Work, collect};
use crate::cli::clock;
use crate::cli::connect::Target;
use crate::cli::exit::CliError;

/// How long to measure.
#[derive(Clone, Copy)]
pub(super) struct Timing {
    /// Before the first slice of each server.
    pub(super) warmup: Duration,
    /// Of each server, all slices together.
    pub(super) measured: Duration,
    /// Slices of each server.
    pub(super) rounds: u32,
}

/// One of the servers of a run.
pub(super) struct Side {
    /// What the report calls it.
    pub(super) name: String,
    /// The way to it.
    pub(super) driver: Driver,
    /// What it has to do.
    pub(super) work: Work,
}

/// What one slice showed.
pub(super) struct Slice {
    /// Calls answered well.
    pub(super) calls: u64,
    /// How long it took.
    pub(super) seconds: f64,
    /// The server's CPU time in it.
    pub(super) cpu_seconds: f64,
}

/// All slices of one server.
pub(super) struct Measured {
    /// What the report calls it.
    pub(super) name: String,
    /// One by one.
    pub(super) slices: Vec<Slice>,
    /// What came back in them.
    pub(super) tally: Tally,
    /// The server's memory after the last.
    pub(super) rss_bytes: u64,
}

impl Measured {
    /// Calls answered well.
    pub(super) fn calls(&self) -> u64 {
        self.slices.iter().map(|slice| slice.calls).sum()
    }

    /// Calls per second.
    pub(super) fn rate(&self) -> f64 {
        self.calls() as f64 / self.slices.iter().map(|slice| slice.seconds).sum::<f64>()
    }

    /// The server's CPU per call, in microseconds.
    pub(super) fn cpu_us(&self) -> f64 {
        let cpu_seconds: f64 = self.slices.iter().map(|slice| slice.cpu_seconds).sum();
        cpu_seconds * 1e6 / self.calls() as f64
    }
}

impl Slice {
    /// Calls per second.
    pub(super) fn rate(&self) -> f64 {
        self.calls as f64 / self.seconds
    }

    /// The server's CPU per call, in microseconds.
    pub(super) fn cpu_us(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.calls as f64
    }
}

/// Measures the servers in turns; every other round goes backwards, so that a drift
/// of the machine favours none of them.
pub(super) async fn alternate(
    sides: &[Side],
    timing: Timing,
    spinner: &ProgressBar,
) -> Result<Vec<Measured>, CliError> {
    let mut measured: Vec<Measured> = sides.iter().map(Measured::of).collect();
    for round in 0..timing.rounds {
        let mut order: Vec<usize> = (0..sides.len()).collect();
        if !round.is_multiple_of(2) {
            order.reverse();
        }
        for index in order {
            let side = &sides[index];
            spinner.set_message(format!(
                "{}, round {} of {}",
                side.name,
                round + 1,
                timing.rounds
            ));
            let warmup = if round == 0 {
                timing.warmup
            } else {
                timing.warmup / timing.rounds
            };
            let span = timing.measured / timing.rounds;
            let (slice, tally, stats) = slice(side, warmup, span).await?;
            let sum = &mut measured[index];
            sum.slices.push(slice);
            sum.tally.add(&tally);
            sum.rss_bytes = stats.rss_bytes;
        }
    }
    Ok(measured)
}

impl Measured {
    fn of(side: &Side) -> Self {
        Self {
            name: side.name.clone(),
            slices: Vec::new(),
            tally: Tally::default(),
            rss_bytes: 0,
        }
    }
}

/// The counters of a server.
pub(super) async fn stats(target: &Target) -> Result<GetStatsResponse, CliError> {
    let reply = target.admin().get_stats(GetStatsRequest::default()).await;
    Ok(reply.map_err(|status| target.explain(status))?.into_inner())
}

async fn slice(
    side: &Side,
    warmup: Duration,
    span: Duration,
) -> Result<(Slice, Tally, GetStatsResponse), CliError> {
    let target = side.driver.target();
    let gauge = Arc::new(Gauge::default());
    let tasks = side.driver.start(&side.work, &gauge);
    sleep(warmup).await;
    let before = stats(target).await?;
    let calls_before = gauge.done.load(Ordering::Relaxed);
    let started = clock::monotonic();
    gauge.measuring.store(true, Ordering::Relaxed);
    sleep(span).await;
    gauge.measuring.store(false, Ordering::Relaxed);
    let after = stats(target).await?;
    let calls = gauge.done.load(Ordering::Relaxed) - calls_before;
    let seconds = clock::since(started).as_secs_f64();
    gauge.stop.store(true, Ordering::Relaxed);
    let tally = collect(tasks).await;
    if calls == 0
        && let Some(status) = tally.first_error
    {
        return Err(target.explain(status));
    }
    let cpu_seconds = after.cpu_seconds - before.cpu_seconds;
    Ok((
        Slice {
            calls,
            seconds,
            cpu_seconds,
        },
        tally,
        after,
    ))
}
