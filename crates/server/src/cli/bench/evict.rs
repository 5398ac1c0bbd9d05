//! `memoird bench evict`: what a new session costs when another has to go for it,
//! and whether that depends on how many there are.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use clap::Args;
use serde_json::{Map, json};

use super::daemon::{Daemon, Settings};
use super::driver::{Driver, Pick, Work};
use super::load::{TimingArgs, fill};
use super::measure::{Side, alternate, stats};
use super::mix::Mix;
use super::traffic::{Bodies, Rng};
use super::{Durability, TrafficArgs, report, spinner};
use crate::cli::exit::CliError;
use crate::cli::output;

/// Which caps to compare.
#[derive(Args)]
pub(super) struct EvictArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Caps, each of a daemon of its own; the last is compared with the first
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "1000,1000000"
    )]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    sessions: Vec<u64>,
    #[command(flatten)]
    timing: TimingArgs,
    /// When the daemons call an append done
    #[arg(long, value_enum, default_value_t = Durability::Off)]
    durability: Durability,
}

/// Fills each to its cap, then appends to new sessions only, and prints.
pub(super) async fn run(json: bool, args: EvictArgs) -> Result<(), CliError> {
    let seed = args.traffic.seed();
    let spinner = spinner();
    let mut daemons = Vec::new();
    let mut sides = Vec::new();
    // The last cap first, because the report compares the first with the last.
    for cap in args.sessions.iter().rev() {
        spinner.set_message(format!("filling {} sessions", output::count(*cap)));
        let settings = Settings {
            durability: args.durability,
            max_sessions: *cap,
            ..Settings::default()
        };
        let daemon = Daemon::memoird(settings, &args.traffic.dir()).await?;
        let side = side(&args, &daemon, *cap, seed)?;
        fill(
            &side.driver,
            *cap,
            1,
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
    let mut evicted = Vec::new();
    for side in &sides {
        evicted.push(stats(side.driver.target()).await?.evicted);
    }
    let mut setup = Map::new();
    setup.insert("seed".to_owned(), json!(seed));
    setup.insert("evicted".to_owned(), json!(evicted));
    if !json {
        let evicted: Vec<String> = evicted.into_iter().map(output::count).collect();
        output::print(&format!(
            "seed {seed}, sessions evicted: {}\n",
            evicted.join(" and ")
        ))?;
    }
    report::print(json, setup, &measured, None)
}

fn side(args: &EvictArgs, daemon: &Daemon, cap: u64, seed: u64) -> Result<Side, CliError> {
    let TrafficArgs {
        connections,
        in_flight,
        bytes,
        ..
    } = args.traffic;
    let prefix = format!("bench-{seed}-");
    let driver = Driver::new(daemon.target()?, connections, in_flight, &prefix)?;
    let work = Work {
        mix: Mix::APPENDS,
        pick: Pick::Fresh(Arc::new(AtomicU64::new(cap))),
        bodies: Bodies::new(1, bytes as usize, &mut Rng::new(seed)),
        seed,
    };
    Ok(Side {
        name: format!("cap {}", output::count(cap)),
        driver,
        work,
    })
}
