//! `memoird health`, `reload` and `stats`: the state of the daemon, for operators and probes.

use std::time::Duration;

use clap::Args;
use memoird_proto::prost_reflect::DynamicMessage;
use memoird_proto::v1::{
    GetStatsRequest, GetStatsResponse, ReloadConfigRequest, ReloadConfigResponse,
};
use serde_json::json;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::connect::ClientArgs;
use super::list::{self, Count, Figure, ListColumn, Moment, Size, Text, With};
use super::output;
use crate::exit::{CliError, Exit};

/// Service to check. The daemon as a whole (the empty name) reports SERVING even while it drains.
const SERVICE: &str = "memoird.v1.SessionService";
/// Timeout of a health check. Shorter than the probe timeouts in deploy/.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);

/// Prints the health status. Fails unless the daemon accepts calls.
pub(crate) async fn health(client: &ClientArgs) -> Result<(), CliError> {
    let addr = client.connect.address()?;
    let mut health = HealthClient::new(client.connect.channel()?);
    let request = HealthCheckRequest {
        service: SERVICE.to_owned(),
    };
    let reply = tokio::time::timeout(ANSWER_TIME_MAX, health.check(request)).await;
    let late = format!("no answer within {ANSWER_TIME_MAX:?}");
    let answer = reply
        .map_err(|_| CliError::unavailable(&addr.to_string(), &late))?
        .map_err(|status| CliError::of_call(&addr.to_string(), &status))?;
    let status = answer.into_inner().status();
    let name = status.as_str_name();
    output::print_as(client.json, &json!({ "status": name }), name)?;
    match status {
        ServingStatus::Serving => Ok(()),
        _ => {
            let problem = format!("memoird at {addr} does not accept calls");
            Err(CliError::failed(Exit::Unavailable, problem))
        }
    }
}

pub(crate) async fn reload(client: &ClientArgs) -> Result<(), CliError> {
    let target = client.target()?;
    target.show(&ReloadConfigRequest {}, reload_text).await
}

/// Formats the result of a reload, one setting per line.
pub fn reload_text(reply: &ReloadConfigResponse) -> String {
    let ReloadConfigResponse { applied, refused } = reply;
    if applied.is_empty() && refused.is_empty() {
        return "nothing has changed".to_owned();
    }
    let applied = applied.iter().map(|setting| ("applied", setting));
    let refused = refused.iter().map(|setting| ("refused", setting));
    let lines = applied
        .chain(refused)
        .map(|(what, setting)| format!("{what}  {}", output::printable(setting)));
    lines.collect::<Vec<_>>().join("\n")
}

#[derive(Args)]
pub struct StatsArgs {
    /// Tenant to show [default: all]
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
}

pub(crate) async fn stats(client: &ClientArgs, args: StatsArgs) -> Result<(), CliError> {
    let target = client.target()?;
    let request = GetStatsRequest {
        tenant: args.tenant.unwrap_or_default(),
    };
    target.show(&request, stats_text).await
}

fn stats_text(stats: &GetStatsResponse) -> String {
    let process = list::record(PROCESS, stats);
    match &*stats.tenants {
        [] => process,
        all => format!("{process}\n\n{}", list::table(TENANTS, all)),
    }
}

const PROCESS: &[ListColumn] = &[
    ("started", "started_at", Moment),
    ("CPU seconds", "cpu_seconds", Figure(2)),
    ("memory", "rss_bytes", Size),
    ("sessions live", "sessions_live", Count),
    ("turns live", "turns_live", Count),
    ("size live", "bytes_live", Size),
    ("sessions created", "sessions_created", Count),
    ("expired", "expired", Count),
    ("evicted", "evicted", Count),
    ("ended", "ended", Count),
    ("turns appended", "turns_appended", Count),
    ("commits", "commits", Count),
    ("sets per commit", "", With(sets_per_commit)),
    ("hooks pending", "hooks_pending", Count),
    ("hooks dead", "hooks_dead", Count),
];

fn sets_per_commit(stats: &DynamicMessage) -> String {
    let GetStatsResponse {
        commit_sets,
        commits,
        ..
    } = list::typed(stats);
    format!("{:.1}", commit_sets as f64 / commits.max(1) as f64)
}

const TENANTS: &[ListColumn] = &[
    ("TENANT", "id", Text),
    ("SESSIONS", "sessions_live", Count),
    ("TURNS", "turns_live", Count),
    ("SIZE", "bytes_live", Size),
    ("CREATED", "sessions_created", Count),
    ("EXPIRED", "expired", Count),
    ("EVICTED", "evicted", Count),
    ("ENDED", "ended", Count),
    ("APPENDED", "turns_appended", Count),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_setting_has_a_line() {
        let none = ReloadConfigResponse::default();
        assert_eq!(reload_text(&none), "nothing has changed");
        let some = ReloadConfigResponse {
            applied: vec!["short_term.session_ttl".into(), "hooks".into()],
            refused: vec!["data_dir: stays a until the daemon restarts".into()],
        };
        let expected = "applied  short_term.session_ttl\napplied  hooks\n\
                        refused  data_dir: stays a until the daemon restarts";
        assert_eq!(reload_text(&some), expected);
    }

    #[test]
    fn zero_counts_do_not_divide_by_zero() {
        let text = list::record(PROCESS, &GetStatsResponse::default());
        assert!(text.contains("sets per commit   0.0"), "{text}");
    }
}
