//! What the engine counts of compactions, and whether the one who writes summaries answers.

use std::fmt;

use memoird_core::breaker::BreakerState;
use memoird_engine::{CompactionSnapshot, TenantSnapshot};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// A counter by tenant: its name, what it says, and where it is read.
type Counter = (&'static str, &'static str, fn(&CompactionSnapshot) -> u64);

const COUNTERS: [Counter; 6] = [
    (
        "compaction_tokens_before",
        "Tokens of what was summarized",
        |c| c.tokens_before,
    ),
    ("compaction_tokens_after", "Tokens of the summaries", |c| {
        c.tokens_after
    }),
    (
        "compaction_identifiers",
        "Identifiers in what was summarized",
        |c| c.identifiers,
    ),
    (
        "compaction_identifiers_found",
        "Of these, those in summary, notes or tail afterwards",
        |c| c.identifiers_found,
    ),
    (
        "compaction_breakers_opened",
        "Times that a session was left alone",
        |c| c.breakers_opened,
    ),
    (
        "compactions_undone",
        "Summaries that were taken back",
        |c| c.undone,
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
    let help = "Compactions by what asked for them and how they ended";
    let mut family = encoder.encode_descriptor("compactions", help, None, MetricType::Counter)?;
    for tenant in tenants {
        for (trigger, outcome, count) in &tenant.compaction.outcomes {
            let labels = [
                ("tenant", tenant.id.as_str()),
                ("trigger", trigger.name()),
                ("outcome", outcome.name()),
            ];
            ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
        }
    }
    for (name, help, read) in COUNTERS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for tenant in tenants {
            let labels = [("tenant", tenant.id.as_str())];
            let metric = family.encode_family(&labels)?;
            ConstCounter::new(read(&tenant.compaction)).encode(metric)?;
        }
    }
    let (name, help) = (
        "compaction_breakers_open",
        "Live sessions that are left alone now",
    );
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for tenant in tenants {
        let labels = [("tenant", tenant.id.as_str())];
        let metric = family.encode_family(&labels)?;
        let open = i64::try_from(tenant.compaction.breakers_open).unwrap_or(i64::MAX);
        ConstGauge::new(open).encode(metric)?;
    }
    encode_summarizer(encoder, summarizer)
}

fn encode_summarizer(
    encoder: &mut DescriptorEncoder<'_>,
    summarizer: Option<(String, BreakerState)>,
) -> fmt::Result {
    let help = "Who writes summaries: 0 is asked, 1 on trial, 2 left alone";
    let (name, state) = summarizer.unwrap_or((LOCAL.to_owned(), BreakerState::Closed));
    let state: i64 = match state {
        BreakerState::Closed => 0,
        BreakerState::HalfOpen => 1,
        BreakerState::Open => 2,
    };
    let mut family =
        encoder.encode_descriptor("summarizer_breaker", help, None, MetricType::Gauge)?;
    let labels = [("summarizer", name.as_str())];
    let metric = family.encode_family(&labels)?;
    ConstGauge::new(state).encode(metric)
}
