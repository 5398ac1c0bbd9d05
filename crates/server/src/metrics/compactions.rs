//! What the engine counts of compactions, and whether the one who writes summaries answers.

use std::fmt;

use memoird_core::breaker::BreakerState;
use memoird_engine::{CompactionSnapshot, TenantSnapshot};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{TenantMetric, family, label, level, total};

const BY_TENANT: [TenantMetric<CompactionSnapshot>; 7] = [
    total(
        "compaction_tokens_before",
        "Tokens of what was summarized",
        |c| c.tokens_before,
    ),
    total("compaction_tokens_after", "Tokens of the summaries", |c| {
        c.tokens_after
    }),
    total(
        "compaction_identifiers",
        "Identifiers in what was summarized",
        |c| c.identifiers,
    ),
    total(
        "compaction_identifiers_found",
        "Of these, those in summary, notes or tail afterwards",
        |c| c.identifiers_found,
    ),
    total(
        "compaction_breakers_opened",
        "Times that a session was left alone",
        |c| c.breakers_opened,
    ),
    total(
        "compactions_undone",
        "Summaries that were taken back",
        |c| c.undone,
    ),
    level(
        "compaction_breakers_open",
        "Live sessions that are left alone now",
        |c| c.breakers_open,
    ),
];

/// What stands for the summarizer's name where none is remote.
const LOCAL: &str = "local";

/// Writes them all.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    tenants: &[TenantSnapshot],
    summarizer: Option<(String, BreakerState)>,
) -> fmt::Result {
    let outcomes = tenants.iter().flat_map(|tenant| {
        let outcomes = tenant.compaction.outcomes.iter();
        outcomes.map(|(trigger, outcome, count)| {
            let labels = [
                label(tenant),
                ("trigger", trigger.name()),
                ("outcome", outcome.name()),
            ];
            (labels, *count)
        })
    });
    let help = "Compactions by what asked for them and how they ended";
    family(encoder, MetricType::Counter, "compactions", help, outcomes)?;
    for metric in &BY_TENANT {
        let values = tenants
            .iter()
            .map(|tenant| (&tenant.id, &tenant.compaction));
        metric.encode(encoder, values)?;
    }
    let (name, state) = summarizer.unwrap_or((LOCAL.to_owned(), BreakerState::Closed));
    let state = match state {
        BreakerState::Closed => 0,
        BreakerState::HalfOpen => 1,
        BreakerState::Open => 2,
    };
    let help = "Who writes summaries: 0 is asked, 1 on trial, 2 left alone";
    let values = [([("summarizer", name.as_str())], state)];
    let kind = MetricType::Gauge;
    family(encoder, kind, "summarizer_breaker", help, values)
}
