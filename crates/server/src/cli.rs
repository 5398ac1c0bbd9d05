//! The command line of `memoird`.
//!
//! `serve` and `config` are the daemon's own; everything else is a client that
//! knows the daemon by its contract only.

mod backup;
mod cert;
mod checkpoints;
mod choice;
mod clock;
mod cluster;
mod compaction;
mod connect;
mod connector;
mod daemon;
mod demo;
mod document;
mod encrypt;
mod erase;
pub(crate) mod exit;
mod export;
mod hooks;
mod import;
mod json;
mod lines;
mod manual;
mod memory;
mod migrate;
pub(crate) mod output;
mod pages;
mod private;
mod progress;
mod redact;
mod replay;
mod search;
mod sessions;
mod transcript;
mod verify;
mod watch;
mod window;

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use memoird_store::conversion::Target;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use backup::{BackupArgs, RestoreArgs};
use cert::CertArgs;
use checkpoints::CheckpointsCommand;
use connect::{CLIENT_OPTIONS, ConnectArgs};
use daemon::StatsArgs;
use demo::DemoArgs;
use document::DocCommand;
use encrypt::EncryptArgs;
use exit::{CliError, Exit};
use export::ExportArgs;
use hooks::HooksCommand;
use import::ImportArgs;
use memory::MemoryCommand;
use migrate::MigrateArgs;
use replay::ReplayArgs;
use search::SearchArgs;
use sessions::SessionsCommand;
use verify::VerifyArgs;
use watch::WatchArgs;
use window::WindowArgs;

/// Session daemon for chat bots
///
/// Bounded histories over gRPC, durable, with time to live and caps.
#[derive(Parser)]
#[command(
    name = "memoird",
    version = version(),
    propagate_version = true,
    max_term_width = 100
)]
#[command(after_long_help = exit::CODES_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    client: ClientArgs,
    #[command(subcommand)]
    command: Command,
}

/// What all client commands share.
#[derive(Args)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Print JSON, for programs
    #[arg(long, global = true, help_heading = CLIENT_OPTIONS)]
    json: bool,
}

/// What can be asked.
#[derive(Subcommand)]
enum Command {
    /// Run the daemon
    Serve {
        /// The configuration file; without it, the embedded default
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Show in half a minute what the daemon does, on a private one
    Demo(DemoArgs),
    /// Check a configuration, or print the default one
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Play recorded conversations into sessions, message by message
    Replay(ReplayArgs),
    /// Look at sessions, end them and erase them
    #[command(subcommand)]
    Sessions(SessionsCommand),
    /// Look at memories, add, find and forget them, and move them between daemons
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// Look at documents, put and delete them, and move them between daemons
    #[command(subcommand)]
    Doc(DocCommand),
    /// Find what was said, in sessions that live and in those that ended
    Search(Box<SearchArgs>),
    /// Draw what a model would see of a session now, and say what it would not, and why
    Window(WindowArgs),
    /// Print what happens to sessions, as it happens
    Watch(WatchArgs),
    /// Read the checkpoints that a git hook wrote, from the disk
    #[command(subcommand)]
    Checkpoints(CheckpointsCommand),
    /// Look at what hooks are owed, retry it and drop it (role admin)
    #[command(subcommand)]
    Hooks(HooksCommand),
    /// Show counts and sums since the daemon started (role admin)
    Stats(StatsArgs),
    /// Show the daemons that share the journal, who leads, and what waits (role admin)
    Cluster,
    /// Let the daemon read its configuration file again (role admin)
    Reload,
    /// Print live sessions with their turns and state as JSON lines, to be imported elsewhere
    Export(ExportArgs),
    /// Import sessions from `memoird export`, ChatGPT or Claude; existing turns are left alone
    Import(ImportArgs),
    /// Check journal and memories: turns by their checksums, files page by page
    Verify(VerifyArgs),
    /// Copy all that the running daemon keeps into a directory (role admin)
    Backup(BackupArgs),
    /// Make a data directory of a backup, and check it
    Restore(RestoreArgs),
    Encrypt(EncryptArgs),
    /// Make the SQLite files of a data directory plain again, while no daemon uses it
    Decrypt(EncryptArgs),
    Migrate(MigrateArgs),
    /// Ask whether the daemon takes calls; needs no key, and fails unless it does
    Health,
    Cert(CertArgs),
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages of all commands, or print the first
    Man {
        /// The directory for them; without it, the page of memoird itself is printed
        dir: Option<PathBuf>,
    },
}

/// What can be asked of a configuration.
#[derive(Subcommand)]
enum ConfigCommand {
    /// Read a configuration file and say everything that is wrong with it
    Check {
        /// The configuration file
        file: PathBuf,
    },
    /// Print the default configuration with its comments
    PrintDefault,
}

/// The version, and the commit where the build was told it, as `just bench` does.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match option_env!("MEMOIRD_COMMIT") {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    }
}

/// Reads the process's arguments. Ends the process where they are wrong, or ask for help.
pub(crate) fn parse() -> Cli {
    let parsed = parse_from(std::env::args_os());
    parsed.unwrap_or_else(|error| error.exit())
}

fn parse_from<W>(words: impl IntoIterator<Item = W>) -> Result<Cli, clap::Error>
where
    W: Into<OsString> + Clone,
{
    Cli::try_parse_from(words).map_err(explain_key)
}

