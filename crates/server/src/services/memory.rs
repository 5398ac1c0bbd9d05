//! MemoryService: long-term memory, and the search of transcripts.

use memoird_core::ids::Subject;
use memoird_proto::spliced;
use memoird_proto::v1::{
    CommitExtractionRequest, CommitExtractionResponse, ForgetRequest, ForgetResponse,
    GetManifestRequest, GetManifestResponse, GetMemoryRequest, GetMemoryResponse,
    GetMemoryStatsRequest, GetMemoryStatsResponse, ImportMemoriesRequest, ImportMemoriesResponse,
    LearnSessionRequest, LearnSessionResponse, LeaseExtractionRequest, ListConflictsRequest,
    ListConflictsResponse, ListMemoriesRequest, ListMemoriesResponse, ListSubjectsRequest,
    ListSubjectsResponse, RecallRequest, RecallResponse, RememberRequest, RememberResponse,
    UpdateMemoryRequest, UpdateMemoryResponse,
};

use super::{ApiCall, Reply};
use crate::wire::from::{generation, optional, page_size, session_id};
use crate::wire::memory::{from, to};
use crate::wire::refusal::Refusal;
use crate::wire::status;
use crate::wire::to::count;

pub(crate) async fn remember(call: ApiCall<RememberRequest>) -> Reply<RememberResponse> {
    let (api, tenant, request) = call.into_parts();
    let fact = from::remember(request)?;
    let outcome = api.memories.facts.remember(&tenant, fact).await?;
    Ok(to::remembered(&outcome))
}

pub(crate) async fn recall(call: ApiCall<RecallRequest>) -> Reply<RecallResponse> {
    let (api, tenant, request) = call.into_parts_for_page().await?;
    let explain = request.explain;
    let request = from::recall(request)?;
    let outcome = api.memories.recall.find(&tenant, request).await?;
    Ok(to::recalled(outcome, explain))
}

pub(crate) async fn get_memory(call: ApiCall<GetMemoryRequest>) -> Reply<GetMemoryResponse> {
    let (api, tenant, request) = call.into_parts();
    let facts = &api.memories.facts;
    let memory = match (&*request.external_key, &*request.id) {
        ("", id) => {
            let id = from::memory_id("id", id)?;
            let subject = optional("subject", &request.subject, Subject::parse)?;
            facts.get(&tenant, id, subject).await?
        }
        (_, "") => {
            let subject = from::subject("subject", &request.subject)?;
            facts
                .get_by_key(&tenant, subject, request.external_key)
                .await?
        }
        _ => {
            let problem = "send external_key or id, not both";
            return Err(status::invalid("MEMORY_INVALID", "external_key", problem));
        }
    };
    let memory = Some(to::memory(&memory));
    Ok(GetMemoryResponse { memory })
}

pub(crate) async fn list_memories(
    call: ApiCall<ListMemoriesRequest>,
) -> Reply<ListMemoriesResponse> {
    let (api, tenant, request) = call.into_parts_for_page().await?;
    let request = from::list(request)?;
    let page = api.memories.facts.list(&tenant, request).await?;
    Ok(to::memories(&page))
}

pub(crate) async fn list_subjects(
    call: ApiCall<ListSubjectsRequest>,
) -> Reply<ListSubjectsResponse> {
    let (api, tenant, request) = call.into_parts_for_page().await?;
    let count = page_size(request.page_size);
    let (prefix, after) = from::subjects(request)?;
    let facts = &api.memories.facts;
    let page = facts.subjects(&tenant, prefix, after, count).await?;
    Ok(to::subjects(page))
}

pub(crate) async fn list_conflicts(
    call: ApiCall<ListConflictsRequest>,
) -> Reply<ListConflictsResponse> {
    let (api, tenant, request) = call.into_parts_for_page().await?;
    let subject = from::subject("subject", &request.subject)?;
    let page = from::conflict_page(&request)?;
    let start = page.start;
    let facts = &api.memories.facts;
    let found = facts.conflicts(&tenant, subject, page).await?;
    Ok(to::conflicts(&found, start))
}

