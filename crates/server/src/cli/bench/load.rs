//! `memoird bench` itself: the same load on one server, or on two in turns.

use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};

use super::daemon::{Daemon, Settings};
use super::driver::{Driver, Pick, Work};
use super::measure::{Side, Timing, alternate};
use super::mix::{MIX_HELP, Mix};
use super::report::Goal;
use super::traffic::{Bodies, Rng};
use super::{Durability, TrafficArgs, report, spinner};
use crate::cli::ClientArgs;
use crate::cli::connect::Target;
use crate::cli::exit::CliError;
use crate::cli::output;

/// The goal for windows without an append: so many times the calls/s of a ready-made reply.
const GOAL_OF_WINDOWS: f64 = 0.8;
/// An append of a filling has at most so many bytes of text, and so many turns.
const FILL_BYTES_MAX: usize = 512 << 10;
const FILL_TURNS_MAX: usize = 100;

/// The load. With --addr it drives that daemon, otherwise one of its own.
#[derive(Args)]
pub(super) struct LoadArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Sessions that the calls are spread over
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    sessions: u64,
    /// Subjects that the calls are spread over, where the mix is remember or recall
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    subjects: u64,
    /// Memories of all subjects before the load starts, where the mix is recall
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    memories: u64,
    #[arg(long, value_name = "MIX", default_value_t = Mix::APPENDS, help = MIX_HELP)]
    mix: Mix,
    /// Turns in each append
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    turns_per_append: u16,
    /// Turns in every session before the load starts [default: --history-turns]
    #[arg(long, value_name = "N")]
    prefill: Option<u32>,
    #[command(flatten)]
    timing: TimingArgs,
    /// Compare with a bare gRPC server that decodes and answers the same messages
    #[arg(long)]
    baseline: bool,
    /// Compare durability sync with durability off
    #[arg(long, conflicts_with_all = ["baseline", "durability"])]
    compare_durability: bool,
    /// When our own daemon calls an append done
    #[arg(long, value_enum, default_value_t = Durability::Sync)]
    durability: Durability,
    /// Our own daemon's cap on sessions [default: --sessions, at least 10000]
    #[arg(long, value_name = "N")]
    max_sessions: Option<u64>,
    /// Turns of our own daemon's histories, and of the bare server's
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    history_turns: u32,
}

/// How long to measure.
#[derive(Args)]
pub(super) struct TimingArgs {
    /// Seconds measured of each server
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    seconds: Duration,
    /// Seconds of load before that
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_seconds)]
    warmup: Duration,
    /// Slices that the seconds are cut into where servers are compared
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

impl TimingArgs {
    /// In one slice for one server, in several for more.
    pub(super) fn timing(&self, servers: usize) -> Timing {
        let rounds = if servers > 1 { self.rounds } else { 1 };
        Timing {
            warmup: self.warmup,
            measured: self.seconds,
            rounds,
        }
    }
}

/// Measures and prints.
pub(super) async fn run(client: &ClientArgs, args: LoadArgs) -> Result<(), CliError> {
    if client.connect.addr_typed && args.compare_durability {
        return Err(CliError::Usage {
            problem: "--compare-durability starts daemons of its own: leave --addr out".to_owned(),
        });
    }
    if args.baseline && args.mix.is_of_memories() {
        return Err(CliError::Usage {
            problem: "the bare server of --baseline knows no memories".to_owned(),
        });
    }
    let seed = args.traffic.seed();
    let spinner = spinner();
    if !client.json {
        output::print(&args.describe(seed))?;
    }
    let mut daemons = Vec::new();
    let sides = args.sides(client, seed, &spinner, &mut daemons).await?;
    let timing = args.timing.timing(sides.len());
    let measured = alternate(&sides, timing, &spinner).await?;
    spinner.finish_and_clear();
    report::print(client.json, args.setup(seed), &measured, args.goal())
}

/// Gives every session so many turns, in as few calls as the daemon takes.
pub(super) async fn fill(
    driver: &Driver,
    sessions: u64,
    turns: usize,
    bytes: usize,
    turns_per_append: Option<usize>,
    seed: u64,
) -> Result<(), CliError> {
    let fits = (FILL_BYTES_MAX / (bytes + 64)).clamp(1, FILL_TURNS_MAX);
    let most = turns_per_append.unwrap_or(fits);
    // The whole appends first, then what is left over.
    for (turns, rounds) in [(most, turns / most), (turns % most, 1)] {
        if turns == 0 || rounds == 0 {
            continue;
        }
        let bodies = Bodies::new(turns, bytes, &mut Rng::new(seed));
        let work = Work {
            mix: Mix::APPENDS,
            pick: Pick::Random(sessions),
            bodies,
            seed,
        };
        driver
            .fill(work, sessions, sessions * rounds as u64)
            .await?;
    }
    Ok(())
}

