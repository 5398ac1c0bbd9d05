//! What a bot asks of memories, made into what the engine takes, or refused.

use memoird_core::idempotency::{IdempotencyKey, fingerprint};
use memoird_core::ids::{Generation, LeaseId, MemoryId, SessionId, Subject};
use memoird_memories::rules::{Memory, MemoryKind, NearDuplicate, Patch};
use memoird_memories::{
    ExtractedFact, ForgetRequest, ListRequest, MemoryFilter, RecallMode, RecallRequest,
    RememberRequest, SourceRequest,
};
use memoird_proto::v1;
use prost::Message;
use tonic::Status;

pub(crate) use super::whole::time;
use super::whole::{kind, memory_id, polarity, taken, visibility};
use crate::wire::from::{self, optional, refused, unknown};
use crate::wire::status;

/// Memories of one page.
const PAGE_MAX: usize = 1_000;
const PAGE_DEFAULT: usize = 100;
/// Hits of one recall.
const HITS_MAX: usize = 100;

/// What an update may name, for whoever named something else.
const UPDATABLE: &str = "content, kind, visibility, polarity, tags, importance, observed_at, \
                         expires_at, pinned";

/// Which turns to lease: of which session, of which life of it, and whose the facts are.
pub(crate) type LeaseTarget = (SessionId, Option<Generation>, Option<Subject>);

/// A fact to be remembered.
pub(crate) fn remember(request: v1::RememberRequest) -> Result<RememberRequest, Status> {
    let key = idempotency(&request)?;
    Ok(RememberRequest {
        subject: optional(&request.subject, Subject::parse)?,
        kind: kind(request.kind)?,
        visibility: visibility(request.visibility)?.unwrap_or_default(),
        polarity: polarity(request.polarity)?,
        content: request.content,
        tags: request.tags,
        importance: request.importance,
        source: request.source.map(source).transpose()?,
        observed_at: time("observed_at", request.observed_at)?,
        expires_at: time("expires_at", request.expires_at)?,
        supersedes: optional(&request.supersedes_id, str::parse)?,
        pinned: request.pinned,
        near_duplicate: near_duplicate(request.near_duplicate)?,
        key,
    })
}

/// What is looked for.
pub(crate) fn recall(request: v1::RecallRequest) -> Result<RecallRequest, Status> {
    let session = optional(&request.session_id, SessionId::parse)?;
    let subjects = request.subjects.iter().map(|id| subject(id));
    Ok(RecallRequest {
        query: request.query,
        subjects: subjects.collect::<Result<_, _>>()?,
        kinds: kinds(&request.kinds)?,
        tags: request.tags,
        after: time("after", request.after)?,
        before: time("before", request.before)?,
        // None named: as configured.
        limit: from::page_size(request.limit, 0, HITS_MAX),
        mode: mode(request.mode)?,
        session,
    })
}

/// One memory, and by whom it must be seen.
pub(crate) fn get(request: &v1::GetMemoryRequest) -> Result<(MemoryId, Option<Subject>), Status> {
    Ok((
        memory_id(&request.id)?,
        optional(&request.subject, Subject::parse)?,
    ))
}

/// Which memories to list.
pub(crate) fn list(request: v1::ListMemoriesRequest) -> Result<ListRequest, Status> {
    let after = from::page_token(&request.page_token)?;
    let kind = match v1::MemoryKind::try_from(request.kind) {
        Ok(v1::MemoryKind::Unspecified) => None,
        _ => Some(kind(request.kind)?),
    };
    Ok(ListRequest {
        subject: optional(&request.subject, Subject::parse)?,
        kind,
        tag: (!request.tag.is_empty()).then_some(request.tag),
        include_history: request.include_history,
        after,
        count: from::page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX),
    })
}

