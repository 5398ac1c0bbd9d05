//! `memoird-bench soak`: tenants use all features for a long time, on a disk that fills and
//! empties.
//!
//! Resource usage must stay flat, and acknowledged turns must not be lost. Memory grows with live
//! sessions and events, so the table has their size next to it, as `clients_mib`. Cached pages grow
//! with the files until retention removes as much as is added.

mod bot;
mod disk;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::Status;
use tonic_types::StatusExt;

use super::daemon::{Server, Settings};
use super::traffic::Rng;
use super::{CommonArgs, Durability, clock, print, progress};
use bot::Bot;
use disk::Filler;

const TENANTS: [&str; 8] = ["t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8"];
/// Bots per tenant, each with its own sessions and one call at a time.
const BOTS: u64 = 4;
/// Retention of ended sessions. Short, so that the journal stops growing.
pub(super) const RETENTION: Duration = Duration::from_secs(240);
/// Interval between rows of the result.
const ROW: Duration = Duration::from_secs(60);
/// When the disk is filled, in each minute.
const FULL_FROM: Duration = Duration::from_secs(25);
const HEADER: &str = "seed\tminute\trss_mib\tclients_mib\tsessions\tturns_mib\tthreads\t\
                      descriptors\tjournal_mib\tindex_mib\tcheckpoints_mib\tcalls\terrors\tby_reason";

/// Duration, load and directories.
#[derive(Args)]
pub(super) struct SoakArgs {
    /// Minutes in total; minutes that the result already has for this seed are skipped
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    minutes: u32,
    /// Calls per second of all tenants together
    #[arg(long, value_name = "N", default_value_t = 160)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Seed of calls and sessions
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Data directory of the daemon: on a small separate file system if it is to be filled
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Seconds per minute that the file system is full; 0 for never
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=30))]
    full_seconds: u32,
    /// Directory of the result: rows are appended to soak.tsv
    #[arg(long, value_name = "DIR", default_value = "target/soak")]
    out: PathBuf,
    /// Limit of the daemon's memory in MiB [default: half of the machine's]
    #[arg(long, value_name = "N")]
    memory_mib: Option<u32>,
    /// When an append is acknowledged. The daemon is not killed, so no mode may lose anything
    #[arg(long, value_enum, default_value_t = Durability::Interval)]
    durability: Durability,
}

#[derive(Default)]
pub(super) struct Gauge {
    is_over: AtomicBool,
    calls: AtomicU64,
    errors: Mutex<BTreeMap<String, u64>>,
}

/// Resources of a daemon at one moment.
struct Usage {
    rss_bytes: u64,
    /// As counted for `limits.memory`.
    clients_bytes: u64,
    sessions_live: u64,
    turns_bytes: u64,
    threads: u64,
    descriptors: u64,
    journal_bytes: u64,
    index_bytes: u64,
    checkpoints_bytes: u64,
}

/// Acknowledged turns, and whether they were found.
#[derive(Clone, Copy, Default)]
pub(super) struct Kept {
    pub(super) asked: u64,
    pub(super) lost: u64,
    pub(super) twice: u64,
}

impl Gauge {
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(super) fn note(&self, outcome: Result<(), &Status>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Err(status) = outcome {
            let reason = status
                .get_details_error_info()
                .map(|info| info.reason)
                .unwrap_or_else(|| format!("{:?}", status.code()));
            let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
            *errors.entry(reason).or_default() += 1;
        }
    }

    /// Calls and errors since the last time.
    fn take(&self) -> (u64, BTreeMap<String, u64>) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        (
            self.calls.swap(0, Ordering::Relaxed),
            std::mem::take(&mut errors),
        )
    }
}

