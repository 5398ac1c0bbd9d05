//! Measures servers in turn (A B B A A B …), so that other load on the machine affects all of them.
//!
//! The order is reversed in every second run. Of two copies of one binary, the one that was always
//! measured first needed 1.1 × the CPU per call.
//!
//! Each run yields a ratio. The result is the median, and the range is the spread.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use indicatif::ProgressBar;

use super::connect::Target;
use super::daemon::{Server, Settings};
use super::driver::{Driver, Pick, Route, Work};
use super::measure::{Length, Measured, Side, stats};
use super::mix::Mix;
use super::postgres::Postgres;
use super::traffic::{Bodies, Rng};
use super::{CommonArgs, TrafficArgs, Usage, spinner};

/// Default runs per server when servers are compared.
const RUNS: u32 = 3;
const SECONDS: Duration = Duration::from_secs(10);
/// Maximum bytes of text and maximum turns of an append while filling.
const FILL_BYTES_MAX: usize = 512 << 10;
const FILL_TURNS_MAX: usize = 100;

/// Length of the measurement, and the server to compare with.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// Calls per run [default when comparing: depends on the measurement]
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    calls: Option<u64>,
    /// Seconds measured per server, for all runs together [default for one server: 10]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Seconds of load before the first run of each server
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_seconds)]
    warmup: Duration,
    /// Runs per server, in turn [default: 3 when comparing, otherwise 1]
    #[arg(long, value_name = "N", alias = "rounds")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// Restart and refill the servers for every run
    #[arg(long)]
    fresh: bool,
    /// Compare with another daemon binary, for example of the last release
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,
}

pub(crate) struct Comparison<'a> {
    pub(crate) common: &'a CommonArgs,
    pub(crate) traffic: &'a TrafficArgs,
    pub(crate) args: &'a RunArgs,
    /// Seed of texts and choices.
    pub(crate) seed: u64,
    /// Default number of calls per run.
    pub(crate) calls: u64,
    /// The servers. The first is compared with the last.
    pub(crate) sides: Vec<SidePlan>,
}

/// A server to measure.
#[derive(Clone)]
pub(crate) struct SidePlan {
    /// Name in the report.
    pub(crate) name: String,
    pub(crate) server: ServerPlan,
    pub(crate) fill: Fill,
    pub(crate) work: Work,
}

/// How a server is started.
#[derive(Clone)]
pub(crate) enum ServerPlan {
    /// The daemon binary of `--daemon`.
    Memoird(Settings),
    /// Daemons over a private PostgreSQL. They form a cluster unless `is_alone`.
    OverPostgres {
        settings: Settings,
        daemons: u16,
        is_alone: bool,
        route: Route,
    },
    /// Another daemon binary.
    Against(PathBuf, Settings),
    /// The bare server, with this number of turns per history.
    Bare(u32),
    /// A running server at this address.
    Remote(String),
}

/// Content of a server before the load starts.
#[derive(Clone, Copy)]
pub(crate) enum Fill {
    Nothing,
    /// Sessions with turns.
    Turns {
        sessions: u64,
        turns: u32,
    },
    Memories {
        subjects: u64,
        /// Total number of memories.
        memories: u64,
    },
}

impl RunArgs {
    pub(crate) fn is_against(&self) -> bool {
        self.against.is_some()
    }
}

