//! Parses and validates requests of MemoryService into arguments of `Memories`.

use std::ops::Range;

use memoird_core::idempotency::{IdempotencyKey, fingerprint};
use memoird_core::ids::{LeaseId, MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;
use memoird_memories::rules::documents::DocumentFilter;
use memoird_memories::rules::{
    Memory, MemoryKind, NearDuplicate, Origin, Patch, Pin, Polarity, Source, Visibility,
};
use memoird_memories::{
    ExtractedFact, ForgetRequest, ListRequest, MemoryFilter, RecallMode, RecallRequest,
    RememberRequest,
};
use memoird_proto::v1;
use prost::Message;
use prost_types::FieldMask;

use crate::wire::from::{self, optional, required, unknown};
use crate::wire::refusal::{FieldPath, Refusal};
use crate::wire::status;

/// Maximum number of hits of a recall.
const HITS_MAX: usize = 100;

/// Maximum and default number of pairs in a list of conflicts.
const CONFLICTS_MAX: usize = 100;
const CONFLICTS_DEFAULT: usize = 20;

const UPDATE_MASK: &str = "update_mask";

const UPDATABLE: &str = "content, kind, visibility, polarity, tags, importance, observed_at, \
                         expires_at, pinned, metadata_json";

/// Parses a fact to remember.
pub(crate) fn remember(request: v1::RememberRequest) -> Result<RememberRequest, Refusal> {
    let key = idempotency(&request)?;
    Ok(RememberRequest {
        subject: optional("subject", &request.subject, Subject::parse)?,
        kind: kind("kind", request.kind)?,
        visibility: visibility(request.visibility)?.unwrap_or_default(),
        polarity: polarity(request.polarity)?,
        content: request.content,
        tags: request.tags,
        importance: request.importance,
        source: request.source.map(source).transpose()?,
        observed_at: time("observed_at", request.observed_at)?,
        expires_at: time("expires_at", request.expires_at)?,
        supersedes: optional("supersedes_id", &request.supersedes_id, str::parse)?,
        pinned: request.pinned,
        near_duplicate: if request.keep_apart {
            NearDuplicate::Apart
        } else {
            near_duplicate(request.near_duplicate)?
        },
        key,
        external_key: given(request.external_key),
        metadata: given(request.metadata_json),
        vector: request.vector,
    })
}

pub(crate) fn recall(request: v1::RecallRequest) -> Result<RecallRequest, Refusal> {
    let session = optional("session_id", &request.session_id, SessionId::parse)?;
    let subjects = request.subjects.iter().enumerate().map(|(at, id)| {
        let path = || FieldPath::from("subjects").at(at);
        subject("subjects", id).map_err(|refusal| refusal.about(path()))
    });
    Ok(RecallRequest {
        query: request.query,
        subjects: subjects.collect::<Result<_, _>>()?,
        kinds: kinds("kinds", &request.kinds)?,
        tags: request.tags,
        after: time("after", request.after)?,
        before: time("before", request.before)?,
        // 0 means the configured default.
        limit: HITS_MAX.min(request.limit as usize),
        mode: mode(request.mode)?,
        session,
        explain: request.explain,
        without_reranker: request.rerank == Some(false),
        metadata: metadata_filter(&request.metadata_filter_json)?,
        subject_prefix: subject_prefix("subject_prefix", request.subject_prefix)?,
        vector: request.vector,
        min_relevance: request.min_relevance,
    })
}

/// The requested pairs, as positions in their list.
pub(crate) fn conflict_page(request: &v1::ListConflictsRequest) -> Result<Range<usize>, Refusal> {
    let size = match request.page_size as usize {
        0 => CONFLICTS_DEFAULT,
        size => size.min(CONFLICTS_MAX),
    };
    let start: u32 = from::page_token(&request.page_token)?.unwrap_or(0);
    Ok(start as usize..start as usize + size)
}

/// Parses the filters of a list of memories.
pub(crate) fn list(request: v1::ListMemoriesRequest) -> Result<ListRequest, Refusal> {
    let after = from::page_token(&request.page_token)?;
    let kind = match v1::MemoryKind::try_from(request.kind) {
        Ok(v1::MemoryKind::Unspecified) => None,
        _ => Some(kind("kind", request.kind)?),
    };
    Ok(ListRequest {
        subject: optional("subject", &request.subject, Subject::parse)?,
        kind,
        tag: (!request.tag.is_empty()).then_some(request.tag),
        include_history: request.include_history,
        metadata: metadata_filter(&request.metadata_filter_json)?,
        subject_prefix: subject_prefix("subject_prefix", request.subject_prefix)?,
        after,
        count: from::page_size(request.page_size),
    })
}

/// Parses the prefix of subject ids, and the last subject of the previous page.
pub(crate) fn subjects(
    request: v1::ListSubjectsRequest,
) -> Result<(String, Option<Subject>), Refusal> {
    let prefix = subject_prefix("prefix", request.prefix)?;
    let after = from::read_page_token(&request.page_token, |token| Subject::parse(token).ok())?;
    Ok((prefix, after))
}

fn subject_prefix(field: &'static str, prefix: String) -> Result<String, Refusal> {
    from::check_length(field, &prefix)?;
    Ok(prefix)
}

fn metadata_filter(json: &str) -> Result<Option<DocumentFilter>, Refusal> {
    if json.is_empty() {
        return Ok(None);
    }
    let parsed = DocumentFilter::parse(json);
    let filter = parsed.map_err(|problem| invalid("metadata_filter_json", problem))?;
    Ok(Some(filter))
}

fn invalid(field: &'static str, problem: impl Into<String>) -> Refusal {
    status::invalid("MEMORY_INVALID", field, problem).with_path()
}

/// Converts an empty text to `None`.
fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Builds a patch of the fields of `memory` that the mask names.
pub(crate) fn patch(memory: &v1::Memory, mask: Option<FieldMask>) -> Result<Patch, Refusal> {
    let paths = mask.unwrap_or_default().paths;
    if paths.is_empty() {
        let problem = format!("update_mask is empty; expected some of {UPDATABLE}");
        return Err(status::invalid("UPDATE_MASK_INVALID", UPDATE_MASK, problem));
    }
    let mut patch = Patch::default();
    for path in &paths {
        if !put(&mut patch, path, memory).map_err(|refusal| refusal.under("memory"))? {
            let other: String = path.chars().take(64).collect();
            let problem =
                format!("unknown field {other:?} in update_mask; expected some of {UPDATABLE}");
            return Err(status::invalid("UPDATE_MASK_INVALID", UPDATE_MASK, problem));
        }
    }
    Ok(patch)
}

/// Parses which memories to forget.
pub(crate) fn forget(target: Option<v1::forget_request::Target>) -> Result<ForgetRequest, Refusal> {
    use v1::forget_request::Target;
    match target {
        Some(Target::Id(id)) => Ok(ForgetRequest::One(memory_id("id", &id)?)),
        Some(Target::Subject(id)) => Ok(ForgetRequest::Subject(subject("subject", &id)?)),
        Some(Target::Filter(filter)) => Ok(ForgetRequest::Filter(self::filter(filter)?)),
        None => {
            let problem = "set one of id, subject, filter";
            Err(status::invalid("FORGET_TARGET_MISSING", "target", problem))
        }
    }
}

pub(crate) fn lease(text: &str) -> Result<LeaseId, Refusal> {
    required("lease", text, str::parse)
}

/// Parses the facts extracted from the turns of a lease.
pub(crate) fn extracted(facts: Vec<v1::ExtractedMemory>) -> Result<Vec<ExtractedFact>, Refusal> {
    each(facts, extracted_fact)
}

/// Parses memories to import unchanged.
pub(crate) fn imported(memories: Vec<v1::Memory>) -> Result<Vec<Memory>, Refusal> {
    each(memories, imported_memory)
}

/// Parses each of `memories`. An error names the index.
fn each<M, T>(memories: Vec<M>, read: fn(M) -> Result<T, Refusal>) -> Result<Vec<T>, Refusal> {
    let memories = memories.into_iter().enumerate().map(|(place, memory)| {
        read(memory).map_err(|refusal| refusal.under(FieldPath::from("memories").at(place)))
    });
    memories.collect()
}

/// Parses the idempotency key of a fact. The fingerprint covers the rest.
fn idempotency(request: &v1::RememberRequest) -> Result<Option<IdempotencyKey>, Refusal> {
    from::idempotency(&request.idempotency_key, || {
        let rest = v1::RememberRequest {
            idempotency_key: String::new(),
            ..request.clone()
        };
        fingerprint([&rest.encode_to_vec()[..]])
    })
}

fn extracted_fact(fact: v1::ExtractedMemory) -> Result<ExtractedFact, Refusal> {
    let request = v1::RememberRequest {
        kind: fact.kind,
        visibility: fact.visibility,
        polarity: fact.polarity,
        content: fact.content,
        tags: fact.tags,
        importance: fact.importance,
        observed_at: fact.observed_at,
        expires_at: fact.expires_at,
        supersedes_id: fact.supersedes_id,
        ..v1::RememberRequest::default()
    };
    Ok(ExtractedFact {
        fact: remember(request)?,
        seqs: fact.seqs,
    })
}

fn source(source: v1::MemorySource) -> Result<Source, Refusal> {
    Ok(Source {
        session: required("source.session_id", &source.session_id, SessionId::parse)?,
        generation: from::generation("source.generation", &source.generation)?,
        seqs: source.seqs,
    })
}

fn filter(filter: v1::MemoryFilter) -> Result<MemoryFilter, Refusal> {
    if filter == v1::MemoryFilter::default() {
        let problem = "filter is empty and would match everything; set at least one field";
        return Err(status::invalid("FILTER_EMPTY", "filter", problem));
    }
    Ok(MemoryFilter {
        subject: optional("filter.subject", &filter.subject, Subject::parse)?,
        kinds: kinds("filter.kinds", &filter.kinds)?,
        tags: filter.tags,
        after: time("filter.after", filter.after)?,
        before: time("filter.before", filter.before)?,
    })
}

/// Adds the field at this path to a patch. Returns whether there is such a field.
fn put(patch: &mut Patch, path: &str, memory: &v1::Memory) -> Result<bool, Refusal> {
    match path {
        "content" => patch.content = Some(memory.content.clone()),
        "kind" => patch.kind = Some(kind("kind", memory.kind)?),
        "visibility" => patch.visibility = visibility(memory.visibility)?,
        "polarity" => patch.polarity = Some(polarity(memory.polarity)?),
        "tags" => patch.tags = Some(memory.tags.clone()),
        "importance" => patch.importance = Some(memory.importance),
        "observed_at" => {
            let observed = time("observed_at", memory.observed_at)?;
            let missing = || {
                let problem = "observed_at is in update_mask but has no value";
                status::invalid("TIMESTAMP_INVALID", "observed_at", problem)
            };
            patch.observed_at = Some(observed.ok_or_else(missing)?);
        }
        "expires_at" => patch.expires_at = Some(time("expires_at", memory.expires_at)?),
        "metadata_json" => patch.metadata = Some(given(memory.metadata_json.clone())),
        "pinned" => patch.pinned = Some(memory.pinned),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Parses a memory to import unchanged. Missing times are taken from its id.
fn imported_memory(memory: v1::Memory) -> Result<Memory, Refusal> {
    let id = memory_id("id", &memory.id)?;
    let created_at = time("created_at", memory.created_at)?.unwrap_or_else(|| made_at(id));
    let superseded_by = optional("superseded_by", &memory.superseded_by, str::parse)?;
    let source = memory.source.map(source).transpose()?;
    Ok(Memory {
        id,
        subject: subject("subject", &memory.subject)?,
        kind: kind("kind", memory.kind)?,
        visibility: visibility(memory.visibility)?.unwrap_or_default(),
        polarity: polarity(memory.polarity)?,
        content: memory.content,
        tags: memory.tags,
        importance: memory.importance,
        source,
        observed_at: time("observed_at", memory.observed_at)?.unwrap_or(created_at),
        created_at,
        updated_at: time("updated_at", memory.updated_at)?.unwrap_or(created_at),
        expires_at: time("expires_at", memory.expires_at)?,
        superseded_by,
        reinforced: memory.reinforced,
        recalls: memory.recall_count,
        recalled_at: time("last_recalled_at", memory.last_recalled_at)?,
        pin: match (memory.pinned, memory.pinned_by_dream) {
            (true, true) => Some(Pin::Consolidation),
            (true, false) => Some(Pin::Bot),
            (false, _) => None,
        },
        origin: origin(memory.origin)?,
        external_key: given(memory.external_key),
        metadata: given(memory.metadata_json),
    })
}

pub(crate) fn memory_id(field: &'static str, text: &str) -> Result<MemoryId, Refusal> {
    required(field, text, str::parse)
}

/// Parses a kind. There is no default.
fn kind(field: &'static str, kind: i32) -> Result<MemoryKind, Refusal> {
    match v1::MemoryKind::try_from(kind) {
        Ok(v1::MemoryKind::User) => Ok(MemoryKind::User),
        Ok(v1::MemoryKind::Feedback) => Ok(MemoryKind::Feedback),
        Ok(v1::MemoryKind::Project) => Ok(MemoryKind::Project),
        Ok(v1::MemoryKind::Reference) => Ok(MemoryKind::Reference),
        _ => unknown("MEMORY_KIND_INVALID", field, kind, "MemoryKind"),
    }
}

/// Parses a visibility. `None` if unspecified.
fn visibility(visibility: i32) -> Result<Option<Visibility>, Refusal> {
    match v1::Visibility::try_from(visibility) {
        Ok(v1::Visibility::Unspecified) => Ok(None),
        Ok(v1::Visibility::Private) => Ok(Some(Visibility::Private)),
        Ok(v1::Visibility::Team) => Ok(Some(Visibility::Team)),
        Err(_) => unknown("VISIBILITY_INVALID", "visibility", visibility, "Visibility"),
    }
}

fn polarity(polarity: i32) -> Result<Option<Polarity>, Refusal> {
    match v1::Polarity::try_from(polarity) {
        Ok(v1::Polarity::Unspecified) => Ok(None),
        Ok(v1::Polarity::Correction) => Ok(Some(Polarity::Correction)),
        Ok(v1::Polarity::Confirmation) => Ok(Some(Polarity::Confirmation)),
        Err(_) => unknown("POLARITY_INVALID", "polarity", polarity, "Polarity"),
    }
}

pub(crate) fn time(
    field: &'static str,
    time: Option<prost_types::Timestamp>,
) -> Result<Option<Timestamp>, Refusal> {
    let Some(time) = time else { return Ok(None) };
    let nanos = u32::try_from(time.nanos).ok();
    let moment = nanos.and_then(|nanos| Timestamp::new(time.seconds, nanos));
    moment.map(Some).ok_or_else(|| {
        let problem = format!("{field} is outside the years 1970 to 9999");
        status::invalid("TIMESTAMP_INVALID", field, problem)
    })
}

fn origin(origin: i32) -> Result<Origin, Refusal> {
    match v1::MemoryOrigin::try_from(origin) {
        Ok(v1::MemoryOrigin::Unspecified) => Ok(Origin::Bot),
        Ok(v1::MemoryOrigin::Extraction) => Ok(Origin::Extraction),
        Ok(v1::MemoryOrigin::Import) => Ok(Origin::Import),
        Err(_) => {
            let problem = format!("origin is {origin}; send it unchanged from a list");
            Err(status::invalid("ORIGIN_INVALID", "origin", problem))
        }
    }
}

/// The creation time in a ULID: its first 48 bits, in milliseconds.
fn made_at(id: MemoryId) -> Timestamp {
    let ms = id.to_bytes()[..6]
        .iter()
        .fold(0_i64, |ms, byte| ms << 8 | i64::from(*byte));
    Timestamp::from_ms(ms)
}

fn near_duplicate(number: i32) -> Result<NearDuplicate, Refusal> {
    match v1::NearDuplicate::try_from(number) {
        Ok(v1::NearDuplicate::Unspecified | v1::NearDuplicate::Merge) => Ok(NearDuplicate::Merge),
        Ok(v1::NearDuplicate::Refuse) => Ok(NearDuplicate::Refuse),
        Ok(v1::NearDuplicate::Keep) => Ok(NearDuplicate::Keep),
        Err(_) => {
            let reason = "NEAR_DUPLICATE_INVALID";
            unknown(reason, "near_duplicate", number, "NearDuplicate")
        }
    }
}

fn mode(number: i32) -> Result<RecallMode, Refusal> {
    match v1::RecallMode::try_from(number) {
        Ok(v1::RecallMode::Unspecified) => Ok(RecallMode::Auto),
        Ok(v1::RecallMode::Hybrid) => Ok(RecallMode::Hybrid),
        Ok(v1::RecallMode::Lexical) => Ok(RecallMode::Lexical),
        Ok(v1::RecallMode::Vector) => Ok(RecallMode::Vector),
        Err(_) => unknown("RECALL_MODE_INVALID", "mode", number, "RecallMode"),
    }
}

fn kinds(field: &'static str, numbers: &[i32]) -> Result<Vec<MemoryKind>, Refusal> {
    let mut kinds = numbers
        .iter()
        .map(|number| kind(field, *number))
        .collect::<Result<Vec<_>, _>>()?;
    kinds.sort_unstable();
    kinds.dedup();
    Ok(kinds)
}

pub(crate) fn subject(field: &'static str, text: &str) -> Result<Subject, Refusal> {
    required(field, text, Subject::parse)
}
