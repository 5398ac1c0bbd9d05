//! DocumentService on the wire: parses requests and builds replies.

use std::time::Duration;

use memoird_core::hex;
use memoird_core::idempotency::fingerprint;
use memoird_core::time::Timestamp;
use memoird_memories::rules::MemoryLimits;
use memoird_memories::rules::documents::{
    Document, DocumentDelete, DocumentFilter, DocumentGet, DocumentName, DocumentOperation,
    DocumentOutcome, DocumentPage, DocumentPut, DocumentQuery, DocumentRange, DocumentValue,
    NamespacePage, NamespacePath, NamespaceQuery,
};
use memoird_proto::v1;
use memoird_proto::v1::document_operation::Operation;
use memoird_proto::v1::put_document_request::Value;
use memoird_store::encoding::timestamp_to_proto;

use super::refusal::{FieldPath, Refusal};
use super::{from, status};

pub(crate) fn get(request: v1::GetDocumentRequest) -> Result<DocumentGet, Refusal> {
    Ok(DocumentGet {
        name: DocumentName::parse(&request.namespace, request.key)?,
        ttl: ttl(request.ttl)?,
    })
}

/// Size of a value in bytes, an estimate of its parsing time.
pub(crate) fn put_bytes(request: &v1::PutDocumentRequest) -> usize {
    match &request.value {
        Some(Value::Json(text)) => text.len(),
        // Bytes are not parsed. With an idempotency key, their digest is computed.
        Some(Value::Bytes(bytes)) if !request.idempotency_key.is_empty() => bytes.len(),
        Some(Value::Bytes(_)) | None => 0,
    }
}

pub(crate) fn put(
    request: v1::PutDocumentRequest,
    limits: &MemoryLimits,
) -> Result<DocumentPut, Refusal> {
    let name = DocumentName::parse(&request.namespace, request.key)?;
    let value = match request.value {
        Some(Value::Json(text)) => DocumentValue::Json(text),
        Some(Value::Bytes(bytes)) => DocumentValue::Bytes(bytes.into()),
        None => {
            return Err(invalid("value", "is missing; send json or bytes"));
        }
    };
    let (value, ttl) = (value.checked(limits)?, ttl(request.ttl)?);
    let content = || {
        let form = match value {
            DocumentValue::Json(_) => "json",
            DocumentValue::Bytes(_) => "bytes",
        };
        let ttl_ms = ttl.map_or(0, |ttl| ttl.as_millis()).to_le_bytes();
        fingerprint([form.as_bytes(), value.as_bytes(), &ttl_ms])
    };
    Ok(DocumentPut {
        idempotency: from::idempotency(&request.idempotency_key, content)?,
        name,
        value,
        expected_version: request.expected_version,
        ttl,
    })
}

pub(crate) fn delete(request: v1::DeleteDocumentRequest) -> Result<DocumentDelete, Refusal> {
    Ok(DocumentDelete {
        name: DocumentName::parse(&request.namespace, request.key)?,
        expected_version: request.expected_version,
    })
}

/// Parses the documents to delete. Rejects an empty namespace, which would select all.
pub(crate) fn range_to_delete(
    request: v1::DeleteDocumentsRequest,
) -> Result<DocumentRange, Refusal> {
    if request.namespace_prefix.is_empty() {
        let problem = "is empty and would select all documents; send at least one part";
        return Err(invalid("namespace_prefix", problem));
    }
    let range = DocumentRange {
        namespace: NamespacePath::parse("namespace_prefix", &request.namespace_prefix)?,
        is_exact: request.exact_namespace,
        key_prefix: request.key_prefix,
        key_from: request.key_from,
        key_before: request.key_before,
    };
    Ok(range.checked()?)
}

pub(crate) fn query(request: v1::ListDocumentsRequest) -> Result<DocumentQuery, Refusal> {
    let after = from::read_page_token(&request.page_token, |token| {
        let token = String::from_utf8(hex::decode(token)?).ok()?;
        let (path, key) = token.rsplit_once('\0')?;
        let parts: Vec<String> = path.split('\0').map(str::to_owned).collect();
        DocumentName::parse(&parts, key.to_owned()).ok()
    })?;
    let filter = match &*request.filter_json {
        "" => None,
        json => {
            let filter = DocumentFilter::parse(json);
            Some(filter.map_err(|problem| invalid("filter_json", problem))?)
        }
    };
    Ok(DocumentQuery {
        range: DocumentRange {
            namespace: NamespacePath::parse("namespace_prefix", &request.namespace_prefix)?,
            is_exact: request.exact_namespace,
            key_prefix: request.key_prefix,
            key_from: request.key_from,
            key_before: request.key_before,
        }
        .checked()?,
        filter,
        is_descending: request.descending,
        with_values: request.include_values.unwrap_or(true),
        count: from::page_size(request.page_size),
        after,
    })
}

pub(crate) fn namespace_query(
    request: v1::ListNamespacesRequest,
) -> Result<NamespaceQuery, Refusal> {
    let query = NamespaceQuery {
        prefix: request.prefix,
        suffix: request.suffix,
        depth: request.max_depth as usize,
        count: from::page_size(request.page_size),
        from: from::read_page_token(&request.page_token, hex::decode)?.unwrap_or_default(),
    };
    Ok(query.checked()?)
}

