//! `memoird-bench rest`: resources used by a daemon with very many idle sessions in its PostgreSQL.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use memoird_proto::v1::AppendRequest;
use serde_json::json;
use tokio::time::sleep;

use super::connect::Target;
use super::daemon::{Server, Settings};
use super::measure::stats;
use super::output::{count, figure, mib};
use super::postgres::Postgres;
use super::report::{Report, SingleRun};
use super::traffic::{Rng, turn};
use super::{CommonArgs, clock, spinner};

/// Inserts copies of an existing session's head. The copies have no turns, as these are never read.
const FILL: &str = "
DO $$ DECLARE names text; selected text; BEGIN
    SELECT string_agg(attname, ', ' ORDER BY attnum), string_agg(CASE attname
            WHEN 'generation' THEN 'gen_random_uuid()'
            WHEN 'session' THEN 'convert_to(''rest-'' || n, ''UTF8'')'
            WHEN 'last_access' THEN 'last_access + n % 1000'
            ELSE attname END, ', ' ORDER BY attnum)
        INTO names, selected FROM pg_attribute
        WHERE attrelid = 'memoird.generations'::regclass AND attnum > 0 AND NOT attisdropped;
    EXECUTE format('INSERT INTO memoird.generations (%s) SELECT %s
        FROM memoird.generations, generate_series(1, SESSIONS) n', names, selected);
END $$";

/// Number of sessions, and how long to measure.
#[derive(Args)]
pub(super) struct RestArgs {
    /// Idle sessions
    #[arg(long, value_name = "N", default_value_t = 1_500_000)]
    sessions: u64,
    /// Seconds of each measurement
    #[arg(long, value_name = "N", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Data directory of the daemon [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Resources used without calls: memory, and CPU in percent of a core.
struct Idle {
    rss_bytes: u64,
    cpu: f64,
    postgres_cpu: f64,
}

/// Measures with one session, fills, measures again, and prints.
pub(super) async fn run(common: &CommonArgs, args: RestArgs) -> Result<()> {
    let what = format!("{} sessions at rest", count(args.sessions));
    let report = Report::begin(common, &what, json!({ "sessions": args.sessions }))?;
    let spinner = spinner();
    let settings = Settings {
        // Sessions are counted only if there is a cap.
        max_sessions: args.sessions * 2 + 1,
        ..Settings::default()
    };
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let postgres = Postgres::start()?;
    let journal = postgres.journal(true);
    let binary = common.daemon()?;
    let mut server = Server::memoird_over(&binary, settings, &journal, &parent).await?;
    say(&server.target()?, "first").await?;
    server.kill()?;
    server.restart().await?;
    spinner.set_message("looks with one session");
    let span = Duration::from_secs(args.seconds.into());
    let before = idle(&server.target()?, &postgres, span).await?;
    server.kill()?;
    spinner.set_message(format!("fills in {what}"));
    postgres.run(&FILL.replace("SESSIONS", &args.sessions.to_string()));
    postgres.run("VACUUM ANALYZE memoird.generations");
    spinner.set_message("looks");
    let started = server.restart().await?;
    let serving = clock::since(started);
    let after = idle(&server.target()?, &postgres, span).await?;
    let called = clock::monotonic();
    say(&server.target()?, "second").await?;
    let called_ms = clock::since(called).as_secs_f64() * 1e3;
    spinner.finish_and_clear();
    let percent = |cpu: f64| format!("{} % of a core", figure(cpu, 1));
    let of_both =
        |of: fn(&Idle) -> String| format!("{}, with one session {}", of(&after), of(&before));
    let rows = [
        ("serving after", format!("{:.2} s", serving.as_secs_f64())),
        ("memory", of_both(|idle| mib(idle.rss_bytes))),
        ("CPU", of_both(|idle| format!("{} %", figure(idle.cpu, 1)))),
        (
            "PostgreSQL's CPU",
            of_both(|idle| format!("{} %", figure(idle.postgres_cpu, 1))),
        ),
        (
            "the first turn of another one",
            format!("{called_ms:.1} ms"),
        ),
    ];
    let values = json!({
        "seconds_until_serving": serving.as_secs_f64(),
        "rss_bytes": [before.rss_bytes, after.rss_bytes],
        "cpu_percent": [before.cpu, after.cpu],
        "postgres_cpu_percent": [before.postgres_cpu, after.postgres_cpu],
        "first_turn_ms": called_ms,
    });
    let headline = SingleRun {
        name: format!("{} sessions at rest over PostgreSQL", count(args.sessions)),
        figure: format!(
            "{} (with one: {}), CPU {} ({}), PostgreSQL's {} ({})",
            mib(after.rss_bytes),
            mib(before.rss_bytes),
            percent(after.cpu),
            percent(before.cpu),
            percent(after.postgres_cpu),
            percent(before.postgres_cpu),
        ),
        goal: "as with one",
    };
    report.print_values(&rows, values, &headline)
}

async fn idle(target: &Target, postgres: &Postgres, span: Duration) -> Result<Idle> {
    // The startup work is done by then.
    sleep(span / 4).await;
    let (before, used_before) = (stats(target).await?, postgres.used()?);
    let started = clock::monotonic();
    sleep(span).await;
    let (after, used) = (stats(target).await?, postgres.used()?);
    let seconds = clock::since(started).as_secs_f64();
    Ok(Idle {
        rss_bytes: after.rss_bytes,
        cpu: (after.cpu_seconds - before.cpu_seconds) * 100.0 / seconds,
        postgres_cpu: used.since(used_before).cpu_seconds * 100.0 / seconds,
    })
}

async fn say(target: &Target, session: &str) -> Result<()> {
    let request = AppendRequest {
        session_id: session.to_owned(),
        turns: vec![turn(0, 200, &mut Rng::new(1))],
        ..AppendRequest::default()
    };
    target.sessions().append(target.request(request)).await?;
    Ok(())
}
