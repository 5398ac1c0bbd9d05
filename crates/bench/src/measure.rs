//! One run of a load against one server, and all runs of a server together.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use memoird_proto::v1::{GetStatsRequest, GetStatsResponse};
use tokio::time::sleep;

use super::clock;
use super::connect::Target;
use super::daemon::Server;
use super::driver::{Driver, Gauge, Tally, Work, collect};
use super::postgres::{Postgres, Used};

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Length {
    /// So many calls: the work is the same in every run, however fast the machine is.
    Calls(u64),
    /// So long.
    Time(Duration),
}

/// One of the servers of a measurement.
pub(crate) struct Side {
    /// The way to it.
    pub(crate) driver: Driver,
    /// What it has to do.
    pub(crate) work: Work,
    /// CPU of the first window of a session that was only filled, in microseconds.
    pub(crate) first_window_us: Option<f64>,
    /// Its process, where it is our own; or those that share the database.
    pub(crate) _servers: Vec<Server>,
    /// Where the journal is, if that is in a database.
    pub(crate) database: Option<Postgres>,
}

/// What one run showed.
pub(crate) struct Run {
    /// Calls answered well.
    pub(crate) calls: u64,
    /// How long it took.
    pub(crate) seconds: f64,
    /// The server's CPU time in it; that of the load generator is not in it.
    pub(crate) cpu_seconds: f64,
    /// What came back.
    pub(crate) tally: Tally,
    /// What the server counted, after the run.
    pub(crate) stats: GetStatsResponse,
    /// Sets of a commit, on the average.
    pub(crate) batch: f64,
    /// What the database used in it, where there is one.
    pub(crate) database: Option<Used>,
}

/// All runs of one server.
pub(crate) struct Measured {
    /// What the report calls it.
    pub(crate) name: String,
    /// CPU of the first window of a session, before all runs, in microseconds: all of its turns are
    /// counted for it, as after a restart.
    pub(crate) first_window_us: Option<f64>,
    /// One by one.
    pub(crate) runs: Vec<Run>,
}

impl Side {
    /// Warms up, then measures.
    pub(crate) async fn run(&self, warmup: Duration, length: Length) -> Result<Run> {
        if !warmup.is_zero() {
            self.drive(Length::Time(warmup)).await;
        }
        let used = || self.database.as_ref().map(Postgres::used).transpose();
        let (before, used_before) = (self.driver.stats().await?, used()?);
        let started = clock::monotonic();
        let (calls, tally) = self.drive(length).await;
        let seconds = clock::since(started).as_secs_f64();
        let (stats, used) = (self.driver.stats().await?, used()?);
        let commits = stats.commits - before.commits;
        let sets = stats.commit_sets - before.commit_sets;
        match tally.first_error {
            Some(status) if calls == 0 => Err(status.into()),
            _ => Ok(Run {
                calls,
                seconds,
                cpu_seconds: stats.cpu_seconds - before.cpu_seconds,
                tally,
                stats,
                batch: sets as f64 / commits as f64,
                database: used
                    .zip(used_before)
                    .map(|(used, before)| used.since(before)),
            }),
        }
    }

    /// Calls, until the last is answered. Gives how many were answered well.
    async fn drive(&self, length: Length) -> (u64, Tally) {
        let calls_max = match length {
            Length::Calls(calls) => calls,
            Length::Time(_) => u64::MAX,
        };
        let gauge = Arc::new(Gauge::new(calls_max));
        let tasks = self.driver.start(&self.work, &gauge);
        if let Length::Time(span) = length {
            sleep(span).await;
            gauge.stop.store(true, Ordering::Relaxed);
        }
        let tally = collect(tasks).await;
        (gauge.done.load(Ordering::Relaxed), tally)
    }
}

impl Run {
    /// Calls per second.
    pub(crate) fn rate(&self) -> f64 {
        self.calls as f64 / self.seconds
    }

    /// The server's CPU per call, in microseconds.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.calls as f64
    }

    /// Something that the database used, of each call.
    pub(crate) fn of_database(&self, what: impl Fn(Used) -> f64) -> f64 {
        self.database
            .map_or(f64::NAN, |used| what(used) / self.calls as f64)
    }

    /// The latency that half of the calls do not exceed, in microseconds.
    pub(crate) fn p50_us(&self) -> f64 {
        self.tally.all().value_at_quantile(0.5) as f64
    }

    /// The latency that 99 of 100 calls do not exceed, in microseconds.
    pub(crate) fn p99_us(&self) -> f64 {
        self.tally.all().value_at_quantile(0.99) as f64
    }

    /// The latency that 999 of 1,000 calls do not exceed, in microseconds.
    pub(crate) fn p999_us(&self) -> f64 {
        self.tally.all().value_at_quantile(0.999) as f64
    }
}

impl Measured {
    /// Calls answered well.
    pub(crate) fn calls(&self) -> u64 {
        self.runs.iter().map(|run| run.calls).sum()
    }

    /// Calls per second.
    pub(crate) fn rate(&self) -> f64 {
        self.calls() as f64 / self.runs.iter().map(|run| run.seconds).sum::<f64>()
    }

    /// The server's CPU per call, in microseconds.
    pub(crate) fn cpu_us(&self) -> f64 {
        let cpu_seconds: f64 = self.runs.iter().map(|run| run.cpu_seconds).sum();
        cpu_seconds * 1e6 / self.calls() as f64
    }

    /// Sets of a commit, on the average.
    pub(crate) fn batch(&self) -> f64 {
        self.runs.iter().map(|run| run.batch).sum::<f64>() / self.runs.len() as f64
    }

    /// What came back in all runs.
    pub(crate) fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        self.runs.iter().for_each(|run| sum.add(&run.tally));
        sum
    }

    /// What the server counted, after the last run.
    pub(crate) fn stats(&self) -> GetStatsResponse {
        self.runs
            .last()
            .map_or_else(GetStatsResponse::default, |run| run.stats.clone())
    }
}

/// The counters of a server.
pub(crate) async fn stats(target: &Target) -> Result<GetStatsResponse> {
    let request = target.request(GetStatsRequest::default());
    Ok(target.admin().get_stats(request).await?.into_inner())
}
