//! `memoird cluster`: prints the members that share a journal, and the state of the cluster.

use memoird_proto::v1::{ClusterMember, GetClusterRequest, GetClusterResponse};

use super::connect::ClientArgs;
use super::list::{self, Ago, Count, ListColumn, Text, with};
use super::output;
use crate::exit::CliError;

/// Prints the members.
///
/// # Errors
/// With the exit code of the process.
pub async fn run(client: &ClientArgs) -> Result<(), CliError> {
    let target = client.target()?;
    target.show(&GetClusterRequest {}, text).await
}

fn text(cluster: &GetClusterResponse) -> String {
    if !cluster.is_shared {
        let name = cluster.members.first().map_or("-", |it| &it.name);
        return format!("{} has its journal alone", output::printable(name));
    }
    let mut paragraphs = vec![list::table(MEMBERS, &cluster.members), summary(cluster)];
    let differs = |member: &&ClusterMember| !member.differing_settings.is_empty();
    for other in cluster.members.iter().filter(differs) {
        paragraphs.push(format!(
            "{}: settings differ: {}",
            output::printable(&other.name),
            output::printable(&other.differing_settings.join(", "))
        ));
    }
    paragraphs.join("\n\n")
}

const MEMBERS: &[ListColumn] = &[
    ("MEMBER", "name", Text),
    ("VERSION", "version", Text),
    ("ROLE", "", with!(role)),
    ("SEEN", "last_seen", Ago),
    ("COMMITS", "commits", Count),
    ("IN DOUBT", "commits_in_doubt", Count),
    ("LAST COMMIT", "last_commit", Ago),
    ("SETTINGS", "", with!(settings)),
];

fn role(member: &ClusterMember) -> String {
    let role = match (member.is_here, member.leads) {
        (false, _) => "gone",
        (true, true) => "leads",
        (true, false) => "serves",
    };
    let answers = if member.is_self { ", answers" } else { "" };
    format!("{role}{answers}")
}

fn settings(member: &ClusterMember) -> String {
    match member.differing_settings.len() {
        0 => "the same".to_owned(),
        count => output::counted(count as u64, "differs", "differ"),
    }
}

fn summary(cluster: &GetClusterResponse) -> String {
    let late = cluster.deliveries_late.as_ref();
    let late_ms = late.map_or(0, |late| {
        late.seconds * 1_000 + i64::from(late.nanos) / 1_000_000
    });
    let due = match cluster.deliveries_due {
        0 => "none due".to_owned(),
        due => format!(
            "{} due, the first for {:.1} s",
            output::count(due),
            late_ms as f64 / 1_000.0
        ),
    };
    let leads = cluster.members.iter().find(|member| member.leads);
    let lease = match leads {
        Some(leads) => output::printable(&leads.name),
        None => "no leader: sweeps and hooks are paused".to_owned(),
    };
    output::rows([
        ("lease", lease),
        ("deliveries", due),
        ("schema", format!("version {}", cluster.schema_version)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_daemon_is_described_in_one_sentence() {
        let alone = GetClusterResponse {
            members: vec![ClusterMember {
                name: "process 7 of here".to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        };
        assert_eq!(text(&alone), "process 7 of here has its journal alone");
    }

    #[test]
    fn gone_members_and_differences_are_listed() {
        let member = |name: &str, is_here, leads| ClusterMember {
            name: name.to_owned(),
            is_here,
            leads,
            ..Default::default()
        };
        let mut other = member("b", true, false);
        other.differing_settings = vec!["hooks".to_owned(), "short_term.session_ttl".to_owned()];
        let cluster = GetClusterResponse {
            is_shared: true,
            members: vec![member("a", true, true), other, member("c", false, false)],
            deliveries_due: 3,
            ..Default::default()
        };
        let text = text(&cluster);
        for said in [
            "leads",
            "gone",
            "2 differ",
            "3 due",
            "b: settings differ: hooks, short_term.session_ttl",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}
