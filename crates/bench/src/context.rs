//! `memoird-bench context`: whether a window of a long session costs more than one of a short one.
//!
//! Both windows have the same number of turns, and each call appends.

use anyhow::Result;
use clap::Args;
use memoird_proto::v1::window_policy::Policy;
use memoird_proto::v1::{HeadTail, WindowPolicy};
use serde_json::{Value, json};

use super::compare::{Comparison, Fill, RunArgs, ServerPlan, SidePlan};
use super::daemon::Settings;
use super::driver::{Pick, Work};
use super::mix::Mix;
use super::output::count;
use super::report::{Figure, Headline, Report};
use super::traffic::{Bodies, Rng};
use super::{CommonArgs, Durability, TrafficArgs};

/// Goal for the cost of the longest session, as a multiple of the shortest.
const GOAL: f64 = 1.1;
const CALLS: u64 = 20_000;
/// Maximum size in bytes of a turn without its text.
const TURN_BYTES_BESIDE: u64 = 200;
/// Minimum history size, the daemon's default.
const HISTORY_BYTES_MIN: u64 = 4 << 20;

/// Session lengths to compare.
#[derive(Args)]
pub(super) struct ContextArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Turns per session, each length on its own daemon; the last is compared with the first
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "100,10000"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    session_turns: Vec<u32>,
    /// Sessions per daemon
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    sessions: u64,
    /// Maximum turns in a window's tail
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    window_turns: u32,
    #[command(flatten)]
    run: RunArgs,
    /// When an append is acknowledged
    #[arg(long, value_enum, default_value_t = Durability::Off)]
    durability: Durability,
}

/// Fills all daemons, measures windows in turn, and prints.
pub(super) async fn run(common: &CommonArgs, args: ContextArgs) -> Result<()> {
    let seed = args.traffic.seed();
    let what = format!(
        "{} sessions, windows of at most {} turns, an append in each call, seed {seed}",
        count(args.sessions),
        args.window_turns
    );
    let report = Report::begin(common, &what, args.setup(seed))?;
    let comparison = Comparison {
        common,
        traffic: &args.traffic,
        args: &args.run,
        seed,
        calls: CALLS,
        // The last length first, because the first side is compared with the last.
        sides: args
            .session_turns
            .iter()
            .rev()
            .map(|turns| args.side(*turns, seed))
            .collect(),
    };
    let measured = comparison.measure().await?;
    let lengths: Vec<String> = args
        .session_turns
        .iter()
        .rev()
        .map(u32::to_string)
        .collect();
    let headline = if args.run.is_against() {
        Headline::new(format!("window of {} turns", lengths[0]), Figure::Cpu, None)
    } else {
        let name = format!("window, sessions of {} turns", lengths.join(" to "));
        Headline::new(name, Figure::Cpu, Some(GOAL))
    };
    report.print(&measured, &[headline])
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

    fn side(&self, turns: u32, seed: u64) -> SidePlan {
        // The same number of turns at any length, so that the responses have the same size.
        let head_tail = Policy::HeadTail(HeadTail {
            turns: self.window_turns,
        });
        let policy = WindowPolicy {
            policy: Some(head_tail),
        };
        let bytes = self.traffic.bytes as usize;
        let bodies = Bodies::with_windows(1, bytes, Some(policy), &mut Rng::new(seed));
        SidePlan {
            name: format!("{} turns", count(turns.into())),
            server: ServerPlan::Memoird(self.settings(turns)),
            fill: Fill::Turns {
                sessions: self.sessions,
                turns,
            },
            work: Work {
                mix: Mix::WINDOWS,
                pick: Pick::Random(self.sessions),
                bodies,
                seed,
            },
        }
    }

    fn setup(&self, seed: u64) -> Value {
        json!({
            "seed": seed,
            "session_turns": self.session_turns,
            "sessions": self.sessions,
            "window_turns": self.window_turns,
            "bytes": self.traffic.bytes,
            "in_flight": self.traffic.in_flight,
        })
    }
}
