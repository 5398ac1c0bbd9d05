//! `memoird bench recover`: how long a killed daemon takes to serve again, and
//! whether all that it had acknowledged is there.

use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use memoird_proto::v1::{GetHistoryRequest, GetStatsResponse};
use serde_json::json;
use tonic::{Code, Status};

use super::daemon::{Daemon, Settings};
use super::driver::Driver;
use super::load::fill;
use super::measure::stats;
use super::traffic::Rng;
use super::{Durability, TrafficArgs, report, spinner};
use crate::cli::clock;
use crate::cli::connect::{Sessions, Target};
use crate::cli::exit::CliError;
use crate::cli::output;

/// So many sessions are read after the restart.
const SAMPLES: u64 = 100;

/// What to fill.
#[derive(Args)]
pub(super) struct RecoverArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Turns in the journal, over all sessions
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    recover_turns: u64,
    /// Sessions that the turns are spread over
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    sessions: u64,
    /// When the daemon calls an append done
    #[arg(long, value_enum, default_value_t = Durability::Sync)]
    durability: Durability,
}

/// What the restart showed.
struct Recovery {
    before: GetStatsResponse,
    after: GetStatsResponse,
    serving: Duration,
    answered: Duration,
    sample: Sample,
}

/// What the first reads after the restart showed.
struct Sample {
    sessions: u64,
    whole: u64,
    time: Duration,
}

/// Fills, kills, restarts and prints.
pub(super) async fn run(json: bool, args: RecoverArgs) -> Result<(), CliError> {
    let seed = args.traffic.seed();
    let sessions = args.sessions.min(args.recover_turns);
    let turns = args.recover_turns.div_ceil(sessions);
    let history_turns = u32::try_from(turns).map_err(|_| CliError::Usage {
        problem: "that many turns need more --sessions".to_owned(),
    })?;
    let spinner = spinner();
    let settings = Settings {
        durability: args.durability,
        max_sessions: sessions,
        history_turns,
        ..Settings::default()
    };
    let mut daemon = Daemon::memoird(settings, &args.traffic.dir()).await?;
    spinner.set_message(format!(
        "filling {sessions} sessions with {turns} turns each"
    ));
    let TrafficArgs {
        connections,
        in_flight,
        bytes,
        ..
    } = args.traffic;
    let prefix = format!("bench-{seed}-");
    let driver = Driver::new(daemon.target()?, connections, in_flight, &prefix)?;
    fill(
        &driver,
        sessions,
        history_turns as usize,
        bytes as usize,
        None,
        seed,
    )
    .await?;
    let recovery = restart(&mut daemon, driver, &spinner, sessions, turns, &prefix).await?;
    spinner.finish_and_clear();
    recovery.print(json, seed)
}

async fn restart(
    daemon: &mut Daemon,
    driver: Driver,
    spinner: &ProgressBar,
    sessions: u64,
    turns: u64,
    prefix: &str,
) -> Result<Recovery, CliError> {
    let before = stats(driver.target()).await?;
    drop(driver);
    spinner.set_message("killed; starting again");
    daemon.kill()?;
    let started = daemon.restart().await?;
    let serving = clock::since(started);
    let target = daemon.target()?;
    let after = stats(&target).await?;
    let answered = clock::since(started);
    let sample = sample(&target, prefix, sessions, turns).await?;
    Ok(Recovery {
        before,
        after,
        serving,
        answered,
        sample,
    })
}

/// Reads some sessions and counts those that have all their turns.
async fn sample(
    target: &Target,
    prefix: &str,
    sessions: u64,
    turns: u64,
) -> Result<Sample, CliError> {
    let mut client = target.sessions();
    let mut rng = Rng::new(1);
    let started = clock::monotonic();
    let mut sample = Sample {
        sessions: SAMPLES.min(sessions),
        whole: 0,
        time: Duration::ZERO,
    };
    for _ in 0..sample.sessions {
        let session_id = format!("{prefix}{}", rng.below(sessions));
        let read = turns_of(&mut client, session_id)
            .await
            .map_err(|e| target.explain(e))?;
        sample.whole += u64::from(read == turns);
    }
    sample.time = clock::since(started);
    Ok(sample)
}

/// How many turns a session has; one that is gone has none.
async fn turns_of(client: &mut Sessions, session_id: String) -> Result<u64, Status> {
    let mut request = GetHistoryRequest {
        session_id,
        ..GetHistoryRequest::default()
    };
    let mut turns = 0;
    loop {
        let page = match client.get_history(request.clone()).await {
            Ok(reply) => reply.into_inner(),
            Err(status) if status.code() == Code::NotFound => return Ok(turns),
            Err(status) => return Err(status),
        };
        turns += page.turns.len() as u64;
        if page.next_after_seq <= request.after_seq {
            return Ok(turns);
        }
        request.after_seq = page.next_after_seq;
    }
}

impl Recovery {
    fn print(&self, json: bool, seed: u64) -> Result<(), CliError> {
        let Self {
            before,
            after,
            sample,
            ..
        } = self;
        let read_ms = sample.time.as_secs_f64() * 1e3 / sample.sessions.max(1) as f64;
        if json {
            return output::print_json(&json!({
                "seed": seed,
                "sessions_before": before.sessions_live,
                "sessions_after": after.sessions_live,
                "turns_before": before.turns_live,
                "turns_after": after.turns_live,
                "seconds_until_serving": self.serving.as_secs_f64(),
                "seconds_until_first_answer": self.answered.as_secs_f64(),
                "rss_bytes_after": after.rss_bytes,
                "sampled_sessions": sample.sessions,
                "sampled_sessions_whole": sample.whole,
                "first_read_ms": read_ms,
            }));
        }
        let came_back = |before: u64, after: u64| {
            format!("{} of {}", output::count(after), output::count(before))
        };
        report::print_rows(&[
            ("seed", seed.to_string()),
            (
                "sessions back",
                came_back(before.sessions_live, after.sessions_live),
            ),
            ("turns back", came_back(before.turns_live, after.turns_live)),
            (
                "serving after",
                format!("{:.3} s", self.serving.as_secs_f64()),
            ),
            (
                "first answer after",
                format!("{:.3} s", self.answered.as_secs_f64()),
            ),
            ("memory then", output::size(after.rss_bytes)),
            (
                "sessions read whole",
                came_back(sample.sessions, sample.whole),
            ),
            ("a first read takes", format!("{read_ms:.2} ms")),
        ])
    }
}
