//! What is counted of memories.

use std::fmt;

use memoird_core::ids::TenantId;
use memoird_memories::{Memories, MemorySnapshot};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{TenantMetric, family, total};

const BY_TENANT: [TenantMetric<MemorySnapshot>; 5] = [
    total(
        "recall_notes_lost",
        "Recalls that dream sweeps will not know of",
        |m| m.recalls_lost,
    ),
    total(
        "memories_forgotten",
        "Memories forgotten, older versions included",
        |m| m.forgotten,
    ),
    total(
        "secrets_redacted",
        "Secrets taken out before a memory was stored",
        |m| m.redacted,
    ),
    total(
        "embeddings_failed",
        "Memories whose embedding was given up",
        |m| m.embedding_failed,
    ),
    total(
        "dream_promotions",
        "Memories that dream sweeps pinned",
        |m| m.promoted,
    ),
];

/// Writes them all.
pub(super) fn encode<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    memories: &Memories,
    tenants: impl Iterator<Item = &'a TenantId>,
) -> fmt::Result {
    let tenants: Vec<_> = tenants.map(|id| (id, memories.counts(id))).collect();
    let remembered = tenants.iter().flat_map(|(tenant, m)| {
        let outcome = |outcome| [("tenant", tenant.as_str()), ("outcome", outcome)];
        [
            (outcome("created"), m.created),
            (outcome("reinforced"), m.reinforced),
            (outcome("merged"), m.merged),
            (outcome("recalled"), m.echoed),
        ]
    });
    let kind = MetricType::Counter;
    let help = "Facts by what became of them";
    family(encoder, kind, "memories_remembered", help, remembered)?;
    let recalls = tenants.iter().flat_map(|(tenant, m)| {
        let mode = |mode| [("tenant", tenant.as_str()), ("mode", mode)];
        [
            (mode("hybrid"), m.recalls_hybrid),
            (mode("lexical"), m.recalls_lexical),
            (mode("vector"), m.recalls_vector),
        ]
    });
    let help = "Recalls by how they searched";
    family(encoder, kind, "recalls", help, recalls)?;
    for metric in &BY_TENANT {
        metric.encode(encoder, tenants.iter().map(|(id, counts)| (*id, counts)))?;
    }
    Ok(())
}
