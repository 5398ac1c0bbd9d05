//! Builds replies of MemoryService.

use bytes::Bytes;
use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use memoird_memories::rules::conflicts::Difference;
use memoird_memories::rules::extraction::Refusal;
use memoird_memories::rules::fusion::ScoreParts;
use memoird_memories::rules::manifest::Manifest;
use memoird_memories::rules::{
    Memory, MemoryKind, Origin, Outcome, Pin, Polarity, Source, Visibility,
};
use memoird_memories::{
    Conflict, Conflicts, ExtractionLease, ExtractionOutcome, ForgetOutcome, LearnOutcome,
    LearnedEntry, MemoryPage, MemoryStats, RecallHit, RecallMode, RecallOutcome, RememberOutcome,
    SubjectPage,
};
use memoird_proto::{spliced, v1};
use memoird_store::encoding::timestamp_to_proto;
use prost::Message;
use serde_json::{Map, Value};

use crate::wire::to::{count, duration};
use crate::wire::{PAGE_BYTES_MAX, text_or_empty};

pub(crate) fn memory(memory: &Memory) -> v1::Memory {
    let time = |time: Timestamp| Some(timestamp_to_proto(time));
    v1::Memory {
        id: memory.id.to_string(),
        subject: memory.subject.to_string(),
        kind: kind(memory.kind).into(),
        visibility: visibility(memory.visibility).into(),
        polarity: polarity(memory.polarity).into(),
        content: memory.content.clone(),
        tags: memory.tags.clone(),
        importance: memory.importance,
        source: memory.source.as_ref().map(source),
        observed_at: time(memory.observed_at),
        created_at: time(memory.created_at),
        updated_at: time(memory.updated_at),
        expires_at: memory.expires_at.and_then(time),
        superseded_by: text_or_empty(memory.superseded_by),
        reinforced: memory.reinforced,
        recall_count: memory.recalls,
        last_recalled_at: memory.recalled_at.and_then(time),
        pinned: memory.pin.is_some(),
        pinned_by_dream: memory.pin == Some(Pin::Consolidation),
        origin: origin(memory.origin).into(),
        external_key: memory.external_key.clone().unwrap_or_default(),
        metadata_json: memory.metadata.clone().unwrap_or_default(),
    }
}

pub(crate) fn remembered(outcome: &RememberOutcome) -> v1::RememberResponse {
    let became = match outcome.outcome {
        Outcome::Created => v1::RememberOutcome::Created,
        Outcome::Reinforced => v1::RememberOutcome::Reinforced,
        Outcome::Merged => v1::RememberOutcome::Merged,
        Outcome::Recalled => v1::RememberOutcome::Recalled,
        Outcome::Replaced => v1::RememberOutcome::Replaced,
    };
    v1::RememberResponse {
        memory: Some(memory(&outcome.memory)),
        outcome: became.into(),
        redacted: count(outcome.redacted),
    }
}

/// Converts the result of a recall. `explain` adds the parts of scores.
pub(crate) fn recalled(outcome: RecallOutcome, explain: bool) -> v1::RecallResponse {
    let mode = match outcome.mode {
        RecallMode::Auto => v1::RecallMode::Unspecified,
        RecallMode::Hybrid => v1::RecallMode::Hybrid,
        RecallMode::Lexical => v1::RecallMode::Lexical,
        RecallMode::Vector => v1::RecallMode::Vector,
    };
    v1::RecallResponse {
        hits: outcome.hits.iter().map(|it| hit(it, explain)).collect(),
        mode: mode.into(),
        degraded: !outcome.notes.is_empty(),
        notes: outcome.notes,
        reranked: outcome.is_reranked,
    }
}

/// Converts a hit. `explain` adds the parts of its score.
pub(crate) fn hit(hit: &RecallHit, explain: bool) -> v1::RecallHit {
    v1::RecallHit {
        memory: Some(memory(&hit.memory)),
        score: hit.score,
        lexical_rank: hit.lexical_rank,
        vector_rank: hit.vector_rank,
        age: Some(duration(hit.age)),
        parts: explain.then(|| score_parts(&hit.parts)),
        relevance: hit.parts.relevance,
        cosine: hit.parts.cosine,
        word_coverage: hit.parts.coverage,
    }
}

fn score_parts(parts: &ScoreParts) -> v1::ScoreParts {
    v1::ScoreParts {
        words: parts.words,
        cosine: parts.cosine,
        words_share: parts.words_share,
        meaning_share: parts.meaning_share,
        form: parts.form,
        fused: parts.fused,
        beside: parts.beside,
        importance: parts.importance,
        recency: parts.recency,
        reranker: parts.judged,
    }
}

/// Builds a page of memories, limited to [`PAGE_BYTES_MAX`].
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

pub(crate) fn subjects(page: SubjectPage) -> v1::ListSubjectsResponse {
    let last = page.subjects.last().filter(|_| page.has_more);
    v1::ListSubjectsResponse {
        next_page_token: text_or_empty(last.map(|(subject, _)| subject)),
        subjects: page
            .subjects
            .into_iter()
            .map(|(subject, memories)| v1::SubjectMemories {
                subject: subject.to_string(),
                memories,
            })
            .collect(),
    }
}

/// Builds a page of conflicts from position `start` on, limited to [`PAGE_BYTES_MAX`].
pub(crate) fn conflicts(found: &Conflicts, start: usize) -> v1::ListConflictsResponse {
    let mut conflicts = Vec::new();
    let mut bytes = 0;
    for conflict in found.list.iter().map(conflict) {
        bytes += conflict.encoded_len();
        if bytes > PAGE_BYTES_MAX {
            break;
        }
        conflicts.push(conflict);
    }
    let has_more = found.has_more || conflicts.len() < found.list.len();
    let next = has_more.then_some(start + conflicts.len());
    v1::ListConflictsResponse {
        next_page_token: text_or_empty(next),
        conflicts,
        incomplete: found.is_incomplete,
    }
}

