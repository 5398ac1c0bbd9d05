//! The command line of `memoird`.
//!
//! Commands that call a daemon are in `memoird-cli`. The others here read or write files, or start
//! a daemon.

mod backup;
mod cert;
mod checkpoints;
mod cluster;
mod demo;
mod dry_run;
mod encrypt;
mod manual;
mod migrate;
mod private;
mod verify;

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use memoird_cli::ClientCommand;
use memoird_cli::connect::ClientArgs;
use memoird_cli::exit::CODES_HELP;
use memoird_cli::output;
use memoird_store::conversion::ConversionTarget;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::DEFAULT_YAML;
use crate::exit::{CliError, Exit};
use crate::runtime::new_runtime;
use backup::{BackupArgs, RestoreArgs};
use cert::CertArgs;
use checkpoints::CheckpointsCommand;
use cluster::ClusterArgs;
use demo::DemoArgs;
use dry_run::ReplayOrDryRunArgs;
use encrypt::EncryptArgs;
use migrate::MigrateArgs;
use verify::VerifyArgs;

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
#[command(after_long_help = CODES_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    client: ClientArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon
    Serve {
        /// Configuration file; the embedded default if omitted
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Run a 30-second demo on a private daemon
    Demo(DemoArgs),
    /// Check a configuration file, or print the default
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Replay recorded conversations into sessions, message by message
    Replay(ReplayOrDryRunArgs),
    #[command(flatten)]
    Client(ClientCommand),
    /// Show the daemons that share the journal, the leader, and overdue work (role admin)
    Cluster(ClusterArgs),
    /// Read the checkpoints written by a git hook, from disk
    #[command(subcommand)]
    Checkpoints(CheckpointsCommand),
    /// Verify the journal and memories: checksums of turns, and files page by page
    Verify(VerifyArgs),
    /// Back up all data of the running daemon to a directory (role admin)
    Backup(BackupArgs),
    /// Restore a backup into a new data directory, and verify it
    Restore(RestoreArgs),
    Encrypt(EncryptArgs),
    /// Decrypt the SQLite files of a data directory that no daemon is using
    Decrypt(EncryptArgs),
    Migrate(MigrateArgs),
    Cert(CertArgs),
    /// Print a shell completion script
    Completions {
        /// Shell to generate completions for
        shell: Shell,
    },
    /// Write the manual pages of all commands, or print the main one
    Man {
        /// Output directory; if omitted, print the page of memoird itself
        dir: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check a configuration file and report all problems
    Check {
        /// Configuration file
        file: PathBuf,
    },
    /// Print the default configuration with its comments
    PrintDefault,
}

/// The version, with the commit if the build sets MEMOIRD_COMMIT, as `just bench` does.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match option_env!("MEMOIRD_COMMIT") {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    }
}

/// Parses the process's arguments. Exits on invalid arguments and for `--help`.
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

/// Explains why `--key` does not exist.
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

pub(crate) fn run(cli: Cli) -> Result<(), CliError> {
    let Cli { client, command } = cli;
    match command {
        Command::Serve { config } => crate::serve::run(config.as_deref()),
        Command::Config(ConfigCommand::Check { file }) => {
            crate::config::print_check(&file, client.json)
        }
        Command::Config(ConfigCommand::PrintDefault) => output::print(DEFAULT_YAML),
        Command::Demo(args) => block_on(demo::run(&client, args)),
        Command::Replay(args) => block_on(dry_run::run(&client, args)),
        Command::Client(command) => block_on(command.run(&client)),
        Command::Cluster(ClusterArgs { command: None }) => {
            block_on(memoird_cli::cluster::run(&client))
        }
        Command::Cluster(ClusterArgs {
            command: Some(command),
        }) => command.run(client.json),
        Command::Checkpoints(command) => checkpoints::run(client.json, command),
        Command::Verify(VerifyArgs {
            dir: Some(dir),
            key,
        }) => verify::directory(&dir, &key, client.json),
        Command::Verify(VerifyArgs { dir: None, .. }) => block_on(verify::daemon(&client)),
        Command::Backup(args) => block_on(backup::backup(&client, args)),
        Command::Restore(args) => backup::restore(&args, client.json),
        Command::Encrypt(args) => encrypt::run(&args, ConversionTarget::Encrypted, client.json),
        Command::Decrypt(args) => encrypt::run(&args, ConversionTarget::Plain, client.json),
        Command::Migrate(args) => migrate::run(&args, client.json),
        Command::Cert(args) => cert::run(&args, client.json),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { dir } => manual::man(dir.as_deref()),
    }
}

/// Runs a client until it ends or a signal arrives.
///
/// Dropping the client stops its daemons and removes their directories.
fn block_on(client: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    let runtime = new_runtime(false)?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = client => result,
            () = told_to_stop() => Err(CliError::failed(Exit::Interrupted, "interrupted")),
        }
    });
    // A thread may be blocked on a line of stdin that is no longer needed.
    runtime.shutdown_background();
    result
}

/// Waits for Ctrl-C or SIGTERM.
async fn told_to_stop() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => drop(terminate.recv().await),
            // Without a handler, SIGTERM ends the process by default.
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
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn address_is_accepted_before_and_after_subcommand() {
        for args in [
            ["memoird", "--addr", "h:1", "stats"],
            ["memoird", "stats", "--addr", "h:1"],
        ] {
            let addr = parsed(&args).expect("fine arguments").client.connect.addr;
            assert_eq!(addr.expect("typed").to_string(), "http://h:1");
        }
    }

    #[test]
    fn database_ca_is_separate_from_daemon_ca() {
        let line = "memoird --ca daemon.pem migrate --config c --to d --database-ca database.pem";
        let cli = parsed(&line.split(' ').collect::<Vec<_>>()).expect("fine arguments");
        let Command::Migrate(args) = cli.command else {
            panic!("another command");
        };
        assert_eq!(args.ca, Some("database.pem".into()));
    }

    #[test]
    fn key_on_command_line_is_rejected() {
        for args in [
            ["memoird", "--key", "k", "stats"],
            ["memoird", "stats", "--key", "k"],
        ] {
            let error = parsed(&args).err().expect("refused");
            assert!(!error.to_string().contains("--key k"), "{error}");
        }
    }
}
