//! `memoird-bench search`: the cost of the transcript index for appends.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::compare::{Comparison, Fill, RunArgs, ServerPlan, SidePlan};
use super::daemon::Settings;
use super::driver::{Pick, Work};
use super::mix::Mix;
use super::report::{Figure, Headline, Report};
use super::traffic::{Bodies, Rng};
use super::{CommonArgs, Durability, TrafficArgs};

/// Goal for the cost with the index, as a multiple of that without.
const GOAL: f64 = 1.05;
/// Appends per run, and the sessions to spread them over.
const CALLS: u64 = 50_000;
const SESSIONS: u64 = 1_000;

/// What to append, and how often.
#[derive(Args)]
pub(super) struct SearchArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    #[command(flatten)]
    run: RunArgs,
    /// When an append is acknowledged
    #[arg(long, value_enum, default_value_t = Durability::Sync)]
    durability: Durability,
}

/// Measures appends with and without the index in turn, and prints.
pub(super) async fn run(common: &CommonArgs, args: SearchArgs) -> Result<()> {
    let seed = args.traffic.seed();
    let what = format!("appends with the transcript index and without, seed {seed}");
    let report = Report::begin(common, &what, json!({ "seed": seed }))?;
    let comparison = Comparison {
        common,
        traffic: &args.traffic,
        args: &args.run,
        seed,
        calls: CALLS,
        sides: [true, false].map(|is_on| args.side(is_on, seed)).into(),
    };
    let measured = comparison.measure().await?;
    let goal = (!args.run.is_against()).then_some(GOAL);
    let headline = Headline::new("append with the search index".into(), Figure::Cpu, goal);
    report.print(&measured, &[headline])
}

impl SearchArgs {
    fn side(&self, search: bool, seed: u64) -> SidePlan {
        let settings = Settings {
            durability: self.durability,
            search,
            ..Settings::default()
        };
        let bytes = self.traffic.bytes as usize;
        SidePlan {
            name: format!("search {}", if search { "on" } else { "off" }),
            server: ServerPlan::Memoird(settings),
            fill: Fill::Nothing,
            work: Work {
                mix: Mix::APPENDS,
                pick: Pick::Random(SESSIONS),
                bodies: Bodies::new(1, bytes, &mut Rng::new(seed)),
                seed,
            },
        }
    }
}
