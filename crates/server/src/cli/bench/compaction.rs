//! `memoird bench compaction`: whether windows of long sessions come later because their
//! oldest exchanges become summaries meanwhile. Two daemons, one of which compacts, are asked
//! for the same windows in the same small context window, each with an append.

use clap::Args;
use serde_json::{Map, Value, json};

use super::daemon::{Daemon, Settings};
use super::driver::{Driver, Pick, Work};
use super::load::{TimingArgs, fill};
use super::measure::{Side, alternate};
use super::mix::Mix;
use super::report::Goal;
use super::traffic::{Bodies, Rng};
use super::{Durability, TrafficArgs, report, spinner};
use crate::cli::exit::CliError;
use crate::cli::output;

/// The goal: one window in a hundred takes at most so many times what it does otherwise.
const GOAL: f64 = 1.2;

/// Which sessions, and which window.
#[derive(Args)]
pub(super) struct CompactionArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Sessions of each daemon; as many calls are under way, at most
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=16_384))]
    sessions: u16,
    /// Turns in every session before the load starts
    #[arg(long, value_name = "N", default_value_t = 200)]
    prefill: u32,
    /// The context window, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 8_192)]
    #[arg(value_parser = clap::value_parser!(u64).range(2_048..=1_000_000))]
    context_window: u64,
    /// Turns that histories keep
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(10..=100_000))]
    history_turns: u32,
    #[command(flatten)]
    timing: TimingArgs,
    /// When the daemons call an append done
    #[arg(long, value_enum, default_value_t = Durability::Sync)]
    durability: Durability,
}

/// Fills both, asks for windows in turns, and prints.
pub(super) async fn run(json: bool, args: CompactionArgs) -> Result<(), CliError> {
    let seed = args.traffic.seed();
    let spinner = spinner();
    let mut daemons = Vec::new();
    let mut sides = Vec::new();
    for (name, compaction) in [("compaction", true), ("without", false)] {
        spinner.set_message(format!("filling {name}"));
        let daemon = Daemon::memoird(args.settings(compaction), &args.traffic.dir()).await?;
        let side = args.side(name, &daemon, seed)?;
        let (sessions, turns) = (args.sessions.into(), args.prefill as usize);
        fill(
            &side.driver,
            sessions,
            turns,
            args.traffic.bytes as usize,
            None,
            seed,
        )
        .await?;
        daemons.push(daemon);
        sides.push(side);
    }
    let measured = alternate(&sides, args.timing.timing(sides.len()), &spinner).await?;
    spinner.finish_and_clear();
    if !json {
        let (sessions, tokens) = (args.sessions, output::count(args.context_window));
        output::print(&format!(
            "{sessions} sessions, a context window of {tokens} tokens, an append in each call, \
             seed {seed}\n"
        ))?;
    }
    report::print(
        json,
        args.setup(seed),
        &measured,
        Some(Goal::P99AtMost(GOAL)),
    )
}

impl CompactionArgs {
    fn settings(&self, compaction: bool) -> Settings {
        Settings {
            durability: self.durability,
            history_turns: self.history_turns,
            context_window: Some(self.context_window),
            compaction,
            ..Settings::default()
        }
    }

    fn side(&self, name: &str, daemon: &Daemon, seed: u64) -> Result<Side, CliError> {
        let TrafficArgs {
            connections,
            in_flight,
            bytes,
            ..
        } = self.traffic;
        let prefix = format!("bench-{seed}-");
        // A bot waits for the answer to a message before it brings the next one.
        let in_flight = in_flight.min(self.sessions);
        let driver = Driver::new(daemon.target()?, connections, in_flight, &prefix)?;
        let bodies = Bodies::with_windows(1, bytes as usize, None, &mut Rng::new(seed));
        let pick = Pick::Random(self.sessions.into());
        let work = Work {
            mix: Mix::WINDOWS,
            pick,
            bodies,
            seed,
        };
        Ok(Side {
            name: name.to_owned(),
            driver,
            work,
        })
    }

    fn setup(&self, seed: u64) -> Map<String, Value> {
        let setup = [
            ("seed", json!(seed)),
            ("sessions", json!(self.sessions)),
            ("prefill", json!(self.prefill)),
            ("context_window", json!(self.context_window)),
            ("history_turns", json!(self.history_turns)),
            ("bytes", json!(self.traffic.bytes)),
            (
                "in_flight",
                json!(self.traffic.in_flight.min(self.sessions)),
            ),
        ];
        setup
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}