/// Size of a batch's JSON in bytes, an estimate of its parsing time.
pub(crate) fn batch_bytes(request: &v1::BatchDocumentsRequest) -> usize {
    let operations = request.operations.iter();
    operations
        .map(|it| match &it.operation {
            Some(Operation::Put(put)) => put_bytes(put),
            _ => 0,
        })
        .sum()
}

/// Number of documents that a batch reads.
pub(crate) fn gets(request: &v1::BatchDocumentsRequest) -> usize {
    let operations = request.operations.iter();
    operations
        .filter(|it| matches!(it.operation, Some(Operation::Get(_))))
        .count()
}

/// Parses the operations of a batch. An error names the index.
pub(crate) fn operations(
    request: v1::BatchDocumentsRequest,
    limits: &MemoryLimits,
) -> Result<Vec<DocumentOperation>, Refusal> {
    let (count, limit) = (request.operations.len(), MemoryLimits::BATCH);
    if !(1..=limit).contains(&count) {
        let problem = format!("{count} sent, expected 1 to {limit}");
        return Err(invalid("operations", problem));
    }
    let read = |operation: Option<Operation>| match operation {
        Some(Operation::Get(request)) => get(request)
            .map(DocumentOperation::Get)
            .map_err(|refusal| refusal.under("get")),
        Some(Operation::Put(request)) => put(request, limits)
            .map(DocumentOperation::Put)
            .map_err(|refusal| refusal.under("put")),
        Some(Operation::Delete(request)) => delete(request)
            .map(DocumentOperation::Delete)
            .map_err(|refusal| refusal.under("delete")),
        None => {
            let problem = "is missing; send get, put or delete";
            Err(invalid("operation", problem))
        }
    };
    let operations = request.operations.into_iter().enumerate();
    operations
        .map(|(index, it)| {
            let path = || FieldPath::from("operations").at(index);
            read(it.operation).map_err(|refusal| refusal.under(path()))
        })
        .collect()
}

pub(crate) fn page(page: DocumentPage) -> v1::ListDocumentsResponse {
    let next = page.next.map(|last| {
        let token = [last.namespace.as_bytes(), last.key.as_bytes()].concat();
        hex::encode(&token)
    });
    v1::ListDocumentsResponse {
        documents: page.documents.into_iter().map(document).collect(),
        next_page_token: next.unwrap_or_default(),
    }
}

pub(crate) fn namespaces(page: &NamespacePage) -> v1::ListNamespacesResponse {
    let namespace = |path: &NamespacePath| v1::Namespace { parts: parts(path) };
    v1::ListNamespacesResponse {
        namespaces: page.namespaces.iter().map(namespace).collect(),
        next_page_token: page.next.as_deref().map(hex::encode).unwrap_or_default(),
    }
}

pub(crate) fn batch_done(outcomes: Vec<DocumentOutcome>) -> v1::BatchDocumentsResponse {
    let result = |outcome| match outcome {
        DocumentOutcome::Document(found) => v1::DocumentResult {
            document: Some(document(found)),
            ..v1::DocumentResult::default()
        },
        DocumentOutcome::Absent => v1::DocumentResult::default(),
        DocumentOutcome::Stored(stored) => v1::DocumentResult {
            document: Some(document(stored.document)),
            duplicate: stored.duplicate,
            ..v1::DocumentResult::default()
        },
        DocumentOutcome::Deleted(deleted) => v1::DocumentResult {
            deleted,
            ..v1::DocumentResult::default()
        },
    };
    v1::BatchDocumentsResponse {
        results: outcomes.into_iter().map(result).collect(),
    }
}

pub(crate) fn document(document: Document) -> v1::Document {
    use v1::document::Value;
    let time = |time: Timestamp| Some(timestamp_to_proto(time));
    v1::Document {
        namespace: parts(&document.name.namespace),
        key: document.name.key,
        value: document.value.map(|value| match value {
            DocumentValue::Json(text) => Value::Json(text),
            DocumentValue::Bytes(bytes) => Value::Bytes(bytes.into()),
        }),
        version: document.version,
        created_at: time(document.created_at),
        updated_at: time(document.updated_at),
        expires_at: document.expires_at.and_then(time),
        size: document.size,
    }
}

fn parts(path: &NamespacePath) -> Vec<String> {
    path.parts().map(str::to_owned).collect()
}

fn ttl(span: Option<prost_types::Duration>) -> Result<Option<Duration>, Refusal> {
    let Some(span) = span else { return Ok(None) };
    let ttl = Duration::try_from(span)
        .ok()
        .filter(|ttl| (Duration::from_millis(1)..=MemoryLimits::DOCUMENT_TTL).contains(ttl));
    ttl.map(Some).ok_or_else(|| {
        let problem = "must be one millisecond to ten years; omit it for no expiry";
        invalid("ttl", problem)
    })
}

fn invalid(field: &'static str, problem: impl Into<String>) -> Refusal {
    status::invalid("DOCUMENT_INVALID", field, problem).with_path()
}
