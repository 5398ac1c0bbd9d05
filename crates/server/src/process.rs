//! The CPU time and the memory of this process.

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

/// The usage so far; zeros where `/proc` is missing.
#[cfg(target_os = "linux")]
pub(crate) fn usage() -> Usage {
    std::fs::read_to_string("/proc/self/stat")
        .ok()
        .and_then(|stat| parse(&stat))
        .unwrap_or_default()
}

/// Reads the fields `utime`, `stime` and `rss` of proc_pid_stat(5). They are counted from
/// behind the name of the program, which may contain blanks and parentheses.
#[cfg(target_os = "linux")]
fn parse(stat: &str) -> Option<Usage> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    // The first one here is field 3 of the manual page.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = field(14)? + field(15)?;
    Some(Usage {
        cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
        rss_bytes: field(24)? * rustix::param::page_size() as u64,
    })
}

/// The usage so far; zeros, because only Linux has `/proc/self/stat`.
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_fields_follow_the_program_s_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 4 0 9 999 10 184";
        let usage = parse(stat).expect("a usage");
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert!((usage.cpu_seconds - 300.0 / ticks).abs() < 1e-9);
        assert_eq!(usage.rss_bytes, 10 * rustix::param::page_size() as u64);
        assert!(parse("").is_none() && parse("7 (a) S 1").is_none());
        assert!(super::usage().rss_bytes > 0);
    }
}