/// Runs the load for the missing minutes, then reads back the acknowledged turns.
pub(super) async fn run(common: &CommonArgs, args: SoakArgs) -> Result<()> {
    fs::create_dir_all(&args.out)?;
    let result = args.out.join("soak.tsv");
    let first = first_minute(&result, args.seed, args.minutes)?;
    let settings = Settings {
        durability: args.durability,
        max_sessions: 400,
        history_turns: 200,
        checkpoints: true,
        compaction: true,
        memory_mib: args.memory_mib,
        retention_s: u32::try_from(RETENTION.as_secs())?,
        tenants: &TENANTS,
        ..Settings::default()
    };
    let server = Server::memoird(&common.daemon()?, settings, &args.dir).await?;
    let gauge = Arc::new(Gauge::default());
    let bots = args.start(&server, &gauge, first)?;
    progress(HEADER)?;
    for minute in first..=args.minutes {
        args.minute(&gauge).await?;
        let row = row(
            args.seed,
            minute,
            &Usage::read(&server).await?,
            gauge.take(),
        );
        keep(&result, &row)?;
        progress(&row)?;
    }
    gauge.is_over.store(true, Ordering::Relaxed);
    let kept = read_back(bots).await?;
    let last = format!(
        "{} acknowledged turns were asked for: {} lost, {} twice",
        kept.asked, kept.lost, kept.twice
    );
    keep(&result, &format!("{}\tend\t{last}", args.seed))?;
    print(&last)?;
    anyhow::ensure!(
        kept.lost + kept.twice == 0,
        "acknowledged turns are not as they were"
    );
    Ok(())
}

impl SoakArgs {
    fn start(&self, server: &Server, gauge: &Arc<Gauge>, first: u32) -> Result<JoinSet<Bot>> {
        let mut rng = Rng::new(self.seed ^ u64::from(first) << 32);
        let mut bots = JoinSet::new();
        let pace = Duration::from_secs(TENANTS.len() as u64 * BOTS) / self.rate;
        for tenant in TENANTS {
            for number in 0..BOTS {
                let name = format!("{first}-{number}");
                let bot = Bot::new(server.target_of(tenant)?, name, Rng::new(rng.next()));
                bots.spawn(bot.run(pace, Arc::clone(gauge)));
            }
        }
        Ok(bots)
    }

    /// Waits for a minute, and fills the disk for a part of it.
    async fn minute(&self, gauge: &Gauge) -> Result<()> {
        let started = clock::monotonic();
        if self.full_seconds > 0 {
            sleep(FULL_FROM).await;
            let until = FULL_FROM + Duration::from_secs(self.full_seconds.into());
            let mut filler = Filler::in_dir(&self.dir)?;
            while clock::since(started) < until && !gauge.is_over() {
                filler.fill()?;
                sleep(Duration::from_millis(200)).await;
            }
        }
        sleep(ROW.saturating_sub(clock::since(started))).await;
        Ok(())
    }
}

/// Waits for the bots, and reads back the acknowledged turns of each.
async fn read_back(mut bots: JoinSet<Bot>) -> Result<Kept> {
    let mut sum = Kept::default();
    while let Some(bot) = bots.join_next().await {
        let kept = bot?.read_back().await?;
        sum.asked += kept.asked;
        sum.lost += kept.lost;
        sum.twice += kept.twice;
    }
    Ok(sum)
}

/// The first minute that the result does not have for this seed.
fn first_minute(result: &Path, seed: u64, minutes: u32) -> Result<u32> {
    let text = fs::read_to_string(result).unwrap_or_default();
    let mut lines = text.lines();
    anyhow::ensure!(
        lines.next().is_none_or(|header| header == HEADER),
        "{} has other columns, of another build: move it away, or name another --out",
        result.display()
    );
    let minute = |line: &str| {
        let mut columns = line.split('\t');
        let is_ours = columns.next()?.parse() == Ok(seed);
        let minute = columns.next()?.parse().ok()?;
        is_ours.then_some(minute)
    };
    let done = lines.filter_map(minute).max().unwrap_or(0);
    anyhow::ensure!(
        done < minutes,
        "{} has {done} minutes of seed {seed} already: ask for more of them, or name another --seed or --out",
        result.display()
    );
    Ok(done + 1)
}

