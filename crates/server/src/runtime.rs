//! The asynchronous runtime of the daemon and of commands.

use tokio::runtime::{Builder, Runtime};

use crate::exit::CliError;

/// Tasks a worker polls between checks for I/O, if tenants share the daemon.
///
/// Lower than tokio's default of 61, because some tasks run for a millisecond.
const TASKS_PER_IO_CHECK: u32 = 8;

/// Creates a runtime with one worker per processor.
///
/// If tenants share the daemon (`is_shared`), workers check for I/O more often, so that input does
/// not wait for many tasks of other tenants. For a single tenant, calls are faster without that.
pub(crate) fn new_runtime(is_shared: bool) -> Result<Runtime, CliError> {
    let mut builder = Builder::new_multi_thread();
    if is_shared {
        builder.event_interval(TASKS_PER_IO_CHECK);
    }
    let runtime = builder.enable_all().build();
    runtime.map_err(CliError::io("cannot start the runtime"))
}
