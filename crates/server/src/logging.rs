//! Logs: readable on a terminal, JSON for programs. They name tenants, sessions and
//! sizes; never a key, never what a message says.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::reload::Handle;
use tracing_subscriber::{EnvFilter, fmt};

use crate::cli::exit::{CliError, Exit};
use crate::config::LogConfig;

/// Changes the log's filter while the daemon runs.
pub(crate) struct LogControl(Box<dyn Fn(EnvFilter) + Send + Sync>);

impl std::fmt::Debug for LogControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogControl").finish_non_exhaustive()
    }
}

impl LogControl {
    fn of<S: 'static>(handle: Handle<EnvFilter, S>) -> Self {
        // It fails only after the subscriber is gone.
        Self(Box::new(move |filter| drop(handle.reload(filter))))
    }

    /// Logs these events from now on.
    pub(crate) fn apply(&self, config: &LogConfig) -> Result<(), CliError> {
        (self.0)(filter(config)?);
        Ok(())
    }
}

/// Starts logging to stderr.
pub(crate) fn init(config: &LogConfig) -> Result<LogControl, CliError> {
    let builder = fmt().with_env_filter(filter(config)?).with_writer(stderr);
    if stderr().is_terminal() {
        let builder = builder.with_target(false).with_filter_reloading();
        let control = LogControl::of(builder.reload_handle());
        builder.init();
        return Ok(control);
    }
    let builder = builder.json().flatten_event(true).with_filter_reloading();
    let control = LogControl::of(builder.reload_handle());
    builder.init();
    Ok(control)
}

fn filter(config: &LogConfig) -> Result<EnvFilter, CliError> {
    EnvFilter::try_new(&config.filter).map_err(|error| {
        let problem = format!("log.filter {:?}: {error}", config.filter);
        CliError::failed(Exit::Config, problem)
    })
}
