//! MemoryService: long-term memory, and the search of transcripts.

use memoird_core::ids::Subject;
use memoird_proto::spliced::memory_service_server::MemoryService;
use memoird_proto::{spliced, v1};
use tonic::{Request, Response, async_trait};

use super::{Api, RpcResult, rpc_result, tenant_and_message, tenant_and_message_for_page};
use crate::wire::from::{generation, optional, page_size, session_id};
use crate::wire::memory::{from, to};
use crate::wire::to::count;
use crate::wire::{search, status};

#[async_trait]
impl MemoryService for Api {
    async fn remember(
        &self,
        request: Request<v1::RememberRequest>,
    ) -> RpcResult<v1::RememberResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let fact = from::remember(request)?;
        let outcome = self.memories.facts.remember(&tenant, fact).await;
        rpc_result(outcome, |outcome| to::remembered(&outcome))
    }

    async fn recall(&self, request: Request<v1::RecallRequest>) -> RpcResult<v1::RecallResponse> {
        let (tenant, request) = tenant_and_message_for_page(request).await?;
        let explain = request.explain;
        let outcome = self
            .memories
            .recall
            .find(&tenant, from::recall(request)?)
            .await;
        rpc_result(outcome, |outcome| to::recalled(outcome, explain))
    }

    async fn get_memory(
        &self,
        request: Request<v1::GetMemoryRequest>,
    ) -> RpcResult<v1::GetMemoryResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let memory = match (&*request.external_key, &*request.id) {
            ("", id) => {
                let id = from::memory_id("id", id)?;
                let subject = optional("subject", &request.subject, Subject::parse)?;
                self.memories.facts.get(&tenant, id, subject).await
            }
            (_, "") => {
                let subject = from::subject("subject", &request.subject)?;
                let key = request.external_key;
                self.memories.facts.get_by_key(&tenant, subject, key).await
            }
            _ => {
                let problem = "send external_key or id, not both";
                return Err(status::invalid("MEMORY_INVALID", "external_key", problem).into());
            }
        };
        rpc_result(memory, |memory| v1::GetMemoryResponse {
            memory: Some(to::memory(&memory)),
        })
    }

    async fn list_memories(
        &self,
        request: Request<v1::ListMemoriesRequest>,
    ) -> RpcResult<v1::ListMemoriesResponse> {
        let (tenant, request) = tenant_and_message_for_page(request).await?;
        let page = self
            .memories
            .facts
            .list(&tenant, from::list(request)?)
            .await;
        rpc_result(page, |page| to::memories(&page))
    }

    async fn list_subjects(
        &self,
        request: Request<v1::ListSubjectsRequest>,
    ) -> RpcResult<v1::ListSubjectsResponse> {
        let (tenant, request) = tenant_and_message_for_page(request).await?;
        let count = page_size(request.page_size);
        let (prefix, after) = from::subjects(request)?;
        let page = self
            .memories
            .facts
            .subjects(&tenant, prefix, after, count)
            .await;
        rpc_result(page, to::subjects)
    }

    async fn list_conflicts(
        &self,
        request: Request<v1::ListConflictsRequest>,
    ) -> RpcResult<v1::ListConflictsResponse> {
        let (tenant, request) = tenant_and_message_for_page(request).await?;
        let subject = from::subject("subject", &request.subject)?;
        let count_max = from::conflicts_max(request.limit);
        let found = self
            .memories
            .facts
            .conflicts(&tenant, subject, count_max)
            .await;
        rpc_result(found, |found| to::conflicts(&found))
    }

    async fn update_memory(
        &self,
        request: Request<v1::UpdateMemoryRequest>,
    ) -> RpcResult<v1::UpdateMemoryResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let fields = request.memory.unwrap_or_default();
        let id = from::memory_id("memory.id", &fields.id)?;
        let subject = optional("memory.subject", &fields.subject, Subject::parse)?;
        let patch = from::patch(&fields, request.update_mask)?;
        let outcome = self
            .memories
            .facts
            .update(&tenant, id, subject, patch)
            .await;
        let (memory, redacted) = outcome.map_err(|error| status::memory(&error).under("memory"))?;
        Ok(Response::new(v1::UpdateMemoryResponse {
            memory: Some(to::memory(&memory)),
            redacted: count(redacted),
        }))
    }

    async fn forget(&self, request: Request<v1::ForgetRequest>) -> RpcResult<v1::ForgetResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let target = from::forget(request.target)?;
        let outcome = self
            .memories
            .forgetting
            .forget(&tenant, target, request.dry_run)
            .await;
        rpc_result(outcome, to::forgotten)
    }

    async fn get_manifest(
        &self,
        request: Request<v1::GetManifestRequest>,
    ) -> RpcResult<v1::GetManifestResponse> {
        let (tenant, request) = tenant_and_message_for_page(request).await?;
        let subject = from::subject("subject", &request.subject)?;
        let [lines, bytes] = [request.max_lines, request.max_bytes].map(|max| max as usize);
        let manifest = self
            .memories
            .recall
            .manifest(&tenant, subject, lines, bytes)
            .await;
        rpc_result(manifest, |manifest| to::manifest(&manifest))
    }

    async fn lease_extraction(
        &self,
        request: Request<v1::LeaseExtractionRequest>,
    ) -> RpcResult<spliced::LeaseExtractionResponse> {
        let (tenant, request) = tenant_and_message_for_page(request).await?;
        let session = session_id(&request.session_id)?;
        let generation = generation("generation", &request.generation)?;
        let subject = optional("subject", &request.subject, Subject::parse)?;
        let memories = &self.memories;
        let lease = memories
            .learning
            .lease(&tenant, &session, generation, subject);
        rpc_result(lease.await, to::leased)
    }

    async fn commit_extraction(
        &self,
        request: Request<v1::CommitExtractionRequest>,
    ) -> RpcResult<v1::CommitExtractionResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let lease = from::lease(&request.lease)?;
        let facts = from::extracted(request.memories)?;
        let outcome = self.memories.learning.commit(&tenant, lease, facts).await;
        rpc_result(outcome, |outcome| to::committed(&outcome))
    }

    async fn learn_session(
        &self,
        request: Request<v1::LearnSessionRequest>,
    ) -> RpcResult<v1::LearnSessionResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let session = session_id(&request.session_id)?;
        let generation = generation("generation", &request.generation)?;
        let subject = optional("subject", &request.subject, Subject::parse)?;
        let memories = &self.memories;
        let learnt =
            memories
                .learning
                .learn(&tenant, &session, generation, subject, request.dry_run);
        rpc_result(learnt.await, |learnt| to::learnt(&learnt))
    }

    async fn import_memories(
        &self,
        request: Request<v1::ImportMemoriesRequest>,
    ) -> RpcResult<v1::ImportMemoriesResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let memories = from::imported(request.memories)?;
        let done = self.memories.facts.import(&tenant, memories).await;
        rpc_result(done, |done| v1::ImportMemoriesResponse {
            imported: done.added,
            skipped: done.skipped,
        })
    }

    async fn get_memory_stats(
        &self,
        request: Request<v1::GetMemoryStatsRequest>,
    ) -> RpcResult<v1::GetMemoryStatsResponse> {
        let (tenant, _) = tenant_and_message(request)?;
        let stats = self.memories.facts.stats(&tenant).await;
        rpc_result(stats, to::stats)
    }

    async fn reindex_memories(
        &self,
        request: Request<v1::ReindexMemoriesRequest>,
    ) -> RpcResult<v1::ReindexMemoriesResponse> {
        let (tenant, _) = tenant_and_message(request)?;
        let queued = self.memories.facts.reindex(&tenant).await;
        rpc_result(queued, |queued| v1::ReindexMemoriesResponse { queued })
    }

    async fn search_transcripts(
        &self,
        request: Request<v1::SearchTranscriptsRequest>,
    ) -> RpcResult<spliced::SearchTranscriptsResponse> {
        let (tenant, request) = tenant_and_message_for_page(request).await?;
        let found = self.search.search(&tenant, search::request(request)?).await;
        match found {
            Ok(found) => Ok(Response::new(search::found(found))),
            Err(error) => Err(status::search(&error).into()),
        }
    }
}
