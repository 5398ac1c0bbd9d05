//! Runs long computations that no call waits for, on low-priority threads.

use tokio::sync::oneshot;
use tracing::warn;

use crate::blocking::lower_thread_priority;

/// Runs `compute` on a new low-priority thread called `name`.
///
/// Returns `None` if the computation panicked or no thread could be started.
pub async fn run_in_background<T: Send + 'static>(
    name: &'static str,
    compute: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, answer) = oneshot::channel();
    let spawned = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            lower_thread_priority();
            // The caller may have been cancelled.
            let _ = sender.send(compute());
        });
    match spawned {
        Ok(_) => answer.await.ok(),
        Err(error) => {
            warn!(%error, name, "could not start a thread for a computation");
            None
        }
    }
}
