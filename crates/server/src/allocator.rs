//! The allocator, and when it returns freed memory to the system.

use std::sync::Arc;
use std::time::Duration;

use memoird_engine::{MemoryUse, WorkError, Worker};

use crate::process;

/// All threads allocate and free turns of all sizes, which mimalloc handles well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Shorter while more is resident than allowed, because returning memory takes CPU time.
const SHORT_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes above `limits.memory` that may be resident before freed memory is returned.
///
/// Less than code, threads and page caches take (about 40 MiB), which the limit does not count. So
/// memory is returned while clients use a little less than the limit.
const UNCOUNTED_MAX: u64 = 24 << 20;

/// Returns freed memory to the system when more is resident than `limits.memory` allows.
///
/// mimalloc does it a second after the memory was freed, and not while the daemon is idle.
pub(crate) struct FreedMemory {
    memory: Arc<MemoryUse>,
    interval: Duration,
}

impl FreedMemory {
    pub(crate) fn new(memory: Arc<MemoryUse>) -> Self {
        Self {
            memory,
            interval: CHECK_INTERVAL,
        }
    }

    /// Whether more is resident than allowed. Without a limit, nothing is.
    fn is_over_limit(&self, resident: u64) -> bool {
        let limit = self.memory.limit_bytes();
        limit > 0 && resident > limit.saturating_add(UNCOUNTED_MAX)
    }
}

impl Worker for FreedMemory {
    fn name(&self) -> &'static str {
        "freed-memory"
    }

    async fn wait(&mut self) {
        tokio::time::sleep(self.interval).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        self.interval = if self.is_over_limit(process::usage().rss_bytes) {
            return_freed_memory();
            SHORT_INTERVAL
        } else {
            CHECK_INTERVAL
        };
        Ok(())
    }
}

#[allow(
    unsafe_code,
    reason = "mimalloc's bindings have no safe function for it"
)]
fn return_freed_memory() {
    // SAFETY: any thread may call it at any time.
    unsafe { libmimalloc_sys::mi_collect(true) };
}
