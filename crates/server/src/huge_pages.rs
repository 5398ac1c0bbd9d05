//! Huge pages where a daemon has much in memory. Among a million sessions each of their pages is
//! looked up anew, and a huge one stands for 512; an idle daemon would keep 26 MB of huge ones that
//! it does not use.

use std::sync::Arc;
use std::time::Duration;

use memoird_engine::{MemoryUse, WorkError, Worker};

use crate::process;

/// From so much on that clients make the daemon use, in bytes.
const ALLOWED_FROM_BYTES: u64 = 256 << 20;
/// How often that is looked at.
const PAUSE: Duration = Duration::from_secs(1);

/// Allows huge pages, and declines them again.
pub(crate) struct HugePages {
    memory: Arc<MemoryUse>,
    are_allowed: bool,
}

impl HugePages {
    /// They are declined by now.
    pub(crate) fn of(memory: Arc<MemoryUse>) -> Self {
        Self {
            memory,
            are_allowed: false,
        }
    }
}

impl Worker for HugePages {
    fn name(&self) -> &'static str {
        "huge pages"
    }

    async fn wait(&mut self) {
        tokio::time::sleep(PAUSE).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let are_wanted = self.memory.snapshot().used_bytes() >= ALLOWED_FROM_BYTES;
        if are_wanted != self.are_allowed {
            process::allow_huge_pages(are_wanted);
            self.are_allowed = are_wanted;
        }
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn they_are_allowed_while_much_is_in_memory() {
        let memory = Arc::<MemoryUse>::default();
        let mut pages = HugePages::of(Arc::clone(&memory));
        let are_declined = || rustix::thread::transparent_huge_pages_are_disabled().ok();
        memory.count_calls(0, ALLOWED_FROM_BYTES);
        pages.step().await.expect("a step");
        assert!(pages.are_allowed);
        assert_ne!(are_declined(), Some(true));
        memory.count_calls(ALLOWED_FROM_BYTES, 0);
        pages.step().await.expect("a step");
        assert!(!pages.are_allowed);
        assert_ne!(are_declined(), Some(false));
    }
}
