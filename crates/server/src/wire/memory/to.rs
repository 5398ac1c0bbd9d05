//! What the engine says of memories, made into what a bot reads.

use std::time::Duration;

use bytes::Bytes;
use memoird_core::ids::TenantId;
use memoird_memories::rules::manifest::Manifest;
use memoird_memories::rules::{Memory, Outcome};
use memoird_memories::{
    ExtractionLease, ExtractionOutcome, ForgetOutcome, MemoryPage, MemoryStats, RecallHit,
    RecallMode, RecallOutcome, RememberOutcome,
};
use memoird_proto::{spliced, v1};
use memoird_store::encoding::timestamp_to_proto;
use prost::Message;
use serde_json::{Map, Value};

pub(crate) use super::whole::told as memory;
use crate::wire::text_or_empty;

/// A page ends behind so many encoded bytes: clients take 4 MiB where nobody told them
/// otherwise.
const PAGE_BYTES_MAX: usize = 2 << 20;

/// What became of a fact.
pub(crate) fn remembered(outcome: &RememberOutcome) -> v1::RememberResponse {
    let became = match outcome.outcome {
        Outcome::Created => v1::RememberOutcome::Created,
        Outcome::Reinforced => v1::RememberOutcome::Reinforced,
        Outcome::Merged => v1::RememberOutcome::Merged,
        Outcome::Recalled => v1::RememberOutcome::Recalled,
    };
    v1::RememberResponse {
        memory: Some(memory(&outcome.memory)),
        outcome: became.into(),
        redacted: count(outcome.redacted),
    }
}

/// What was found.
pub(crate) fn recalled(outcome: RecallOutcome) -> v1::RecallResponse {
    let mode = match outcome.mode {
        RecallMode::Auto => v1::RecallMode::Unspecified,
        RecallMode::Hybrid => v1::RecallMode::Hybrid,
        RecallMode::Lexical => v1::RecallMode::Lexical,
        RecallMode::Vector => v1::RecallMode::Vector,
    };
    v1::RecallResponse {
        hits: outcome.hits.iter().map(hit).collect(),
        mode: mode.into(),
        degraded: !outcome.notes.is_empty(),
        notes: outcome.notes,
    }
}

/// A memory that was found.
pub(crate) fn hit(hit: &RecallHit) -> v1::RecallHit {
    v1::RecallHit {
        memory: Some(memory(&hit.memory)),
        score: hit.score,
        lexical_rank: hit.lexical_rank,
        vector_rank: hit.vector_rank,
        age: Some(duration(hit.age)),
    }
}

/// A page of memories: as many of them as a client takes at once.
pub(crate) fn memories(page: &MemoryPage) -> v1::ListMemoriesResponse {
    let mut bytes = 0;
    let mut memories: Vec<v1::Memory> = Vec::with_capacity(page.memories.len());
    for told in page.memories.iter().map(memory) {
        bytes += told.encoded_len();
        if bytes > PAGE_BYTES_MAX && !memories.is_empty() {
            let next_page_token = text_or_empty(memories.last().map(|last| &last.id));
            return v1::ListMemoriesResponse {
                memories,
                next_page_token,
            };
        }
        memories.push(told);
    }
    v1::ListMemoriesResponse {
        memories,
        next_page_token: text_or_empty(page.next),
    }
}

/// A memory as it is after a change.
pub(crate) fn updated(changed: &Memory, redacted: usize) -> v1::UpdateMemoryResponse {
    v1::UpdateMemoryResponse {
        memory: Some(memory(changed)),
        redacted: count(redacted),
    }
}

/// What was removed, or would be.
pub(crate) fn forgotten(outcome: &ForgetOutcome) -> v1::ForgetResponse {
    v1::ForgetResponse {
        memories: outcome.memories,
        superseded: outcome.superseded,
        vectors: outcome.vectors,
        recall_events: outcome.recall_events,
        queued_embeddings: outcome.queued_embeddings,
        cursors: outcome.cursors,
        erased: outcome.erased,
    }
}

/// What is known of a subject.
pub(crate) fn manifest(manifest: &Manifest) -> v1::GetManifestResponse {
    let Manifest {
        text,
        lines,
        truncated,
    } = manifest;
    v1::GetManifestResponse {
        text: text.clone(),
        lines: count(*lines),
        truncated: *truncated,
    }
}

/// Turns to look for facts in, spliced as they are kept.
pub(crate) fn leased(lease: ExtractionLease) -> spliced::LeaseExtractionResponse {
    let expires_at = lease.lease.map(|_| timestamp_to_proto(lease.expires_at));
    spliced::LeaseExtractionResponse {
        lease: text_or_empty(lease.lease),
        turns: lease.turns.into_iter().map(Bytes::from_owner).collect(),
        manifest: lease.manifest,
        prompt: lease.prompt,
        expires_at,
        generation: text_or_empty(lease.generation),
        cursor_seq: lease.cursor_seq,
    }
}

/// What became of the facts of a lease.
pub(crate) fn committed(outcome: &ExtractionOutcome) -> v1::CommitExtractionResponse {
    v1::CommitExtractionResponse {
        cursor_seq: outcome.cursor_seq,
        results: outcome.results.iter().map(remembered).collect(),
    }
}

/// Counts of memories.
pub(crate) fn stats(stats: MemoryStats) -> v1::GetMemoryStatsResponse {
    v1::GetMemoryStatsResponse {
        memories: stats.memories,
        superseded: stats.superseded,
        subjects: stats.subjects,
        recall_events: stats.recall_events,
        embedding_model: stats.embedding_model.unwrap_or_default(),
        embedded: stats.embedded,
        embedding_queued: stats.embedding_queued,
        embedding_failed: stats.embedding_failed,
        file_bytes: stats.file_bytes,
    }
}

/// What a consolidation did: a JSON object by tenant.
pub(crate) fn consolidated(reports: Vec<(TenantId, String)>) -> v1::RunDreamResponse {
    let report = |(tenant, report): (TenantId, String)| {
        // One that is no JSON is still told, as it stands.
        let value = serde_json::from_str(&report).unwrap_or(Value::String(report));
        (tenant.to_string(), value)
    };
    let reports: Map<String, Value> = reports.into_iter().map(report).collect();
    v1::RunDreamResponse {
        report_json: Value::Object(reports).to_string(),
    }
}

fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
