//! `memoird-bench hooks`: many sessions end at once, each with a git checkpoint.
//!
//! Measures how long it takes, and how it affects appends to other sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::compare::{Filling, driver};
use super::daemon::{Server, Settings};
use super::driver::{Gauge, Pick, Tally, Work, collect};
use super::measure::{Length, Side, stats};
use super::mix::{CallKind, Mix};
use super::output::count;
use super::report::{Report, SingleRun};
use super::traffic::{Bodies, Rng};
use super::{CommonArgs, TrafficArgs, clock, spinner};

/// Sessions that end, and sessions that continue.
#[derive(Args)]
pub(super) struct HooksArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Sessions that end
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    sessions: u64,
    /// Turns in each of them
    #[arg(long, value_name = "N", default_value_t = 6)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    turns: u16,
    /// Sessions that continue
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    active: u64,
    /// Seconds of the measurement without ends, to compare with
    #[arg(long, value_name = "S", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// TTL in seconds. Sessions that continue are used more often than that.
const SHORT_TTL_S: u32 = 3;
const WARMUP: Duration = Duration::from_secs(2);
const POLL_EVERY: Duration = Duration::from_millis(50);
const ENDS_TIME_MAX: Duration = Duration::from_secs(600);

/// Measurements while all sessions ended.
struct Ending {
    /// Time until the last session had ended.
    swept: Duration,
    /// Time until the last checkpoint was written.
    delivered: Duration,
    dead: u64,
    tally: Tally,
}

/// Fills, measures without ends, ends all idle sessions, and prints.
pub(super) async fn run(common: &CommonArgs, args: HooksArgs) -> Result<()> {
    let seed = args.traffic.seed();
    let what = format!("{} sessions end, seed {seed}", count(args.sessions));
    let setup = json!({
        "seed": seed,
        "sessions": args.sessions,
        "turns": args.turns,
        "in_flight": args.traffic.in_flight,
    });
    let report = Report::begin(common, &what, setup)?;
    let spinner = spinner();
    let settings = Settings {
        checkpoints: true,
        ..Settings::default()
    };
    let server = Server::memoird(&common.daemon()?, settings, &args.traffic.dir()).await?;
    let idle = driver(server.target()?, &args.traffic, &format!("idle-{seed}-"));
    spinner.set_message(format!("filling {} sessions", count(args.sessions)));
    let bytes = args.traffic.bytes as usize;
    let filling = Filling {
        sessions: args.sessions,
        turns: args.turns.into(),
        bytes,
        turns_per_append: None,
        seed,
    };
    filling.run(&idle).await?;
    let active = Side {
        first_window_us: None,
        driver: driver(server.target()?, &args.traffic, &format!("active-{seed}-")),
        work: Work {
            mix: Mix::APPENDS,
            pick: Pick::Random(args.active),
            bodies: Bodies::new(1, bytes, &mut Rng::new(seed)),
            seed,
        },
        _servers: Vec::new(),
        database: None,
    };
    spinner.set_message("measuring the quiet");
    let span = Length::Time(Duration::from_secs(args.seconds));
    let quiet = active.run(WARMUP, span).await?.tally;
    let short = Settings {
        session_ttl_s: SHORT_TTL_S,
        ..settings
    };
    let ending = ended(&server, short, &active, args.sessions, &spinner).await?;
    spinner.finish_and_clear();
    print(report, &args, &quiet, &ending)
}

/// Shortens the TTL under load, and waits until no delivery is pending.
async fn ended(
    server: &Server,
    short: Settings,
    active: &Side,
    sessions: u64,
    spinner: &ProgressBar,
) -> Result<Ending> {
    let gauge = Arc::new(Gauge::new(u64::MAX));
    let tasks = active.driver.start(&active.work, &gauge);
    let started = clock::monotonic();
    server.reconfigure(short).await?;
    let mut swept = None;
    let (delivered, dead) = loop {
        let now = stats(active.driver.target()).await?;
        let elapsed = clock::since(started);
        if now.expired >= sessions {
            swept.get_or_insert(elapsed);
        }
        if swept.is_some() && now.hooks_pending == 0 {
            break (elapsed, now.hooks_dead);
        }
        if elapsed > ENDS_TIME_MAX {
            bail!("after {elapsed:.0?} {} are still owed", now.hooks_pending);
        }
        let pending = count(now.hooks_pending);
        spinner.set_message(format!("{pending} checkpoints are owed"));
        sleep(POLL_EVERY).await;
    };
    gauge.stop.store(true, Ordering::Relaxed);
    Ok(Ending {
        swept: swept.unwrap_or(delivered),
        delivered,
        dead,
        tally: collect(tasks).await,
    })
}

fn print(report: Report, args: &HooksArgs, quiet: &Tally, ending: &Ending) -> Result<()> {
    let ms = |tally: &Tally, quantile| {
        tally.of(CallKind::Append).value_at_quantile(quantile) as f64 / 1e3
    };
    let described = |tally: &Tally| {
        let (p50, p99) = (ms(tally, 0.5), ms(tally, 0.99));
        format!("p50 {p50:.2} ms, p99 {p99:.2} ms")
    };
    let latency = |tally: &Tally| -> Value {
        let calls = tally.of(CallKind::Append).len();
        json!({"p50_ms": ms(tally, 0.5), "p99_ms": ms(tally, 0.99), "calls": calls})
    };
    let ratio = ms(&ending.tally, 0.99) / ms(quiet, 0.99);
    let (swept, delivered) = (ending.swept.as_secs_f64(), ending.delivered.as_secs_f64());
    let errors: u64 = quiet.errors.iter().chain(&ending.tally.errors).sum();
    let rows = [
        ("sessions that ended", count(args.sessions)),
        ("turns of each", args.turns.to_string()),
        ("all had ended after", format!("{swept:.2} s")),
        (
            "all had their checkpoint after",
            format!("{delivered:.2} s"),
        ),
        ("checkpoints given up", ending.dead.to_string()),
        ("appends in quiet", described(quiet)),
        ("appends meanwhile", described(&ending.tally)),
        ("p99 meanwhile to quiet", format!("{ratio:.2} ×")),
        ("errors", errors.to_string()),
    ];
    let values = json!({
        "swept_seconds": swept,
        "delivered_seconds": delivered,
        "dead": ending.dead,
        "quiet": latency(quiet),
        "meanwhile": latency(&ending.tally),
        "p99_ratio": ratio,
        "errors": errors,
    });
    let headline = SingleRun {
        name: format!("{} ends at once, in git", count(args.sessions)),
        figure: format!("{delivered:.2} s, p99 of appends {ratio:.2} ×"),
        goal: "≤ 20 s, ≤ 2 ×",
    };
    report.print_values(&rows, values, &headline)
}
