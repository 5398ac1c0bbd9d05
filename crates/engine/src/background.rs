//! Where long computations run that no call waits for: on threads that give way to calls.

use tokio::sync::oneshot;
use tracing::warn;

use crate::blocking::give_way;

/// Computes on a thread of its own, called `name` and of low priority. `None` when the computation
/// panicked, or there was no thread to have.
pub async fn run_in_background<T: Send + 'static>(
    name: &'static str,
    compute: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, answer) = oneshot::channel();
    let spawned = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            give_way();
            // The caller may have gone.
            let _ = sender.send(compute());
        });
    match spawned {
        Ok(_) => answer.await.ok(),
        Err(error) => {
            warn!(%error, name, "there is no thread for a computation");
            None
        }
    }
}
