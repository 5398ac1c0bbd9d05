//! `memoird config`: check a file, print the default one.

use std::io::Write;
use std::path::Path;

use crate::cli::exit::CliError;

/// Says everything that is wrong with a configuration file.
pub(crate) fn check(path: &Path) -> Result<(), CliError> {
    let config = super::load(path)?;
    let mut out = std::io::stdout().lock();
    for warning in &config.warnings {
        writeln!(out, "warning: {warning}").map_err(CliError::of_output)?;
    }
    writeln!(out, "{}: good", path.display()).map_err(CliError::of_output)
}

/// Prints the default configuration with its comments.
pub(crate) fn print_default() -> Result<(), CliError> {
    std::io::stdout()
        .lock()
        .write_all(super::DEFAULT_YAML.as_bytes())
        .map_err(CliError::of_output)
}
