//! `memoird stats`: what the daemon counted, for operators.

use clap::Args;
use memoird_proto::v1::{GetStatsRequest, GetStatsResponse, TenantStats};

use super::exit::CliError;
use super::{ClientArgs, output};

/// Whose counts.
#[derive(Args)]
pub(crate) struct StatsArgs {
    /// Only this tenant [default: all]
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
}

/// Asks and prints.
pub(crate) async fn run(client: &ClientArgs, args: StatsArgs) -> Result<(), CliError> {
    let target = client.connect.target()?;
    let request = GetStatsRequest {
        tenant: args.tenant.unwrap_or_default(),
    };
    let stats = target.done(target.admin().get_stats(request).await)?;
    output::show(client.json, &stats, described)
}

fn described(stats: &GetStatsResponse) -> String {
    let process = process(stats);
    match &*stats.tenants {
        [] => process,
        all => format!("{process}\n\n{}", tenants(all)),
    }
}

fn process(stats: &GetStatsResponse) -> String {
    let started = stats.started_at.as_ref();
    let per_commit = stats.commit_sets as f64 / stats.commits.max(1) as f64;
    output::rows([
        (
            "started",
            started.map_or("-".to_owned(), ToString::to_string),
        ),
        ("CPU", format!("{:.2} s", stats.cpu_seconds)),
        ("memory", output::size(stats.rss_bytes)),
        ("sessions live", output::count(stats.sessions_live)),
        ("turns live", output::count(stats.turns_live)),
        ("size live", output::size(stats.bytes_live)),
        ("sessions created", output::count(stats.sessions_created)),
        ("expired", output::count(stats.expired)),
        ("evicted", output::count(stats.evicted)),
        ("ended", output::count(stats.ended)),
        ("turns appended", output::count(stats.turns_appended)),
        ("commits", output::count(stats.commits)),
        ("sets per commit", format!("{per_commit:.1}")),
        ("hooks pending", output::count(stats.hooks_pending)),
        ("hooks dead", output::count(stats.hooks_dead)),
    ])
}

fn tenants(tenants: &[TenantStats]) -> String {
    let header = [
        "TENANT", "SESSIONS", "TURNS", "SIZE", "CREATED", "EXPIRED", "EVICTED", "ENDED", "APPENDED",
    ];
    let row = |tenant: &TenantStats| {
        [
            output::printable(&tenant.id),
            output::count(tenant.sessions_live),
            output::count(tenant.turns_live),
            output::size(tenant.bytes_live),
            output::count(tenant.sessions_created),
            output::count(tenant.expired),
            output::count(tenant.evicted),
            output::count(tenant.ended),
            output::count(tenant.turns_appended),
        ]
    };
    output::number_table(header, tenants.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_counted_divides_nothing() {
        let text = process(&GetStatsResponse::default());
        assert!(text.contains("sets per commit   0.0"), "{text}");
    }
}
