//! `memoird serve`: the process from reading its configuration to the last flush.

use std::path::Path;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::info;

use crate::app::App;
use crate::auth::are_several;
use crate::cli::exit::{CliError, Exit};
use crate::config::{FilesRead, ServerConfig};
use crate::notify::Notifier;
use crate::reload::Reloader;
use crate::{cli, config, logging, process};

/// How long a stop waits, in the end, for what threads still do.
const LEFT_WORK_WAIT: Duration = Duration::from_secs(1);

/// Runs the daemon until a signal stops it.
pub(crate) fn run(file: Option<&Path>) -> Result<(), CliError> {
    process::decline_huge_pages();
    let (loaded, files) = match file {
        Some(path) => config::load_noting(path),
        None => (config::embedded(), FilesRead::default()),
    };
    let mut loaded = loaded?;
    let log = logging::init(&loaded.log)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    take_descriptors(&mut loaded.server);
    let notifier = Notifier::from_environment();
    let runtime = cli::runtime(are_several(&loaded.keys, &loaded.keyless))?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        notifier.status("opens the journal");
        let _beats = notifier.keep_alive();
        let waits_for = watch::Sender::default();
        let mut waiting = waits_for.subscribe();
        let app = tokio::select! {
            app = App::bind(loaded, file, files, log, &waits_for) => app?,
            reason = signals.stop_waiting(&mut waiting, &notifier) => {
                info!(reason, "memoird stops before it has its journal");
                return Ok(());
            }
        };
        app.catch_up().await;
        let (grpc, admin) = (app.grpc_addr.clone(), app.admin_addr.clone());
        info!(%grpc, %admin, "memoird is ready");
        let running = app.serve()?;
        running.announce().await;
        notifier.status(format_args!("serves gRPC on {grpc}, metrics on {admin}"));
        notifier.ready();
        let (broken, reloader) = (running.broken(), running.reloader());
        let lost = running.lost();
        let reason = tokio::select! {
            signal = signals.stop_signal(&reloader, &notifier) => signal,
            () = reloader.follow_file() => "the configuration cannot be followed",
            () = broken.cancelled() => "a background worker panicked",
            () = lost.cancelled() => "another memoird has its journal",
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
        if lost.is_cancelled() {
            let problem = "another memoird has taken the journal over; started again, this one is its standby";
            return Err(CliError::failed(Exit::Unavailable, problem));
        }
        info!("memoird has stopped");
        Ok(())
    });
    // Work that nobody waits for any more must not keep the process: a crash may stop it anywhere.
    runtime.shutdown_timeout(LEFT_WORK_WAIT);
    ended
}

/// Descriptors beside those of connections: files, and what hooks and models have open.
const OTHER_DESCRIPTORS: u64 = 256;

/// Takes as many descriptors as the process may have. Where these are few, connections leave
/// enough of them to files: without, every read of the journal would fail.
fn take_descriptors(server: &mut ServerConfig) {
    let wanted = descriptors_wanted(server);
    if let Some(limit) = process::raise_descriptor_limit().filter(|limit| *limit < wanted) {
        server.max_connections = connections_max(limit, server);
        tracing::warn!(
            limit,
            wanted,
            connections = server.max_connections,
            "the process may have fewer descriptors than server.max_connections may take, and \
             serves fewer connections; raise its limit (ulimit -n, LimitNOFILE) or lower the \
             setting"
        );
    }
}

/// Descriptors of as many connections as there may be, and of the rest.
fn descriptors_wanted(server: &ServerConfig) -> u64 {
    let admin_max = server.connections.admin_max;
    let connections = server.max_connections.saturating_add(admin_max) as u64;
    connections.saturating_add(OTHER_DESCRIPTORS)
}

/// Connections that leave half of the descriptors, or [`OTHER_DESCRIPTORS`], to the rest.
fn connections_max(limit: u64, server: &ServerConfig) -> usize {
    let admin_max = server.connections.admin_max as u64;
    let others = OTHER_DESCRIPTORS.min(limit / 2).saturating_add(admin_max);
    let room = usize::try_from(limit.saturating_sub(others)).unwrap_or(usize::MAX);
    server.max_connections.min(room.max(1))
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

    /// Waits for the end, and meanwhile tells for which daemon's end this one waits, if it does.
    async fn stop_waiting(
        &mut self,
        waits_for: &mut watch::Receiver<Option<String>>,
        notifier: &Notifier,
    ) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => {
                    info!("the configuration is not read again before the journal is there");
                }
                Ok(()) = waits_for.changed() => {
                    let owner = waits_for.borrow_and_update().clone();
                    if let Some(owner) = owner {
                        info!(owner, "another memoird has the database; this one is its standby");
                        notifier.status(format_args!("is the standby of another memoird ({owner})"));
                        // A service manager has nothing more to wait for.
                        notifier.ready();
                    }
                }
            }
        }
    }

    /// Waits for the end; until then SIGHUP reads the configuration again.
    async fn stop_signal(&mut self, reloader: &Reloader, notifier: &Notifier) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => notifier.reloading(),
            }
            // It may take long: files are read, and sessions end.
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                // What came of it is in the log.
                _ = reloader.reload("SIGHUP") => notifier.ready(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_are_shared_with_files() {
        let server = ServerConfig::default();
        let admin = server.connections.admin_max;
        assert_eq!(connections_max(1 << 20, &server), server.max_connections);
        assert_eq!(connections_max(1_024, &server), 768 - admin);
        assert_eq!(connections_max(256, &server), 128 - admin);
        assert_eq!(connections_max(8, &server), 1);
        let most = ServerConfig {
            max_connections: usize::MAX,
            ..server
        };
        assert_eq!(descriptors_wanted(&most), u64::MAX);
        assert_eq!(connections_max(1_024, &most), 768 - admin);
    }
}