impl Comparison<'_> {
    /// Starts the servers, fills them and measures them in turn.
    pub(crate) async fn measure(mut self) -> Result<Vec<Measured>> {
        self.take_against()?;
        let spinner = spinner();
        let mut measured: Vec<Measured> = self
            .sides
            .iter()
            .map(|plan| Measured {
                name: plan.name.clone(),
                first_window_us: None,
                runs: Vec::new(),
            })
            .collect();
        let (runs, length) = self.runs();
        let mut sides = Vec::new();
        for run in 0..runs {
            let is_new = run == 0 || self.args.fresh;
            if is_new {
                sides.clear();
                for plan in &self.sides {
                    sides.push(self.open(plan, &spinner).await?);
                }
            }
            // Later runs only need to wake the server up.
            let warmup = self.args.warmup / if is_new { 1 } else { runs };
            let mut turns: Vec<_> = sides.iter().zip(&mut measured).collect();
            if run % 2 == 1 {
                turns.reverse();
            }
            for (side, measured) in turns {
                let name = &measured.name;
                spinner.set_message(format!("{name}, run {} of {runs}", run + 1));
                measured.first_window_us = side.first_window_us;
                measured.runs.push(side.run(warmup, length).await?);
            }
        }
        spinner.finish_and_clear();
        Ok(measured)
    }

    /// With `--against`, adds a copy of the first server that runs the other binary.
    fn take_against(&mut self) -> Result<()> {
        let (Some(path), Some(subject)) = (&self.args.against, self.sides.first()) else {
            return Ok(());
        };
        let ServerPlan::Memoird(settings) = subject.server else {
            return Err(Usage("--against starts daemons of its own: leave --addr out").into());
        };
        let other = SidePlan {
            name: format!("{}, against", subject.name),
            server: ServerPlan::Against(path.clone(), settings),
            ..subject.clone()
        };
        self.sides.truncate(1);
        self.sides.push(other);
        Ok(())
    }

    fn runs(&self) -> (u32, Length) {
        let is_compared = self.sides.len() > 1;
        let default = if is_compared { RUNS } else { 1 };
        let runs = self.args.runs.unwrap_or(default);
        let length = match (self.args.calls, self.args.seconds) {
            (Some(calls), _) => Length::Calls(calls),
            (None, Some(seconds)) => Length::Time(seconds / runs),
            (None, None) if is_compared => Length::Calls(self.calls),
            (None, None) => Length::Time(SECONDS / runs),
        };
        (runs, length)
    }

    async fn open(&self, plan: &SidePlan, spinner: &ProgressBar) -> Result<Side> {
        let traffic = self.traffic;
        let dir = traffic.dir();
        spinner.set_message(format!("starting {}", plan.name));
        let (mut servers, mut database, mut by) = (Vec::new(), None, Route::default());
        let mut targets = Vec::new();
        match &plan.server {
            ServerPlan::Memoird(settings) => {
                servers.push(Server::memoird(&self.common.daemon()?, *settings, &dir).await?);
            }
            ServerPlan::OverPostgres {
                settings,
                daemons,
                is_alone,
                route,
            } => {
                let postgres = Postgres::start()?;
                let journal = postgres.journal(!is_alone);
                for _ in 0..*daemons {
                    let binary = self.common.daemon()?;
                    let one = Server::memoird_over(&binary, *settings, &journal, &dir);
                    servers.push(one.await?);
                }
                (database, by) = (Some(postgres), *route);
            }
            ServerPlan::Against(binary, settings) => {
                servers.push(Server::memoird(binary, *settings, &dir).await?);
            }
            ServerPlan::Bare(turns) => {
                servers.push(Server::bare(*turns, traffic.bytes, &dir).await?);
            }
            ServerPlan::Remote(addr) => targets.push(self.common.connect.target(addr)?),
        }
        for server in &servers {
            targets.push(server.target()?);
        }
        // Each of several daemons gets the load of one.
        let in_flight = traffic
            .in_flight
            .saturating_mul(u16::try_from(targets.len())?);
        let connections = traffic.connections;
        let driver = Driver::to_targets(targets, by, connections, in_flight, &prefix(self.seed));
        spinner.set_message(format!("filling {}", plan.name));
        self.fill(&driver, plan).await?;
        Ok(Side {
            first_window_us: first_windows(&driver, plan).await?,
            driver,
            work: plan.work.clone(),
            _servers: servers,
            database,
        })
    }

    async fn fill(&self, driver: &Driver, plan: &SidePlan) -> Result<()> {
        match plan.fill {
            Fill::Nothing => Ok(()),
            Fill::Turns { sessions, turns } => {
                let filling = Filling {
                    sessions,
                    turns: turns as usize,
                    bytes: self.traffic.bytes as usize,
                    turns_per_append: None,
                    seed: self.seed,
                };
                filling.run(driver).await
            }
            Fill::Memories { subjects, memories } => {
                let work = Work {
                    mix: Mix::Facts,
                    ..plan.work.clone()
                };
                driver.fill(work, subjects, memories).await
            }
        }
    }
}

/// Builds and measures the first window of each session, so that no run includes any of them.
async fn first_windows(driver: &Driver, plan: &SidePlan) -> Result<Option<f64>> {
    let Fill::Turns { sessions, .. } = plan.fill else {
        return Ok(None);
    };
    if !matches!(plan.work.mix, Mix::Windows { .. } | Mix::Looks) {
        return Ok(None);
    }
    let work = Work {
        mix: Mix::Looks,
        ..plan.work.clone()
    };
    let before = stats(driver.target()).await?;
    driver.fill(work, sessions, sessions).await?;
    let after = stats(driver.target()).await?;
    let cpu_seconds = after.cpu_seconds - before.cpu_seconds;
    Ok(Some(cpu_seconds * 1e6 / sessions as f64))
}

/// Fills sessions with the same number of turns each, in as few calls as possible.
pub(crate) struct Filling {
    pub(crate) sessions: u64,
    pub(crate) turns: usize,
    pub(crate) bytes: usize,
    /// Turns per append, if it matters.
    pub(crate) turns_per_append: Option<usize>,
    /// Seed of the texts.
    pub(crate) seed: u64,
}

impl Filling {
    pub(crate) async fn run(&self, driver: &Driver) -> Result<()> {
        let fits = (FILL_BYTES_MAX / (self.bytes + 64)).clamp(1, FILL_TURNS_MAX);
        let most = self.turns_per_append.unwrap_or(fits);
        // First the full appends, then the rest.
        for (turns, rounds) in [(most, self.turns / most), (self.turns % most, 1)] {
            if turns == 0 || rounds == 0 {
                continue;
            }
            let work = Work {
                mix: Mix::APPENDS,
                pick: Pick::InTurn(self.sessions),
                bodies: Bodies::new(turns, self.bytes, &mut Rng::new(self.seed)),
                seed: self.seed,
            };
            let calls = self.sessions * rounds as u64;
            driver.fill(work, self.sessions, calls).await?;
        }
        Ok(())
    }
}

pub(crate) fn prefix(seed: u64) -> String {
    format!("bench-{seed}-")
}

pub(crate) fn driver(target: Target, traffic: &TrafficArgs, prefix: &str) -> Driver {
    Driver::new(target, traffic.connections, traffic.in_flight, prefix)
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    const SECONDS_MAX: f64 = 86_400.0;
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=SECONDS_MAX).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err("not a number of seconds from 0 to 86400".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_parse_with_fraction() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "-1", "NaN", "inf", "1s", "1e9"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
