//! `memoird checkpoints`: reads the checkpoints of a git hook from disk. Needs no daemon.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use memoird_cli::pages::all_if_zero;
use memoird_cli::transcript::TO_THE_SECOND;
use memoird_cli::{clock, output};
use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::time::Timestamp;
use memoird_hooks::git::{CheckpointEntry, Checkpoints, GitConfig};
use memoird_store::encoding::timestamp_to_proto;
use serde_json::{Value, json};

use crate::config;
use crate::exit::{CliError, Exit, of_git};

#[derive(Subcommand)]
pub(crate) enum CheckpointsCommand {
    /// List checkpoints, newest first
    List(ListArgs),
    /// Print a checkpoint of a session as Markdown
    Show(ShowArgs),
}

#[derive(Args)]
pub(crate) struct Location {
    /// Directory that the hook writes to
    #[arg(long, value_name = "DIR", default_value = "./memoird-data/checkpoints")]
    dir: PathBuf,
    /// Configuration file; its first git hook has the directory
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    config: Option<PathBuf>,
    /// Tenant of the sessions
    #[arg(long, value_name = "ID", default_value = "default", value_parser = TenantId::parse)]
    tenant: TenantId,
}

#[derive(Args)]
pub(crate) struct ListArgs {
    /// Session to list checkpoints of [default: all]
    #[arg(value_parser = SessionId::parse)]
    session: Option<SessionId>,
    /// Maximum number to print; 0 prints all
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    #[command(flatten)]
    location: Location,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// Session id, chosen by the bot
    #[arg(value_parser = SessionId::parse)]
    session: SessionId,
    /// Generation of the session [default: the newest]
    #[arg(long, value_name = "ULID", value_parser = Generation::from_str)]
    generation: Option<Generation>,
    #[command(flatten)]
    location: Location,
}

pub(crate) fn run(json: bool, command: CheckpointsCommand) -> Result<(), CliError> {
    match command {
        CheckpointsCommand::List(args) => list(&args, json),
        CheckpointsCommand::Show(args) => show(&args, json),
    }
}

fn list(args: &ListArgs, json: bool) -> Result<(), CliError> {
    let limit = all_if_zero(args.limit);
    let checkpoints = args.location.open()?;
    let found = checkpoints
        .list(limit, args.session.as_ref())
        .map_err(of_git)?;
    let entries: Vec<Value> = found.iter().map(entry).collect();
    output::print_as(json, &json!({ "checkpoints": entries }), &table(&found))
}

fn show(args: &ShowArgs, json: bool) -> Result<(), CliError> {
    let checkpoints = args.location.open()?;
    let found = checkpoints
        .show(&args.session, args.generation)
        .map_err(of_git)?;
    let markdown = found.ok_or_else(|| {
        let life = args
            .generation
            .map(|life| format!(", generation {life}"))
            .unwrap_or_default();
        let problem = format!("no checkpoint of {}{life}", args.session);
        CliError::failed(Exit::NoInput, problem)
    })?;
    let value = json!({ "session_id": args.session.as_str(), "markdown": markdown });
    output::print_as(json, &value, &markdown)
}

fn table(found: &[CheckpointEntry]) -> String {
    let row = |entry: &CheckpointEntry| {
        let ended_at = entry.ended_at.map(timestamp_to_proto);
        [
            ended_at.map_or("-".to_owned(), |at| {
                clock::written(Some(&at), TO_THE_SECOND)
            }),
            output::printable(&entry.reason),
            output::count(entry.turns),
            output::printable(&entry.session),
            entry.generation.to_string(),
        ]
    };
    let header = ["ENDED AT (UTC)", "REASON", "TURNS", "SESSION", "GENERATION"];
    output::table(&header, found.iter().map(row), &[2], None)
}

impl Location {
    fn open(&self) -> Result<Checkpoints, CliError> {
        let git = match &self.config {
            None => GitConfig {
                dir: self.dir.clone(),
                ..GitConfig::default()
            },
            Some(path) => {
                let git = config::git_hooks(path)?.into_iter().next();
                let problem = format!("{} has no git hook", path.display());
                git.ok_or_else(|| CliError::failed(Exit::NoInput, problem))?
            }
        };
        Checkpoints::open(&git, &self.tenant).map_err(of_git)
    }
}

fn entry(entry: &CheckpointEntry) -> Value {
    let time = |at: Option<Timestamp>| at.map(|at| timestamp_to_proto(at).to_string());
    json!({
        "session_id": entry.session,
        "generation": entry.generation.to_string(),
        "subject": entry.subject,
        "reason": entry.reason,
        "created_at": time(entry.created_at),
        "ended_at": time(entry.ended_at),
        "turns": entry.turns,
        "path": entry.path,
    })
}
