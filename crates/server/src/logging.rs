//! Logs: readable on a terminal, JSON for programs. They name tenants, sessions and
//! sizes; never a key, never what a message says.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::{EnvFilter, fmt};

use crate::cli::exit::CliError;
use crate::config::LogConfig;

/// Starts logging to stderr.
pub(crate) fn init(config: &LogConfig) -> Result<(), CliError> {
    let filter = EnvFilter::try_new(&config.filter).map_err(|error| CliError::Config {
        problem: format!("log.filter {:?}: {error}", config.filter),
    })?;
    let builder = fmt().with_env_filter(filter).with_writer(stderr);
    match stderr().is_terminal() {
        true => builder.with_target(false).init(),
        false => builder.json().flatten_event(true).init(),
    }
    Ok(())
}
