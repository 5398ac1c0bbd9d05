//! `memoird bench memory`: what the daemon's memory is made of. Fills sessions and
//! compares what the process grew by with the bytes of the turns in it.

use std::time::Duration;

use clap::Args;
use memoird_proto::v1::GetStatsResponse;
use serde_json::json;
use tokio::time::sleep;

use super::daemon::{Daemon, Settings};
use super::driver::Driver;
use super::load::fill;
use super::measure::stats;
use super::{Durability, TrafficArgs, report, spinner};
use crate::cli::exit::CliError;
use crate::cli::output;

/// The goal: so many times the bytes of the turns, and so many bytes a session.
const GOAL_PER_TURN_BYTE: f64 = 1.5;
const GOAL_PER_SESSION: f64 = 300.0;
/// Queues drain and buffers shrink in this.
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
    /// Turns in each of them
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    turns_per_session: u32,
    /// Turns in each append, as it may matter how a history grew
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    turns_per_append: u16,
    /// When the daemon calls an append done
    #[arg(long, value_enum, default_value_t = Durability::Off)]
    durability: Durability,
}

/// Fills, measures and prints.
pub(super) async fn run(json: bool, args: MemoryArgs) -> Result<(), CliError> {
    let seed = args.traffic.seed();
    let spinner = spinner();
    let settings = Settings {
        durability: args.durability,
        max_sessions: args.fill_sessions,
        // The first turn is held apart and does not count in the cap; nothing is dropped.
        history_turns: args.turns_per_session,
        ..Settings::default()
    };
    let daemon = Daemon::memoird(settings, &args.traffic.dir()).await?;
    let TrafficArgs {
        connections,
        in_flight,
        bytes,
        ..
    } = args.traffic;
    let prefix = format!("bench-{seed}-");
    let driver = Driver::new(daemon.target()?, connections, in_flight, &prefix)?;
    spinner.set_message("settling");
    sleep(SETTLE_TIME).await;
    let before = stats(driver.target()).await?;
    spinner.set_message("filling sessions");
    let (turns, per_append) = (
        args.turns_per_session as usize,
        args.turns_per_append.into(),
    );
    fill(
        &driver,
        args.fill_sessions,
        turns,
        bytes as usize,
        Some(per_append),
        seed,
    )
    .await?;
    spinner.set_message("settling");
    sleep(SETTLE_TIME).await;
    let after = stats(driver.target()).await?;
    spinner.finish_and_clear();
    print(json, seed, &before, &after)
}

fn print(
    json: bool,
    seed: u64,
    before: &GetStatsResponse,
    after: &GetStatsResponse,
) -> Result<(), CliError> {
    let grown = after.rss_bytes.saturating_sub(before.rss_bytes);
    let sessions = after.sessions_live as f64;
    let ratio = grown as f64 / after.bytes_live as f64;
    let beyond = (grown as f64 - after.bytes_live as f64) / sessions;
    let goal = GOAL_PER_TURN_BYTE * after.bytes_live as f64 + GOAL_PER_SESSION * sessions;
    let of_goal = grown as f64 / goal;
    if json {
        return output::print_json(&json!({
            "seed": seed,
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
        }));
    }
    report::print_rows(&[
        ("seed", seed.to_string()),
        ("sessions", output::count(after.sessions_live)),
        ("turns", output::count(after.turns_live)),
        ("bytes of the turns", output::count(after.bytes_live)),
        ("memory before", output::count(before.rss_bytes)),
        ("memory after", output::count(after.rss_bytes)),
        (
            "grown by",
            format!("{} = {ratio:.2} × the turns", output::count(grown)),
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
    ])
}
