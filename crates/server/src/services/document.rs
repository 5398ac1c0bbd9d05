//! DocumentService: named documents of a bot.

use memoird_memories::rules::MemoryLimits;
use memoird_proto::spliced::document_service_server::DocumentService;
use memoird_proto::v1;
use tonic::{Request, Response, async_trait};

use super::{
    Api, RpcResult, call_permit, caller, rpc_result, tenant_and_message,
    tenant_and_message_for_page,
};
use crate::heavy::HEAVY_BYTES;
use crate::wire::{PAGE_BYTES_MAX, document, status};

#[async_trait]
impl DocumentService for Api {
    async fn get_document(
        &self,
        request: Request<v1::GetDocumentRequest>,
    ) -> RpcResult<v1::GetDocumentResponse> {
        let permit = call_permit(&request)?;
        permit.reserve_response(HEAVY_BYTES as u64).await?;
        let (tenant, request) = tenant_and_message(request)?;
        let get = document::get(request)?;
        let found = self
            .memories
            .documents
            .get(&tenant, get)
            .await
            .map_err(|error| status::memory(&error))?;
        permit.reserve_response(found.size).await?;
        Ok(Response::new(document::got(found)))
    }

    async fn put_document(
        &self,
        request: Request<v1::PutDocumentRequest>,
    ) -> RpcResult<v1::PutDocumentResponse> {
        let (caller, request) = caller(request)?;
        let (tenant, limits) = (caller.tenant, self.memories.limits());
        let bytes = document::put_bytes(&request);
        let read = move || document::put(request, &limits);
        let put = self.heavy.run(&tenant.id, bytes, read).await?;
        caller.key.check()?;
        let done = self.memories.documents.put(&tenant, put).await;
        rpc_result(done, document::put_done)
    }

    async fn delete_document(
        &self,
        request: Request<v1::DeleteDocumentRequest>,
    ) -> RpcResult<v1::DeleteDocumentResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let delete = document::delete(request)?;
        let done = self.memories.documents.delete(&tenant, delete).await;
        rpc_result(done, |deleted| v1::DeleteDocumentResponse { deleted })
    }

    async fn delete_documents(
        &self,
        request: Request<v1::DeleteDocumentsRequest>,
    ) -> RpcResult<v1::DeleteDocumentsResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let erase = request.erase;
        let range = document::range_to_delete(request)?;
        let done = self
            .memories
            .documents
            .delete_matching(&tenant, range, erase)
            .await;
        rpc_result(done, |(deleted, erased)| v1::DeleteDocumentsResponse {
            deleted,
            erased,
        })
    }

    async fn list_documents(
        &self,
        request: Request<v1::ListDocumentsRequest>,
    ) -> RpcResult<v1::ListDocumentsResponse> {
        // The last document on a page may have the maximum size.
        let document_bytes = self.memories.limits().document_bytes as u64;
        let permit = call_permit(&request)?;
        permit
            .reserve_response(PAGE_BYTES_MAX as u64 + document_bytes)
            .await?;
        let (tenant, request) = tenant_and_message(request)?;
        let query = document::query(request)?;
        let page = self.memories.documents.list(&tenant, query).await;
        rpc_result(page, document::page)
    }

    async fn list_namespaces(
        &self,
        request: Request<v1::ListNamespacesRequest>,
    ) -> RpcResult<v1::ListNamespacesResponse> {
        let (tenant, request) = tenant_and_message_for_page(request).await?;
        let query = document::namespace_query(request)?;
        let page = self.memories.documents.namespaces(&tenant, query).await;
        rpc_result(page, |page| document::namespaces(&page))
    }

    async fn batch_documents(
        &self,
        request: Request<v1::BatchDocumentsRequest>,
    ) -> RpcResult<v1::BatchDocumentsResponse> {
        let permit = call_permit(&request)?;
        let (caller, request) = caller(request)?;
        let (tenant, limits) = (caller.tenant, self.memories.limits());
        let bytes = document::batch_bytes(&request);
        let gets = document::gets(&request).saturating_mul(limits.document_bytes);
        let read = move || document::operations(request, &limits);
        let operations = self.heavy.run(&tenant.id, bytes, read).await?;
        let answer_bytes = gets.clamp(HEAVY_BYTES, MemoryLimits::BATCH_READ_BYTES);
        permit.reserve_response(answer_bytes as u64).await?;
        caller.key.check()?;
        let done = self.memories.documents.batch(&tenant, operations).await;
        rpc_result(done, document::batch_done)
    }
}
