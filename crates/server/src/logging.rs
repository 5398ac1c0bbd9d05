//! Logs: readable on a terminal, JSON for programs. They name tenants, sessions and
//! sizes; never a key, and of what a message says only what others repeat of it where they fail.
//!
//! A log serves the daemon, and never stops it: a line that cannot be written is counted and
//! forgotten, and of one kind of line only so many a minute are written.

mod line_limit;
mod output;

use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memoird_engine::{WorkError, Worker};
use tracing::Subscriber;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, registry};

use crate::cli::exit::{CliError, Exit};
use crate::config::LogConfig;

use line_limit::LineLimit;
use output::Output;

/// How often the lines that were left out are reported.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Lines that are in no log.
#[derive(Debug, Default)]
pub(crate) struct LostLines {
    /// Could not be written: the disk is full, or nobody reads the pipe.
    pub(crate) unwritable: AtomicU64,
    /// Were more than `log.lines_per_minute` of their kind.
    pub(crate) over_limit: AtomicU64,
}

impl LostLines {
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What can be done with the log while the daemon runs. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LogControl {
    /// Which lines are not there.
    pub(crate) lost: Arc<LostLines>,
    limit: LineLimit,
    filter: Handle<EnvFilter, tracing_subscriber::Registry>,
}

impl LogControl {
    /// Logs these events from now on.
    pub(crate) fn apply(&self, config: &LogConfig) -> Result<(), CliError> {
        let filter = filter(config)?;
        // It fails only where nobody logs any more.
        let _ = self.filter.reload(filter);
        self.limit.set(config.lines_per_minute);
        Ok(())
    }

    /// The worker that begins each minute of the limit.
    pub(crate) fn reporter(&self) -> impl Worker {
        Reporter {
            limit: self.limit.clone(),
        }
    }
}

/// Starts logging to stderr.
pub(crate) fn init(config: &LogConfig) -> Result<LogControl, CliError> {
    let lost = Arc::<LostLines>::default();
    let limit = LineLimit::new(config.lines_per_minute, Arc::clone(&lost));
    let (filter_layer, filter) = reload::Layer::new(filter(config)?);
    registry()
        .with(filter_layer)
        .with(limit.clone())
        .with(lines(Output::new(stderr(), Arc::clone(&lost))))
        .init();
    Ok(LogControl {
        lost,
        limit,
        filter,
    })
}

/// How an event is written down.
fn lines<S>(output: Output) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let layer = fmt::layer().with_writer(output);
    match stderr().is_terminal() {
        true => layer.with_target(false).boxed(),
        false => layer.json().flatten_event(true).boxed(),
    }
}

fn filter(config: &LogConfig) -> Result<EnvFilter, CliError> {
    EnvFilter::try_new(&config.filter).map_err(|error| {
        let problem = format!("log.filter {:?}: {error}", config.filter);
        CliError::failed(Exit::Config, problem)
    })
}

/// Begins each minute of the limit, and says what the last one left out.
struct Reporter {
    limit: LineLimit,
}

impl Worker for Reporter {
    fn name(&self) -> &'static str {
        "log_reporter"
    }

    async fn wait(&mut self) {
        tokio::time::sleep(REPORT_EVERY).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        self.limit.begin_minute();
        Ok(())
    }

    async fn finish(&mut self) {
        self.limit.begin_minute();
    }
}
