//! `memoird cluster apply`: replaces the policy of a cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::exit::CliError;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub(super) command: Option<ClusterCommand>,
}

#[derive(Subcommand)]
pub(crate) enum ClusterCommand {
    /// Make the policy of a configuration file that of its cluster
    ///
    /// Writes the next version of the policy to the database of journal.postgres. All daemons apply
    /// it within seconds, whatever their files say. They need not run.
    Apply {
        /// Configuration file of a daemon
        file: PathBuf,
    },
}

impl ClusterCommand {
    pub(super) fn run(&self, json: bool) -> Result<(), CliError> {
        let Self::Apply { file } = self;
        apply(file, json)
    }
}

#[cfg(feature = "postgres")]
fn apply(path: &std::path::Path, json: bool) -> Result<(), CliError> {
    use memoird_cli::output;
    use memoird_postgres::{DatabaseUse, replace_policy};
    use serde_json::json;

    use crate::config::{self, JournalLocation, Policy};
    use crate::exit::{Exit, of_store};
    use crate::runtime::new_runtime;

    let config = config::load(path)?;
    let options = match config.journal {
        JournalLocation::Postgres(options) if options.sharing == DatabaseUse::Cluster => *options,
        _ => {
            let problem = format!("{} has no journal.postgres.cluster: true", path.display());
            return Err(CliError::failed(Exit::Config, problem));
        }
    };
    let runtime = new_runtime(false)?;
    let body = config.policy.encode();
    let (before, now) = replace_policy(options, runtime.handle(), &body).map_err(of_store)?;
    let previous = before.and_then(|before| Policy::decode(&before.body).ok());
    let changed = previous
        .map(|previous| previous.differing(&config.policy))
        .unwrap_or_default();
    let version = now.version;
    if json {
        return output::print_json(&json!({ "version": version, "changed": changed }));
    }
    let changes = if changed.is_empty() {
        "no setting changed".to_owned()
    } else {
        format!("changed: {}", changed.join(", "))
    };
    output::print(&format!(
        "version {version} of the cluster's policy applies; {changes}"
    ))
}

#[cfg(not(feature = "postgres"))]
fn apply(_: &std::path::Path, _: bool) -> Result<(), CliError> {
    let problem = "this memoird was built without the feature `postgres`; use a build with it";
    Err(CliError::usage(problem))
}