impl LoadArgs {
    /// The servers, running and filled. Those of our own are pushed to `daemons`.
    async fn sides(
        &self,
        client: &ClientArgs,
        seed: u64,
        spinner: &ProgressBar,
        daemons: &mut Vec<Daemon>,
    ) -> Result<Vec<Side>, CliError> {
        let mut sides = Vec::new();
        if client.connect.addr_typed {
            sides.push(self.side("memoird", client.connect.target()?, seed)?);
        } else {
            let modes: &[Durability] = if self.compare_durability {
                &[Durability::Sync, Durability::Off]
            } else {
                &[self.durability]
            };
            for mode in modes {
                spinner.set_message("starting memoird");
                let daemon = Daemon::memoird(self.settings(*mode), &self.traffic.dir()).await?;
                let name = format!("memoird {}", mode.name());
                sides.push(self.side(&name, daemon.target()?, seed)?);
                daemons.push(daemon);
            }
        }
        for side in &sides {
            spinner.set_message(format!("filling {}", side.name));
            self.fill(side, seed).await?;
        }
        if self.baseline {
            let (turns, bytes) = (self.history_turns, self.traffic.bytes);
            let bare = Daemon::bare(turns, bytes, &self.traffic.dir()).await?;
            sides.push(self.side("bare server", bare.target()?, seed)?);
            daemons.push(bare);
        }
        Ok(sides)
    }

    /// Brings a server to where the load starts.
    async fn fill(&self, side: &Side, seed: u64) -> Result<(), CliError> {
        match self.mix {
            Mix::Facts => Ok(()),
            Mix::Recalls => {
                let work = Work {
                    mix: Mix::Facts,
                    ..side.work.clone()
                };
                side.driver.fill(work, self.subjects, self.memories).await
            }
            Mix::Histories { .. } | Mix::Windows { .. } | Mix::Looks => {
                let turns = self.prefill.unwrap_or(self.history_turns) as usize;
                let bytes = self.traffic.bytes as usize;
                fill(&side.driver, self.sessions, turns, bytes, None, seed).await
            }
        }
    }

    fn side(&self, name: &str, target: Target, seed: u64) -> Result<Side, CliError> {
        let TrafficArgs {
            connections,
            in_flight,
            bytes,
            ..
        } = self.traffic;
        let prefix = format!("bench-{seed}-");
        let driver = Driver::new(target, connections, in_flight, &prefix)?;
        let turns = usize::from(self.turns_per_append);
        let (bytes, mut rng) = (bytes as usize, Rng::new(seed));
        let bodies = match self.mix {
            Mix::Windows { .. } => Bodies::with_windows(turns, bytes, None, &mut rng),
            _ => Bodies::new(turns, bytes, &mut rng),
        };
        let ids = if self.mix.is_of_memories() {
            self.subjects
        } else {
            self.sessions
        };
        let work = Work {
            mix: self.mix,
            pick: Pick::Random(ids),
            bodies,
            seed,
        };
        Ok(Side {
            name: name.to_owned(),
            driver,
            work,
        })
    }

    fn settings(&self, durability: Durability) -> Settings {
        Settings {
            durability,
            max_sessions: self.max_sessions.unwrap_or(self.sessions.max(10_000)),
            history_turns: self.history_turns,
            ..Settings::default()
        }
    }

    /// A window costs little more than an answer that was made beforehand.
    fn goal(&self) -> Option<Goal> {
        let is_of_windows = self.baseline && self.mix == Mix::Looks;
        is_of_windows.then_some(Goal::RateAtLeast(GOAL_OF_WINDOWS))
    }

    fn describe(&self, seed: u64) -> String {
        let Self { traffic, mix, .. } = self;
        let (in_flight, connections) = (traffic.in_flight, traffic.connections);
        let bytes = output::count(traffic.bytes.into());
        let what = match mix.is_of_memories() {
            true => {
                let subjects = output::count(self.subjects);
                let before = if *mix == Mix::Recalls {
                    self.memories
                } else {
                    0
                };
                let before = output::count(before);
                format!("{subjects} subjects, {before} memories before, {bytes} bytes each")
            }
            false => {
                let (sessions, turns) = (output::count(self.sessions), self.turns_per_append);
                format!("{sessions} sessions, turns of {bytes} bytes, {turns} per append")
            }
        };
        format!(
            "{in_flight} calls in flight on {connections} connections, mix {mix}, {what}, \
             seed {seed}\n"
        )
    }

    fn setup(&self, seed: u64) -> Map<String, Value> {
        let setup = [
            ("seed", json!(seed)),
            ("connections", json!(self.traffic.connections)),
            ("in_flight", json!(self.traffic.in_flight)),
            ("sessions", json!(self.sessions)),
            ("subjects", json!(self.subjects)),
            ("memories", json!(self.memories)),
            ("bytes", json!(self.traffic.bytes)),
            ("mix", json!(self.mix.to_string())),
            ("turns_per_append", json!(self.turns_per_append)),
            ("history_turns", json!(self.history_turns)),
        ];
        setup
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
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
    fn seconds_may_have_a_fraction() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "-1", "NaN", "inf", "1s", "1e9"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
