//! Runs a load against a server, and aggregates all runs of a server.

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

/// Length of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Length {
    /// A number of calls, so that the work does not depend on the machine's speed.
    Calls(u64),
    Time(Duration),
}

pub(crate) struct Side {
    pub(crate) driver: Driver,
    pub(crate) work: Work,
    /// CPU of the first window of a session that was only filled, in microseconds.
    pub(crate) first_window_us: Option<f64>,
    /// Its process if it is private, or several that share the database.
    pub(crate) _servers: Vec<Server>,
    pub(crate) database: Option<Postgres>,
}

pub(crate) struct Run {
    /// Successful calls.
    pub(crate) calls: u64,
    pub(crate) seconds: f64,
    /// CPU time of the server, without that of the load generator.
    pub(crate) cpu_seconds: f64,
    pub(crate) tally: Tally,
    /// The server's statistics after the run.
    pub(crate) stats: GetStatsResponse,
    /// Average number of change sets per commit.
    pub(crate) batch: f64,
    /// Resources used by the database, if there is one.
    pub(crate) database: Option<Used>,
}

pub(crate) struct Measured {
    pub(crate) name: String,
    /// CPU of the first window of a session before all runs, in microseconds.
    ///
    /// All of the session's turns are counted for it, as after a restart.
    pub(crate) first_window_us: Option<f64>,
    pub(crate) runs: Vec<Run>,
}

impl Side {
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

    /// Makes calls, and waits for all responses. Returns the number of successful calls.
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
    pub(crate) fn rate(&self) -> f64 {
        self.calls as f64 / self.seconds
    }

    /// The server's CPU per call in microseconds.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.calls as f64
    }

    /// A resource used by the database, per call.
    pub(crate) fn of_database(&self, what: impl Fn(Used) -> f64) -> f64 {
        self.database
            .map_or(f64::NAN, |used| what(used) / self.calls as f64)
    }

    pub(crate) fn p50_us(&self) -> f64 {
        self.tally.all().value_at_quantile(0.5) as f64
    }

    pub(crate) fn p99_us(&self) -> f64 {
        self.tally.all().value_at_quantile(0.99) as f64
    }

    pub(crate) fn p999_us(&self) -> f64 {
        self.tally.all().value_at_quantile(0.999) as f64
    }
}

impl Measured {
    pub(crate) fn calls(&self) -> u64 {
        self.runs.iter().map(|run| run.calls).sum()
    }

    pub(crate) fn rate(&self) -> f64 {
        self.calls() as f64 / self.runs.iter().map(|run| run.seconds).sum::<f64>()
    }

    /// The server's CPU per call in microseconds.
    pub(crate) fn cpu_us(&self) -> f64 {
        let cpu_seconds: f64 = self.runs.iter().map(|run| run.cpu_seconds).sum();
        cpu_seconds * 1e6 / self.calls() as f64
    }

    /// Average number of change sets per commit.
    pub(crate) fn batch(&self) -> f64 {
        self.runs.iter().map(|run| run.batch).sum::<f64>() / self.runs.len() as f64
    }

    pub(crate) fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        self.runs.iter().for_each(|run| sum.add(&run.tally));
        sum
    }

    /// The server's statistics after the last run.
    pub(crate) fn stats(&self) -> GetStatsResponse {
        self.runs
            .last()
            .map_or_else(GetStatsResponse::default, |run| run.stats.clone())
    }
}

pub(crate) async fn stats(target: &Target) -> Result<GetStatsResponse> {
    let request = target.request(GetStatsRequest::default());
    Ok(target.admin().get_stats(request).await?.into_inner())
}