/// Where somebody typed a key: clap says that there is no such option, and this says why.
fn explain_key(error: clap::Error) -> clap::Error {
    let unknown = error.get(ContextKind::InvalidArg);
    let is_key = unknown.is_some_and(|option| option.to_string() == "--key");
    if error.kind() != ErrorKind::UnknownArgument || !is_key {
        return error;
    }
    let problem = "a key on the command line can be read by every process of the machine: \
                   put it into MEMOIRD_KEY or into a file for --key-file";
    Cli::command().error(ErrorKind::UnknownArgument, problem)
}

/// Does what was asked.
pub(crate) fn run(cli: Cli) -> Result<(), CliError> {
    let Cli { client, command } = cli;
    match command {
        Command::Serve { config } => crate::serve::run(config.as_deref()),
        Command::Config(ConfigCommand::Check { file }) => {
            crate::config::print_check(&file, client.json)
        }
        Command::Config(ConfigCommand::PrintDefault) => crate::config::print_default(),
        Command::Demo(args) => block_on(demo::run(&client, args)),
        Command::Replay(args) => block_on(replay::run(&client, args)),
        Command::Sessions(command) => block_on(sessions::run(&client, command)),
        Command::Memory(command) => block_on(memory::run(&client, command)),
        Command::Doc(command) => block_on(document::run(&client, command)),
        Command::Search(args) => block_on(search::run(&client, *args)),
        Command::Window(args) => block_on(window::run(&client, args)),
        Command::Watch(args) => block_on(watch::run(&client, args)),
        Command::Checkpoints(command) => checkpoints::run(client.json, command),
        Command::Hooks(command) => block_on(hooks::run(&client, command)),
        Command::Stats(args) => block_on(daemon::stats(&client, args)),
        Command::Cluster => block_on(cluster::run(&client)),
        Command::Reload => block_on(daemon::reload(&client)),
        Command::Export(args) => block_on(export::run(&client, args)),
        Command::Import(args) => block_on(import::run(&client, args)),
        Command::Verify(VerifyArgs {
            dir: Some(dir),
            key,
        }) => verify::directory(&dir, &key, client.json),
        Command::Verify(VerifyArgs { dir: None, .. }) => block_on(verify::daemon(&client)),
        Command::Backup(args) => block_on(backup::backup(&client, args)),
        Command::Restore(args) => backup::restore(&args, client.json),
        Command::Encrypt(args) => encrypt::run(&args, Target::Encrypted, client.json),
        Command::Decrypt(args) => encrypt::run(&args, Target::Plain, client.json),
        Command::Migrate(args) => migrate::run(&args, client.json),
        Command::Health => block_on(daemon::health(&client)),
        Command::Cert(args) => cert::run(&args, client.json),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { dir } => manual::man(dir.as_deref()),
    }
}

/// Runs a client to its end, or to a signal: dropping it stops the daemons that it
/// started and removes their directories.
fn block_on(client: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    let runtime = runtime(false)?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = client => result,
            () = told_to_stop() => Err(CliError::failed(Exit::Interrupted, "interrupted")),
        }
    });
    // A thread may still wait for a line of stdin that is no longer needed.
    runtime.shutdown_background();
    result
}

/// After so many tasks a thread looks for bytes that have come, where tenants share the daemon. Some
/// tasks work for a millisecond, and tokio's own number is 61.
const TASKS_PER_LOOK: u32 = 8;

/// What runs tasks: a thread for each processor. Where it `is_shared` by tenants nobody's bytes wait
/// for many tasks of others; a single one's calls are answered sooner without that.
pub(crate) fn runtime(is_shared: bool) -> Result<Runtime, CliError> {
    let mut builder = Builder::new_multi_thread();
    if is_shared {
        builder.event_interval(TASKS_PER_LOOK);
    }
    let runtime = builder.enable_all().build();
    runtime.map_err(CliError::io("cannot start the runtime"))
}

/// Waits for Ctrl-C or SIGTERM.
async fn told_to_stop() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => drop(terminate.recv().await),
            // Then the process ends as it would without us.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Cli, clap::Error> {
        parse_from(args)
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_address_is_typed_wherever_it_stands() {
        for args in [
            ["memoird", "--addr", "h:1", "stats"],
            ["memoird", "stats", "--addr", "h:1"],
        ] {
            let addr = parsed(&args).expect("fine arguments").client.connect.addr;
            assert_eq!(addr.expect("typed").to_string(), "http://h:1");
        }
    }

    #[test]
    fn what_the_database_shows_is_no_affair_of_the_daemon_s_certificate() {
        let line = "memoird --ca daemon.pem migrate --config c --to d --database-ca database.pem";
        let cli = parsed(&line.split(' ').collect::<Vec<_>>()).expect("fine arguments");
        let Command::Migrate(args) = cli.command else {
            panic!("another command");
        };
        assert_eq!(args.ca, Some("database.pem".into()));
    }

    #[test]
    fn a_key_is_refused_on_the_command_line() {
        for args in [
            ["memoird", "--key", "k", "stats"],
            ["memoird", "stats", "--key", "k"],
        ] {
            let error = parsed(&args).err().expect("refused");
            assert!(!error.to_string().contains("--key k"), "{error}");
        }
    }
}
