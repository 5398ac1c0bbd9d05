//! `memoird-bench compaction`: whether background compaction delays windows of long sessions.
//!
//! Two daemons, one with compaction, build the same windows in the same small context window,
//! each with an append.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::compare::{Comparison, Fill, RunArgs, ServerPlan, SidePlan};
use super::daemon::Settings;
use super::driver::{Pick, Work};
use super::mix::Mix;
use super::output::count;
use super::report::{Figure, Headline, Report};
use super::traffic::{Bodies, Rng};
use super::{CommonArgs, Durability, TrafficArgs};

/// Goals for p99 and CPU, as multiples of windows without compaction.
const GOAL_OF_P99: f64 = 1.2;
const GOAL_OF_CPU: f64 = 1.15;
/// Windows per run, enough for 200 samples above p99.
const CALLS: u64 = 20_000;

/// Sessions and windows to measure.
#[derive(Args)]
pub(super) struct CompactionArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Sessions per daemon, and maximum number of calls in flight
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=16_384))]
    sessions: u16,
    /// Turns in each session before the load starts
    #[arg(long, value_name = "N", default_value_t = 200)]
    prefill: u32,
    /// Context window in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 8_192)]
    #[arg(value_parser = clap::value_parser!(u64).range(2_048..=1_000_000))]
    context_window: u64,
    /// Maximum turns of a history
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(10..=100_000))]
    history_turns: u32,
    #[command(flatten)]
    run: RunArgs,
    /// When an append is acknowledged
    #[arg(long, value_enum, default_value_t = Durability::Sync)]
    durability: Durability,
}

/// Fills both daemons, measures windows in turn, and prints.
pub(super) async fn run(common: &CommonArgs, mut args: CompactionArgs) -> Result<()> {
    // A bot waits for the reply to a message before it sends the next one.
    args.traffic.in_flight = args.traffic.in_flight.min(args.sessions);
    let seed = args.traffic.seed();
    let what = format!(
        "{} sessions, a context window of {} tokens, an append in each call, seed {seed}",
        args.sessions,
        count(args.context_window)
    );
    let report = Report::begin(common, &what, args.setup(seed))?;
    let comparison = Comparison {
        common,
        traffic: &args.traffic,
        args: &args.run,
        seed,
        calls: CALLS,
        sides: vec![
            args.side("compaction", true, seed),
            args.side("without", false, seed),
        ],
    };
    let measured = comparison.measure().await?;
    let name = if args.run.is_against() {
        "window with compaction"
    } else {
        "window, with compaction to without"
    };
    let goal = |goal| Some(goal).filter(|_| !args.run.is_against());
    let headlines = [
        Headline::new(name.into(), Figure::P99, goal(GOAL_OF_P99)),
        Headline::new(name.into(), Figure::Cpu, goal(GOAL_OF_CPU)),
    ];
    report.print(&measured, &headlines)
}

impl CompactionArgs {
    fn side(&self, name: &str, compaction: bool, seed: u64) -> SidePlan {
        let settings = Settings {
            durability: self.durability,
            history_turns: self.history_turns,
            context_window: Some(self.context_window),
            compaction,
            ..Settings::default()
        };
        let bytes = self.traffic.bytes as usize;
        let sessions = self.sessions.into();
        SidePlan {
            name: name.to_owned(),
            server: ServerPlan::Memoird(settings),
            fill: Fill::Turns {
                sessions,
                turns: self.prefill,
            },
            work: Work {
                mix: Mix::WINDOWS,
                pick: Pick::Random(sessions),
                bodies: Bodies::with_windows(1, bytes, None, &mut Rng::new(seed)),
                seed,
            },
        }
    }

    fn setup(&self, seed: u64) -> Value {
        json!({
            "seed": seed,
            "sessions": self.sessions,
            "prefill": self.prefill,
            "context_window": self.context_window,
            "history_turns": self.history_turns,
            "bytes": self.traffic.bytes,
            "in_flight": self.traffic.in_flight,
        })
    }
}