fn keep(result: &Path, row: &str) -> Result<()> {
    let is_new = !result.exists();
    let mut file = OpenOptions::new().create(true).append(true).open(result)?;
    let header = if is_new {
        format!("{HEADER}\n")
    } else {
        String::new()
    };
    writeln!(file, "{header}{row}").context("cannot write the result")
}

fn row(
    seed: u64,
    minute: u32,
    usage: &Usage,
    (calls, errors): (u64, BTreeMap<String, u64>),
) -> String {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let all: u64 = errors.values().sum();
    let reasons: Vec<String> = errors
        .iter()
        .map(|(reason, count)| format!("{reason}={count}"))
        .collect();
    [
        seed.to_string(),
        minute.to_string(),
        mib(usage.rss_bytes),
        mib(usage.clients_bytes),
        usage.sessions_live.to_string(),
        mib(usage.turns_bytes),
        usage.threads.to_string(),
        usage.descriptors.to_string(),
        mib(usage.journal_bytes),
        mib(usage.index_bytes),
        mib(usage.checkpoints_bytes),
        calls.to_string(),
        all.to_string(),
        reasons.join(" "),
    ]
    .join("\t")
}

impl Usage {
    /// Reads the usage of a private daemon from /proc and its metrics.
    async fn read(server: &Server) -> Result<Self> {
        let process = PathBuf::from(format!("/proc/{}", server.process()));
        let status = fs::read_to_string(process.join("status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.split_whitespace().next());
            number
                .and_then(|number| number.parse::<u64>().ok())
                .context("a field of Linux")
        };
        let metrics = server.metrics().await?;
        let data = server.data_dir();
        let with_log =
            |name: &str| bytes(&data.join(name)) + bytes(&data.join(format!("{name}-wal")));
        Ok(Self {
            rss_bytes: field("VmRSS:")? << 10,
            clients_bytes: sum(&metrics, "memoird_memory_used_bytes"),
            sessions_live: sum(&metrics, "memoird_sessions_live"),
            turns_bytes: sum(&metrics, "memoird_bytes_live"),
            threads: field("Threads:")?,
            descriptors: fs::read_dir(process.join("fd"))?.count() as u64,
            journal_bytes: with_log("journal.db"),
            index_bytes: with_log("search.db"),
            checkpoints_bytes: bytes(&data.with_file_name("checkpoints")),
        })
    }
}

/// Sum of a metric over all labels. 0 if the daemon does not have it.
fn sum(metrics: &str, name: &str) -> u64 {
    let of_it = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = rest.rsplit_once(' ')?;
        let is_it = labels.is_empty() || labels.starts_with('{');
        is_it.then(|| value.parse::<u64>().ok())?
    });
    of_it.sum()
}

/// Size of a file, or of all files below a directory. 0 if it does not exist.
fn bytes(path: &Path) -> u64 {
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|entry| bytes(&entry.path())).sum(),
        Err(_) => fs::metadata(path).map_or(0, |file| file.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soak_resumes_results_with_same_columns_and_missing_minutes() {
        let dir = tempfile::tempdir().expect("a directory");
        let result = dir.path().join("soak.tsv");
        let first = |seed| first_minute(&result, seed, 2).ok();
        assert_eq!(first(1), Some(1));
        keep(&result, "1\t1\tmore").expect("kept");
        assert_eq!((first(1), first(7)), (Some(2), Some(1)));
        keep(&result, "1\t2\tmore").expect("kept");
        assert_eq!((first(1), first(7)), (None, Some(1)));
        fs::write(&result, "seed\tminute\n").expect("written");
        assert_eq!((first(1), first(7)), (None, None));
    }

    #[test]
    fn metric_sum_includes_only_series_of_that_name() {
        let metrics = "# HELP memoird_bytes Some\nmemoird_bytes{of=\"a b\"} 2\nmemoird_bytes 3\n\
                       memoird_bytes_live{tenant=\"t\"} 5\nmemoird_bytes{of=\"c\"} 7\n";
        assert_eq!(sum(metrics, "memoird_bytes"), 12);
        assert_eq!(sum(metrics, "memoird_bytes_live"), 5);
        assert_eq!(sum(metrics, "memoird_by"), 0);
    }
}
