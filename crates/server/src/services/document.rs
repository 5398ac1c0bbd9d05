//! DocumentService: named documents of a bot.

use memoird_memories::rules::MemoryLimits;
use memoird_proto::v1::{
    BatchDocumentsRequest, BatchDocumentsResponse, DeleteDocumentRequest, DeleteDocumentResponse,
    DeleteDocumentsRequest, DeleteDocumentsResponse, GetDocumentRequest, GetDocumentResponse,
    ListDocumentsRequest, ListDocumentsResponse, ListNamespacesRequest, ListNamespacesResponse,
    PutDocumentRequest, PutDocumentResponse,
};

use super::{ApiCall, Reply};
use crate::heavy::HEAVY_BYTES;
use crate::wire::{PAGE_BYTES_MAX, document};

pub(crate) async fn get_document(call: ApiCall<GetDocumentRequest>) -> Reply<GetDocumentResponse> {
    call.reserve(HEAVY_BYTES as u64).await?;
    let get = document::get(call.message)?;
    let found = call
        .api
        .memories
        .documents
        .get(&call.caller.tenant, get)
        .await?;
    call.permit.reserve_response(found.size).await?;
    let document = Some(document::document(found));
    Ok(GetDocumentResponse { document })
}

pub(crate) async fn put_document(call: ApiCall<PutDocumentRequest>) -> Reply<PutDocumentResponse> {
    let (caller, request) = (call.caller, call.message);
    let (tenant, limits) = (caller.tenant, call.api.memories.limits());
    let bytes = document::put_bytes(&request);
    let read = move || document::put(request, &limits);
    let put = call.api.heavy.run(&tenant.id, bytes, read).await?;
    caller.key.check()?;
    let stored = call.api.memories.documents.put(&tenant, put).await?;
    Ok(PutDocumentResponse {
        document: Some(document::document(stored.document)),
        duplicate: stored.duplicate,
    })
}

pub(crate) async fn delete_document(
    call: ApiCall<DeleteDocumentRequest>,
) -> Reply<DeleteDocumentResponse> {
    let (api, tenant, request) = call.into_parts();
    let delete = document::delete(request)?;
    let deleted = api.memories.documents.delete(&tenant, delete).await?;
    Ok(DeleteDocumentResponse { deleted })
}

pub(crate) async fn delete_documents(
    call: ApiCall<DeleteDocumentsRequest>,
) -> Reply<DeleteDocumentsResponse> {
    let (api, tenant, request) = call.into_parts();
    let erase = request.erase;
    let range = document::range_to_delete(request)?;
    let documents = &api.memories.documents;
    let (deleted, erased) = documents.delete_matching(&tenant, range, erase).await?;
    Ok(DeleteDocumentsResponse { deleted, erased })
}

pub(crate) async fn list_documents(
    call: ApiCall<ListDocumentsRequest>,
) -> Reply<ListDocumentsResponse> {
    // The last document on a page may have the maximum size.
    let document_bytes = call.api.memories.limits().document_bytes as u64;
    call.reserve(PAGE_BYTES_MAX as u64 + document_bytes).await?;
    let (api, tenant, request) = call.into_parts();
    let query = document::query(request)?;
    let page = api.memories.documents.list(&tenant, query).await?;
    Ok(document::page(page))
}

pub(crate) async fn list_namespaces(
    call: ApiCall<ListNamespacesRequest>,
) -> Reply<ListNamespacesResponse> {
    let (api, tenant, request) = call.into_parts_for_page().await?;
    let query = document::namespace_query(request)?;
    let page = api.memories.documents.namespaces(&tenant, query).await?;
    Ok(document::namespaces(&page))
}

pub(crate) async fn batch_documents(
    call: ApiCall<BatchDocumentsRequest>,
) -> Reply<BatchDocumentsResponse> {
    let (caller, permit, request) = (call.caller, call.permit, call.message);
    let (tenant, limits) = (caller.tenant, call.api.memories.limits());
    let bytes = document::batch_bytes(&request);
    let gets = document::gets(&request).saturating_mul(limits.document_bytes);
    let read = move || document::operations(request, &limits);
    let operations = call.api.heavy.run(&tenant.id, bytes, read).await?;
    let answer_bytes = gets.clamp(HEAVY_BYTES, MemoryLimits::BATCH_READ_BYTES);
    permit.reserve_response(answer_bytes as u64).await?;
    caller.key.check()?;
    let done = call
        .api
        .memories
        .documents
        .batch(&tenant, operations)
        .await?;
    Ok(document::batch_done(done))
}
