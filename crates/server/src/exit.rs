//! The exit codes of errors from the journal and the checkpoints.

pub(crate) use memoird_cli::exit::{CliError, Exit, report};
use memoird_hooks::git::GitError;
use memoird_store::StoreError;

#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
pub(crate) fn of_store(error: StoreError) -> CliError {
    let exit = match error {
        StoreError::DirUnusable { .. } => Exit::CannotCreate,
        StoreError::NotEncrypted { .. }
        | StoreError::Encrypted { .. }
        | StoreError::EncryptionNotBuilt { .. }
        | StoreError::WrongKey { .. } => Exit::Config,
        StoreError::ForeignSchema { .. }
        | StoreError::TargetNotEmpty { .. }
        | StoreError::OtherMigration { .. } => Exit::Data,
        _ => Exit::Unavailable,
    };
    CliError::failed(exit, error.to_string())
}

#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
pub(crate) fn of_git(error: GitError) -> CliError {
    let problem = error.to_string();
    match error {
        GitError::Missing { .. } => CliError::failed(Exit::NoInput, problem)
            .with_hint("set their location with --dir or --config, and the tenant with --tenant"),
        GitError::Unusable { .. } => CliError::failed(Exit::Data, problem),
        GitError::Io { .. } | GitError::Contended { .. } | GitError::Stopped => {
            CliError::failed(Exit::Io, problem)
        }
    }
}
