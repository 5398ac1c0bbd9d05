//! `memoird-bench`: generates load for a memoird daemon and reports its cost.
//!
//! The load generator shares the machine's cores with the server. So the relevant figures are
//! ratios of two servers with the same work in turn. CPU is that of the server alone, as reported
//! by itself.

mod baseline;
mod clock;
mod compaction;
mod compare;
mod connect;
mod context;
mod daemon;
mod driver;
mod evict;
mod flood;
mod hooks;
mod load;
mod measure;
mod memory;
mod mix;
mod neighbours;
mod output;
mod postgres;
mod recover;
mod report;
mod rest;
mod search;
mod soak;
mod traffic;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use indicatif::ProgressBar;
use tokio::runtime::Builder;

use baseline::BaselineArgs;
use compaction::CompactionArgs;
use connect::ConnectArgs;
use context::ContextArgs;
use evict::EvictArgs;
use flood::FloodArgs;
use hooks::HooksArgs;
use load::LoadArgs;
use memory::MemoryArgs;
use neighbours::NeighboursArgs;
use recover::RecoverArgs;
use rest::RestArgs;
use search::SearchArgs;
use soak::SoakArgs;

/// The same allocator as the daemon's, for a fair comparison with the bare server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure a memoird daemon: calls/s, latency, CPU per call, memory, recovery
///
/// Without a subcommand: a load.
#[derive(Parser)]
#[command(name = "memoird-bench", version, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    scenario: Option<Scenario>,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    common: CommonArgs,
}

/// Options of all measurements.
#[derive(Args)]
pub(crate) struct CommonArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Print JSON, for programs
    #[arg(long, global = true)]
    json: bool,
    /// Daemon binary to measure [default: memoird in the directory of this program]
    #[arg(long, global = true, value_name = "PATH", env = "MEMOIRD_BIN")]
    daemon: Option<PathBuf>,
}

/// Measurements that start their own daemon.
#[derive(Subcommand)]
enum Scenario {
    /// Fill sessions and compare memory use with the bytes of the turns
    Memory(MemoryArgs),
    /// Compare windows of long sessions with windows of short ones
    Context(ContextArgs),
    /// Compare windows of long sessions with and without compaction, in a small context window
    Compaction(CompactionArgs),
    /// Fill to the cap, then append only to new sessions: each call evicts one
    Evict(EvictArgs),
    /// End many sessions at once, with git checkpoints, during appends
    Hooks(HooksArgs),
    /// Fill the journal, kill the daemon, and time its restart
    Recover(RecoverArgs),
    /// Call at a fixed pace as one tenant while another tenant floods the daemon
    Neighbours(NeighboursArgs),
    /// Compare appends with and without the transcript index
    Search(SearchArgs),
    /// Fill a PostgreSQL with idle sessions, and measure their cost
    Rest(RestArgs),
    /// Use all features of a daemon for a long time, on a disk that fills up and empties
    Soak(SoakArgs),
    /// The flood that `neighbours` starts
    #[command(hide = true)]
    Flood(FloodArgs),
    /// The bare server for `--baseline`
    #[command(hide = true)]
    BareServer(BaselineArgs),
}

/// The load and its connections.
#[derive(Args, Clone)]
pub(crate) struct TrafficArgs {
    /// Connections to each server
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Calls in flight, over all connections
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=16384))]
    in_flight: u16,
    /// Bytes of text in a turn, or in a memory
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    bytes: u32,
    /// Seed of texts and sessions; always printed [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Data directory of private daemons [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// When a private daemon acknowledges an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durability {
    /// After the write to disk
    Sync,
    /// Before the write to disk, which follows soon after
    Interval,
    /// At once: there is no journal
    Off,
}

/// Arguments that are invalid in combination. Exits with status 2, like clap.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(&'static str);

impl CommonArgs {
    fn daemon(&self) -> Result<PathBuf> {
        match &self.daemon {
            Some(path) => Ok(path.clone()),
            None => Ok(std::env::current_exe()?.with_file_name("memoird")),
        }
    }
}

impl TrafficArgs {
    fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| {
            let since_epoch = clock::wall().duration_since(std::time::UNIX_EPOCH);
            // Six digits are enough to differ, and few enough to retype.
            since_epoch.map_or(1, |time| u64::from(time.subsec_micros()))
        })
    }

    fn dir(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(std::env::temp_dir)
    }
}

impl Durability {
    fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Interval => "interval",
            Self::Off => "off",
        }
    }
}

fn main() -> ExitCode {
    let error = match block_on(Cli::parse()) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => error,
    };
    // Nothing can be done if stderr is closed.
    let _ = writeln!(io::stderr(), "error: {error:#}");
    if error.is::<Usage>() {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}

/// Runs to the end, or until Ctrl-C.
///
/// Dropping a measurement stops its daemons and removes their directories.
fn block_on(cli: Cli) -> Result<()> {
    // Like the daemon's runtime, so that the bare server has as many threads.
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            result = run(cli) => result,
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        }
    })
}

async fn run(cli: Cli) -> Result<()> {
    let common = cli.common;
    let Some(scenario) = cli.scenario else {
        return load::run(&common, cli.load).await;
    };
    if let Scenario::Flood(args) = scenario {
        return flood::run(&common, args).await;
    }
    if common.connect.addr.is_some() {
        let problem = "this measurement starts a daemon of its own: leave --addr out";
        return Err(Usage(problem).into());
    }
    match scenario {
        Scenario::Memory(args) => memory::run(&common, args).await,
        Scenario::Context(args) => context::run(&common, args).await,
        Scenario::Compaction(args) => compaction::run(&common, args).await,
        Scenario::Evict(args) => evict::run(&common, args).await,
        Scenario::Hooks(args) => hooks::run(&common, args).await,
        Scenario::Recover(args) => recover::run(&common, args).await,
        Scenario::Neighbours(args) => neighbours::run(&common, args).await,
        Scenario::Search(args) => search::run(&common, args).await,
        Scenario::Rest(args) => rest::run(&common, args).await,
        Scenario::Soak(args) => soak::run(&common, args).await,
        Scenario::Flood(args) => flood::run(&common, args).await,
        Scenario::BareServer(args) => baseline::run(args).await,
    }
}

pub(crate) fn print(text: &str) -> Result<()> {
    writeln!(io::stdout(), "{}", text.trim_end()).context("cannot write the output")
}

/// Prints one JSON value, indented.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<()> {
    print(&format!("{value:#}"))
}

pub(crate) fn progress(line: &str) -> Result<()> {
    writeln!(io::stderr(), "{line}").context("cannot write the progress")
}

pub(crate) fn spinner() -> ProgressBar {
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(std::time::Duration::from_millis(200));
    spinner
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(args: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["memoird-bench"], args].concat())
    }

    #[test]
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn invalid_mix_is_refused() {
        for mix in ["context:append", "append:context=0:0", "9"] {
            let error = parsed(&["--mix", mix]).err().expect("refused").to_string();
            assert!(error.contains("--mix"), "{error}");
        }
    }

    #[tokio::test]
    async fn address_is_refused_if_measurement_starts_its_own_daemon() {
        for args in [
            &["context", "--addr", "127.0.0.1:1"][..],
            &["--addr", "127.0.0.1:1", "--compare-durability"],
        ] {
            let cli = parsed(args).expect("valid arguments");
            let error = run(cli).await.expect_err("refused");
            assert!(error.is::<Usage>(), "{error}");
        }
    }
}
