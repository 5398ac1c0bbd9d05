//! What the process costs: CPU and memory, as the system counts them.

use std::time::{SystemTime, UNIX_EPOCH};

use memoird_core::time::Timestamp;

/// CPU and memory of this process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Seconds of CPU, user and system.
    pub(crate) cpu_seconds: f64,
    /// Resident bytes.
    pub(crate) rss_bytes: u64,
}

/// What it costs so far; zeros where the system does not tell.
#[cfg(target_os = "linux")]
pub(crate) fn usage() -> Usage {
    let stat = procfs::process::Process::myself().and_then(|myself| myself.stat());
    stat.map_or(Usage::default(), |stat| Usage {
        cpu_seconds: (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64,
        rss_bytes: stat.rss * procfs::page_size(),
    })
}

/// What it costs so far; zeros where the system does not tell.
#[cfg(not(target_os = "linux"))]
pub(crate) fn usage() -> Usage {
    Usage::default()
}

/// When the process started, as nearly as its first question.
#[allow(clippy::disallowed_methods)]
pub(crate) fn wall_clock() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