fn conflict(conflict: &Conflict) -> v1::MemoryConflict {
    let difference = match conflict.difference {
        Difference::Numbers => v1::ConflictDifference::Numbers,
        Difference::Negation => v1::ConflictDifference::Negation,
        Difference::Words => v1::ConflictDifference::Words,
    };
    v1::MemoryConflict {
        older: Some(memory(&conflict.older)),
        newer: Some(memory(&conflict.newer)),
        likeness: conflict.likeness,
        difference: difference.into(),
    }
}

pub(crate) fn forgotten(outcome: ForgetOutcome) -> v1::ForgetResponse {
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

pub(crate) fn manifest(manifest: &Manifest) -> v1::GetManifestResponse {
    v1::GetManifestResponse {
        lines: count(manifest.lines),
        truncated: manifest.truncated,
        text: manifest.text.clone(),
    }
}

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

pub(crate) fn committed(outcome: &ExtractionOutcome) -> v1::CommitExtractionResponse {
    v1::CommitExtractionResponse {
        cursor_seq: outcome.cursor_seq,
        results: outcome.results.iter().map(remembered).collect(),
    }
}

pub(crate) fn learnt(learnt: &LearnOutcome) -> v1::LearnSessionResponse {
    let (first_seq, through_seq) = learnt.turns.unwrap_or_default();
    v1::LearnSessionResponse {
        generation: text_or_empty(learnt.generation),
        first_seq,
        through_seq,
        cursor_seq: learnt.cursor_seq,
        model: learnt.by.clone(),
        prompt_tokens: learnt.tokens.0,
        answer_tokens: learnt.tokens.1,
        facts: learnt.entries.iter().map(learned_fact).collect(),
    }
}

fn learned_fact(entry: &LearnedEntry) -> v1::LearnedFact {
    let judged = &entry.judged;
    let kind = judged.kind.map(kind).unwrap_or_default();
    let (rejected, supersedes) = match &judged.fact {
        Ok(found) => (v1::FactRejection::Unspecified, found.fact.supersedes),
        Err(refusal) => (rejection(*refusal), None),
    };
    v1::LearnedFact {
        kind: kind.into(),
        content: judged.content.clone(),
        seqs: judged.seqs.clone(),
        rejection: rejected.into(),
        notes: judged.notes.iter().map(|note| (*note).to_owned()).collect(),
        result: entry.outcome.as_ref().map(remembered),
        supersedes_id: text_or_empty(supersedes),
    }
}

fn rejection(refusal: Refusal) -> v1::FactRejection {
    use v1::FactRejection as Rejection;
    match refusal {
        Refusal::Malformed => Rejection::Malformed,
        Refusal::TurnsUnknown => Rejection::TurnsUnknown,
        Refusal::NotSaidByUser => Rejection::NotSaidByUser,
        Refusal::Secret => Rejection::Secret,
        Refusal::Instruction => Rejection::Instruction,
        Refusal::Unsupported => Rejection::Unsupported,
        Refusal::Echo => Rejection::Echo,
        Refusal::Repeated => Rejection::Repeated,
        Refusal::Outdated => Rejection::Outdated,
        Refusal::TooMany => Rejection::TooMany,
    }
}

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
        words_queued: stats.words_queued,
        reranker: stats.reranker.unwrap_or_default(),
        documents: stats.documents,
        document_bytes: stats.document_bytes,
    }
}

/// Combines the consolidation reports into a JSON object by tenant.
pub(crate) fn consolidated(reports: Vec<(TenantId, String)>) -> v1::RunDreamResponse {
    let report = |(tenant, report): (TenantId, String)| {
        // A report that is not JSON is included as a string.
        let value = serde_json::from_str(&report).unwrap_or(Value::String(report));
        (tenant.to_string(), value)
    };
    let reports: Map<String, Value> = reports.into_iter().map(report).collect();
    v1::RunDreamResponse {
        report_json: Value::Object(reports).to_string(),
    }
}

fn source(source: &Source) -> v1::MemorySource {
    v1::MemorySource {
        session_id: source.session.to_string(),
        generation: text_or_empty(source.generation),
        seqs: source.seqs.clone(),
    }
}

fn kind(kind: MemoryKind) -> v1::MemoryKind {
    match kind {
        MemoryKind::User => v1::MemoryKind::User,
        MemoryKind::Feedback => v1::MemoryKind::Feedback,
        MemoryKind::Project => v1::MemoryKind::Project,
        MemoryKind::Reference => v1::MemoryKind::Reference,
    }
}

fn visibility(visibility: Visibility) -> v1::Visibility {
    match visibility {
        Visibility::Private => v1::Visibility::Private,
        Visibility::Team => v1::Visibility::Team,
    }
}

fn polarity(polarity: Option<Polarity>) -> v1::Polarity {
    match polarity {
        None => v1::Polarity::Unspecified,
        Some(Polarity::Correction) => v1::Polarity::Correction,
        Some(Polarity::Confirmation) => v1::Polarity::Confirmation,
    }
}

fn origin(origin: Origin) -> v1::MemoryOrigin {
    match origin {
        Origin::Bot => v1::MemoryOrigin::Unspecified,
        Origin::Extraction => v1::MemoryOrigin::Extraction,
        Origin::Import => v1::MemoryOrigin::Import,
    }
}
