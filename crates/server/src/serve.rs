//! `memoird serve`: the process from reading the configuration to the last flush.

use std::path::Path;
use std::time::Duration;

use memoird_memories::store::{FilesOptions, READERS_KEPT};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::info;

use crate::app::App;
use crate::config::{Config, FilesRead, ServerConfig};
use crate::exit::{CliError, Exit};
use crate::keyring::are_several;
use crate::notify::Notifier;
use crate::reload::{ReloadCause, Reloader};
use crate::runtime::new_runtime;
use crate::{config, logging, process};

/// How long the shutdown waits for blocking threads.
const LEFT_WORK_WAIT: Duration = Duration::from_secs(1);

/// Runs the daemon until a signal stops it.
pub(crate) fn run(file: Option<&Path>) -> Result<(), CliError> {
    process::decline_huge_pages();
    let (outcome, files) = match file {
        Some(path) => config::load_noting(path),
        None => (config::embedded(), FilesRead::default()),
    };
    let mut loaded = outcome?;
    let log = logging::init(&loaded.log)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    take_descriptors(&mut loaded);
    let notifier = Notifier::from_environment();
    let runtime = new_runtime(are_several(&loaded.keys, &loaded.keyless))?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        notifier.status("opens the journal");
        let _beats = notifier.keep_alive();
        let waits_for = watch::Sender::default();
        let mut waiting = waits_for.subscribe();
        let mut app = tokio::select! {
            app = App::bind(loaded, file, files, log, &waits_for) => app?,
            reason = signals.stop_waiting(&mut waiting, &notifier) => {
                info!(reason, "memoird stops before it has opened its journal");
                return Ok(());
            }
        };
        app.catch_up().await;
        let (grpc, admin) = (app.grpc_addr.clone(), app.admin_addr.clone());
        info!(%grpc, %admin, "memoird is ready");
        app.serve().await;
        notifier.status(format_args!("serves gRPC on {grpc}, metrics on {admin}"));
        notifier.ready();
        let (broken, reloader) = (app.broken(), app.reloader());
        let lost = app.lost();
        let reason = tokio::select! {
            signal = signals.stop_signal(&reloader, &notifier) => signal,
            () = reloader.follow_file() => "the configuration file cannot be watched",
            () = broken.cancelled() => "a background worker panicked",
            () = lost.cancelled() => "another daemon has taken over its journal",
        };
        info!(reason, "memoird is stopping");
        let within = app.drain_time_max();
        notifier.status(format_args!(
            "stops ({reason}), which takes at most {within:?}"
        ));
        notifier.stopping(within);
        app.drain().await;
        if broken.is_cancelled() {
            let problem = "a background worker panicked; the log says which";
            return Err(CliError::failed(Exit::Internal, problem));
        }
        if lost.is_cancelled() {
            let problem =
                "another daemon took over the journal; restart this one to run as its standby";
            return Err(CliError::failed(Exit::Unavailable, problem));
        }
        info!("memoird has stopped");
        Ok(())
    });
    // Abandoned work must tolerate a crash anyway.
    runtime.shutdown_timeout(LEFT_WORK_WAIT);
    ended
}

/// File descriptors other than those of connections and memories.
///
/// They are for the journal, the search index, hooks and models.
const OTHER_DESCRIPTORS: u64 = 128;

/// File descriptors per open memory file.
///
/// The writer and each reader open the file and its log. SQLite adds shared memory, and keeps a
/// descriptor of a closed connection.
const DESCRIPTORS_EACH: u64 = 2 * (1 + READERS_KEPT as u64) + 2;

/// Raises the descriptor limit, and adapts the configuration if it is still too low.
///
/// Connections and open memory files are reduced. Otherwise connections could use all descriptors,
/// and every read of the journal would fail.
fn take_descriptors(config: &mut Config) {
    let (server, files) = (&mut config.server, &mut config.long_term.options);
    let wanted = descriptors_wanted(server, files);
    if let Some(limit) = process::raise_descriptor_limit().filter(|limit| *limit < wanted) {
        server.max_connections = connections_max(limit, server, files);
        files.files_open_max = files_open_max(limit, server, files);
        tracing::warn!(
            limit,
            wanted,
            connections = server.max_connections,
            open_files = files.files_open_max,
            "the descriptor limit is too low for server.max_connections and long_term.open_files: \
             fewer connections are served, or fewer files kept open; \
             raise its limit (ulimit -n, LimitNOFILE) or lower the settings"
        );
    }
}

