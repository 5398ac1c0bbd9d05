//! `memoird stats`: what the daemon counted, for operators.

use clap::Args;
use memoird_proto::v1::{GetStatsRequest, GetStatsResponse, TenantStats};

use super::exit::CliError;
use super::{ClientArgs, json, output};

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
    let reply = target
        .admin()
        .get_stats(request)
        .await
        .map_err(|e| target.explain(e))?;
    let stats = reply.into_inner();
    if client.json {
        return output::print_json(&json::stats(&stats));
    }
    output::print_table(&process(&stats))?;
    if stats.tenants.is_empty() {
        return Ok(());
    }
    output::print("")?;
    output::print_table(&tenants(&stats.tenants))
}

fn process(stats: &GetStatsResponse) -> comfy_table::Table {
    let started = stats
        .started_at
        .as_ref()
        .map_or("-".to_owned(), ToString::to_string);
    let per_commit = stats.commit_sets as f64 / stats.commits.max(1) as f64;
    let rows = [
        ("started", started),
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
    ];
    let mut table = output::plain_table();
    for (name, value) in rows {
        table.add_row([name, &value]);
    }
    output::flush_left(&mut table);
    table
}

fn tenants(tenants: &[TenantStats]) -> comfy_table::Table {
    let header = [
        "TENANT", "SESSIONS", "TURNS", "SIZE", "CREATED", "EXPIRED", "EVICTED", "ENDED", "APPENDED",
    ];
    let mut table = output::table(&header);
    for tenant in tenants {
        table.add_row([
            output::printable(&tenant.id),
            output::count(tenant.sessions_live),
            output::count(tenant.turns_live),
            output::size(tenant.bytes_live),
            output::count(tenant.sessions_created),
            output::count(tenant.expired),
            output::count(tenant.evicted),
            output::count(tenant.ended),
            output::count(tenant.turns_appended),
        ]);
    }
    output::flush_left(&mut table);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_counted_divides_nothing() {
        let text = process(&GetStatsResponse::default()).trim_fmt();
        assert!(text.contains("sets per commit   0.0"), "{text}");
    }
}
