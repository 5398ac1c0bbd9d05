//! `memoird-bench evict`: the cost of a new session that evicts another one.
//!
//! Measures whether it depends on the number of sessions.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::compare::{Comparison, Fill, RunArgs, ServerPlan, SidePlan};
use super::daemon::Settings;
use super::driver::{Pick, Work};
use super::mix::Mix;
use super::output::count;
use super::report::{Figure, Headline, Report};
use super::traffic::{Bodies, Rng};
use super::{CommonArgs, Durability, TrafficArgs};

/// Goal for the cost at the largest cap, as a multiple of the smallest.
const GOAL: f64 = 1.1;
const CALLS: u64 = 50_000;

/// Caps to compare.
#[derive(Args)]
pub(super) struct EvictArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Session caps, each on its own daemon; the last is compared with the first
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "1000,1000000"
    )]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    sessions: Vec<u64>,
    #[command(flatten)]
    run: RunArgs,
    /// When an append is acknowledged
    #[arg(long, value_enum, default_value_t = Durability::Off)]
    durability: Durability,
}

/// Fills each daemon to its cap, then appends to new sessions only, and prints.
pub(super) async fn run(common: &CommonArgs, args: EvictArgs) -> Result<()> {
    let seed = args.traffic.seed();
    let what = format!("appends to new sessions only, seed {seed}");
    let mut report = Report::begin(common, &what, json!({ "seed": seed }))?;
    // The last cap first, because the first side is compared with the last.
    let reversed_caps = args.sessions.iter().rev();
    let comparison = Comparison {
        common,
        traffic: &args.traffic,
        args: &args.run,
        seed,
        calls: CALLS,
        sides: reversed_caps
            .clone()
            .map(|cap| args.side(*cap, seed))
            .collect(),
    };
    let measured = comparison.measure().await?;
    let evicted: Vec<u64> = measured.iter().map(|side| side.stats().evicted).collect();
    report.note("evicted", json!(evicted));
    let caps: Vec<String> = reversed_caps.map(|cap| count(*cap)).collect();
    let headline = if args.run.is_against() {
        Headline::new(format!("evict, cap {}", caps[0]), Figure::Cpu, None)
    } else {
        let name = format!("evict, cap {}", caps.join(" to "));
        Headline::new(name, Figure::Cpu, Some(GOAL))
    };
    report.print(&measured, &[headline])
}

impl EvictArgs {
    fn side(&self, cap: u64, seed: u64) -> SidePlan {
        let settings = Settings {
            durability: self.durability,
            max_sessions: cap,
            ..Settings::default()
        };
        let bytes = self.traffic.bytes as usize;
        SidePlan {
            name: format!("cap {}", count(cap)),
            server: ServerPlan::Memoird(settings),
            fill: Fill::Turns {
                sessions: cap,
                turns: 1,
            },
            work: Work {
                mix: Mix::APPENDS,
                pick: Pick::Fresh(Arc::new(AtomicU64::new(cap))),
                bodies: Bodies::new(1, bytes, &mut Rng::new(seed)),
                seed,
            },
        }
    }
}
