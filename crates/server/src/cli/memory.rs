//! `memoird memory`: the memories of the key's tenant.

mod add;
mod dream;
mod forget;
mod import;
mod list;
mod manifest;
mod recall;
mod reindex;
pub(super) mod words;

use clap::Subcommand;

use super::ClientArgs;
use super::exit::CliError;
use add::AddArgs;
use dream::DreamArgs;
use forget::ForgetArgs;
use import::ImportArgs;
use list::{ExportArgs, ListArgs};
use manifest::ManifestArgs;
use recall::RecallArgs;

/// What can be done with memories.
#[derive(Subcommand)]
pub(crate) enum MemoryCommand {
    /// List memories, oldest first
    List(ListArgs),
    /// Show a memory with all that is known of it
    Show {
        /// The memory's id
        id: String,
    },
    /// Remember a fact
    Add(Box<AddArgs>),
    /// Find memories
    Recall(RecallArgs),
    /// Forget memories everywhere, for good; shows first how much that is
    Forget(ForgetArgs),
    /// Print what is known of a subject, as agents are told it
    Manifest(ManifestArgs),
    /// Write memories to stdout as JSON lines, with all that is known of them
    Export(ExportArgs),
    /// Store memories from JSON lines that `export` wrote; those that are there stay
    Import(ImportArgs),
    /// Build the indexes anew and wait until all memories are embedded
    Reindex,
    /// Consolidate memories now, as the dream sweep does (role admin)
    Dream(DreamArgs),
}

/// Does it.
pub(crate) async fn run(client: &ClientArgs, command: MemoryCommand) -> Result<(), CliError> {
    let target = client.connect.target()?;
    match command {
        MemoryCommand::List(args) => list::list(&target, args, client.json).await,
        MemoryCommand::Show { id } => list::show(&target, id, client.json).await,
        MemoryCommand::Add(args) => add::run(&target, *args, client.json).await,
        MemoryCommand::Recall(args) => recall::run(&target, args, client.json).await,
        MemoryCommand::Forget(args) => forget::run(&target, args, client.json).await,
        MemoryCommand::Manifest(args) => manifest::run(&target, args, client.json).await,
        MemoryCommand::Export(args) => list::export(&target, args).await,
        MemoryCommand::Import(args) => import::run(&target, &args, client.json).await,
        MemoryCommand::Reindex => reindex::run(&target, client.json).await,
        MemoryCommand::Dream(args) => dream::run(&target, args, client.json).await,
    }
}
