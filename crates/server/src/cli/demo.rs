//! `memoird demo`: in half a minute, on a private daemon and through its contract only,
//! what memoird does with chats. All that is shown is what the daemon answered.

mod bot;
mod feed;
mod history;
mod stage;
mod story;

use clap::Args;

use super::ClientArgs;
use super::exit::CliError;

/// How to show it.
#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Without the pauses for reading
    #[arg(long)]
    fast: bool,
    /// Keep the folder of the daemon, with its journal and the checkpoints
    #[arg(long)]
    keep: bool,
}

/// Shows it.
pub(crate) async fn run(client: &ClientArgs, args: DemoArgs) -> Result<(), CliError> {
    if client.connect.addr_typed || client.json {
        let problem = "the demo is for people, and starts a daemon of its own: leave --addr and \
                       --json out";
        return Err(CliError::usage(problem));
    }
    story::tell(&args).await
}
