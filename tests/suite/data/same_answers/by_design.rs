//! Differences that are by design. `docs/cluster.md` documents each.

use serde_json::Value;

/// Rpcs that the script does not call, and why.
pub(super) const NOT_CALLED: [(&str, &str); 2] = [
    (
        "Backup",
        "a database is dumped with its own tools (BACKUP_ELSEWHERE)",
    ),
    ("GetCluster", "describes the daemons over this journal"),
];

/// Rpcs with counters of the daemon that answers. They are compared as a sum over all daemons.
pub(super) const COUNTED_PER_DAEMON: [&str; 1] = ["GetStats"];

/// Fields of these rpcs that every daemon reports for all of them.
pub(super) const OF_ALL_DAEMONS: [&str; 7] = [
    "sessions_live",
    "hooks_pending",
    "hooks_dead",
    "started_at",
    "max_sessions",
    "session_ttl",
    "max_history_turns",
];

const FILES: &str = "Verify: one database instead of a file for each tenant";
const PAGES: &str = "erasures: rows stay in the database's pages until VACUUM";
const MEMORY: &str = "GetStats: turns and bytes that a daemon of a cluster has in memory";

/// All differences. The test fails if one does not occur, because it is then documented wrongly.
pub(super) const ALL: [&str; 3] = [FILES, PAGES, MEMORY];

/// Why a difference at this path of a reply is by design.
pub(super) fn reason(
    journal: &str,
    rpc: &str,
    path: &str,
    sqlite: &Value,
    other: &Value,
) -> Option<&'static str> {
    let field = path.rsplit('/').next().unwrap_or_default();
    match (rpc, field) {
        ("Verify", "files") => Some(FILES),
        ("EraseSession" | "EraseSubject" | "GetErasure", "outside") => {
            let of_database = |line: &&Value| !line.to_string().contains("until they are vacuumed");
            let lines = other.as_array()?.iter().filter(of_database);
            lines.eq(sqlite.as_array()?).then_some(PAGES)
        }
        ("GetStats", "turns_live" | "bytes_live") if journal == "cluster" => Some(MEMORY),
        _ => None,
    }
}
