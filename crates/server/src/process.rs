//! Resource usage and resource limits of this process.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use memoird_core::time::Timestamp;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// CPU time in seconds, user and system.
    pub(crate) cpu_seconds: f64,
    /// Resident memory in bytes.
    pub(crate) rss_bytes: u64,
}

/// Returns the current usage. Zeros if `/proc` is missing.
#[cfg(target_os = "linux")]
pub(crate) fn usage() -> Usage {
    std::fs::read_to_string("/proc/self/stat")
        .ok()
        .and_then(|stat| parse(&stat))
        .unwrap_or_default()
}

/// Parses the fields `utime`, `stime` and `rss` of proc_pid_stat(5).
///
/// The program's name before them may contain blanks and parentheses.
#[cfg(target_os = "linux")]
fn parse(stat: &str) -> Option<Usage> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    // The first one here is field 3 of the manual page.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = field(14)? + field(15)?;
    Some(Usage {
        cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
        rss_bytes: field(24)? * rustix::param::page_size() as u64,
    })
}

/// Only Linux has `/proc/self/stat`.
#[cfg(not(target_os = "linux"))]
pub(crate) fn usage() -> Usage {
    Usage::default()
}

/// Memory in bytes that this process may use, with cgroup limits. 0 if unknown.
pub(crate) fn memory_bytes() -> u64 {
    let meminfo = read("/proc/meminfo").and_then(|text| total_bytes(&text));
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let limits = groups
        .lines()
        .flat_map(limit_files)
        .filter_map(|path| read(path)?.trim().parse().ok());
    meminfo.into_iter().chain(limits).min().unwrap_or_default()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: u64 = line?.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Returns the memory limit files of a cgroup and its ancestors (cgroups(7)).
///
/// `line` is from /proc/self/cgroup. Without a limit, a file contains a word.
fn limit_files(line: &str) -> Vec<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let (root, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return Vec::new(),
    };
    let groups = Path::new(group).ancestors();
    groups
        .map(|group| {
            let group = group.strip_prefix("/").unwrap_or(group);
            Path::new(root).join(group).join(file)
        })
        .collect()
}

/// Raises the limit of open files to the hard limit, and returns it.
///
/// The usual soft limit of 1,024 is for programs with select(2).
pub(crate) fn raise_descriptor_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}

/// Disables transparent huge pages for this process and its children, if possible.
///
/// The allocator requests them, and an idle daemon would hold 26 MB it does not use.
pub(crate) fn decline_huge_pages() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// The current wall-clock time, outside of the engine's clock.
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
    fn cgroup_limits_of_ancestors_apply() {
        assert_eq!(total_bytes("A: 1 kB\nMemTotal:  2048 kB\n"), Some(2 << 20));
        let files = [
            "/sys/fs/cgroup/system.slice/memoird.service/memory.max",
            "/sys/fs/cgroup/system.slice/memory.max",
            "/sys/fs/cgroup/memory.max",
        ]
        .map(PathBuf::from);
        assert_eq!(limit_files("0::/system.slice/memoird.service"), files);
        let old = PathBuf::from("/sys/fs/cgroup/memory/memory.limit_in_bytes");
        assert_eq!(limit_files("7:memory:/"), [old]);
        assert!(limit_files("3:cpu,cpuacct:/a").is_empty());
        assert!(memory_bytes() > 0);
    }

    #[test]
    fn stat_fields_follow_program_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 4 0 9 999 10 184";
        let usage = parse(stat).expect("a usage");
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert!((usage.cpu_seconds - 300.0 / ticks).abs() < 1e-9);
        assert_eq!(usage.rss_bytes, 10 * rustix::param::page_size() as u64);
        assert!(parse("").is_none() && parse("7 (a) S 1").is_none());
        assert!(super::usage().rss_bytes > 0);
    }
}
