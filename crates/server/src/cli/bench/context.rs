//! `memoird bench context`: whether a window of a long session costs more than one of a
//! short session. Both are asked for windows of as many turns, each with an append.

use clap::Args;
use memoird_proto::v1::window_policy::Policy;
use memoird_proto::v1::{HeadTail, WindowPolicy};
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

/// The goal: the longest session costs so many times what the shortest does.
const GOAL: f64 = 1.1;
/// What a turn weighs beside its text, at most.
const TURN_BYTES_BESIDE: u64 = 200;
/// Histories have at least as much room as they have by default.
const HISTORY_BYTES_MIN: u64 = 4 << 20;

/// Which lengths to compare.
#[derive(Args)]
pub(super) struct ContextArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Turns of the sessions, for each length a daemon of its own; the last is compared
    /// with the first
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "100,10000"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    session_turns: Vec<u32>,
    /// Sessions of each daemon
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    sessions: u64,
    /// Turns of a window's tail, at most
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    window_turns: u32,
    #[command(flatten)]
    timing: TimingArgs,
    /// When the daemons call an append done
    #[arg(long, value_enum, default_value_t = Durability::Off)]
    durability: Durability,
}

/// Fills both, asks for windows in turns, and prints.
pub(super) async fn run(json: bool, args: ContextArgs) -> Result<(), CliError> {
    let seed = args.traffic.seed();
    let spinner = spinner();
    let mut daemons = Vec::new();
    let mut sides = Vec::new();
    // The last length first, because the report compares the first with the last.
    for turns in args.session_turns.iter().rev() {
        spinner.set_message(format!(
            "filling sessions of {} turns",
            output::count((*turns).into())
        ));
        let daemon = Daemon::memoird(args.settings(*turns), &args.traffic.dir()).await?;
        let side = args.side(&daemon, *turns, seed)?;
        let bytes = args.traffic.bytes as usize;
        fill(
            &side.driver,
            args.sessions,
            *turns as usize,
            bytes,
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
        let (sessions, window) = (output::count(args.sessions), args.window_turns);
        output::print(&format!(
            "{sessions} sessions, windows of at most {window} turns, an append in each call, \
             seed {seed}\n"
        ))?;
    }
    report::print(
        json,
        args.setup(seed),
        &measured,
        Some(Goal::CpuAtMost(GOAL)),
    )
}

impl ContextArgs {
    fn settings(&self, turns: u32) -> Settings {
        let turn_bytes = u64::from(self.traffic.bytes) + TURN_BYTES_BESIDE;
        Settings {
            durability: self.durability,
            max_sessions: self.sessions,
            history_turns: turns,
            history_bytes: (u64::from(turns) * turn_bytes).max(HISTORY_BYTES_MIN),
            ..Settings::default()
        }
    }

    fn side(&self, daemon: &Daemon, turns: u32, seed: u64) -> Result<Side, CliError> {
        let TrafficArgs {
            connections,
            in_flight,
            bytes,
            ..
        } = self.traffic;
        let prefix = format!("bench-{seed}-");
        let driver = Driver::new(daemon.target()?, connections, in_flight, &prefix)?;
        // As many turns at any length: what is compared is not the size of the answer.
        let policy = Policy::HeadTail(HeadTail {
            turns: self.window_turns,
        });
        let policy = Some(WindowPolicy {
            policy: Some(policy),
        });
        let bodies = Bodies::with_windows(1, bytes as usize, policy, &mut Rng::new(seed));
        let work = Work {
            mix: Mix::WINDOWS,
            pick: Pick::Random(self.sessions),
            bodies,
            seed,
        };
        Ok(Side {
            name: format!("{} turns", output::count(turns.into())),
            driver,
            work,
        })
    }

    fn setup(&self, seed: u64) -> Map<String, Value> {
        let setup = [
            ("seed", json!(seed)),
            ("session_turns", json!(self.session_turns)),
            ("sessions", json!(self.sessions)),
            ("window_turns", json!(self.window_turns)),
            ("bytes", json!(self.traffic.bytes)),
            ("in_flight", json!(self.traffic.in_flight)),
        ];
        setup
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}
