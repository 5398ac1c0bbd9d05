//! `memoird serve`: the process from reading its configuration to the last flush.

use std::path::Path;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

use crate::app::App;
use crate::cli::exit::{CliError, Exit};
use crate::config::ServerConfig;
use crate::notify::Notifier;
use crate::reload::Reloader;
use crate::{cli, config, logging, process};

/// Runs the daemon until a signal stops it.
pub(crate) fn run(file: Option<&Path>) -> Result<(), CliError> {
    let loaded = match file {
        Some(path) => config::load(path)?,
        None => config::embedded()?,
    };
    let log = logging::init(&loaded.log)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    warn_of_few_descriptors(&loaded.server);
    let notifier = Notifier::from_environment();
    cli::runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        notifier.status("opens the journal");
        let app = App::bind(loaded, file, log).await?;
        let (grpc, admin) = (app.grpc_addr.clone(), app.admin_addr.clone());
        info!(%grpc, %admin, "memoird is ready");
        let running = app.serve()?;
        running.announce().await;
        notifier.status(format_args!("serves gRPC on {grpc}, metrics on {admin}"));
        notifier.ready();
        let _beats = notifier.keep_alive();
        let (broken, reloader) = (running.broken(), running.reloader());
        let reason = tokio::select! {
            signal = signals.stop_signal(&reloader, &notifier) => signal,
            () = reloader.follow_file() => "the configuration cannot be followed",
            () = broken.cancelled() => "a background worker panicked",
        };
        info!(reason, "memoird is stopping");
        let within = running.drain_time_max();
        notifier.status(format_args!(
            "stops ({reason}), which takes at most {within:?}"
        ));
        notifier.stopping(within);
        running.drain().await;
        if broken.is_cancelled() {
            let problem = "a background worker panicked; the log says which";
            return Err(CliError::failed(Exit::Internal, problem));
        }
        info!("memoird has stopped");
        Ok(())
    })
}

/// Descriptors beside those of connections: files, and what hooks and models have open.
const OTHER_DESCRIPTORS: u64 = 256;

fn warn_of_few_descriptors(server: &ServerConfig) {
    let connections = server.max_connections + server.connections.admin_max;
    let wanted = connections as u64 + OTHER_DESCRIPTORS;
    if let Some(limit) = process::raise_descriptor_limit().filter(|limit| *limit < wanted) {
        tracing::warn!(
            limit,
            wanted,
            "the process may have fewer descriptors than server.max_connections may take; \
             raise its limit (ulimit -n, LimitNOFILE) or lower the setting"
        );
    }
}

/// The signals that stop the daemon, and the one that makes it read its configuration again.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> Result<Self, CliError> {
        let failed = CliError::io("cannot listen to signals");
        let listen = |kind| signal(kind).map_err(&failed);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the end; until then SIGHUP reads the configuration again.
    async fn stop_signal(&mut self, reloader: &Reloader, notifier: &Notifier) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => {
                    notifier.reloading();
                    // What came of it is in the log.
                    let _ = reloader.reload("SIGHUP").await;
                    notifier.ready();
                }
            }
        }
    }
}
