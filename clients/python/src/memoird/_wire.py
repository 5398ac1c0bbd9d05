"""Converts dataclasses to protobuf messages and back.

Generated from the contract by generate.py."""
# ruff: noqa
# mypy: ignore-errors

import json
from datetime import datetime, timedelta, timezone

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from . import types as t
from .v1 import common_pb2
from .v1 import document_pb2
from .v1 import memory_pb2
from .v1 import session_pb2


def read_time(m):
    """Truncates to microseconds."""
    return datetime.fromtimestamp(m.seconds, timezone.utc).replace(microsecond=m.nanos // 1000)


def write_time(it):
    """Treats a time without a zone as local, as Python does."""
    whole = it.astimezone(timezone.utc)
    seconds = int((whole.replace(microsecond=0) - _EPOCH).total_seconds())
    return Timestamp(seconds=seconds, nanos=whole.microsecond * 1000)


_EPOCH = datetime.fromtimestamp(0, timezone.utc)
_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# Bypasses `__init__`, because every field is set afterwards.
new = object.__new__


def read_span(m):
    return timedelta(seconds=m.seconds, microseconds=m.nanos // 1000)


def write_span(it):
    seconds, rest = divmod(it, timedelta(seconds=1))
    return Duration(seconds=seconds, nanos=rest.microseconds * 1000)


def write_json(it):
    return it if isinstance(it, str) else _encoded(it)


def write_list(it):
    """Rejects sequences that are probably a mistake."""
    if isinstance(it, (str, bytes, dict)):
        raise TypeError("a list is wanted")
    return it


def write_number(it):
    """Rejects strings: one with a lone surrogate would crash the process in protobuf 4."""
    if isinstance(it, str):
        raise TypeError("a member is wanted")
    return it


def only_one(*values):
    """Raises if several members of a oneof are set. Protobuf would use the last one."""
    if len(values) - values.count(None) > 1:
        raise ValueError("only one of these is wanted")


def read_turn(m):
    it = new(t.Turn)
    it.role = t.Role(m.role)
    it.parts = [read_part(x) for x in m.parts]
    it.timestamp = read_time(m.timestamp) if m.HasField('timestamp') else None
    it.seq = m.seq
    it.salience = m.salience if m.HasField('salience') else None
    it.pinned = m.pinned
    it.metadata = dict(m.metadata)
    it.extra_json = m.extra_json
    it.format = t.MessageFormat(m.format)
    it.removed = m.removed
    it.client_id = m.client_id
    it.client_json = m.client_json
    return it


def write_turn(it):
    return common_pb2.Turn(
        role=write_number(it.role),
        parts=[write_part(x) for x in it.parts],
        timestamp=None if it.timestamp is None else write_time(it.timestamp),
        seq=it.seq,
        salience=it.salience,
        pinned=it.pinned,
        metadata=dict(it.metadata),
        extra_json=write_json(it.extra_json),
        format=write_number(it.format),
        removed=it.removed,
        client_id=it.client_id,
        client_json=write_json(it.client_json),
    )


def read_part(m):
    it = new(t.Part)
    it.text = m.text if m.HasField('text') else None
    it.tool_use = read_tool_use(m.tool_use) if m.HasField('tool_use') else None
    it.tool_result = read_tool_result(m.tool_result) if m.HasField('tool_result') else None
    it.media = read_media(m.media) if m.HasField('media') else None
    it.thinking = read_thinking(m.thinking) if m.HasField('thinking') else None
    it.extra_json = m.extra_json
    return it


def write_part(it):
    only_one(it.text, it.tool_use, it.tool_result, it.media, it.thinking)
    return common_pb2.Part(
        text=it.text,
        tool_use=None if it.tool_use is None else write_tool_use(it.tool_use),
        tool_result=None if it.tool_result is None else write_tool_result(it.tool_result),
        media=None if it.media is None else write_media(it.media),
        thinking=None if it.thinking is None else write_thinking(it.thinking),
        extra_json=write_json(it.extra_json),
    )


def read_tool_use(m):
    it = new(t.ToolUse)
    it.id = m.id
    it.name = m.name
    it.input_json = m.input_json
    return it


def write_tool_use(it):
    return common_pb2.ToolUse(
        id=it.id,
        name=it.name,
        input_json=write_json(it.input_json),
    )


def read_tool_result(m):
    it = new(t.ToolResult)
    it.tool_use_id = m.tool_use_id
    it.content = m.content
    it.parts = [read_part(x) for x in m.parts]
    it.is_error = m.is_error
    return it


def write_tool_result(it):
    return common_pb2.ToolResult(
        tool_use_id=it.tool_use_id,
        content=it.content,
        parts=[write_part(x) for x in it.parts],
        is_error=it.is_error,
    )


def read_media(m):
    it = new(t.Media)
    it.media_type = m.media_type
    it.data = m.data if m.HasField('data') else None
    it.uri = m.uri if m.HasField('uri') else None
    it.name = m.name
    return it


def write_media(it):
    only_one(it.data, it.uri)
    return common_pb2.Media(
        media_type=it.media_type,
        data=it.data,
        uri=it.uri,
        name=it.name,
    )


def read_thinking(m):
    it = new(t.Thinking)
    it.text = m.text
    it.signature = m.signature
    it.redacted = m.redacted
    return it


def write_thinking(it):
    return common_pb2.Thinking(
        text=it.text,
        signature=it.signature,
        redacted=it.redacted,
    )


def read_model_usage(m):
    it = new(t.ModelUsage)
    it.model = m.model
    it.input_tokens = m.input_tokens
    it.output_tokens = m.output_tokens
    it.cache_read_tokens = m.cache_read_tokens
    it.cache_creation_tokens = m.cache_creation_tokens
    return it


def write_model_usage(it):
    return common_pb2.ModelUsage(
        model=it.model,
        input_tokens=it.input_tokens,
        output_tokens=it.output_tokens,
        cache_read_tokens=it.cache_read_tokens,
        cache_creation_tokens=it.cache_creation_tokens,
    )


def read_budget(m):
    it = new(t.Budget)
    it.context_window = m.context_window if m.HasField('context_window') else None
    it.max_reply_tokens = m.max_reply_tokens if m.HasField('max_reply_tokens') else None
    it.safety_headroom = m.safety_headroom if m.HasField('safety_headroom') else None
    it.tool_result_headroom = m.tool_result_headroom if m.HasField('tool_result_headroom') else None
    return it


def write_budget(it):
    return common_pb2.Budget(
        context_window=it.context_window,
        max_reply_tokens=it.max_reply_tokens,
        safety_headroom=it.safety_headroom,
        tool_result_headroom=it.tool_result_headroom,
    )


def read_window_policy(m):
    it = new(t.WindowPolicy)
    it.sliding_window = read_sliding_window(m.sliding_window) if m.HasField('sliding_window') else None
    it.head_tail = read_head_tail(m.head_tail) if m.HasField('head_tail') else None
    it.token_budget = read_token_budget(m.token_budget) if m.HasField('token_budget') else None
    it.salience = read_salience(m.salience) if m.HasField('salience') else None
    return it


def write_window_policy(it):
    only_one(it.sliding_window, it.head_tail, it.token_budget, it.salience)
    return common_pb2.WindowPolicy(
        sliding_window=None if it.sliding_window is None else write_sliding_window(it.sliding_window),
        head_tail=None if it.head_tail is None else write_head_tail(it.head_tail),
        token_budget=None if it.token_budget is None else write_token_budget(it.token_budget),
        salience=None if it.salience is None else write_salience(it.salience),
    )


def read_sliding_window(m):
    it = new(t.SlidingWindow)
    it.turns = m.turns
    return it


def write_sliding_window(it):
    return common_pb2.SlidingWindow(
        turns=it.turns,
    )


def read_head_tail(m):
    it = new(t.HeadTail)
    it.turns = m.turns
    return it


def write_head_tail(it):
    return common_pb2.HeadTail(
        turns=it.turns,
    )


def read_token_budget(m):
    it = new(t.TokenBudget)
    return it


def write_token_budget(it):
    return common_pb2.TokenBudget(
    )


def read_salience(m):
    it = new(t.Salience)
    return it


def write_salience(it):
    return common_pb2.Salience(
    )


def read_document(m):
    it = new(t.Document)
    it.namespace = list(m.namespace)
    it.key = m.key
    it.json = m.json if m.HasField('json') else None
    it.bytes = m.bytes if m.HasField('bytes') else None
    it.version = m.version
    it.created_at = read_time(m.created_at) if m.HasField('created_at') else None
    it.updated_at = read_time(m.updated_at) if m.HasField('updated_at') else None
    it.expires_at = read_time(m.expires_at) if m.HasField('expires_at') else None
    it.size = m.size
    return it


def write_document(it):
    only_one(it.json, it.bytes)
    return document_pb2.Document(
        namespace=write_list(it.namespace),
        key=it.key,
        json=None if it.json is None else write_json(it.json),
        bytes=it.bytes,
        version=it.version,
        created_at=None if it.created_at is None else write_time(it.created_at),
        updated_at=None if it.updated_at is None else write_time(it.updated_at),
        expires_at=None if it.expires_at is None else write_time(it.expires_at),
        size=it.size,
    )


def read_get_document_request(m):
    it = new(t.GetDocumentRequest)
    it.namespace = list(m.namespace)
    it.key = m.key
    it.ttl = read_span(m.ttl) if m.HasField('ttl') else None
    return it


def write_get_document_request(it):
    return document_pb2.GetDocumentRequest(
        namespace=write_list(it.namespace),
        key=it.key,
        ttl=None if it.ttl is None else write_span(it.ttl),
    )


def read_get_document_response(m):
    it = new(t.GetDocumentResponse)
    it.document = read_document(m.document) if m.HasField('document') else None
    return it


def write_get_document_response(it):
    return document_pb2.GetDocumentResponse(
        document=None if it.document is None else write_document(it.document),
    )


def read_put_document_request(m):
    it = new(t.PutDocumentRequest)
    it.namespace = list(m.namespace)
    it.key = m.key
    it.json = m.json if m.HasField('json') else None
    it.bytes = m.bytes if m.HasField('bytes') else None
    it.expected_version = m.expected_version if m.HasField('expected_version') else None
    it.ttl = read_span(m.ttl) if m.HasField('ttl') else None
    it.idempotency_key = m.idempotency_key
    return it


def write_put_document_request(it):
    only_one(it.json, it.bytes)
    return document_pb2.PutDocumentRequest(
        namespace=write_list(it.namespace),
        key=it.key,
        json=None if it.json is None else write_json(it.json),
        bytes=it.bytes,
        expected_version=it.expected_version,
        ttl=None if it.ttl is None else write_span(it.ttl),
        idempotency_key=it.idempotency_key,
    )


def read_put_document_response(m):
    it = new(t.PutDocumentResponse)
    it.document = read_document(m.document) if m.HasField('document') else None
    it.duplicate = m.duplicate
    return it


def write_put_document_response(it):
    return document_pb2.PutDocumentResponse(
        document=None if it.document is None else write_document(it.document),
        duplicate=it.duplicate,
    )


def read_delete_document_request(m):
    it = new(t.DeleteDocumentRequest)
    it.namespace = list(m.namespace)
    it.key = m.key
    it.expected_version = m.expected_version if m.HasField('expected_version') else None
    return it


def write_delete_document_request(it):
    return document_pb2.DeleteDocumentRequest(
        namespace=write_list(it.namespace),
        key=it.key,
        expected_version=it.expected_version,
    )


def read_delete_document_response(m):
    it = new(t.DeleteDocumentResponse)
    it.deleted = m.deleted
    return it


def write_delete_document_response(it):
    return document_pb2.DeleteDocumentResponse(
        deleted=it.deleted,
    )


def read_delete_documents_request(m):
    it = new(t.DeleteDocumentsRequest)
    it.namespace_prefix = list(m.namespace_prefix)
    it.exact_namespace = m.exact_namespace
    it.key_prefix = m.key_prefix
    it.key_from = m.key_from
    it.key_before = m.key_before
    it.erase = m.erase
    return it


def write_delete_documents_request(it):
    return document_pb2.DeleteDocumentsRequest(
        namespace_prefix=write_list(it.namespace_prefix),
        exact_namespace=it.exact_namespace,
        key_prefix=it.key_prefix,
        key_from=it.key_from,
        key_before=it.key_before,
        erase=it.erase,
    )


def read_delete_documents_response(m):
    it = new(t.DeleteDocumentsResponse)
    it.deleted = m.deleted
    it.erased = m.erased
    return it


def write_delete_documents_response(it):
    return document_pb2.DeleteDocumentsResponse(
        deleted=it.deleted,
        erased=it.erased,
    )


def read_list_documents_request(m):
    it = new(t.ListDocumentsRequest)
    it.namespace_prefix = list(m.namespace_prefix)
    it.exact_namespace = m.exact_namespace
    it.key_prefix = m.key_prefix
    it.key_from = m.key_from
    it.key_before = m.key_before
    it.filter_json = m.filter_json
    it.descending = m.descending
    it.include_values = m.include_values if m.HasField('include_values') else None
    it.page_size = m.page_size
    it.page_token = m.page_token
    return it


def write_list_documents_request(it):
    return document_pb2.ListDocumentsRequest(
        namespace_prefix=write_list(it.namespace_prefix),
        exact_namespace=it.exact_namespace,
        key_prefix=it.key_prefix,
        key_from=it.key_from,
        key_before=it.key_before,
        filter_json=write_json(it.filter_json),
        descending=it.descending,
        include_values=it.include_values,
        page_size=it.page_size,
        page_token=it.page_token,
    )


def read_list_documents_response(m):
    it = new(t.ListDocumentsResponse)
    it.documents = [read_document(x) for x in m.documents]
    it.next_page_token = m.next_page_token
    return it


def write_list_documents_response(it):
    return document_pb2.ListDocumentsResponse(
        documents=[write_document(x) for x in it.documents],
        next_page_token=it.next_page_token,
    )


def read_list_namespaces_request(m):
    it = new(t.ListNamespacesRequest)
    it.prefix = list(m.prefix)
    it.suffix = list(m.suffix)
    it.max_depth = m.max_depth
    it.page_size = m.page_size
    it.page_token = m.page_token
    return it


def write_list_namespaces_request(it):
    return document_pb2.ListNamespacesRequest(
        prefix=write_list(it.prefix),
        suffix=write_list(it.suffix),
        max_depth=it.max_depth,
        page_size=it.page_size,
        page_token=it.page_token,
    )


def read_list_namespaces_response(m):
    it = new(t.ListNamespacesResponse)
    it.namespaces = [read_namespace(x) for x in m.namespaces]
    it.next_page_token = m.next_page_token
    return it


def write_list_namespaces_response(it):
    return document_pb2.ListNamespacesResponse(
        namespaces=[write_namespace(x) for x in it.namespaces],
        next_page_token=it.next_page_token,
    )


def read_namespace(m):
    it = new(t.Namespace)
    it.parts = list(m.parts)
    return it


def write_namespace(it):
    return document_pb2.Namespace(
        parts=write_list(it.parts),
    )


def read_batch_documents_request(m):
    it = new(t.BatchDocumentsRequest)
    it.operations = [read_document_operation(x) for x in m.operations]
    return it


def write_batch_documents_request(it):
    return document_pb2.BatchDocumentsRequest(
        operations=[write_document_operation(x) for x in it.operations],
    )


def read_document_operation(m):
    it = new(t.DocumentOperation)
    it.get = read_get_document_request(m.get) if m.HasField('get') else None
    it.put = read_put_document_request(m.put) if m.HasField('put') else None
    it.delete = read_delete_document_request(m.delete) if m.HasField('delete') else None
    return it


def write_document_operation(it):
    only_one(it.get, it.put, it.delete)
    return document_pb2.DocumentOperation(
        get=None if it.get is None else write_get_document_request(it.get),
        put=None if it.put is None else write_put_document_request(it.put),
        delete=None if it.delete is None else write_delete_document_request(it.delete),
    )


def read_batch_documents_response(m):
    it = new(t.BatchDocumentsResponse)
    it.results = [read_document_result(x) for x in m.results]
    return it


def write_batch_documents_response(it):
    return document_pb2.BatchDocumentsResponse(
        results=[write_document_result(x) for x in it.results],
    )


def read_document_result(m):
    it = new(t.DocumentResult)
    it.document = read_document(m.document) if m.HasField('document') else None
    it.deleted = m.deleted
    it.duplicate = m.duplicate
    return it


def write_document_result(it):
    return document_pb2.DocumentResult(
        document=None if it.document is None else write_document(it.document),
        deleted=it.deleted,
        duplicate=it.duplicate,
    )


def read_memory_source(m):
    it = new(t.MemorySource)
    it.session_id = m.session_id
    it.generation = m.generation
    it.seqs = list(m.seqs)
    return it


def write_memory_source(it):
    return memory_pb2.MemorySource(
        session_id=it.session_id,
        generation=it.generation,
        seqs=write_list(it.seqs),
    )


def read_memory(m):
    it = new(t.Memory)
    it.id = m.id
    it.subject = m.subject
    it.kind = t.MemoryKind(m.kind)
    it.visibility = t.Visibility(m.visibility)
    it.polarity = t.Polarity(m.polarity)
    it.content = m.content
    it.tags = list(m.tags)
    it.importance = m.importance
    it.source = read_memory_source(m.source) if m.HasField('source') else None
    it.observed_at = read_time(m.observed_at) if m.HasField('observed_at') else None
    it.created_at = read_time(m.created_at) if m.HasField('created_at') else None
    it.updated_at = read_time(m.updated_at) if m.HasField('updated_at') else None
    it.expires_at = read_time(m.expires_at) if m.HasField('expires_at') else None
    it.superseded_by = m.superseded_by
    it.reinforced = m.reinforced
    it.recall_count = m.recall_count
    it.last_recalled_at = read_time(m.last_recalled_at) if m.HasField('last_recalled_at') else None
    it.pinned = m.pinned
    it.pinned_by_dream = m.pinned_by_dream
    it.origin = t.MemoryOrigin(m.origin)
    it.external_key = m.external_key
    it.metadata_json = m.metadata_json
    return it


def write_memory(it):
    return memory_pb2.Memory(
        id=it.id,
        subject=it.subject,
        kind=write_number(it.kind),
        visibility=write_number(it.visibility),
        polarity=write_number(it.polarity),
        content=it.content,
        tags=write_list(it.tags),
        importance=it.importance,
        source=None if it.source is None else write_memory_source(it.source),
        observed_at=None if it.observed_at is None else write_time(it.observed_at),
        created_at=None if it.created_at is None else write_time(it.created_at),
        updated_at=None if it.updated_at is None else write_time(it.updated_at),
        expires_at=None if it.expires_at is None else write_time(it.expires_at),
        superseded_by=it.superseded_by,
        reinforced=it.reinforced,
        recall_count=it.recall_count,
        last_recalled_at=None if it.last_recalled_at is None else write_time(it.last_recalled_at),
        pinned=it.pinned,
        pinned_by_dream=it.pinned_by_dream,
        origin=write_number(it.origin),
        external_key=it.external_key,
        metadata_json=write_json(it.metadata_json),
    )


def read_remember_request(m):
    it = new(t.RememberRequest)
    it.subject = m.subject
    it.kind = t.MemoryKind(m.kind)
    it.content = m.content
    it.tags = list(m.tags)
    it.importance = m.importance if m.HasField('importance') else None
    it.source = read_memory_source(m.source) if m.HasField('source') else None
    it.observed_at = read_time(m.observed_at) if m.HasField('observed_at') else None
    it.expires_at = read_time(m.expires_at) if m.HasField('expires_at') else None
    it.supersedes_id = m.supersedes_id
    it.pinned = m.pinned
    it.polarity = t.Polarity(m.polarity)
    it.idempotency_key = m.idempotency_key
    it.visibility = t.Visibility(m.visibility)
    it.near_duplicate = t.NearDuplicate(m.near_duplicate)
    it.external_key = m.external_key
    it.metadata_json = m.metadata_json
    it.vector = list(m.vector)
    it.keep_apart = m.keep_apart
    return it


def write_remember_request(it):
    return memory_pb2.RememberRequest(
        subject=it.subject,
        kind=write_number(it.kind),
        content=it.content,
        tags=write_list(it.tags),
        importance=it.importance,
        source=None if it.source is None else write_memory_source(it.source),
        observed_at=None if it.observed_at is None else write_time(it.observed_at),
        expires_at=None if it.expires_at is None else write_time(it.expires_at),
        supersedes_id=it.supersedes_id,
        pinned=it.pinned,
        polarity=write_number(it.polarity),
        idempotency_key=it.idempotency_key,
        visibility=write_number(it.visibility),
        near_duplicate=write_number(it.near_duplicate),
        external_key=it.external_key,
        metadata_json=write_json(it.metadata_json),
        vector=write_list(it.vector),
        keep_apart=it.keep_apart,
    )


def read_remember_response(m):
    it = new(t.RememberResponse)
    it.memory = read_memory(m.memory) if m.HasField('memory') else None
    it.outcome = t.RememberOutcome(m.outcome)
    it.redacted = m.redacted
    return it


def write_remember_response(it):
    return memory_pb2.RememberResponse(
        memory=None if it.memory is None else write_memory(it.memory),
        outcome=write_number(it.outcome),
        redacted=it.redacted,
    )


def read_recall_request(m):
    it = new(t.RecallRequest)
    it.query = m.query
    it.subjects = list(m.subjects)
    it.kinds = [t.MemoryKind(x) for x in m.kinds]
    it.tags = list(m.tags)
    it.after = read_time(m.after) if m.HasField('after') else None
    it.before = read_time(m.before) if m.HasField('before') else None
    it.limit = m.limit
    it.mode = t.RecallMode(m.mode)
    it.session_id = m.session_id
    it.explain = m.explain
    it.rerank = m.rerank if m.HasField('rerank') else None
    it.metadata_filter_json = m.metadata_filter_json
    it.subject_prefix = m.subject_prefix
    it.vector = list(m.vector)
    it.min_relevance = m.min_relevance if m.HasField('min_relevance') else None
    return it


def write_recall_request(it):
    return memory_pb2.RecallRequest(
        query=it.query,
        subjects=write_list(it.subjects),
        kinds=[write_number(x) for x in write_list(it.kinds)],
        tags=write_list(it.tags),
        after=None if it.after is None else write_time(it.after),
        before=None if it.before is None else write_time(it.before),
        limit=it.limit,
        mode=write_number(it.mode),
        session_id=it.session_id,
        explain=it.explain,
        rerank=it.rerank,
        metadata_filter_json=write_json(it.metadata_filter_json),
        subject_prefix=it.subject_prefix,
        vector=write_list(it.vector),
        min_relevance=it.min_relevance,
    )


def read_score_parts(m):
    it = new(t.ScoreParts)
    it.words = m.words
    it.cosine = m.cosine if m.HasField('cosine') else None
    it.words_share = m.words_share
    it.meaning_share = m.meaning_share if m.HasField('meaning_share') else None
    it.form = m.form
    it.fused = m.fused
    it.beside = m.beside
    it.importance = m.importance
    it.recency = m.recency
    it.reranker = m.reranker if m.HasField('reranker') else None
    return it


def write_score_parts(it):
    return memory_pb2.ScoreParts(
        words=it.words,
        cosine=it.cosine,
        words_share=it.words_share,
        meaning_share=it.meaning_share,
        form=it.form,
        fused=it.fused,
        beside=it.beside,
        importance=it.importance,
        recency=it.recency,
        reranker=it.reranker,
    )


def read_recall_hit(m):
    it = new(t.RecallHit)
    it.memory = read_memory(m.memory) if m.HasField('memory') else None
    it.score = m.score
    it.lexical_rank = m.lexical_rank
    it.vector_rank = m.vector_rank
    it.age = read_span(m.age) if m.HasField('age') else None
    it.parts = read_score_parts(m.parts) if m.HasField('parts') else None
    it.relevance = m.relevance
    it.cosine = m.cosine if m.HasField('cosine') else None
    it.word_coverage = m.word_coverage
    return it


def write_recall_hit(it):
    return memory_pb2.RecallHit(
        memory=None if it.memory is None else write_memory(it.memory),
        score=it.score,
        lexical_rank=it.lexical_rank,
        vector_rank=it.vector_rank,
        age=None if it.age is None else write_span(it.age),
        parts=None if it.parts is None else write_score_parts(it.parts),
        relevance=it.relevance,
        cosine=it.cosine,
        word_coverage=it.word_coverage,
    )


def read_recall_response(m):
    it = new(t.RecallResponse)
    it.hits = [read_recall_hit(x) for x in m.hits]
    it.mode = t.RecallMode(m.mode)
    it.degraded = m.degraded
    it.notes = list(m.notes)
    it.reranked = m.reranked
    return it


def write_recall_response(it):
    return memory_pb2.RecallResponse(
        hits=[write_recall_hit(x) for x in it.hits],
        mode=write_number(it.mode),
        degraded=it.degraded,
        notes=write_list(it.notes),
        reranked=it.reranked,
    )


def read_get_memory_request(m):
    it = new(t.GetMemoryRequest)
    it.id = m.id
    it.subject = m.subject
    it.external_key = m.external_key
    return it


def write_get_memory_request(it):
    return memory_pb2.GetMemoryRequest(
        id=it.id,
        subject=it.subject,
        external_key=it.external_key,
    )


def read_get_memory_response(m):
    it = new(t.GetMemoryResponse)
    it.memory = read_memory(m.memory) if m.HasField('memory') else None
    return it


def write_get_memory_response(it):
    return memory_pb2.GetMemoryResponse(
        memory=None if it.memory is None else write_memory(it.memory),
    )


def read_list_memories_request(m):
    it = new(t.ListMemoriesRequest)
    it.subject = m.subject
    it.kind = t.MemoryKind(m.kind)
    it.tag = m.tag
    it.page_size = m.page_size
    it.page_token = m.page_token
    it.include_history = m.include_history
    it.metadata_filter_json = m.metadata_filter_json
    it.subject_prefix = m.subject_prefix
    return it


def write_list_memories_request(it):
    return memory_pb2.ListMemoriesRequest(
        subject=it.subject,
        kind=write_number(it.kind),
        tag=it.tag,
        page_size=it.page_size,
        page_token=it.page_token,
        include_history=it.include_history,
        metadata_filter_json=write_json(it.metadata_filter_json),
        subject_prefix=it.subject_prefix,
    )


def read_list_memories_response(m):
    it = new(t.ListMemoriesResponse)
    it.memories = [read_memory(x) for x in m.memories]
    it.next_page_token = m.next_page_token
    return it


def write_list_memories_response(it):
    return memory_pb2.ListMemoriesResponse(
        memories=[write_memory(x) for x in it.memories],
        next_page_token=it.next_page_token,
    )


def read_list_subjects_request(m):
    it = new(t.ListSubjectsRequest)
    it.prefix = m.prefix
    it.page_size = m.page_size
    it.page_token = m.page_token
    return it


def write_list_subjects_request(it):
    return memory_pb2.ListSubjectsRequest(
        prefix=it.prefix,
        page_size=it.page_size,
        page_token=it.page_token,
    )


def read_list_subjects_response(m):
    it = new(t.ListSubjectsResponse)
    it.subjects = [read_subject_memories(x) for x in m.subjects]
    it.next_page_token = m.next_page_token
    return it


def write_list_subjects_response(it):
    return memory_pb2.ListSubjectsResponse(
        subjects=[write_subject_memories(x) for x in it.subjects],
        next_page_token=it.next_page_token,
    )


def read_subject_memories(m):
    it = new(t.SubjectMemories)
    it.subject = m.subject
    it.memories = m.memories
    return it


def write_subject_memories(it):
    return memory_pb2.SubjectMemories(
        subject=it.subject,
        memories=it.memories,
    )


def read_list_conflicts_request(m):
    it = new(t.ListConflictsRequest)
    it.subject = m.subject
    it.page_size = m.page_size
    it.page_token = m.page_token
    return it


def write_list_conflicts_request(it):
    return memory_pb2.ListConflictsRequest(
        subject=it.subject,
        page_size=it.page_size,
        page_token=it.page_token,
    )


def read_memory_conflict(m):
    it = new(t.MemoryConflict)
    it.older = read_memory(m.older) if m.HasField('older') else None
    it.newer = read_memory(m.newer) if m.HasField('newer') else None
    it.likeness = m.likeness
    it.difference = t.ConflictDifference(m.difference)
    return it


def write_memory_conflict(it):
    return memory_pb2.MemoryConflict(
        older=None if it.older is None else write_memory(it.older),
        newer=None if it.newer is None else write_memory(it.newer),
        likeness=it.likeness,
        difference=write_number(it.difference),
    )


def read_list_conflicts_response(m):
    it = new(t.ListConflictsResponse)
    it.conflicts = [read_memory_conflict(x) for x in m.conflicts]
    it.next_page_token = m.next_page_token
    it.incomplete = m.incomplete
    return it


def write_list_conflicts_response(it):
    return memory_pb2.ListConflictsResponse(
        conflicts=[write_memory_conflict(x) for x in it.conflicts],
        next_page_token=it.next_page_token,
        incomplete=it.incomplete,
    )


def read_update_memory_request(m):
    it = new(t.UpdateMemoryRequest)
    it.memory = read_memory(m.memory) if m.HasField('memory') else None
    it.update_mask = list(m.update_mask.paths)
    return it


def write_update_memory_request(it):
    return memory_pb2.UpdateMemoryRequest(
        memory=None if it.memory is None else write_memory(it.memory),
        update_mask=FieldMask(paths=write_list(it.update_mask)),
    )


def read_update_memory_response(m):
    it = new(t.UpdateMemoryResponse)
    it.memory = read_memory(m.memory) if m.HasField('memory') else None
    it.redacted = m.redacted
    return it


def write_update_memory_response(it):
    return memory_pb2.UpdateMemoryResponse(
        memory=None if it.memory is None else write_memory(it.memory),
        redacted=it.redacted,
    )


def read_memory_filter(m):
    it = new(t.MemoryFilter)
    it.subject = m.subject
    it.kinds = [t.MemoryKind(x) for x in m.kinds]
    it.tags = list(m.tags)
    it.after = read_time(m.after) if m.HasField('after') else None
    it.before = read_time(m.before) if m.HasField('before') else None
    return it


def write_memory_filter(it):
    return memory_pb2.MemoryFilter(
        subject=it.subject,
        kinds=[write_number(x) for x in write_list(it.kinds)],
        tags=write_list(it.tags),
        after=None if it.after is None else write_time(it.after),
        before=None if it.before is None else write_time(it.before),
    )


def read_forget_request(m):
    it = new(t.ForgetRequest)
    it.id = m.id if m.HasField('id') else None
    it.subject = m.subject if m.HasField('subject') else None
    it.filter = read_memory_filter(m.filter) if m.HasField('filter') else None
    it.dry_run = m.dry_run
    return it


def write_forget_request(it):
    only_one(it.id, it.subject, it.filter)
    return memory_pb2.ForgetRequest(
        id=it.id,
        subject=it.subject,
        filter=None if it.filter is None else write_memory_filter(it.filter),
        dry_run=it.dry_run,
    )


def read_forget_response(m):
    it = new(t.ForgetResponse)
    it.memories = m.memories
    it.superseded = m.superseded
    it.vectors = m.vectors
    it.recall_events = m.recall_events
    it.queued_embeddings = m.queued_embeddings
    it.cursors = m.cursors
    it.erased = m.erased
    return it


def write_forget_response(it):
    return memory_pb2.ForgetResponse(
        memories=it.memories,
        superseded=it.superseded,
        vectors=it.vectors,
        recall_events=it.recall_events,
        queued_embeddings=it.queued_embeddings,
        cursors=it.cursors,
        erased=it.erased,
    )


def read_get_manifest_request(m):
    it = new(t.GetManifestRequest)
    it.subject = m.subject
    it.max_lines = m.max_lines
    it.max_bytes = m.max_bytes
    return it


def write_get_manifest_request(it):
    return memory_pb2.GetManifestRequest(
        subject=it.subject,
        max_lines=it.max_lines,
        max_bytes=it.max_bytes,
    )


def read_get_manifest_response(m):
    it = new(t.GetManifestResponse)
    it.text = m.text
    it.lines = m.lines
    it.truncated = m.truncated
    return it


def write_get_manifest_response(it):
    return memory_pb2.GetManifestResponse(
        text=it.text,
        lines=it.lines,
        truncated=it.truncated,
    )


def read_lease_extraction_request(m):
    it = new(t.LeaseExtractionRequest)
    it.session_id = m.session_id
    it.generation = m.generation
    it.subject = m.subject
    return it


def write_lease_extraction_request(it):
    return memory_pb2.LeaseExtractionRequest(
        session_id=it.session_id,
        generation=it.generation,
        subject=it.subject,
    )


def read_lease_extraction_response(m):
    it = new(t.LeaseExtractionResponse)
    it.lease = m.lease
    it.turns = [read_turn(x) for x in m.turns]
    it.manifest = m.manifest
    it.prompt = m.prompt
    it.expires_at = read_time(m.expires_at) if m.HasField('expires_at') else None
    it.generation = m.generation
    it.cursor_seq = m.cursor_seq
    return it


def write_lease_extraction_response(it):
    return memory_pb2.LeaseExtractionResponse(
        lease=it.lease,
        turns=[write_turn(x) for x in it.turns],
        manifest=it.manifest,
        prompt=it.prompt,
        expires_at=None if it.expires_at is None else write_time(it.expires_at),
        generation=it.generation,
        cursor_seq=it.cursor_seq,
    )


def read_extracted_memory(m):
    it = new(t.ExtractedMemory)
    it.kind = t.MemoryKind(m.kind)
    it.content = m.content
    it.tags = list(m.tags)
    it.importance = m.importance if m.HasField('importance') else None
    it.polarity = t.Polarity(m.polarity)
    it.observed_at = read_time(m.observed_at) if m.HasField('observed_at') else None
    it.expires_at = read_time(m.expires_at) if m.HasField('expires_at') else None
    it.supersedes_id = m.supersedes_id
    it.visibility = t.Visibility(m.visibility)
    it.seqs = list(m.seqs)
    return it


def write_extracted_memory(it):
    return memory_pb2.ExtractedMemory(
        kind=write_number(it.kind),
        content=it.content,
        tags=write_list(it.tags),
        importance=it.importance,
        polarity=write_number(it.polarity),
        observed_at=None if it.observed_at is None else write_time(it.observed_at),
        expires_at=None if it.expires_at is None else write_time(it.expires_at),
        supersedes_id=it.supersedes_id,
        visibility=write_number(it.visibility),
        seqs=write_list(it.seqs),
    )


def read_commit_extraction_request(m):
    it = new(t.CommitExtractionRequest)
    it.lease = m.lease
    it.memories = [read_extracted_memory(x) for x in m.memories]
    return it


def write_commit_extraction_request(it):
    return memory_pb2.CommitExtractionRequest(
        lease=it.lease,
        memories=[write_extracted_memory(x) for x in it.memories],
    )


def read_commit_extraction_response(m):
    it = new(t.CommitExtractionResponse)
    it.cursor_seq = m.cursor_seq
    it.results = [read_remember_response(x) for x in m.results]
    return it


def write_commit_extraction_response(it):
    return memory_pb2.CommitExtractionResponse(
        cursor_seq=it.cursor_seq,
        results=[write_remember_response(x) for x in it.results],
    )


def read_learn_session_request(m):
    it = new(t.LearnSessionRequest)
    it.session_id = m.session_id
    it.generation = m.generation
    it.subject = m.subject
    it.dry_run = m.dry_run
    return it


def write_learn_session_request(it):
    return memory_pb2.LearnSessionRequest(
        session_id=it.session_id,
        generation=it.generation,
        subject=it.subject,
        dry_run=it.dry_run,
    )


def read_learn_session_response(m):
    it = new(t.LearnSessionResponse)
    it.generation = m.generation
    it.first_seq = m.first_seq
    it.through_seq = m.through_seq
    it.cursor_seq = m.cursor_seq
    it.model = m.model
    it.prompt_tokens = m.prompt_tokens
    it.answer_tokens = m.answer_tokens
    it.facts = [read_learned_fact(x) for x in m.facts]
    return it


def write_learn_session_response(it):
    return memory_pb2.LearnSessionResponse(
        generation=it.generation,
        first_seq=it.first_seq,
        through_seq=it.through_seq,
        cursor_seq=it.cursor_seq,
        model=it.model,
        prompt_tokens=it.prompt_tokens,
        answer_tokens=it.answer_tokens,
        facts=[write_learned_fact(x) for x in it.facts],
    )


def read_learned_fact(m):
    it = new(t.LearnedFact)
    it.kind = t.MemoryKind(m.kind)
    it.content = m.content
    it.seqs = list(m.seqs)
    it.rejection = t.FactRejection(m.rejection)
    it.notes = list(m.notes)
    it.result = read_remember_response(m.result) if m.HasField('result') else None
    it.supersedes_id = m.supersedes_id
    return it


def write_learned_fact(it):
    return memory_pb2.LearnedFact(
        kind=write_number(it.kind),
        content=it.content,
        seqs=write_list(it.seqs),
        rejection=write_number(it.rejection),
        notes=write_list(it.notes),
        result=None if it.result is None else write_remember_response(it.result),
        supersedes_id=it.supersedes_id,
    )


def read_import_memories_request(m):
    it = new(t.ImportMemoriesRequest)
    it.memories = [read_memory(x) for x in m.memories]
    return it


def write_import_memories_request(it):
    return memory_pb2.ImportMemoriesRequest(
        memories=[write_memory(x) for x in it.memories],
    )


def read_import_memories_response(m):
    it = new(t.ImportMemoriesResponse)
    it.imported = m.imported
    it.skipped = m.skipped
    return it


def write_import_memories_response(it):
    return memory_pb2.ImportMemoriesResponse(
        imported=it.imported,
        skipped=it.skipped,
    )


def read_get_memory_stats_request(m):
    it = new(t.GetMemoryStatsRequest)
    return it


def write_get_memory_stats_request(it):
    return memory_pb2.GetMemoryStatsRequest(
    )


def read_get_memory_stats_response(m):
    it = new(t.GetMemoryStatsResponse)
    it.memories = m.memories
    it.superseded = m.superseded
    it.subjects = m.subjects
    it.recall_events = m.recall_events
    it.embedding_model = m.embedding_model
    it.embedded = m.embedded
    it.embedding_queued = m.embedding_queued
    it.embedding_failed = m.embedding_failed
    it.file_bytes = m.file_bytes
    it.words_queued = m.words_queued
    it.reranker = m.reranker
    it.documents = m.documents
    it.document_bytes = m.document_bytes
    return it


def write_get_memory_stats_response(it):
    return memory_pb2.GetMemoryStatsResponse(
        memories=it.memories,
        superseded=it.superseded,
        subjects=it.subjects,
        recall_events=it.recall_events,
        embedding_model=it.embedding_model,
        embedded=it.embedded,
        embedding_queued=it.embedding_queued,
        embedding_failed=it.embedding_failed,
        file_bytes=it.file_bytes,
        words_queued=it.words_queued,
        reranker=it.reranker,
        documents=it.documents,
        document_bytes=it.document_bytes,
    )


def read_session_info(m):
    it = new(t.SessionInfo)
    it.session_id = m.session_id
    it.generation = m.generation
    it.subject = m.subject
    it.history_turns = m.history_turns
    it.history_bytes = m.history_bytes
    it.history_tokens = m.history_tokens
    it.last_seq = m.last_seq
    it.created_at = read_time(m.created_at) if m.HasField('created_at') else None
    it.last_access = read_time(m.last_access) if m.HasField('last_access') else None
    it.expires_at = read_time(m.expires_at) if m.HasField('expires_at') else None
    it.has_summary = m.has_summary
    it.state_version = m.state_version
    it.compaction = read_compaction_info(m.compaction) if m.HasField('compaction') else None
    it.state_json = m.state_json
    it.labels = dict(m.labels)
    it.ttl_class = m.ttl_class
    it.keep_all = m.keep_all
    it.ended_at = read_time(m.ended_at) if m.HasField('ended_at') else None
    it.end_reason = t.EndReason(m.end_reason)
    return it


def write_session_info(it):
    return session_pb2.SessionInfo(
        session_id=it.session_id,
        generation=it.generation,
        subject=it.subject,
        history_turns=it.history_turns,
        history_bytes=it.history_bytes,
        history_tokens=it.history_tokens,
        last_seq=it.last_seq,
        created_at=None if it.created_at is None else write_time(it.created_at),
        last_access=None if it.last_access is None else write_time(it.last_access),
        expires_at=None if it.expires_at is None else write_time(it.expires_at),
        has_summary=it.has_summary,
        state_version=it.state_version,
        compaction=None if it.compaction is None else write_compaction_info(it.compaction),
        state_json=write_json(it.state_json),
        labels=dict(it.labels),
        ttl_class=it.ttl_class,
        keep_all=it.keep_all,
        ended_at=None if it.ended_at is None else write_time(it.ended_at),
        end_reason=write_number(it.end_reason),
    )


def read_compaction_info(m):
    it = new(t.CompactionInfo)
    it.breaker = t.BreakerState(m.breaker)
    it.consecutive_failures = m.consecutive_failures
    it.last_error = m.last_error
    it.running = m.running
    it.summaries = m.summaries
    it.through_seq = m.through_seq
    return it


def write_compaction_info(it):
    return session_pb2.CompactionInfo(
        breaker=write_number(it.breaker),
        consecutive_failures=it.consecutive_failures,
        last_error=it.last_error,
        running=it.running,
        summaries=it.summaries,
        through_seq=it.through_seq,
    )


def read_summary_info(m):
    it = new(t.SummaryInfo)
    it.number = m.number
    it.first_seq = m.first_seq
    it.through_seq = m.through_seq
    it.turns = m.turns
    it.made_at = read_time(m.made_at) if m.HasField('made_at') else None
    it.made_by = t.SummaryMaker(m.made_by)
    it.model = m.model
    return it


def write_summary_info(it):
    return session_pb2.SummaryInfo(
        number=it.number,
        first_seq=it.first_seq,
        through_seq=it.through_seq,
        turns=it.turns,
        made_at=None if it.made_at is None else write_time(it.made_at),
        made_by=write_number(it.made_by),
        model=it.model,
    )


def read_append_request(m):
    it = new(t.AppendRequest)
    it.session_id = m.session_id
    it.turns = [read_turn(x) for x in m.turns]
    it.messages_json = m.messages_json
    it.format = t.MessageFormat(m.format)
    it.subject = m.subject
    it.idempotency_key = m.idempotency_key
    it.expected_seq = m.expected_seq if m.HasField('expected_seq') else None
    it.expected_generation = m.expected_generation
    it.usage = read_model_usage(m.usage) if m.HasField('usage') else None
    it.partial = m.partial
    it.state_patch_json = m.state_patch_json
    it.expected_state_version = m.expected_state_version if m.HasField('expected_state_version') else None
    it.labels = dict(m.labels)
    it.ttl_class = m.ttl_class
    it.keep_all = m.keep_all if m.HasField('keep_all') else None
    return it


def write_append_request(it):
    return session_pb2.AppendRequest(
        session_id=it.session_id,
        turns=[write_turn(x) for x in it.turns],
        messages_json=write_json(it.messages_json),
        format=write_number(it.format),
        subject=it.subject,
        idempotency_key=it.idempotency_key,
        expected_seq=it.expected_seq,
        expected_generation=it.expected_generation,
        usage=None if it.usage is None else write_model_usage(it.usage),
        partial=it.partial,
        state_patch_json=write_json(it.state_patch_json),
        expected_state_version=it.expected_state_version,
        labels=dict(it.labels),
        ttl_class=it.ttl_class,
        keep_all=it.keep_all,
    )


def read_append_response(m):
    it = new(t.AppendResponse)
    it.session = read_session_info(m.session) if m.HasField('session') else None
    it.first_seq = m.first_seq
    it.last_seq = m.last_seq
    it.dropped_turns = m.dropped_turns
    it.duplicate = m.duplicate
    return it


def write_append_response(it):
    return session_pb2.AppendResponse(
        session=None if it.session is None else write_session_info(it.session),
        first_seq=it.first_seq,
        last_seq=it.last_seq,
        dropped_turns=it.dropped_turns,
        duplicate=it.duplicate,
    )


def read_build_context_request(m):
    it = new(t.BuildContextRequest)
    it.session_id = m.session_id
    it.append = read_append_request(m.append) if m.HasField('append') else None
    it.model = m.model
    it.budget = read_budget(m.budget) if m.HasField('budget') else None
    it.overhead_tokens = m.overhead_tokens
    it.system = m.system
    it.tools_json = m.tools_json
    it.policy = read_window_policy(m.policy) if m.HasField('policy') else None
    it.format = t.MessageFormat(m.format)
    it.attempt = m.attempt
    it.memories = read_recall_request(m.memories) if m.HasField('memories') else None
    it.set_cache_control = m.set_cache_control
    it.peek = m.peek
    it.recall_tool = m.recall_tool
    return it


def write_build_context_request(it):
    return session_pb2.BuildContextRequest(
        session_id=it.session_id,
        append=None if it.append is None else write_append_request(it.append),
        model=it.model,
        budget=None if it.budget is None else write_budget(it.budget),
        overhead_tokens=it.overhead_tokens,
        system=it.system,
        tools_json=write_json(it.tools_json),
        policy=None if it.policy is None else write_window_policy(it.policy),
        format=write_number(it.format),
        attempt=it.attempt,
        memories=None if it.memories is None else write_recall_request(it.memories),
        set_cache_control=it.set_cache_control,
        peek=it.peek,
        recall_tool=it.recall_tool,
    )


def read_build_context_response(m):
    it = new(t.BuildContextResponse)
    it.turns = [read_turn(x) for x in m.turns]
    it.system = m.system
    it.messages_json = m.messages_json
    it.memories = [read_recall_hit(x) for x in m.memories]
    it.session = read_session_info(m.session) if m.HasField('session') else None
    it.report = read_context_report(m.report) if m.HasField('report') else None
    it.memories_text = m.memories_text
    it.recall_tool_json = m.recall_tool_json
    return it


def write_build_context_response(it):
    return session_pb2.BuildContextResponse(
        turns=[write_turn(x) for x in it.turns],
        system=it.system,
        messages_json=write_json(it.messages_json),
        memories=[write_recall_hit(x) for x in it.memories],
        session=None if it.session is None else write_session_info(it.session),
        report=None if it.report is None else write_context_report(it.report),
        memories_text=it.memories_text,
        recall_tool_json=write_json(it.recall_tool_json),
    )


def read_resolve_recall_tool_request(m):
    it = new(t.ResolveRecallToolRequest)
    it.session_id = m.session_id
    it.arguments_json = m.arguments_json
    it.call_id = m.call_id
    it.format = t.MessageFormat(m.format)
    it.max_bytes = m.max_bytes
    it.model = m.model
    it.budget = read_budget(m.budget) if m.HasField('budget') else None
    return it


def write_resolve_recall_tool_request(it):
    return session_pb2.ResolveRecallToolRequest(
        session_id=it.session_id,
        arguments_json=write_json(it.arguments_json),
        call_id=it.call_id,
        format=write_number(it.format),
        max_bytes=it.max_bytes,
        model=it.model,
        budget=None if it.budget is None else write_budget(it.budget),
    )


def read_resolve_recall_tool_response(m):
    it = new(t.ResolveRecallToolResponse)
    it.text = m.text
    it.is_error = m.is_error
    it.messages_json = m.messages_json
    return it


def write_resolve_recall_tool_response(it):
    return session_pb2.ResolveRecallToolResponse(
        text=it.text,
        is_error=it.is_error,
        messages_json=write_json(it.messages_json),
    )


def read_context_report(m):
    it = new(t.ContextReport)
    it.input_budget = m.input_budget
    it.tokens_total = m.tokens_total
    it.tokens_by_block = read_tokens_by_block(m.tokens_by_block) if m.HasField('tokens_by_block') else None
    it.turns_included = m.turns_included
    it.turns_omitted = m.turns_omitted
    it.results_trimmed = m.results_trimmed
    it.stable_prefix_tokens = m.stable_prefix_tokens
    it.cache_breakpoints = list(m.cache_breakpoints)
    it.turn_tokens = list(m.turn_tokens)
    it.token_factor = m.token_factor
    it.token_margin = m.token_margin
    it.policy = read_window_policy(m.policy) if m.HasField('policy') else None
    it.degraded = m.degraded
    it.notes = list(m.notes)
    it.budget = read_budget(m.budget) if m.HasField('budget') else None
    it.omissions = [read_omission(x) for x in m.omissions]
    it.model = m.model
    it.summary = read_summary_info(m.summary) if m.HasField('summary') else None
    it.next_cut = read_next_cut(m.next_cut) if m.HasField('next_cut') else None
    return it


def write_context_report(it):
    return session_pb2.ContextReport(
        input_budget=it.input_budget,
        tokens_total=it.tokens_total,
        tokens_by_block=None if it.tokens_by_block is None else write_tokens_by_block(it.tokens_by_block),
        turns_included=it.turns_included,
        turns_omitted=it.turns_omitted,
        results_trimmed=it.results_trimmed,
        stable_prefix_tokens=it.stable_prefix_tokens,
        cache_breakpoints=write_list(it.cache_breakpoints),
        turn_tokens=write_list(it.turn_tokens),
        token_factor=it.token_factor,
        token_margin=it.token_margin,
        policy=None if it.policy is None else write_window_policy(it.policy),
        degraded=it.degraded,
        notes=write_list(it.notes),
        budget=None if it.budget is None else write_budget(it.budget),
        omissions=[write_omission(x) for x in it.omissions],
        model=it.model,
        summary=None if it.summary is None else write_summary_info(it.summary),
        next_cut=None if it.next_cut is None else write_next_cut(it.next_cut),
    )


def read_next_cut(m):
    it = new(t.NextCut)
    it.at_tokens = m.at_tokens
    it.in_turns = m.in_turns if m.HasField('in_turns') else None
    it.tokens_after = m.tokens_after
    it.summary_ready = m.summary_ready
    it.omissions = [read_omission(x) for x in m.omissions]
    return it


def write_next_cut(it):
    return session_pb2.NextCut(
        at_tokens=it.at_tokens,
        in_turns=it.in_turns,
        tokens_after=it.tokens_after,
        summary_ready=it.summary_ready,
        omissions=[write_omission(x) for x in it.omissions],
    )


def read_omission(m):
    it = new(t.Omission)
    it.first_seq = m.first_seq
    it.last_seq = m.last_seq
    it.reason = t.OmissionReason(m.reason)
    return it


def write_omission(it):
    return session_pb2.Omission(
        first_seq=it.first_seq,
        last_seq=it.last_seq,
        reason=write_number(it.reason),
    )


def read_tokens_by_block(m):
    it = new(t.TokensByBlock)
    it.system = m.system
    it.summary = m.summary
    it.memories = m.memories
    it.anchor = m.anchor
    it.tail = m.tail
    return it


def write_tokens_by_block(it):
    return session_pb2.TokensByBlock(
        system=it.system,
        summary=it.summary,
        memories=it.memories,
        anchor=it.anchor,
        tail=it.tail,
    )


def read_get_history_request(m):
    it = new(t.GetHistoryRequest)
    it.session_id = m.session_id
    it.generation = m.generation
    it.scope = t.HistoryScope(m.scope)
    it.after_seq = m.after_seq
    it.limit = m.limit
    it.last = m.last
    it.before_seq = m.before_seq
    it.format = t.MessageFormat(m.format)
    return it


def write_get_history_request(it):
    return session_pb2.GetHistoryRequest(
        session_id=it.session_id,
        generation=it.generation,
        scope=write_number(it.scope),
        after_seq=it.after_seq,
        limit=it.limit,
        last=it.last,
        before_seq=it.before_seq,
        format=write_number(it.format),
    )


def read_get_history_response(m):
    it = new(t.GetHistoryResponse)
    it.turns = [read_turn(x) for x in m.turns]
    it.next_after_seq = m.next_after_seq
    it.messages_json = m.messages_json
    it.system = m.system
    it.session = read_session_info(m.session) if m.HasField('session') else None
    it.previous_before_seq = m.previous_before_seq
    return it


def write_get_history_response(it):
    return session_pb2.GetHistoryResponse(
        turns=[write_turn(x) for x in it.turns],
        next_after_seq=it.next_after_seq,
        messages_json=write_json(it.messages_json),
        system=it.system,
        session=None if it.session is None else write_session_info(it.session),
        previous_before_seq=it.previous_before_seq,
    )


def read_get_session_request(m):
    it = new(t.GetSessionRequest)
    it.session_id = m.session_id
    it.include_state = m.include_state
    return it


def write_get_session_request(it):
    return session_pb2.GetSessionRequest(
        session_id=it.session_id,
        include_state=it.include_state,
    )


def read_get_session_response(m):
    it = new(t.GetSessionResponse)
    it.session = read_session_info(m.session) if m.HasField('session') else None
    it.summary = read_summary_info(m.summary) if m.HasField('summary') else None
    it.summary_text = m.summary_text
    return it


def write_get_session_response(it):
    return session_pb2.GetSessionResponse(
        session=None if it.session is None else write_session_info(it.session),
        summary=None if it.summary is None else write_summary_info(it.summary),
        summary_text=it.summary_text,
    )


def read_list_sessions_request(m):
    it = new(t.ListSessionsRequest)
    it.page_size = m.page_size
    it.page_token = m.page_token
    it.include_state = m.include_state
    it.id_prefix = m.id_prefix
    it.subject = m.subject
    it.labels = dict(m.labels)
    it.updated_after = read_time(m.updated_after) if m.HasField('updated_after') else None
    it.updated_before = read_time(m.updated_before) if m.HasField('updated_before') else None
    it.order = t.SessionOrder(m.order)
    it.state = t.SessionState(m.state)
    return it


def write_list_sessions_request(it):
    return session_pb2.ListSessionsRequest(
        page_size=it.page_size,
        page_token=it.page_token,
        include_state=it.include_state,
        id_prefix=it.id_prefix,
        subject=it.subject,
        labels=dict(it.labels),
        updated_after=None if it.updated_after is None else write_time(it.updated_after),
        updated_before=None if it.updated_before is None else write_time(it.updated_before),
        order=write_number(it.order),
        state=write_number(it.state),
    )


def read_list_sessions_response(m):
    it = new(t.ListSessionsResponse)
    it.sessions = [read_session_info(x) for x in m.sessions]
    it.next_page_token = m.next_page_token
    return it


def write_list_sessions_response(it):
    return session_pb2.ListSessionsResponse(
        sessions=[write_session_info(x) for x in it.sessions],
        next_page_token=it.next_page_token,
    )


def read_search_transcripts_request(m):
    it = new(t.SearchTranscriptsRequest)
    it.query = m.query
    it.session_id = m.session_id
    it.subject = m.subject
    it.after = read_time(m.after) if m.HasField('after') else None
    it.before = read_time(m.before) if m.HasField('before') else None
    it.roles = [t.Role(x) for x in m.roles]
    it.page_size = m.page_size
    it.tool_name = m.tool_name
    it.context_turns = m.context_turns
    it.page_token = m.page_token
    return it


def write_search_transcripts_request(it):
    return session_pb2.SearchTranscriptsRequest(
        query=it.query,
        session_id=it.session_id,
        subject=it.subject,
        after=None if it.after is None else write_time(it.after),
        before=None if it.before is None else write_time(it.before),
        roles=[write_number(x) for x in write_list(it.roles)],
        page_size=it.page_size,
        tool_name=it.tool_name,
        context_turns=it.context_turns,
        page_token=it.page_token,
    )


def read_search_transcripts_response(m):
    it = new(t.SearchTranscriptsResponse)
    it.hits = [read_transcript_hit(x) for x in m.hits]
    it.next_page_token = m.next_page_token
    it.incomplete = m.incomplete
    return it


def write_search_transcripts_response(it):
    return session_pb2.SearchTranscriptsResponse(
        hits=[write_transcript_hit(x) for x in it.hits],
        next_page_token=it.next_page_token,
        incomplete=it.incomplete,
    )


def read_transcript_hit(m):
    it = new(t.TranscriptHit)
    it.snippet = m.snippet
    it.session_id = m.session_id
    it.generation = m.generation
    it.seq = m.seq
    it.role = t.Role(m.role)
    it.time = read_time(m.time) if m.HasField('time') else None
    it.score = m.score
    it.turns = [read_turn(x) for x in m.turns]
    return it


def write_transcript_hit(it):
    return session_pb2.TranscriptHit(
        snippet=it.snippet,
        session_id=it.session_id,
        generation=it.generation,
        seq=it.seq,
        role=write_number(it.role),
        time=None if it.time is None else write_time(it.time),
        score=it.score,
        turns=[write_turn(x) for x in it.turns],
    )


def read_update_session_request(m):
    it = new(t.UpdateSessionRequest)
    it.session_id = m.session_id
    it.state_patch_json = m.state_patch_json
    it.state_json = m.state_json
    it.labels = dict(m.labels)
    it.ttl_class = m.ttl_class
    it.keep_all = m.keep_all if m.HasField('keep_all') else None
    it.update_mask = list(m.update_mask.paths)
    it.expected_state_version = m.expected_state_version if m.HasField('expected_state_version') else None
    it.allow_missing = m.allow_missing
    it.idempotency_key = m.idempotency_key
    return it


def write_update_session_request(it):
    return session_pb2.UpdateSessionRequest(
        session_id=it.session_id,
        state_patch_json=write_json(it.state_patch_json),
        state_json=write_json(it.state_json),
        labels=dict(it.labels),
        ttl_class=it.ttl_class,
        keep_all=it.keep_all,
        update_mask=FieldMask(paths=write_list(it.update_mask)),
        expected_state_version=it.expected_state_version,
        allow_missing=it.allow_missing,
        idempotency_key=it.idempotency_key,
    )


def read_update_session_response(m):
    it = new(t.UpdateSessionResponse)
    it.session = read_session_info(m.session) if m.HasField('session') else None
    it.duplicate = m.duplicate
    return it


def write_update_session_response(it):
    return session_pb2.UpdateSessionResponse(
        session=None if it.session is None else write_session_info(it.session),
        duplicate=it.duplicate,
    )


def read_rewind_session_request(m):
    it = new(t.RewindSessionRequest)
    it.session_id = m.session_id
    it.after_seq = m.after_seq
    it.turns = [read_turn(x) for x in m.turns]
    it.messages_json = m.messages_json
    it.format = t.MessageFormat(m.format)
    it.expected_seq = m.expected_seq if m.HasField('expected_seq') else None
    it.expected_generation = m.expected_generation
    it.idempotency_key = m.idempotency_key
    return it


def write_rewind_session_request(it):
    return session_pb2.RewindSessionRequest(
        session_id=it.session_id,
        after_seq=it.after_seq,
        turns=[write_turn(x) for x in it.turns],
        messages_json=write_json(it.messages_json),
        format=write_number(it.format),
        expected_seq=it.expected_seq,
        expected_generation=it.expected_generation,
        idempotency_key=it.idempotency_key,
    )


def read_rewind_session_response(m):
    it = new(t.RewindSessionResponse)
    it.session = read_session_info(m.session) if m.HasField('session') else None
    it.removed = [read_turn(x) for x in m.removed]
    it.removed_turns = m.removed_turns
    it.first_seq = m.first_seq
    it.last_seq = m.last_seq
    it.dropped_turns = m.dropped_turns
    it.duplicate = m.duplicate
    it.removed_forgotten = m.removed_forgotten
    return it


def write_rewind_session_response(it):
    return session_pb2.RewindSessionResponse(
        session=None if it.session is None else write_session_info(it.session),
        removed=[write_turn(x) for x in it.removed],
        removed_turns=it.removed_turns,
        first_seq=it.first_seq,
        last_seq=it.last_seq,
        dropped_turns=it.dropped_turns,
        duplicate=it.duplicate,
        removed_forgotten=it.removed_forgotten,
    )


def read_update_turn_request(m):
    it = new(t.UpdateTurnRequest)
    it.session_id = m.session_id
    it.seq = m.seq
    it.turn = read_turn(m.turn) if m.HasField('turn') else None
    it.expected_generation = m.expected_generation
    it.client_id = m.client_id
    it.idempotency_key = m.idempotency_key
    it.messages_json = m.messages_json
    it.format = t.MessageFormat(m.format)
    return it


def write_update_turn_request(it):
    return session_pb2.UpdateTurnRequest(
        session_id=it.session_id,
        seq=it.seq,
        turn=None if it.turn is None else write_turn(it.turn),
        expected_generation=it.expected_generation,
        client_id=it.client_id,
        idempotency_key=it.idempotency_key,
        messages_json=write_json(it.messages_json),
        format=write_number(it.format),
    )


def read_update_turn_response(m):
    it = new(t.UpdateTurnResponse)
    it.turn = read_turn(m.turn) if m.HasField('turn') else None
    it.session = read_session_info(m.session) if m.HasField('session') else None
    it.duplicate = m.duplicate
    return it


def write_update_turn_response(it):
    return session_pb2.UpdateTurnResponse(
        turn=None if it.turn is None else write_turn(it.turn),
        session=None if it.session is None else write_session_info(it.session),
        duplicate=it.duplicate,
    )


def read_copy_session_request(m):
    it = new(t.CopySessionRequest)
    it.session_id = m.session_id
    it.generation = m.generation
    it.through_seq = m.through_seq
    it.target_session_id = m.target_session_id
    it.replace_existing = m.replace_existing
    it.idempotency_key = m.idempotency_key
    return it


def write_copy_session_request(it):
    return session_pb2.CopySessionRequest(
        session_id=it.session_id,
        generation=it.generation,
        through_seq=it.through_seq,
        target_session_id=it.target_session_id,
        replace_existing=it.replace_existing,
        idempotency_key=it.idempotency_key,
    )


def read_copy_session_response(m):
    it = new(t.CopySessionResponse)
    it.session = read_session_info(m.session) if m.HasField('session') else None
    it.turns = m.turns
    it.dropped_turns = m.dropped_turns
    it.duplicate = m.duplicate
    return it


def write_copy_session_response(it):
    return session_pb2.CopySessionResponse(
        session=None if it.session is None else write_session_info(it.session),
        turns=it.turns,
        dropped_turns=it.dropped_turns,
        duplicate=it.duplicate,
    )


def read_compact_session_request(m):
    it = new(t.CompactSessionRequest)
    it.session_id = m.session_id
    it.keep_exchanges = m.keep_exchanges if m.HasField('keep_exchanges') else None
    return it


def write_compact_session_request(it):
    return session_pb2.CompactSessionRequest(
        session_id=it.session_id,
        keep_exchanges=it.keep_exchanges,
    )


def read_compact_session_response(m):
    it = new(t.CompactSessionResponse)
    it.session = read_session_info(m.session) if m.HasField('session') else None
    it.first_seq = m.first_seq
    it.last_seq = m.last_seq
    it.summary = m.summary
    it.summary_info = read_summary_info(m.summary_info) if m.HasField('summary_info') else None
    it.tokens_before = m.tokens_before
    it.tokens_after = m.tokens_after
    it.is_new = m.is_new
    return it


def write_compact_session_response(it):
    return session_pb2.CompactSessionResponse(
        session=None if it.session is None else write_session_info(it.session),
        first_seq=it.first_seq,
        last_seq=it.last_seq,
        summary=it.summary,
        summary_info=None if it.summary_info is None else write_summary_info(it.summary_info),
        tokens_before=it.tokens_before,
        tokens_after=it.tokens_after,
        is_new=it.is_new,
    )


def read_undo_compaction_request(m):
    it = new(t.UndoCompactionRequest)
    it.session_id = m.session_id
    return it


def write_undo_compaction_request(it):
    return session_pb2.UndoCompactionRequest(
        session_id=it.session_id,
    )


def read_undo_compaction_response(m):
    it = new(t.UndoCompactionResponse)
    it.session = read_session_info(m.session) if m.HasField('session') else None
    it.restored_turns = m.restored_turns
    return it


def write_undo_compaction_response(it):
    return session_pb2.UndoCompactionResponse(
        session=None if it.session is None else write_session_info(it.session),
        restored_turns=it.restored_turns,
    )


def read_reset_session_request(m):
    it = new(t.ResetSessionRequest)
    it.session_id = m.session_id
    it.run_hooks = m.run_hooks
    it.expected_generation = m.expected_generation
    it.idempotency_key = m.idempotency_key
    return it


def write_reset_session_request(it):
    return session_pb2.ResetSessionRequest(
        session_id=it.session_id,
        run_hooks=it.run_hooks,
        expected_generation=it.expected_generation,
        idempotency_key=it.idempotency_key,
    )


def read_reset_session_response(m):
    it = new(t.ResetSessionResponse)
    it.session = read_session_info(m.session) if m.HasField('session') else None
    it.ended_generation = m.ended_generation
    it.duplicate = m.duplicate
    return it


def write_reset_session_response(it):
    return session_pb2.ResetSessionResponse(
        session=None if it.session is None else write_session_info(it.session),
        ended_generation=it.ended_generation,
        duplicate=it.duplicate,
    )


def read_end_session_request(m):
    it = new(t.EndSessionRequest)
    it.session_id = m.session_id
    it.expected_generation = m.expected_generation
    it.idempotency_key = m.idempotency_key
    return it


def write_end_session_request(it):
    return session_pb2.EndSessionRequest(
        session_id=it.session_id,
        expected_generation=it.expected_generation,
        idempotency_key=it.idempotency_key,
    )


def read_end_session_response(m):
    it = new(t.EndSessionResponse)
    it.session = read_session_info(m.session) if m.HasField('session') else None
    it.duplicate = m.duplicate
    return it


def write_end_session_response(it):
    return session_pb2.EndSessionResponse(
        session=None if it.session is None else write_session_info(it.session),
        duplicate=it.duplicate,
    )


def read_erase_session_request(m):
    it = new(t.EraseSessionRequest)
    it.session_id = m.session_id
    it.generation = m.generation
    return it


def write_erase_session_request(it):
    return session_pb2.EraseSessionRequest(
        session_id=it.session_id,
        generation=it.generation,
    )


def read_erase_session_response(m):
    it = new(t.EraseSessionResponse)
    it.erasure = read_erasure(m.erasure) if m.HasField('erasure') else None
    return it


def write_erase_session_response(it):
    return session_pb2.EraseSessionResponse(
        erasure=None if it.erasure is None else write_erasure(it.erasure),
    )


def read_erase_subject_request(m):
    it = new(t.EraseSubjectRequest)
    it.subject = m.subject
    return it


def write_erase_subject_request(it):
    return session_pb2.EraseSubjectRequest(
        subject=it.subject,
    )


def read_erase_subject_response(m):
    it = new(t.EraseSubjectResponse)
    it.erasure = read_erasure(m.erasure) if m.HasField('erasure') else None
    return it


def write_erase_subject_response(it):
    return session_pb2.EraseSubjectResponse(
        erasure=None if it.erasure is None else write_erasure(it.erasure),
    )


def read_get_erasure_request(m):
    it = new(t.GetErasureRequest)
    it.id = m.id
    return it


def write_get_erasure_request(it):
    return session_pb2.GetErasureRequest(
        id=it.id,
    )


def read_get_erasure_response(m):
    it = new(t.GetErasureResponse)
    it.erasure = read_erasure(m.erasure) if m.HasField('erasure') else None
    return it


def write_get_erasure_response(it):
    return session_pb2.GetErasureResponse(
        erasure=None if it.erasure is None else write_erasure(it.erasure),
    )


def read_erasure(m):
    it = new(t.Erasure)
    it.id = m.id
    it.done = m.done
    it.erased = read_erased_counts(m.erased) if m.HasField('erased') else None
    it.outside = list(m.outside)
    it.waits_for = m.waits_for
    return it


def write_erasure(it):
    return session_pb2.Erasure(
        id=it.id,
        done=it.done,
        erased=None if it.erased is None else write_erased_counts(it.erased),
        outside=write_list(it.outside),
        waits_for=it.waits_for,
    )


def read_erased_counts(m):
    it = new(t.ErasedCounts)
    it.turns = m.turns
    it.summaries = m.summaries
    it.keys = m.keys
    it.memories = m.memories
    it.deliveries = m.deliveries
    it.commits = m.commits
    return it


def write_erased_counts(it):
    return session_pb2.ErasedCounts(
        turns=it.turns,
        summaries=it.summaries,
        keys=it.keys,
        memories=it.memories,
        deliveries=it.deliveries,
        commits=it.commits,
    )


def read_watch_events_request(m):
    it = new(t.WatchEventsRequest)
    it.after_cursor = m.after_cursor
    it.all_tenants = m.all_tenants
    return it


def write_watch_events_request(it):
    return session_pb2.WatchEventsRequest(
        after_cursor=it.after_cursor,
        all_tenants=it.all_tenants,
    )


def read_watch_events_response(m):
    it = new(t.WatchEventsResponse)
    it.event = read_event(m.event) if m.HasField('event') else None
    it.missed = m.missed
    it.missed_tenant = m.missed_tenant
    it.cursor = m.cursor
    return it


def write_watch_events_response(it):
    return session_pb2.WatchEventsResponse(
        event=None if it.event is None else write_event(it.event),
        missed=it.missed,
        missed_tenant=it.missed_tenant,
        cursor=it.cursor,
    )


def read_event(m):
    it = new(t.Event)
    it.event_id = m.event_id
    it.time = read_time(m.time) if m.HasField('time') else None
    it.tenant = m.tenant
    it.session_id = m.session_id
    it.generation = m.generation
    it.created = read_session_created(m.created) if m.HasField('created') else None
    it.appended = read_turns_appended(m.appended) if m.HasField('appended') else None
    it.rewound = read_session_rewound(m.rewound) if m.HasField('rewound') else None
    it.turn_updated = read_turn_updated(m.turn_updated) if m.HasField('turn_updated') else None
    it.ended = read_session_ended(m.ended) if m.HasField('ended') else None
    it.erased = read_session_erased(m.erased) if m.HasField('erased') else None
    it.compacted = read_session_compacted(m.compacted) if m.HasField('compacted') else None
    it.compaction_failed = read_compaction_failed(m.compaction_failed) if m.HasField('compaction_failed') else None
    it.compaction_undone = read_compaction_undone(m.compaction_undone) if m.HasField('compaction_undone') else None
    it.hook_delivered = read_hook_delivered(m.hook_delivered) if m.HasField('hook_delivered') else None
    it.hook_failed = read_hook_failed(m.hook_failed) if m.HasField('hook_failed') else None
    it.learned = read_facts_learned(m.learned) if m.HasField('learned') else None
    it.extraction_failed = read_extraction_failed(m.extraction_failed) if m.HasField('extraction_failed') else None
    return it


def write_event(it):
    only_one(it.created, it.appended, it.rewound, it.turn_updated, it.ended, it.erased, it.compacted, it.compaction_failed, it.compaction_undone, it.hook_delivered, it.hook_failed, it.learned, it.extraction_failed)
    return session_pb2.Event(
        event_id=it.event_id,
        time=None if it.time is None else write_time(it.time),
        tenant=it.tenant,
        session_id=it.session_id,
        generation=it.generation,
        created=None if it.created is None else write_session_created(it.created),
        appended=None if it.appended is None else write_turns_appended(it.appended),
        rewound=None if it.rewound is None else write_session_rewound(it.rewound),
        turn_updated=None if it.turn_updated is None else write_turn_updated(it.turn_updated),
        ended=None if it.ended is None else write_session_ended(it.ended),
        erased=None if it.erased is None else write_session_erased(it.erased),
        compacted=None if it.compacted is None else write_session_compacted(it.compacted),
        compaction_failed=None if it.compaction_failed is None else write_compaction_failed(it.compaction_failed),
        compaction_undone=None if it.compaction_undone is None else write_compaction_undone(it.compaction_undone),
        hook_delivered=None if it.hook_delivered is None else write_hook_delivered(it.hook_delivered),
        hook_failed=None if it.hook_failed is None else write_hook_failed(it.hook_failed),
        learned=None if it.learned is None else write_facts_learned(it.learned),
        extraction_failed=None if it.extraction_failed is None else write_extraction_failed(it.extraction_failed),
    )


def read_session_created(m):
    it = new(t.SessionCreated)
    return it


def write_session_created(it):
    return session_pb2.SessionCreated(
    )


def read_turns_appended(m):
    it = new(t.TurnsAppended)
    it.first_seq = m.first_seq
    it.last_seq = m.last_seq
    it.dropped_turns = m.dropped_turns
    it.client_ids = list(m.client_ids)
    return it


def write_turns_appended(it):
    return session_pb2.TurnsAppended(
        first_seq=it.first_seq,
        last_seq=it.last_seq,
        dropped_turns=it.dropped_turns,
        client_ids=write_list(it.client_ids),
    )


def read_session_rewound(m):
    it = new(t.SessionRewound)
    it.after_seq = m.after_seq
    it.through_seq = m.through_seq
    return it


def write_session_rewound(it):
    return session_pb2.SessionRewound(
        after_seq=it.after_seq,
        through_seq=it.through_seq,
    )


def read_turn_updated(m):
    it = new(t.TurnUpdated)
    it.seq = m.seq
    return it


def write_turn_updated(it):
    return session_pb2.TurnUpdated(
        seq=it.seq,
    )


def read_session_ended(m):
    it = new(t.SessionEnded)
    it.reason = t.EndReason(m.reason)
    return it


def write_session_ended(it):
    return session_pb2.SessionEnded(
        reason=write_number(it.reason),
    )


def read_session_erased(m):
    it = new(t.SessionErased)
    return it


def write_session_erased(it):
    return session_pb2.SessionErased(
    )


def read_session_compacted(m):
    it = new(t.SessionCompacted)
    it.trigger = t.CompactionTrigger(m.trigger)
    it.summary = read_summary_info(m.summary) if m.HasField('summary') else None
    it.tokens_before = m.tokens_before
    it.tokens_after = m.tokens_after
    return it


def write_session_compacted(it):
    return session_pb2.SessionCompacted(
        trigger=write_number(it.trigger),
        summary=None if it.summary is None else write_summary_info(it.summary),
        tokens_before=it.tokens_before,
        tokens_after=it.tokens_after,
    )


def read_compaction_failed(m):
    it = new(t.CompactionFailed)
    it.trigger = t.CompactionTrigger(m.trigger)
    it.reason = m.reason
    it.breaker = t.BreakerState(m.breaker)
    it.error = m.error
    return it


def write_compaction_failed(it):
    return session_pb2.CompactionFailed(
        trigger=write_number(it.trigger),
        reason=it.reason,
        breaker=write_number(it.breaker),
        error=it.error,
    )


def read_compaction_undone(m):
    it = new(t.CompactionUndone)
    it.number = m.number
    return it


def write_compaction_undone(it):
    return session_pb2.CompactionUndone(
        number=it.number,
    )


def read_hook_delivered(m):
    it = new(t.HookDelivered)
    it.hook = m.hook
    it.delivery_id = m.delivery_id
    it.tries = m.tries
    return it


def write_hook_delivered(it):
    return session_pb2.HookDelivered(
        hook=it.hook,
        delivery_id=it.delivery_id,
        tries=it.tries,
    )


def read_hook_failed(m):
    it = new(t.HookFailed)
    it.hook = m.hook
    it.delivery_id = m.delivery_id
    it.tries = m.tries
    it.gave_up = m.gave_up
    it.error = m.error
    return it


def write_hook_failed(it):
    return session_pb2.HookFailed(
        hook=it.hook,
        delivery_id=it.delivery_id,
        tries=it.tries,
        gave_up=it.gave_up,
        error=it.error,
    )


def read_facts_learned(m):
    it = new(t.FactsLearned)
    it.model = m.model
    it.first_seq = m.first_seq
    it.through_seq = m.through_seq
    it.accepted = m.accepted
    it.rejected = m.rejected
    it.tokens = m.tokens
    return it


def write_facts_learned(it):
    return session_pb2.FactsLearned(
        model=it.model,
        first_seq=it.first_seq,
        through_seq=it.through_seq,
        accepted=it.accepted,
        rejected=it.rejected,
        tokens=it.tokens,
    )


def read_extraction_failed(m):
    it = new(t.ExtractionFailed)
    it.reason = m.reason
    it.gave_up = m.gave_up
    it.error = m.error
    return it


def write_extraction_failed(it):
    return session_pb2.ExtractionFailed(
        reason=it.reason,
        gave_up=it.gave_up,
        error=it.error,
    )
