//! `memoird-bench recover`: restart time of a killed daemon, and whether acknowledged turns
//! survive.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use memoird_proto::v1::{GetHistoryRequest, GetStatsResponse};
use serde_json::json;
use tonic::Code;

use super::compare::{Filling, driver, prefix};
use super::connect::Target;
use super::daemon::{Server, Settings};
use super::measure::stats;
use super::output::{count, mib};
use super::report::{Report, SingleRun};
use super::traffic::Rng;
use super::{CommonArgs, Durability, TrafficArgs, clock, spinner};

/// Number of sessions to read after the restart.
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
    /// Sessions to spread the turns over
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    sessions: u64,
    /// When an append is acknowledged
    #[arg(long, value_enum, default_value_t = Durability::Sync)]
    durability: Durability,
}

struct Recovery {
    before: GetStatsResponse,
    after: GetStatsResponse,
    serving: Duration,
    answered: Duration,
    sample: Sample,
}

/// Results of the first reads after the restart.
struct Sample {
    sessions: u64,
    whole: u64,
    time: Duration,
}

pub(super) async fn run(common: &CommonArgs, args: RecoverArgs) -> Result<()> {
    let seed = args.traffic.seed();
    let sessions = args.sessions.min(args.recover_turns);
    let turns = args.recover_turns.div_ceil(sessions);
    let history_turns = u32::try_from(turns).context("that many turns need more --sessions")?;
    let what = format!("{sessions} sessions of {turns} turns, seed {seed}");
    let report = Report::begin(common, &what, json!({ "seed": seed }))?;
    let spinner = spinner();
    let settings = Settings {
        durability: args.durability,
        max_sessions: sessions,
        history_turns,
        ..Settings::default()
    };
    let mut server = Server::memoird(&common.daemon()?, settings, &args.traffic.dir()).await?;
    spinner.set_message(format!("filling {what}"));
    let driver = driver(server.target()?, &args.traffic, &prefix(seed));
    let filling = Filling {
        sessions,
        turns: history_turns as usize,
        bytes: args.traffic.bytes as usize,
        turns_per_append: None,
        seed,
    };
    filling.run(&driver).await?;
    let before = stats(driver.target()).await?;
    drop(driver);
    spinner.set_message("killed; starting again");
    server.kill()?;
    let started = server.restart().await?;
    let serving = clock::since(started);
    let target = server.target()?;
    let after = stats(&target).await?;
    let answered = clock::since(started);
    let sample = sample(&target, &prefix(seed), sessions, turns).await?;
    spinner.finish_and_clear();
    let recovery = Recovery {
        before,
        after,
        serving,
        answered,
        sample,
    };
    recovery.print(report)
}

/// Reads some sessions and counts those that have all of their turns.
async fn sample(target: &Target, prefix: &str, sessions: u64, turns: u64) -> Result<Sample> {
    let mut rng = Rng::new(1);
    let started = clock::monotonic();
    let mut sample = Sample {
        sessions: SAMPLES.min(sessions),
        whole: 0,
        time: Duration::ZERO,
    };
    for _ in 0..sample.sessions {
        let session_id = format!("{prefix}{}", rng.below(sessions));
        let read = turns_of(target, session_id).await?;
        sample.whole += u64::from(read == turns);
    }
    sample.time = clock::since(started);
    Ok(sample)
}

/// Number of turns in a session. 0 if it does not exist.
async fn turns_of(target: &Target, session_id: String) -> Result<u64> {
    let mut client = target.sessions();
    let mut request = GetHistoryRequest {
        session_id,
        ..GetHistoryRequest::default()
    };
    let mut turns = 0;
    loop {
        let page = match client.get_history(target.request(request.clone())).await {
            Ok(reply) => reply.into_inner(),
            Err(status) if status.code() == Code::NotFound => return Ok(turns),
            Err(status) => return Err(status.into()),
        };
        turns += page.turns.len() as u64;
        if page.next_after_seq <= request.after_seq {
            return Ok(turns);
        }
        request.after_seq = page.next_after_seq;
    }
}

impl Recovery {
    fn print(&self, report: Report) -> Result<()> {
        let Self {
            before,
            after,
            sample,
            ..
        } = self;
        let read_ms = sample.time.as_secs_f64() * 1e3 / sample.sessions.max(1) as f64;
        let back = |before: u64, after: u64| format!("{} of {}", count(after), count(before));
        let seconds = |time: Duration| format!("{:.3} s", time.as_secs_f64());
        let rows = [
            (
                "sessions back",
                back(before.sessions_live, after.sessions_live),
            ),
            ("turns back", back(before.turns_live, after.turns_live)),
            ("serving after", seconds(self.serving)),
            ("first answer after", seconds(self.answered)),
            ("memory then", mib(after.rss_bytes)),
            ("sessions read whole", back(sample.sessions, sample.whole)),
            ("a first read takes", format!("{read_ms:.2} ms")),
        ];
        let values = json!({
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
        });
        let headline = SingleRun {
            name: format!("{} turns back after a kill", count(before.turns_live)),
            figure: seconds(self.serving),
            goal: "≤ 5 s",
        };
        report.print_values(&rows, values, &headline)
    }
}
