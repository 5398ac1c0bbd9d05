//! `memoird bench`: drives a daemon and says what it costs.
//!
//! The machine's cores are shared by the client and what it measures. So the figures
//! that matter are ratios: of the server's own CPU per call, and of two servers that
//! are driven in alternating slices of one run.

pub(super) mod baseline;
mod compaction;
mod context;
mod daemon;
mod driver;
mod evict;
mod hooks;
mod load;
mod measure;
mod memory;
mod mix;
mod recover;
mod report;
mod traffic;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use indicatif::ProgressBar;

use super::exit::CliError;
use super::{ClientArgs, clock};
use compaction::CompactionArgs;
use context::ContextArgs;
use evict::EvictArgs;
use hooks::HooksArgs;
use load::LoadArgs;
use memory::MemoryArgs;
use recover::RecoverArgs;

/// What to measure. Without a subcommand: a load.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    scenario: Option<Scenario>,
    #[command(flatten)]
    load: LoadArgs,
}

/// Measurements that need a daemon of their own.
#[derive(Subcommand)]
enum Scenario {
    /// Fill sessions and compare the memory used with the bytes of the turns
    Memory(MemoryArgs),
    /// Compare windows of long sessions with windows of short ones
    Context(ContextArgs),
    /// Compare windows of long sessions with compaction and without, in a small context window
    Compaction(CompactionArgs),
    /// Fill to the cap, then append only to new sessions: each call evicts one
    Evict(EvictArgs),
    /// End many sessions at once, with checkpoints in git, while appends go on
    Hooks(HooksArgs),
    /// Fill the journal, kill the daemon, and time its next start
    Recover(RecoverArgs),
}

/// What is sent, and over how many connections.
#[derive(Args, Clone)]
struct TrafficArgs {
    /// Connections to the daemon
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Calls under way at any time, over all connections
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=16384))]
    in_flight: u16,
    /// Bytes of text in a turn, or in a memory
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    bytes: u32,
    /// Chooses texts and sessions; always printed [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Where daemons of our own keep their data [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// When a daemon of our own calls an append done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Durability {
    /// Once it is on the disk
    Sync,
    /// Once it is in memory; on the disk soon after
    Interval,
    /// Once it is in memory; there is no journal
    Off,
}

impl TrafficArgs {
    fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| {
            let since_epoch = clock::wall().duration_since(std::time::UNIX_EPOCH);
            // Six digits are enough to differ and few enough to type again.
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

/// Measures and prints.
pub(super) async fn run(client: &ClientArgs, args: BenchArgs) -> Result<(), CliError> {
    let Some(scenario) = args.scenario else {
        return load::run(client, args.load).await;
    };
    if client.connect.addr_typed {
        return Err(CliError::Usage {
            problem: "this measurement starts a daemon of its own: leave --addr out".to_owned(),
        });
    }
    match scenario {
        Scenario::Memory(args) => memory::run(client.json, args).await,
        Scenario::Context(args) => context::run(client.json, args).await,
        Scenario::Compaction(args) => compaction::run(client.json, args).await,
        Scenario::Evict(args) => evict::run(client.json, args).await,
        Scenario::Hooks(args) => hooks::run(client.json, args).await,
        Scenario::Recover(args) => recover::run(client.json, args).await,
    }
}

/// Says on a terminal what is going on.
fn spinner() -> ProgressBar {
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(std::time::Duration::from_millis(200));
    spinner
}
