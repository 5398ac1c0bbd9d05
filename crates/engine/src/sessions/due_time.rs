//! When a periodic task is due, as shared by its worker and the metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memoird_core::time::Steady;

use crate::tenants::ms;

/// The next due time of a task.
#[derive(Debug)]
pub(super) struct DueTime(AtomicU64);

impl DueTime {
    pub(super) fn new(at: Steady) -> Self {
        Self(AtomicU64::new(at.0))
    }

    /// Makes the task due after a pause.
    pub(super) fn set(&self, now: Steady, pause: Duration) {
        let at = now.0.saturating_add(ms(pause));
        self.0.store(at, Ordering::Relaxed);
    }

    /// Time until the task is due, or zero.
    pub(super) fn remaining(&self, now: Steady) -> Duration {
        Duration::from_millis(self.at().since(now))
    }

    /// Time since the task was due, or zero.
    pub(super) fn overdue(&self, now: Steady) -> Duration {
        Duration::from_millis(now.since(self.at()))
    }

    fn at(&self) -> Steady {
        Steady(self.0.load(Ordering::Relaxed))
    }
}