/// Which memory to change, whose it must be, and how.
pub(crate) fn update(
    request: v1::UpdateMemoryRequest,
) -> Result<(MemoryId, Option<Subject>, Patch), Status> {
    let memory = request.memory.unwrap_or_default();
    let id = memory_id(&memory.id)?;
    let subject = optional(&memory.subject, Subject::parse)?;
    let mask = request.update_mask.unwrap_or_default();
    let paths = mask.paths;
    if paths.is_empty() {
        let problem = format!("update_mask names no field; it takes {UPDATABLE}");
        return Err(status::invalid("UPDATE_MASK_INVALID", problem));
    }
    let mut patch = Patch::default();
    for path in &paths {
        put(&mut patch, path, &memory)?;
    }
    Ok((id, subject, patch))
}

/// What is to be forgotten.
pub(crate) fn forget(target: Option<v1::forget_request::Target>) -> Result<ForgetRequest, Status> {
    use v1::forget_request::Target;
    match target {
        Some(Target::Id(id)) => Ok(ForgetRequest::One(memory_id(&id)?)),
        Some(Target::Subject(id)) => Ok(ForgetRequest::Subject(subject(&id)?)),
        Some(Target::Filter(filter)) => Ok(ForgetRequest::Filter(self::filter(filter)?)),
        None => {
            let problem = "say what: set one of id, subject, filter";
            Err(status::invalid("FORGET_TARGET_MISSING", problem))
        }
    }
}

/// Whose manifest, and how much of it: lines and bytes, 0 where that is not said.
pub(crate) fn manifest(
    request: &v1::GetManifestRequest,
) -> Result<(Subject, usize, usize), Status> {
    let size = |asked| usize::try_from(asked).unwrap_or(usize::MAX);
    Ok((
        subject(&request.subject)?,
        size(request.max_lines),
        size(request.max_bytes),
    ))
}

/// Which turns to lease.
pub(crate) fn lease(request: &v1::LeaseExtractionRequest) -> Result<LeaseTarget, Status> {
    let session = from::session_id(&request.session_id)?;
    let generation = from::generation(&request.generation)?;
    Ok((
        session,
        generation,
        optional(&request.subject, Subject::parse)?,
    ))
}

/// A lease, and what was found in its turns.
pub(crate) fn commit(
    request: v1::CommitExtractionRequest,
) -> Result<(LeaseId, Vec<ExtractedFact>), Status> {
    let lease = request.lease.parse().map_err(refused)?;
    Ok((lease, each(request.memories, extracted)?))
}

/// Memories to be stored as they are.
pub(crate) fn import(request: v1::ImportMemoriesRequest) -> Result<Vec<Memory>, Status> {
    each(request.memories, taken)
}

/// What is made of each of `memories`. A refusal says first of which.
fn each<M, T>(memories: Vec<M>, read: fn(M) -> Result<T, Status>) -> Result<Vec<T>, Status> {
    let memories = memories.into_iter().enumerate();
    let memories = memories.map(|(place, memory)| {
        read(memory).map_err(|refusal| status::at(&format!("memories[{place}]"), &refusal))
    });
    memories.collect()
}

/// The key of a fact. What it stands for is the whole request without it.
fn idempotency(request: &v1::RememberRequest) -> Result<Option<IdempotencyKey>, Status> {
    from::idempotency(&request.idempotency_key, || {
        let rest = v1::RememberRequest {
            idempotency_key: String::new(),
            ..request.clone()
        };
        fingerprint([&rest.encode_to_vec()[..]])
    })
}

fn extracted(fact: v1::ExtractedMemory) -> Result<ExtractedFact, Status> {
    Ok(ExtractedFact {
        kind: kind(fact.kind)?,
        visibility: visibility(fact.visibility)?.unwrap_or_default(),
        polarity: polarity(fact.polarity)?,
        content: fact.content,
        tags: fact.tags,
        importance: fact.importance,
        observed_at: time("observed_at", fact.observed_at)?,
        expires_at: time("expires_at", fact.expires_at)?,
        supersedes: optional(&fact.supersedes_id, str::parse)?,
        seqs: fact.seqs,
    })
}

