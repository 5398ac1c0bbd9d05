//! The commands of `memoird` that call a daemon. They use only the public API.
//!
//! The binary adds them to its own commands. It also uses the output and the exit codes of this
//! crate.

mod call;
mod choice;
pub mod clock;
pub mod cluster;
mod compaction;
pub mod connect;
mod connector;
pub mod daemon;
mod document;
mod erase;
pub mod exit;
mod export;
mod hooks;
mod import;
pub mod json;
pub mod lines;
pub mod list;
mod memory;
pub mod output;
pub mod pages;
pub mod progress;
mod redact;
pub mod replay;
mod search;
mod sessions;
pub mod transcript;
pub mod watch;
pub mod window;

use clap::Subcommand;

use call::CallArgs;
use connect::ClientArgs;
use daemon::StatsArgs;
use document::DocCommand;
use exit::CliError;
use export::ExportArgs;
use hooks::HooksCommand;
use import::ImportArgs;
use memory::MemoryCommand;
use search::SearchArgs;
use sessions::SessionsCommand;
use watch::WatchArgs;
use window::WindowArgs;

#[derive(Subcommand)]
pub enum ClientCommand {
    /// List, show, end and erase sessions
    #[command(subcommand)]
    Sessions(SessionsCommand),
    /// List, add, search, forget, export and import memories
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// List, put, delete, export and import documents
    #[command(subcommand)]
    Doc(DocCommand),
    /// Search the transcripts of live and ended sessions
    Search(Box<SearchArgs>),
    /// Draw the window of a session's next model call, with its omissions and their reasons
    Window(WindowArgs),
    /// Print session events as they happen
    Watch(WatchArgs),
    /// List, retry and drop pending hook deliveries (role admin)
    #[command(subcommand)]
    Hooks(HooksCommand),
    /// Show counters and totals since the daemon started (role admin)
    Stats(StatsArgs),
    /// Reload the daemon's configuration file (role admin)
    Reload,
    /// Make any call of the API, with its request and its reply as JSON
    Call(CallArgs),
    /// Export live sessions with their turns and state as JSON lines, for `memoird import`
    Export(ExportArgs),
    /// Import sessions from `memoird export`, ChatGPT or Claude; existing turns are not changed
    Import(ImportArgs),
    /// Check whether the daemon accepts calls; needs no key, exits nonzero if it does not
    Health,
}

impl ClientCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// With the exit code of the process.
    pub async fn run(self, client: &ClientArgs) -> Result<(), CliError> {
        match self {
            Self::Sessions(command) => sessions::run(client, command).await,
            Self::Memory(command) => memory::run(client, command).await,
            Self::Doc(command) => document::run(client, command).await,
            Self::Search(args) => search::run(client, *args).await,
            Self::Window(args) => window::run(client, args).await,
            Self::Watch(args) => watch::run(client, args).await,
            Self::Hooks(command) => hooks::run(client, command).await,
            Self::Stats(args) => daemon::stats(client, args).await,
            Self::Reload => daemon::reload(client).await,
            Self::Call(args) => call::run(client, &args).await,
            Self::Export(args) => export::run(client, args).await,
            Self::Import(args) => import::run(client, args).await,
            Self::Health => daemon::health(client).await,
        }
    }
}