pub(crate) async fn update_memory(
    call: ApiCall<UpdateMemoryRequest>,
) -> Reply<UpdateMemoryResponse> {
    let (api, tenant, request) = call.into_parts();
    let fields = request.memory.unwrap_or_default();
    let id = from::memory_id("memory.id", &fields.id)?;
    let subject = optional("memory.subject", &fields.subject, Subject::parse)?;
    let patch = from::patch(&fields, request.update_mask)?;
    let updated = api.memories.facts.update(&tenant, id, subject, patch);
    let updated = updated.await.map_err(Refusal::from);
    let (memory, redacted) = updated.map_err(|refusal| refusal.under("memory"))?;
    Ok(UpdateMemoryResponse {
        memory: Some(to::memory(&memory)),
        redacted: count(redacted),
    })
}

pub(crate) async fn forget(call: ApiCall<ForgetRequest>) -> Reply<ForgetResponse> {
    let (api, tenant, request) = call.into_parts();
    let target = from::forget(request.target)?;
    let forgetting = &api.memories.forgetting;
    let outcome = forgetting.forget(&tenant, target, request.dry_run).await?;
    Ok(to::forgotten(outcome))
}

pub(crate) async fn get_manifest(call: ApiCall<GetManifestRequest>) -> Reply<GetManifestResponse> {
    let (api, tenant, request) = call.into_parts_for_page().await?;
    let subject = from::subject("subject", &request.subject)?;
    let [lines, bytes] = [request.max_lines, request.max_bytes].map(|max| max as usize);
    let recall = &api.memories.recall;
    let manifest = recall.manifest(&tenant, subject, lines, bytes).await?;
    Ok(to::manifest(&manifest))
}

pub(crate) async fn lease_extraction(
    call: ApiCall<LeaseExtractionRequest>,
) -> Reply<spliced::LeaseExtractionResponse> {
    let (api, tenant, request) = call.into_parts_for_page().await?;
    let session = session_id(&request.session_id)?;
    let generation = generation("generation", &request.generation)?;
    let subject = optional("subject", &request.subject, Subject::parse)?;
    let learning = &api.memories.learning;
    let lease = learning
        .lease(&tenant, &session, generation, subject)
        .await?;
    Ok(to::leased(lease))
}

pub(crate) async fn commit_extraction(
    call: ApiCall<CommitExtractionRequest>,
) -> Reply<CommitExtractionResponse> {
    let (api, tenant, request) = call.into_parts();
    let lease = from::lease(&request.lease)?;
    let facts = from::extracted(request.memories)?;
    let outcome = api.memories.learning.commit(&tenant, lease, facts).await?;
    Ok(to::committed(&outcome))
}

pub(crate) async fn learn_session(
    call: ApiCall<LearnSessionRequest>,
) -> Reply<LearnSessionResponse> {
    let (api, tenant, request) = call.into_parts();
    let session = session_id(&request.session_id)?;
    let generation = generation("generation", &request.generation)?;
    let subject = optional("subject", &request.subject, Subject::parse)?;
    let learning = &api.memories.learning;
    let learnt = learning.learn(&tenant, &session, generation, subject, request.dry_run);
    Ok(to::learnt(&learnt.await?))
}

pub(crate) async fn import_memories(
    call: ApiCall<ImportMemoriesRequest>,
) -> Reply<ImportMemoriesResponse> {
    let (api, tenant, request) = call.into_parts();
    let memories = from::imported(request.memories)?;
    let done = api.memories.facts.import(&tenant, memories).await?;
    Ok(ImportMemoriesResponse {
        imported: done.added,
        skipped: done.skipped,
    })
}

pub(crate) async fn get_memory_stats(
    call: ApiCall<GetMemoryStatsRequest>,
) -> Reply<GetMemoryStatsResponse> {
    let stats = call.api.memories.facts.stats(&call.caller.tenant).await?;
    Ok(to::stats(stats))
}