fn source(source: v1::MemorySource) -> Result<SourceRequest, Status> {
    Ok(SourceRequest {
        session: from::session_id(&source.session_id)?,
        generation: from::generation(&source.generation)?,
        seqs: source.seqs,
    })
}

fn filter(filter: v1::MemoryFilter) -> Result<MemoryFilter, Status> {
    if filter == v1::MemoryFilter::default() {
        let problem = "filter is empty, and would fit everything; set at least one field of it";
        return Err(status::invalid("FILTER_EMPTY", problem));
    }
    Ok(MemoryFilter {
        subject: optional(&filter.subject, Subject::parse)?,
        kinds: kinds(&filter.kinds)?,
        tags: filter.tags,
        after: time("filter.after", filter.after)?,
        before: time("filter.before", filter.before)?,
    })
}

/// Puts the field of this path to what is changed.
fn put(patch: &mut Patch, path: &str, memory: &v1::Memory) -> Result<(), Status> {
    match path {
        "content" => patch.content = Some(memory.content.clone()),
        "kind" => patch.kind = Some(kind(memory.kind)?),
        "visibility" => patch.visibility = visibility(memory.visibility)?,
        "polarity" => patch.polarity = Some(polarity(memory.polarity)?),
        "tags" => patch.tags = Some(memory.tags.clone()),
        "importance" => patch.importance = Some(memory.importance),
        "observed_at" => {
            let observed = time("observed_at", memory.observed_at)?;
            let missing = || {
                let problem = "observed_at is in update_mask and has no value";
                status::invalid("TIMESTAMP_INVALID", problem)
            };
            patch.observed_at = Some(observed.ok_or_else(missing)?);
        }
        "expires_at" => patch.expires_at = Some(time("expires_at", memory.expires_at)?),
        "pinned" => patch.pinned = Some(memory.pinned),
        other => {
            let other: String = other.chars().take(64).collect();
            let problem = format!("update_mask names {other:?}; it takes {UPDATABLE}");
            return Err(status::invalid("UPDATE_MASK_INVALID", problem));
        }
    }
    Ok(())
}

fn near_duplicate(number: i32) -> Result<NearDuplicate, Status> {
    match v1::NearDuplicate::try_from(number) {
        Ok(v1::NearDuplicate::Unspecified | v1::NearDuplicate::Merge) => Ok(NearDuplicate::Merge),
        Ok(v1::NearDuplicate::Refuse) => Ok(NearDuplicate::Refuse),
        Ok(v1::NearDuplicate::Keep) => Ok(NearDuplicate::Keep),
        Err(_) => {
            let reason = "NEAR_DUPLICATE_INVALID";
            Err(unknown(reason, "near_duplicate", number, "NearDuplicate"))
        }
    }
}

fn mode(number: i32) -> Result<RecallMode, Status> {
    match v1::RecallMode::try_from(number) {
        Ok(v1::RecallMode::Unspecified) => Ok(RecallMode::Auto),
        Ok(v1::RecallMode::Hybrid) => Ok(RecallMode::Hybrid),
        Ok(v1::RecallMode::Lexical) => Ok(RecallMode::Lexical),
        Ok(v1::RecallMode::Vector) => Ok(RecallMode::Vector),
        Err(_) => Err(unknown("RECALL_MODE_INVALID", "mode", number, "RecallMode")),
    }
}

fn kinds(numbers: &[i32]) -> Result<Vec<MemoryKind>, Status> {
    let kinds = numbers.iter().map(|number| kind(*number));
    let mut kinds = kinds.collect::<Result<Vec<_>, _>>()?;
    kinds.sort_unstable();
    kinds.dedup();
    Ok(kinds)
}

fn subject(text: &str) -> Result<Subject, Status> {
    Subject::parse(text).map_err(refused)
}
