//! `memoird config`: check a file, print the default one.

use std::path::Path;

use crate::cli::exit::CliError;
use crate::cli::output;

/// Says everything that is wrong with a configuration file.
pub(crate) fn check(path: &Path) -> Result<(), CliError> {
    let config = super::load(path)?;
    for warning in &config.warnings {
        output::print(&format!("warning: {warning}"))?;
    }
    output::print(&format!("{}: good", path.display()))
}

/// Prints the default configuration with its comments.
pub(crate) fn print_default() -> Result<(), CliError> {
    output::print(super::DEFAULT_YAML)
}
