//! Logs: readable on a terminal, JSON otherwise.
//!
//! They contain tenants, sessions and sizes, but never a key. Of messages they contain only what
//! other programs quote in their errors. Logging never stops the daemon: a line that cannot be
//! written is counted and dropped, and lines of one kind are limited per minute.

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

use crate::config::LogConfig;
use crate::exit::{CliError, Exit};

use line_limit::LineLimit;
use output::Output;

/// Interval for reporting dropped lines.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Counters of dropped lines.
#[derive(Debug, Default)]
pub(crate) struct DroppedLines {
    /// Could not be written: the disk is full, or the pipe has no reader.
    pub(crate) unwritable: AtomicU64,
    /// Exceeded `log.lines_per_minute` of their kind.
    pub(crate) over_limit: AtomicU64,
}

impl DroppedLines {
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Changes logging at runtime. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct LogControl {
    pub(crate) lost: Arc<DroppedLines>,
    limit: LineLimit,
    filter: Handle<EnvFilter, tracing_subscriber::Registry>,
}

impl LogControl {
    /// Applies a new filter and limit.
    pub(crate) fn apply(&self, config: &LogConfig) -> Result<(), CliError> {
        let filter = filter(config)?;
        // Fails only if the subscriber is gone.
        let _ = self.filter.reload(filter);
        self.limit.set(config.lines_per_minute);
        Ok(())
    }

    /// The worker that resets the limit every minute.
    pub(crate) fn reporter(&self) -> impl Worker {
        Reporter {
            limit: self.limit.clone(),
        }
    }
}

pub(crate) fn init(config: &LogConfig) -> Result<LogControl, CliError> {
    let lost = Arc::<DroppedLines>::default();
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

fn lines<S>(output: Output) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let layer = fmt::layer().with_writer(output);
    if stderr().is_terminal() {
        layer.with_target(false).boxed()
    } else {
        layer.json().flatten_event(true).boxed()
    }
}

fn filter(config: &LogConfig) -> Result<EnvFilter, CliError> {
    EnvFilter::try_new(&config.filter).map_err(|error| {
        let problem = format!("log.filter {:?}: {error}", config.filter);
        CliError::failed(Exit::Config, problem)
    })
}

/// Resets the limit every minute, and reports the lines it dropped.
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
