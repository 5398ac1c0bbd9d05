//! MemoryService: what outlives a session, and what was said in it.

use memoird_memories::Memories;
use memoird_proto::spliced::memory_service_server::MemoryService;
use memoird_proto::{spliced, v1};
use memoird_search::Search;
use tonic::{Request, async_trait};

use super::{Answer, answer, split};
use crate::wire::memory::{from, to};
use crate::wire::search;

/// The memories as bots see them.
#[derive(Clone, Debug)]
pub(crate) struct MemoryApi {
    memories: Memories,
    search: Search,
}

impl MemoryApi {
    pub(crate) fn new(memories: Memories, search: Search) -> Self {
        Self { memories, search }
    }
}

#[async_trait]
impl MemoryService for MemoryApi {
    async fn remember(
        &self,
        request: Request<v1::RememberRequest>,
    ) -> Answer<v1::RememberResponse> {
        let (tenant, request) = split(request)?;
        let fact = from::remember(request)?;
        let outcome = self.memories.remember(&tenant, fact).await;
        answer(outcome, |outcome| to::remembered(&outcome))
    }

    async fn recall(&self, request: Request<v1::RecallRequest>) -> Answer<v1::RecallResponse> {
        let (tenant, request) = split(request)?;
        let outcome = self.memories.recall(&tenant, from::recall(request)?).await;
        answer(outcome, to::recalled)
    }

    async fn get_memory(
        &self,
        request: Request<v1::GetMemoryRequest>,
    ) -> Answer<v1::GetMemoryResponse> {
        let (tenant, request) = split(request)?;
        let (id, subject) = from::get(&request)?;
        let memory = self.memories.memory(&tenant, id, subject).await;
        answer(memory, |memory| v1::GetMemoryResponse {
            memory: Some(to::memory(&memory)),
        })
    }

    async fn list_memories(
        &self,
        request: Request<v1::ListMemoriesRequest>,
    ) -> Answer<v1::ListMemoriesResponse> {
        let (tenant, request) = split(request)?;
        let page = self.memories.list(&tenant, from::list(request)?).await;
        answer(page, |page| to::memories(&page))
    }

    async fn update_memory(
        &self,
        request: Request<v1::UpdateMemoryRequest>,
    ) -> Answer<v1::UpdateMemoryResponse> {
        let (tenant, request) = split(request)?;
        let (id, subject, patch) = from::update(request)?;
        let changed = self.memories.update(&tenant, id, subject, patch).await;
        answer(changed, |(memory, redacted)| to::updated(&memory, redacted))
    }

    async fn forget(&self, request: Request<v1::ForgetRequest>) -> Answer<v1::ForgetResponse> {
        let (tenant, request) = split(request)?;
        let target = from::forget(request.target)?;
        let outcome = self.memories.forget(&tenant, target, request.dry_run).await;
        answer(outcome, |outcome| to::forgotten(&outcome))
    }

    async fn get_manifest(
        &self,
        request: Request<v1::GetManifestRequest>,
    ) -> Answer<v1::GetManifestResponse> {
        let (tenant, request) = split(request)?;
        let (subject, lines, bytes) = from::manifest(&request)?;
        let manifest = self.memories.manifest(&tenant, subject, lines, bytes).await;
        answer(manifest, |manifest| to::manifest(&manifest))
    }

    async fn lease_extraction(
        &self,
        request: Request<v1::LeaseExtractionRequest>,
    ) -> Answer<spliced::LeaseExtractionResponse> {
        let (tenant, request) = split(request)?;
        let (session, generation, subject) = from::lease(&request)?;
        let lease = self
            .memories
            .lease_extraction(&tenant, &session, generation, subject)
            .await;
        answer(lease, to::leased)
    }

    async fn commit_extraction(
        &self,
        request: Request<v1::CommitExtractionRequest>,
    ) -> Answer<v1::CommitExtractionResponse> {
        let (tenant, request) = split(request)?;
        let (lease, facts) = from::commit(request)?;
        let outcome = self.memories.commit_extraction(&tenant, lease, facts).await;
        answer(outcome, |outcome| to::committed(&outcome))
    }

    async fn import_memories(
        &self,
        request: Request<v1::ImportMemoriesRequest>,
    ) -> Answer<v1::ImportMemoriesResponse> {
        let (tenant, request) = split(request)?;
        let done = self.memories.import(&tenant, from::import(request)?).await;
        answer(done, |done| v1::ImportMemoriesResponse {
            imported: done.added,
            skipped: done.skipped,
        })
    }

    async fn get_memory_stats(
        &self,
        request: Request<v1::GetMemoryStatsRequest>,
    ) -> Answer<v1::GetMemoryStatsResponse> {
        let (tenant, _) = split(request)?;
        let stats = self.memories.stats(&tenant).await;
        answer(stats, to::stats)
    }

    async fn reindex_memories(
        &self,
        request: Request<v1::ReindexMemoriesRequest>,
    ) -> Answer<v1::ReindexMemoriesResponse> {
        let (tenant, _) = split(request)?;
        let queued = self.memories.reindex(&tenant).await;
        answer(queued, |queued| v1::ReindexMemoriesResponse { queued })
    }

    async fn search_transcripts(
        &self,
        request: Request<v1::SearchTranscriptsRequest>,
    ) -> Answer<spliced::SearchTranscriptsResponse> {
        let (tenant, request) = split(request)?;
        let found = self.search.search(&tenant, search::request(request)?).await;
        answer(found, search::found)
    }
}