/// Descriptors for all configured connections and memory files, and for the rest.
fn descriptors_wanted(server: &ServerConfig, files: &FilesOptions) -> u64 {
    of_connections(server)
        .saturating_add(of_files(files))
        .saturating_add(OTHER_DESCRIPTORS)
}

fn of_files(files: &FilesOptions) -> u64 {
    (files.files_open_max as u64).saturating_mul(DESCRIPTORS_EACH)
}

fn of_connections(server: &ServerConfig) -> u64 {
    let admin_max = server.connections.admin_max;
    server.max_connections.saturating_add(admin_max) as u64
}

/// Maximum connections under this limit.
///
/// Reserves [`OTHER_DESCRIPTORS`], and up to as many for memory files, but at most half of it.
fn connections_max(limit: u64, server: &ServerConfig, files: &FilesOptions) -> usize {
    let admin_max = server.connections.admin_max as u64;
    let others = (OTHER_DESCRIPTORS + of_files(files).min(OTHER_DESCRIPTORS))
        .min(limit / 2)
        .saturating_add(admin_max);
    let room = usize::try_from(limit.saturating_sub(others)).unwrap_or(usize::MAX);
    server.max_connections.min(room.max(1))
}

/// Maximum open memory files under this limit.
///
/// Reserves [`OTHER_DESCRIPTORS`] of the rest after connections, but at most half of it.
fn files_open_max(limit: u64, server: &ServerConfig, files: &FilesOptions) -> usize {
    let rest = limit.saturating_sub(of_connections(server));
    let of_files = rest - OTHER_DESCRIPTORS.min(rest / 2);
    let room = usize::try_from(of_files / DESCRIPTORS_EACH).unwrap_or(usize::MAX);
    files.files_open_max.min(room.max(1))
}

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

    /// Waits for a signal that stops the daemon, and reports the daemon a standby waits for.
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
                    info!("the configuration is not reloaded before the journal is open");
                }
                Ok(()) = waits_for.changed() => {
                    let owner = waits_for.borrow_and_update().clone();
                    if let Some(owner) = owner {
                        info!(owner, "standby: another daemon has the database");
                        notifier.status(format_args!("standby of another daemon ({owner})"));
                        // The start is complete for the service manager.
                        notifier.ready();
                    }
                }
            }
        }
    }

    /// Waits for a signal that stops the daemon. Reloads the configuration on SIGHUP.
    async fn stop_signal(&mut self, reloader: &Reloader, notifier: &Notifier) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => notifier.reloading(),
            }
            // A reload reads files, and may end sessions.
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                // The outcome is logged.
                _ = reloader.reload(ReloadCause::Signal) => notifier.ready(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_are_shared_with_memory_files() {
        let files = FilesOptions::default();
        let server = ServerConfig::default();
        let admin = server.connections.admin_max;
        assert_eq!(
            connections_max(1 << 20, &server, &files),
            server.max_connections
        );
        assert_eq!(connections_max(1_024, &server, &files), 768 - admin);
        assert_eq!(connections_max(256, &server, &files), 128 - admin);
        assert_eq!(connections_max(8, &server, &files), 1);
        let most = ServerConfig {
            max_connections: usize::MAX,
            ..server
        };
        assert_eq!(descriptors_wanted(&most, &files), u64::MAX);
        assert_eq!(connections_max(1_024, &most, &files), 768 - admin);
    }

    #[test]
    fn memory_files_leave_descriptors_for_connections() {
        let files = FilesOptions::default();
        let open_beside = |limit, connections| {
            let server = ServerConfig {
                max_connections: connections,
                ..ServerConfig::default()
            };
            files_open_max(limit, &server, &files)
        };
        assert_eq!(open_beside(1 << 20, 1_024), files.files_open_max);
        assert_eq!(open_beside(1_024, 704), 128 / 8);
        assert_eq!(open_beside(160, 16), 40 / 8);
        assert_eq!(open_beside(8, 1), 1);
        let server = ServerConfig::default();
        let wanted = descriptors_wanted(&server, &files);
        assert_eq!(
            connections_max(wanted, &server, &files),
            server.max_connections
        );
        assert_eq!(
            files_open_max(wanted, &server, &files),
            files.files_open_max
        );
    }
}
