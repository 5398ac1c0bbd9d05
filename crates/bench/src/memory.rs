//! `memoird-bench memory`: growth of the daemon's memory relative to the bytes of the turns.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use memoird_proto::v1::GetStatsResponse;
use serde_json::json;
use tokio::time::sleep;

use super::compare::{Filling, driver, prefix};
use super::daemon::{Server, Settings};
use super::measure::stats;
use super::output::count;
use super::report::{Report, SingleRun};
use super::{CommonArgs, Durability, TrafficArgs, spinner};

/// Goals: a multiple of the bytes of the turns, plus bytes per session.
const GOAL_PER_TURN_BYTE: f64 = 1.5;
const GOAL_PER_SESSION: f64 = 300.0;
/// Time for queues to drain and buffers to shrink.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// What to fill.
#[derive(Args)]
pub(super) struct MemoryArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Sessions to fill
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    fill_sessions: u64,
    /// Turns in each session
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    turns_per_session: u32,
    /// Turns in each append, because it may matter how a history grew
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    turns_per_append: u16,
    /// When an append is acknowledged
    #[arg(long, value_enum, default_value_t = Durability::Off)]
    durability: Durability,
}

pub(super) async fn run(common: &CommonArgs, args: MemoryArgs) -> Result<()> {
    let seed = args.traffic.seed();
    let report = Report::begin(common, &format!("seed {seed}"), json!({ "seed": seed }))?;
    let spinner = spinner();
    let settings = Settings {
        durability: args.durability,
        max_sessions: args.fill_sessions,
        // The first turn is kept separately and does not count. No turn is dropped.
        history_turns: args.turns_per_session,
        ..Settings::default()
    };
    let server = Server::memoird(&common.daemon()?, settings, &args.traffic.dir()).await?;
    let driver = driver(server.target()?, &args.traffic, &prefix(seed));
    spinner.set_message("settling");
    sleep(SETTLE_TIME).await;
    let before = stats(driver.target()).await?;
    spinner.set_message("filling sessions");
    let filling = Filling {
        sessions: args.fill_sessions,
        turns: args.turns_per_session as usize,
        bytes: args.traffic.bytes as usize,
        turns_per_append: Some(args.turns_per_append.into()),
        seed,
    };
    filling.run(&driver).await?;
    spinner.set_message("settling");
    sleep(SETTLE_TIME).await;
    let after = stats(driver.target()).await?;
    spinner.finish_and_clear();
    print(report, &before, &after)
}

fn print(report: Report, before: &GetStatsResponse, after: &GetStatsResponse) -> Result<()> {
    let grown = after.rss_bytes.saturating_sub(before.rss_bytes);
    let sessions = after.sessions_live as f64;
    let ratio = grown as f64 / after.bytes_live as f64;
    let beyond = (grown as f64 - after.bytes_live as f64) / sessions;
    let goal = GOAL_PER_TURN_BYTE * after.bytes_live as f64 + GOAL_PER_SESSION * sessions;
    let of_goal = grown as f64 / goal;
    let rows = [
        ("sessions", count(after.sessions_live)),
        ("turns", count(after.turns_live)),
        ("bytes of the turns", count(after.bytes_live)),
        ("memory before", count(before.rss_bytes)),
        ("memory after", count(after.rss_bytes)),
        (
            "grown by",
            format!("{} = {ratio:.2} × the turns", count(grown)),
        ),
        (
            "per session",
            format!("{:.0} bytes", grown as f64 / sessions),
        ),
        ("beyond its turns", format!("{beyond:.0} bytes a session")),
        (
            "goal",
            format!(
                "1.5 × the turns + 300 bytes a session; used {:.0} %",
                of_goal * 100.0
            ),
        ),
    ];
    let values = json!({
        "sessions": after.sessions_live,
        "turns": after.turns_live,
        "bytes_live": after.bytes_live,
        "rss_bytes_before": before.rss_bytes,
        "rss_bytes_after": after.rss_bytes,
        "grown_bytes": grown,
        "ratio": ratio,
        "bytes_per_session": grown as f64 / sessions,
        "bytes_per_session_beyond_turns": beyond,
        "share_of_goal": of_goal,
    });
    let headline = SingleRun {
        name: format!("memory, {} sessions", count(after.sessions_live)),
        figure: format!("{of_goal:.2} × (1.5 × the turns + 300 bytes a session)"),
        goal: "≤ 1",
    };
    report.print_values(&rows, values, &headline)
}
