//! `memoird bench hooks`: many sessions end at once and each gets its checkpoint in git;
//! how long that takes, and what the appends of other sessions notice of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use tokio::time::sleep;

use super::daemon::{Daemon, Settings};
use super::driver::{Driver, Gauge, Pick, Tally, Work, collect};
use super::load::fill;
use super::measure::stats;
use super::mix::{CallKind, Mix};
use super::report::print_rows;
use super::traffic::{Bodies, Rng};
use super::{TrafficArgs, spinner};
use crate::cli::clock;
use crate::cli::exit::CliError;
use crate::cli::output;

/// What ends, and what goes on meanwhile.
#[derive(Args)]
pub(super) struct HooksArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Sessions that end
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    sessions: u64,
    /// Turns of each of them
    #[arg(long, value_name = "N", default_value_t = 6)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    turns: u16,
    /// Sessions that go on
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    active: u64,
    /// Seconds of quiet to compare with
    #[arg(long, value_name = "S", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// Longer than any session of those that go on is left alone, in seconds.
const SHORT_TTL_S: u32 = 3;
const WARMUP: Duration = Duration::from_secs(2);
const POLL_EVERY: Duration = Duration::from_millis(50);
const ENDS_TIME_MAX: Duration = Duration::from_secs(600);

/// What was seen while all sessions ended.
struct Ending {
    /// Until the last of them had ended.
    swept: Duration,
    /// Until the last of them had its checkpoint.
    delivered: Duration,
    dead: u64,
    tally: Tally,
}

/// Fills, measures the quiet, ends all that is idle, and prints.
pub(super) async fn run(json: bool, args: HooksArgs) -> Result<(), CliError> {
    let seed = args.traffic.seed();
    let spinner = spinner();
    let settings = Settings {
        checkpoints: true,
        ..Settings::default()
    };
    let daemon = Daemon::memoird(settings, &args.traffic.dir()).await?;
    let TrafficArgs {
        connections,
        in_flight,
        bytes,
        ..
    } = args.traffic;
    let driver = |name| {
        let prefix = format!("{name}-{seed}-");
        Driver::new(daemon.target()?, connections, in_flight, &prefix)
    };
    let idle = driver("idle")?;
    spinner.set_message(format!("filling {} sessions", output::count(args.sessions)));
    fill(
        &idle,
        args.sessions,
        args.turns.into(),
        bytes as usize,
        None,
        seed,
    )
    .await?;
    let active = driver("active")?;
    let work = Work {
        mix: Mix::APPENDS,
        pick: Pick::Random(args.active),
        bodies: Bodies::new(1, bytes as usize, &mut Rng::new(seed)),
        seed,
    };
    spinner.set_message("measuring the quiet");
    let quiet = measured(&active, &work, Duration::from_secs(args.seconds)).await?;
    let short = Settings {
        session_ttl_s: SHORT_TTL_S,
        ..settings
    };
    let ending = ended(&daemon, short, &active, &work, args.sessions, &spinner).await?;
    spinner.finish_and_clear();
    print(json, &args, seed, &quiet, &ending)
}

/// Appends for so long, and what came back.
async fn measured(driver: &Driver, work: &Work, span: Duration) -> Result<Tally, CliError> {
    let gauge = Arc::new(Gauge::default());
    let tasks = driver.start(work, &gauge);
    sleep(WARMUP).await;
    gauge.measuring.store(true, Ordering::Relaxed);
    sleep(span).await;
    gauge.measuring.store(false, Ordering::Relaxed);
    gauge.stop.store(true, Ordering::Relaxed);
    Ok(collect(tasks).await)
}

/// Shortens the TTL under the load, and waits until nothing is owed any more.
async fn ended(
    daemon: &Daemon,
    settings: Settings,
    active: &Driver,
    work: &Work,
    sessions: u64,
    spinner: &ProgressBar,
) -> Result<Ending, CliError> {
    let gauge = Arc::new(Gauge {
        done: AtomicU64::new(0),
        ..Gauge::default()
    });
    let tasks = active.start(work, &gauge);
    sleep(WARMUP).await;
    gauge.measuring.store(true, Ordering::Relaxed);
    let started = clock::monotonic();
    daemon.reconfigure(settings).await?;
    let mut swept = None;
    let (delivered, dead) = loop {
        let now = stats(active.target()).await?;
        let elapsed = clock::since(started);
        if now.expired >= sessions {
            swept.get_or_insert(elapsed);
        }
        if swept.is_some() && now.hooks_pending == 0 {
            break (elapsed, now.hooks_dead);
        }
        if elapsed > ENDS_TIME_MAX {
            let problem = format!("after {elapsed:.0?} {} are still owed", now.hooks_pending);
            return Err(CliError::NotStarted { problem });
        }
        spinner.set_message(format!(
            "{} checkpoints are owed",
            output::count(now.hooks_pending)
        ));
        sleep(POLL_EVERY).await;
    };
    gauge.measuring.store(false, Ordering::Relaxed);
    gauge.stop.store(true, Ordering::Relaxed);
    let tally = collect(tasks).await;
    Ok(Ending {
        swept: swept.unwrap_or(delivered),
        delivered,
        dead,
        tally,
    })
}

fn print(
    json: bool,
    args: &HooksArgs,
    seed: u64,
    quiet: &Tally,
    ending: &Ending,
) -> Result<(), CliError> {
    let p99 = |tally: &Tally| tally.of(CallKind::Append).value_at_quantile(0.99) as f64 / 1e3;
    let p50 = |tally: &Tally| tally.of(CallKind::Append).value_at_quantile(0.5) as f64 / 1e3;
    let ratio = p99(&ending.tally) / p99(quiet);
    let (swept, delivered) = (ending.swept.as_secs_f64(), ending.delivered.as_secs_f64());
    let errors: u64 = quiet.errors.iter().chain(&ending.tally.errors).sum();
    if json {
        return output::print_json(&json!({
            "seed": seed, "sessions": args.sessions, "turns": args.turns,
            "in_flight": args.traffic.in_flight,
            "swept_seconds": swept, "delivered_seconds": delivered, "dead": ending.dead,
            "quiet": {"p50_ms": p50(quiet), "p99_ms": p99(quiet), "calls": quiet.of(CallKind::Append).len()},
            "meanwhile": {
                "p50_ms": p50(&ending.tally), "p99_ms": p99(&ending.tally),
                "calls": ending.tally.of(CallKind::Append).len(),
            },
            "p99_ratio": ratio, "errors": errors,
        }));
    }
    print_rows(&[
        ("seed", seed.to_string()),
        ("sessions that ended", output::count(args.sessions)),
        ("turns of each", args.turns.to_string()),
        ("all had ended after", format!("{swept:.2} s")),
        (
            "all had their checkpoint after",
            format!("{delivered:.2} s"),
        ),
        ("checkpoints given up", ending.dead.to_string()),
        (
            "appends in quiet",
            format!("p50 {:.2} ms, p99 {:.2} ms", p50(quiet), p99(quiet)),
        ),
        (
            "appends meanwhile",
            format!(
                "p50 {:.2} ms, p99 {:.2} ms",
                p50(&ending.tally),
                p99(&ending.tally)
            ),
        ),
        ("p99 meanwhile to quiet", format!("{ratio:.2} x")),
        ("errors", errors.to_string()),
    ])
}
