//! What is counted of memories.

use std::fmt;

use memoird_core::ids::TenantId;
use memoird_memories::{Memories, MemorySnapshot};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::family;

/// A counter by tenant: its name, what it says, and its values, each with a name of its own
/// under the label.
struct Counter {
    name: &'static str,
    help: &'static str,
    /// Empty: there is one value, and no such label.
    label: &'static str,
    values: &'static [Named],
}

/// A value under a label, and where it is read.
type Named = (&'static str, fn(&MemorySnapshot) -> u64);

const COUNTERS: [Counter; 7] = [
    Counter {
        name: "memories_remembered",
        help: "Facts by what became of them",
        label: "outcome",
        values: &[
            ("created", |m| m.created),
            ("reinforced", |m| m.reinforced),
            ("merged", |m| m.merged),
            ("recalled", |m| m.echoed),
        ],
    },
    Counter {
        name: "recalls",
        help: "Recalls by how they searched",
        label: "mode",
        values: &[
            ("hybrid", |m| m.recalls_hybrid),
            ("lexical", |m| m.recalls_lexical),
            ("vector", |m| m.recalls_vector),
        ],
    },
    Counter {
        name: "recall_notes_lost",
        help: "Recalls that dream sweeps will not know of",
        label: "",
        values: &[("", |m| m.recalls_lost)],
    },
    Counter {
        name: "memories_forgotten",
        help: "Memories forgotten, older versions included",
        label: "",
        values: &[("", |m| m.forgotten)],
    },
    Counter {
        name: "secrets_redacted",
        help: "Secrets taken out before a memory was stored",
        label: "",
        values: &[("", |m| m.redacted)],
    },
    Counter {
        name: "embeddings_failed",
        help: "Memories whose embedding was given up",
        label: "",
        values: &[("", |m| m.embedding_failed)],
    },
    Counter {
        name: "dream_promotions",
        help: "Memories that dream sweeps pinned",
        label: "",
        values: &[("", |m| m.promoted)],
    },
];

/// Writes them all.
pub(super) fn encode<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    memories: &Memories,
    tenants: impl Iterator<Item = &'a TenantId>,
) -> fmt::Result {
    let tenants: Vec<_> = tenants.map(|id| (id, memories.counts(id))).collect();
    let kind = MetricType::Counter;
    for counter in &COUNTERS {
        let Counter { name, help, .. } = counter;
        let values = tenants.iter().flat_map(|(tenant, counts)| {
            let values = counter.values.iter();
            values.map(move |(value, read)| (tenant, *value, read(counts)))
        });
        if counter.label.is_empty() {
            let values = values.map(|(tenant, _, count)| ([("tenant", tenant.as_str())], count));
            family(encoder, kind, name, help, values)?;
        } else {
            let values = values.map(|(tenant, value, count)| {
                ([("tenant", tenant.as_str()), (counter.label, value)], count)
            });
            family(encoder, kind, name, help, values)?;
        }
    }
    Ok(())
}
