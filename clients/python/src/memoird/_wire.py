"""Between the dataclasses and the messages on the wire.

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
    """Microseconds; what is finer is cut off."""
    return datetime.fromtimestamp(m.seconds, timezone.utc).replace(microsecond=m.nanos // 1000)


def write_time(it):
    """A time without a zone is local, as Python has it."""
    whole = it.astimezone(timezone.utc)
    seconds = int((whole.replace(microsecond=0) - _EPOCH).total_seconds())
    return Timestamp(seconds=seconds, nanos=whole.microsecond * 1000)


_EPOCH = datetime.fromtimestamp(0, timezone.utc)


def read_span(m):
    return timedelta(seconds=m.seconds, microseconds=m.nanos // 1000)


def write_span(it):
    seconds, rest = divmod(it, timedelta(seconds=1))
    return Duration(seconds=seconds, nanos=rest.microseconds * 1000)


def write_json(it):
    return it if isinstance(it, str) else json.dumps(it, ensure_ascii=False, separators=(",", ":"))


def write_texts(it):
    """A text is a list of texts, too, and is never meant so."""
    if isinstance(it, str):
        raise TypeError("a list of texts is wanted")
    return it


def only_one(*values):
    """A message has one of these; protobuf keeps the last one that it is given."""
    if len(values) - values.count(None) > 1:
        raise ValueError("only one of these is wanted")


def read_turn(m):
    return t.Turn(
        role=t.Role(m.role),
        parts=[read_part(x) for x in m.parts],
        timestamp=read_time(m.timestamp) if m.HasField('timestamp') else None,
        seq=m.seq,
        salience=m.salience if m.HasField('salience') else None,
        pinned=m.pinned,
        metadata=dict(m.metadata),
        extra_json=m.extra_json,
        format=t.MessageFormat(m.format),
        removed=m.removed,
        client_id=m.client_id,
        client_json=m.client_json,
    )


def write_turn(it):
    return common_pb2.Turn(
        role=it.role,
        parts=[write_part(x) for x in it.parts],
        timestamp=None if it.timestamp is None else write_time(it.timestamp),
        seq=it.seq,
        salience=it.salience,
        pinned=it.pinned,
        metadata=dict(it.metadata),
        extra_json=write_json(it.extra_json),
        format=it.format,
        removed=it.removed,
        client_id=it.client_id,
        client_json=write_json(it.client_json),
    )


def read_part(m):
    return t.Part(
        text=m.text if m.HasField('text') else None,
        tool_use=read_tool_use(m.tool_use) if m.HasField('tool_use') else None,
        tool_result=read_tool_result(m.tool_result) if m.HasField('tool_result') else None,
        media=read_media(m.media) if m.HasField('media') else None,
        thinking=read_thinking(m.thinking) if m.HasField('thinking') else None,
        extra_json=m.extra_json,
    )


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
    return t.ToolUse(
        id=m.id,
        name=m.name,
        input_json=m.input_json,
    )


def write_tool_use(it):
    return common_pb2.ToolUse(
        id=it.id,
        name=it.name,
        input_json=write_json(it.input_json),
    )


def read_tool_result(m):
    return t.ToolResult(
        tool_use_id=m.tool_use_id,
        content=m.content,
        parts=[read_part(x) for x in m.parts],
        is_error=m.is_error,
    )


def write_tool_result(it):
    return common_pb2.ToolResult(
        tool_use_id=it.tool_use_id,
        content=it.content,
        parts=[write_part(x) for x in it.parts],
        is_error=it.is_error,
    )


def read_media(m):
    return t.Media(
        media_type=m.media_type,
        data=m.data if m.HasField('data') else None,
        uri=m.uri if m.HasField('uri') else None,
        name=m.name,
    )


def write_media(it):
    only_one(it.data, it.uri)
    return common_pb2.Media(
        media_type=it.media_type,
        data=it.data,
        uri=it.uri,
        name=it.name,
    )


def read_thinking(m):
    return t.Thinking(
        text=m.text,
        signature=m.signature,
        redacted=m.redacted,
    )


def write_thinking(it):
    return common_pb2.Thinking(
        text=it.text,
        signature=it.signature,
        redacted=it.redacted,
    )


def read_model_usage(m):
    return t.ModelUsage(
        model=m.model,
        input_tokens=m.input_tokens,
        output_tokens=m.output_tokens,
        cache_read_tokens=m.cache_read_tokens,
        cache_creation_tokens=m.cache_creation_tokens,
    )


def write_model_usage(it):
    return common_pb2.ModelUsage(
        model=it.model,
        input_tokens=it.input_tokens,
        output_tokens=it.output_tokens,
        cache_read_tokens=it.cache_read_tokens,
        cache_creation_tokens=it.cache_creation_tokens,
    )


def read_budget(m):
    return t.Budget(
        context_window=m.context_window if m.HasField('context_window') else None,
        max_reply_tokens=m.max_reply_tokens if m.HasField('max_reply_tokens') else None,
        safety_headroom=m.safety_headroom if m.HasField('safety_headroom') else None,
        tool_result_headroom=m.tool_result_headroom if m.HasField('tool_result_headroom') else None,
    )


def write_budget(it):
    return common_pb2.Budget(
        context_window=it.context_window,
        max_reply_tokens=it.max_reply_tokens,
        safety_headroom=it.safety_headroom,
        tool_result_headroom=it.tool_result_headroom,
    )


def read_window_policy(m):
    return t.WindowPolicy(
        sliding_window=read_sliding_window(m.sliding_window) if m.HasField('sliding_window') else None,
        head_tail=read_head_tail(m.head_tail) if m.HasField('head_tail') else None,
        token_budget=read_token_budget(m.token_budget) if m.HasField('token_budget') else None,
        salience=read_salience(m.salience) if m.HasField('salience') else None,
    )


def write_window_policy(it):
    only_one(it.sliding_window, it.head_tail, it.token_budget, it.salience)
    return common_pb2.WindowPolicy(
        sliding_window=None if it.sliding_window is None else write_sliding_window(it.sliding_window),
        head_tail=None if it.head_tail is None else write_head_tail(it.head_tail),
        token_budget=None if it.token_budget is None else write_token_budget(it.token_budget),
        salience=None if it.salience is None else write_salience(it.salience),
    )


def read_sliding_window(m):
    return t.SlidingWindow(
        turns=m.turns,
    )


def write_sliding_window(it):
    return common_pb2.SlidingWindow(
        turns=it.turns,
    )


def read_head_tail(m):
    return t.HeadTail(
        turns=m.turns,
    )


def write_head_tail(it):
    return common_pb2.HeadTail(
        turns=it.turns,
    )


def read_token_budget(m):
    return t.TokenBudget(
    )


def write_token_budget(it):
    return common_pb2.TokenBudget(
    )


def read_salience(m):
    return t.Salience(
    )


def write_salience(it):
    return common_pb2.Salience(
    )


def read_document(m):
    return t.Document(
        namespace=list(m.namespace),
        key=m.key,
        json=m.json if m.HasField('json') else None,
        bytes=m.bytes if m.HasField('bytes') else None,
        version=m.version,
        created_at=read_time(m.created_at) if m.HasField('created_at') else None,
        updated_at=read_time(m.updated_at) if m.HasField('updated_at') else None,
        expires_at=read_time(m.expires_at) if m.HasField('expires_at') else None,
        size=m.size,
    )


def write_document(it):
    only_one(it.json, it.bytes)
    return document_pb2.Document(
        namespace=write_texts(it.namespace),
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
    return t.GetDocumentRequest(
        namespace=list(m.namespace),
        key=m.key,
        ttl=read_span(m.ttl) if m.HasField('ttl') else None,
    )


def write_get_document_request(it):
    return document_pb2.GetDocumentRequest(
        namespace=write_texts(it.namespace),
        key=it.key,
        ttl=None if it.ttl is None else write_span(it.ttl),
    )


def read_get_document_response(m):
    return t.GetDocumentResponse(
        document=read_document(m.document) if m.HasField('document') else None,
    )


def write_get_document_response(it):
    return document_pb2.GetDocumentResponse(
        document=None if it.document is None else write_document(it.document),
    )


def read_put_document_request(m):
    return t.PutDocumentRequest(
        namespace=list(m.namespace),
        key=m.key,
        json=m.json if m.HasField('json') else None,
        bytes=m.bytes if m.HasField('bytes') else None,
        expected_version=m.expected_version if m.HasField('expected_version') else None,
        ttl=read_span(m.ttl) if m.HasField('ttl') else None,
    )


def write_put_document_request(it):
    only_one(it.json, it.bytes)
    return document_pb2.PutDocumentRequest(
        namespace=write_texts(it.namespace),
        key=it.key,
        json=None if it.json is None else write_json(it.json),
        bytes=it.bytes,
        expected_version=it.expected_version,
        ttl=None if it.ttl is None else write_span(it.ttl),
    )


def read_put_document_response(m):
    return t.PutDocumentResponse(
        document=read_document(m.document) if m.HasField('document') else None,
    )


def write_put_document_response(it):
    return document_pb2.PutDocumentResponse(
        document=None if it.document is None else write_document(it.document),
    )


def read_delete_document_request(m):
    return t.DeleteDocumentRequest(
        namespace=list(m.namespace),
        key=m.key,
        expected_version=m.expected_version if m.HasField('expected_version') else None,
    )


def write_delete_document_request(it):
    return document_pb2.DeleteDocumentRequest(
        namespace=write_texts(it.namespace),
        key=it.key,
        expected_version=it.expected_version,
    )


def read_delete_document_response(m):
    return t.DeleteDocumentResponse(
        deleted=m.deleted,
    )


def write_delete_document_response(it):
    return document_pb2.DeleteDocumentResponse(
        deleted=it.deleted,
    )


def read_delete_documents_request(m):
    return t.DeleteDocumentsRequest(
        namespace_prefix=list(m.namespace_prefix),
        exact_namespace=m.exact_namespace,
        key_prefix=m.key_prefix,
        key_from=m.key_from,
        key_before=m.key_before,
        erase=m.erase,
    )


def write_delete_documents_request(it):
    return document_pb2.DeleteDocumentsRequest(
        namespace_prefix=write_texts(it.namespace_prefix),
        exact_namespace=it.exact_namespace,
        key_prefix=it.key_prefix,
        key_from=it.key_from,
        key_before=it.key_before,
        erase=it.erase,
    )


def read_delete_documents_response(m):
    return t.DeleteDocumentsResponse(
        deleted=m.deleted,
        erased=m.erased,
    )


def write_delete_documents_response(it):
    return document_pb2.DeleteDocumentsResponse(
        deleted=it.deleted,
        erased=it.erased,
    )


def read_list_documents_request(m):
    return t.ListDocumentsRequest(
        namespace_prefix=list(m.namespace_prefix),
        exact_namespace=m.exact_namespace,
        key_prefix=m.key_prefix,
        key_from=m.key_from,
        key_before=m.key_before,
        filter_json=m.filter_json,
        descending=m.descending,
        without_values=m.without_values,
        page_size=m.page_size,
        page_token=m.page_token,
    )


def write_list_documents_request(it):
    return document_pb2.ListDocumentsRequest(
        namespace_prefix=write_texts(it.namespace_prefix),
        exact_namespace=it.exact_namespace,
        key_prefix=it.key_prefix,
        key_from=it.key_from,
        key_before=it.key_before,
        filter_json=write_json(it.filter_json),
        descending=it.descending,
        without_values=it.without_values,
        page_size=it.page_size,
        page_token=it.page_token,
    )


def read_list_documents_response(m):
    return t.ListDocumentsResponse(
        documents=[read_document(x) for x in m.documents],
        next_page_token=m.next_page_token,
    )


def write_list_documents_response(it):
    return document_pb2.ListDocumentsResponse(
        documents=[write_document(x) for x in it.documents],
        next_page_token=it.next_page_token,
    )


def read_list_namespaces_request(m):
    return t.ListNamespacesRequest(
        prefix=list(m.prefix),
        suffix=list(m.suffix),
        max_depth=m.max_depth,
        page_size=m.page_size,
        page_token=m.page_token,
    )


def write_list_namespaces_request(it):
    return document_pb2.ListNamespacesRequest(
        prefix=write_texts(it.prefix),
        suffix=write_texts(it.suffix),
        max_depth=it.max_depth,
        page_size=it.page_size,
        page_token=it.page_token,
    )


def read_list_namespaces_response(m):
    return t.ListNamespacesResponse(
        namespaces=[read_namespace(x) for x in m.namespaces],
        next_page_token=m.next_page_token,
    )


def write_list_namespaces_response(it):
    return document_pb2.ListNamespacesResponse(
        namespaces=[write_namespace(x) for x in it.namespaces],
        next_page_token=it.next_page_token,
    )


def read_namespace(m):
    return t.Namespace(
        parts=list(m.parts),
    )


def write_namespace(it):
    return document_pb2.Namespace(
        parts=write_texts(it.parts),
    )


def read_batch_documents_request(m):
    return t.BatchDocumentsRequest(
        operations=[read_document_operation(x) for x in m.operations],
    )


def write_batch_documents_request(it):
    return document_pb2.BatchDocumentsRequest(
        operations=[write_document_operation(x) for x in it.operations],
    )


def read_document_operation(m):
    return t.DocumentOperation(
        get=read_get_document_request(m.get) if m.HasField('get') else None,
        put=read_put_document_request(m.put) if m.HasField('put') else None,
        delete=read_delete_document_request(m.delete) if m.HasField('delete') else None,
    )


def write_document_operation(it):
    only_one(it.get, it.put, it.delete)
    return document_pb2.DocumentOperation(
        get=None if it.get is None else write_get_document_request(it.get),
        put=None if it.put is None else write_put_document_request(it.put),
        delete=None if it.delete is None else write_delete_document_request(it.delete),
    )


def read_batch_documents_response(m):
    return t.BatchDocumentsResponse(
        results=[read_document_result(x) for x in m.results],
    )


def write_batch_documents_response(it):
    return document_pb2.BatchDocumentsResponse(
        results=[write_document_result(x) for x in it.results],
    )


def read_document_result(m):
    return t.DocumentResult(
        document=read_document(m.document) if m.HasField('document') else None,
        deleted=m.deleted,
    )


def write_document_result(it):
    return document_pb2.DocumentResult(
        document=None if it.document is None else write_document(it.document),
        deleted=it.deleted,
    )


def read_memory_source(m):
    return t.MemorySource(
        session_id=m.session_id,
        generation=m.generation,
        seqs=list(m.seqs),
    )


def write_memory_source(it):
    return memory_pb2.MemorySource(
        session_id=it.session_id,
        generation=it.generation,
        seqs=it.seqs,
    )


def read_memory(m):
    return t.Memory(
        id=m.id,
        subject=m.subject,
        kind=t.MemoryKind(m.kind),
        visibility=t.Visibility(m.visibility),
        polarity=t.Polarity(m.polarity),
        content=m.content,
        tags=list(m.tags),
        importance=m.importance,
        source=read_memory_source(m.source) if m.HasField('source') else None,
        observed_at=read_time(m.observed_at) if m.HasField('observed_at') else None,
        created_at=read_time(m.created_at) if m.HasField('created_at') else None,
        updated_at=read_time(m.updated_at) if m.HasField('updated_at') else None,
        expires_at=read_time(m.expires_at) if m.HasField('expires_at') else None,
        superseded_by=m.superseded_by,
        reinforced=m.reinforced,
        recall_count=m.recall_count,
        last_recalled_at=read_time(m.last_recalled_at) if m.HasField('last_recalled_at') else None,
        pinned=m.pinned,
        pinned_by_dream=m.pinned_by_dream,
        origin=t.MemoryOrigin(m.origin),
        external_key=m.external_key,
        metadata_json=m.metadata_json,
        metadata=dict(m.metadata),
    )


def write_memory(it):
    return memory_pb2.Memory(
        id=it.id,
        subject=it.subject,
        kind=it.kind,
        visibility=it.visibility,
        polarity=it.polarity,
        content=it.content,
        tags=write_texts(it.tags),
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
        origin=it.origin,
        external_key=it.external_key,
        metadata_json=write_json(it.metadata_json),
        metadata=dict(it.metadata),
    )


def read_remember_request(m):
    return t.RememberRequest(
        subject=m.subject,
        kind=t.MemoryKind(m.kind),
        content=m.content,
        tags=list(m.tags),
        importance=m.importance if m.HasField('importance') else None,
        source=read_memory_source(m.source) if m.HasField('source') else None,
        observed_at=read_time(m.observed_at) if m.HasField('observed_at') else None,
        expires_at=read_time(m.expires_at) if m.HasField('expires_at') else None,
        supersedes_id=m.supersedes_id,
        pinned=m.pinned,
        polarity=t.Polarity(m.polarity),
        idempotency_key=m.idempotency_key,
        visibility=t.Visibility(m.visibility),
        near_duplicate=t.NearDuplicate(m.near_duplicate),
        external_key=m.external_key,
        metadata_json=m.metadata_json,
        vector=list(m.vector),
        keep_apart=m.keep_apart,
        metadata=dict(m.metadata),
    )


def write_remember_request(it):
    return memory_pb2.RememberRequest(
        subject=it.subject,
        kind=it.kind,
        content=it.content,
        tags=write_texts(it.tags),
        importance=it.importance,
        source=None if it.source is None else write_memory_source(it.source),
        observed_at=None if it.observed_at is None else write_time(it.observed_at),
        expires_at=None if it.expires_at is None else write_time(it.expires_at),
        supersedes_id=it.supersedes_id,
        pinned=it.pinned,
        polarity=it.polarity,
        idempotency_key=it.idempotency_key,
        visibility=it.visibility,
        near_duplicate=it.near_duplicate,
        external_key=it.external_key,
        metadata_json=write_json(it.metadata_json),
        vector=it.vector,
        keep_apart=it.keep_apart,
        metadata=dict(it.metadata),
    )


def read_remember_response(m):
    return t.RememberResponse(
        memory=read_memory(m.memory) if m.HasField('memory') else None,
        outcome=t.RememberOutcome(m.outcome),
        redacted=m.redacted,
    )


def write_remember_response(it):
    return memory_pb2.RememberResponse(
        memory=None if it.memory is None else write_memory(it.memory),
        outcome=it.outcome,
        redacted=it.redacted,
    )


def read_recall_request(m):
    return t.RecallRequest(
        query=m.query,
        subjects=list(m.subjects),
        kinds=[t.MemoryKind(x) for x in m.kinds],
        tags=list(m.tags),
        after=read_time(m.after) if m.HasField('after') else None,
        before=read_time(m.before) if m.HasField('before') else None,
        limit=m.limit,
        mode=t.RecallMode(m.mode),
        session_id=m.session_id,
        explain=m.explain,
        without_reranker=m.without_reranker,
        metadata_filter_json=m.metadata_filter_json,
        subject_prefix=m.subject_prefix,
        vector=list(m.vector),
        metadata=dict(m.metadata),
    )


def write_recall_request(it):
    return memory_pb2.RecallRequest(
        query=it.query,
        subjects=write_texts(it.subjects),
        kinds=[x for x in it.kinds],
        tags=write_texts(it.tags),
        after=None if it.after is None else write_time(it.after),
        before=None if it.before is None else write_time(it.before),
        limit=it.limit,
        mode=it.mode,
        session_id=it.session_id,
        explain=it.explain,
        without_reranker=it.without_reranker,
        metadata_filter_json=write_json(it.metadata_filter_json),
        subject_prefix=it.subject_prefix,
        vector=it.vector,
        metadata=dict(it.metadata),
    )


def read_score_parts(m):
    return t.ScoreParts(
        words=m.words,
        cosine=m.cosine if m.HasField('cosine') else None,
        words_share=m.words_share,
        meaning_share=m.meaning_share if m.HasField('meaning_share') else None,
        form=m.form,
        relevance=m.relevance,
        beside=m.beside,
        importance=m.importance,
        recency=m.recency,
        reranker=m.reranker if m.HasField('reranker') else None,
    )


def write_score_parts(it):
    return memory_pb2.ScoreParts(
        words=it.words,
        cosine=it.cosine,
        words_share=it.words_share,
        meaning_share=it.meaning_share,
        form=it.form,
        relevance=it.relevance,
        beside=it.beside,
        importance=it.importance,
        recency=it.recency,
        reranker=it.reranker,
    )


def read_recall_hit(m):
    return t.RecallHit(
        memory=read_memory(m.memory) if m.HasField('memory') else None,
        score=m.score,
        lexical_rank=m.lexical_rank,
        vector_rank=m.vector_rank,
        age=read_span(m.age) if m.HasField('age') else None,
        parts=read_score_parts(m.parts) if m.HasField('parts') else None,
    )


def write_recall_hit(it):
    return memory_pb2.RecallHit(
        memory=None if it.memory is None else write_memory(it.memory),
        score=it.score,
        lexical_rank=it.lexical_rank,
        vector_rank=it.vector_rank,
        age=None if it.age is None else write_span(it.age),
        parts=None if it.parts is None else write_score_parts(it.parts),
    )


def read_recall_response(m):
    return t.RecallResponse(
        hits=[read_recall_hit(x) for x in m.hits],
        mode=t.RecallMode(m.mode),
        degraded=m.degraded,
        notes=list(m.notes),
        reranked=m.reranked,
    )


def write_recall_response(it):
    return memory_pb2.RecallResponse(
        hits=[write_recall_hit(x) for x in it.hits],
        mode=it.mode,
        degraded=it.degraded,
        notes=write_texts(it.notes),
        reranked=it.reranked,
    )


def read_get_memory_request(m):
    return t.GetMemoryRequest(
        id=m.id,
        subject=m.subject,
        external_key=m.external_key,
    )


def write_get_memory_request(it):
    return memory_pb2.GetMemoryRequest(
        id=it.id,
        subject=it.subject,
        external_key=it.external_key,
    )


def read_get_memory_response(m):
    return t.GetMemoryResponse(
        memory=read_memory(m.memory) if m.HasField('memory') else None,
    )


def write_get_memory_response(it):
    return memory_pb2.GetMemoryResponse(
        memory=None if it.memory is None else write_memory(it.memory),
    )


def read_list_memories_request(m):
    return t.ListMemoriesRequest(
        subject=m.subject,
        kind=t.MemoryKind(m.kind),
        tag=m.tag,
        page_size=m.page_size,
        page_token=m.page_token,
        include_history=m.include_history,
        metadata_filter_json=m.metadata_filter_json,
        subject_prefix=m.subject_prefix,
        metadata=dict(m.metadata),
    )


def write_list_memories_request(it):
    return memory_pb2.ListMemoriesRequest(
        subject=it.subject,
        kind=it.kind,
        tag=it.tag,
        page_size=it.page_size,
        page_token=it.page_token,
        include_history=it.include_history,
        metadata_filter_json=write_json(it.metadata_filter_json),
        subject_prefix=it.subject_prefix,
        metadata=dict(it.metadata),
    )


def read_list_memories_response(m):
    return t.ListMemoriesResponse(
        memories=[read_memory(x) for x in m.memories],
        next_page_token=m.next_page_token,
    )


def write_list_memories_response(it):
    return memory_pb2.ListMemoriesResponse(
        memories=[write_memory(x) for x in it.memories],
        next_page_token=it.next_page_token,
    )


def read_list_subjects_request(m):
    return t.ListSubjectsRequest(
        prefix=m.prefix,
        page_size=m.page_size,
        page_token=m.page_token,
    )


def write_list_subjects_request(it):
    return memory_pb2.ListSubjectsRequest(
        prefix=it.prefix,
        page_size=it.page_size,
        page_token=it.page_token,
    )


def read_list_subjects_response(m):
    return t.ListSubjectsResponse(
        subjects=[read_subject_memories(x) for x in m.subjects],
        next_page_token=m.next_page_token,
    )


def write_list_subjects_response(it):
    return memory_pb2.ListSubjectsResponse(
        subjects=[write_subject_memories(x) for x in it.subjects],
        next_page_token=it.next_page_token,
    )


def read_subject_memories(m):
    return t.SubjectMemories(
        subject=m.subject,
        memories=m.memories,
    )


def write_subject_memories(it):
    return memory_pb2.SubjectMemories(
        subject=it.subject,
        memories=it.memories,
    )


def read_list_conflicts_request(m):
    return t.ListConflictsRequest(
        subject=m.subject,
        limit=m.limit,
    )


def write_list_conflicts_request(it):
    return memory_pb2.ListConflictsRequest(
        subject=it.subject,
        limit=it.limit,
    )


def read_memory_conflict(m):
    return t.MemoryConflict(
        older=read_memory(m.older) if m.HasField('older') else None,
        newer=read_memory(m.newer) if m.HasField('newer') else None,
        likeness=m.likeness,
        difference=t.ConflictDifference(m.difference),
    )


def write_memory_conflict(it):
    return memory_pb2.MemoryConflict(
        older=None if it.older is None else write_memory(it.older),
        newer=None if it.newer is None else write_memory(it.newer),
        likeness=it.likeness,
        difference=it.difference,
    )


def read_list_conflicts_response(m):
    return t.ListConflictsResponse(
        conflicts=[read_memory_conflict(x) for x in m.conflicts],
        truncated=m.truncated,
    )


def write_list_conflicts_response(it):
    return memory_pb2.ListConflictsResponse(
        conflicts=[write_memory_conflict(x) for x in it.conflicts],
        truncated=it.truncated,
    )


def read_update_memory_request(m):
    return t.UpdateMemoryRequest(
        memory=read_memory(m.memory) if m.HasField('memory') else None,
        update_mask=list(m.update_mask.paths),
    )


def write_update_memory_request(it):
    return memory_pb2.UpdateMemoryRequest(
        memory=None if it.memory is None else write_memory(it.memory),
        update_mask=FieldMask(paths=write_texts(it.update_mask)),
    )


def read_update_memory_response(m):
    return t.UpdateMemoryResponse(
        memory=read_memory(m.memory) if m.HasField('memory') else None,
        redacted=m.redacted,
    )


def write_update_memory_response(it):
    return memory_pb2.UpdateMemoryResponse(
        memory=None if it.memory is None else write_memory(it.memory),
        redacted=it.redacted,
    )


def read_memory_filter(m):
    return t.MemoryFilter(
        subject=m.subject,
        kinds=[t.MemoryKind(x) for x in m.kinds],
        tags=list(m.tags),
        after=read_time(m.after) if m.HasField('after') else None,
        before=read_time(m.before) if m.HasField('before') else None,
    )


def write_memory_filter(it):
    return memory_pb2.MemoryFilter(
        subject=it.subject,
        kinds=[x for x in it.kinds],
        tags=write_texts(it.tags),
        after=None if it.after is None else write_time(it.after),
        before=None if it.before is None else write_time(it.before),
    )


def read_forget_request(m):
    return t.ForgetRequest(
        id=m.id if m.HasField('id') else None,
        subject=m.subject if m.HasField('subject') else None,
        filter=read_memory_filter(m.filter) if m.HasField('filter') else None,
        dry_run=m.dry_run,
    )


def write_forget_request(it):
    only_one(it.id, it.subject, it.filter)
    return memory_pb2.ForgetRequest(
        id=it.id,
        subject=it.subject,
        filter=None if it.filter is None else write_memory_filter(it.filter),
        dry_run=it.dry_run,
    )


def read_forget_response(m):
    return t.ForgetResponse(
        memories=m.memories,
        superseded=m.superseded,
        vectors=m.vectors,
        recall_events=m.recall_events,
        queued_embeddings=m.queued_embeddings,
        cursors=m.cursors,
        erased=m.erased,
    )


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
    return t.GetManifestRequest(
        subject=m.subject,
        max_lines=m.max_lines,
        max_bytes=m.max_bytes,
    )


def write_get_manifest_request(it):
    return memory_pb2.GetManifestRequest(
        subject=it.subject,
        max_lines=it.max_lines,
        max_bytes=it.max_bytes,
    )


def read_get_manifest_response(m):
    return t.GetManifestResponse(
        text=m.text,
        lines=m.lines,
        truncated=m.truncated,
    )


def write_get_manifest_response(it):
    return memory_pb2.GetManifestResponse(
        text=it.text,
        lines=it.lines,
        truncated=it.truncated,
    )


def read_lease_extraction_request(m):
    return t.LeaseExtractionRequest(
        session_id=m.session_id,
        generation=m.generation,
        subject=m.subject,
    )


def write_lease_extraction_request(it):
    return memory_pb2.LeaseExtractionRequest(
        session_id=it.session_id,
        generation=it.generation,
        subject=it.subject,
    )


def read_lease_extraction_response(m):
    return t.LeaseExtractionResponse(
        lease=m.lease,
        turns=[read_turn(x) for x in m.turns],
        manifest=m.manifest,
        prompt=m.prompt,
        expires_at=read_time(m.expires_at) if m.HasField('expires_at') else None,
        generation=m.generation,
        cursor_seq=m.cursor_seq,
    )


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
    return t.ExtractedMemory(
        kind=t.MemoryKind(m.kind),
        content=m.content,
        tags=list(m.tags),
        importance=m.importance if m.HasField('importance') else None,
        polarity=t.Polarity(m.polarity),
        observed_at=read_time(m.observed_at) if m.HasField('observed_at') else None,
        expires_at=read_time(m.expires_at) if m.HasField('expires_at') else None,
        supersedes_id=m.supersedes_id,
        visibility=t.Visibility(m.visibility),
        seqs=list(m.seqs),
    )


def write_extracted_memory(it):
    return memory_pb2.ExtractedMemory(
        kind=it.kind,
        content=it.content,
        tags=write_texts(it.tags),
        importance=it.importance,
        polarity=it.polarity,
        observed_at=None if it.observed_at is None else write_time(it.observed_at),
        expires_at=None if it.expires_at is None else write_time(it.expires_at),
        supersedes_id=it.supersedes_id,
        visibility=it.visibility,
        seqs=it.seqs,
    )


def read_commit_extraction_request(m):
    return t.CommitExtractionRequest(
        lease=m.lease,
        memories=[read_extracted_memory(x) for x in m.memories],
    )


def write_commit_extraction_request(it):
    return memory_pb2.CommitExtractionRequest(
        lease=it.lease,
        memories=[write_extracted_memory(x) for x in it.memories],
    )


def read_commit_extraction_response(m):
    return t.CommitExtractionResponse(
        cursor_seq=m.cursor_seq,
        results=[read_remember_response(x) for x in m.results],
    )


def write_commit_extraction_response(it):
    return memory_pb2.CommitExtractionResponse(
        cursor_seq=it.cursor_seq,
        results=[write_remember_response(x) for x in it.results],
    )


def read_learn_session_request(m):
    return t.LearnSessionRequest(
        session_id=m.session_id,
        generation=m.generation,
        subject=m.subject,
        dry_run=m.dry_run,
    )


def write_learn_session_request(it):
    return memory_pb2.LearnSessionRequest(
        session_id=it.session_id,
        generation=it.generation,
        subject=it.subject,
        dry_run=it.dry_run,
    )


def read_learn_session_response(m):
    return t.LearnSessionResponse(
        generation=m.generation,
        first_seq=m.first_seq,
        through_seq=m.through_seq,
        cursor_seq=m.cursor_seq,
        model=m.model,
        prompt_tokens=m.prompt_tokens,
        answer_tokens=m.answer_tokens,
        facts=[read_learned_fact(x) for x in m.facts],
    )


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
    return t.LearnedFact(
        kind=t.MemoryKind(m.kind),
        content=m.content,
        seqs=list(m.seqs),
        refused=m.refused,
        notes=list(m.notes),
        result=read_remember_response(m.result) if m.HasField('result') else None,
        supersedes_id=m.supersedes_id,
    )


def write_learned_fact(it):
    return memory_pb2.LearnedFact(
        kind=it.kind,
        content=it.content,
        seqs=it.seqs,
        refused=it.refused,
        notes=write_texts(it.notes),
        result=None if it.result is None else write_remember_response(it.result),
        supersedes_id=it.supersedes_id,
    )


def read_import_memories_request(m):
    return t.ImportMemoriesRequest(
        memories=[read_memory(x) for x in m.memories],
    )


def write_import_memories_request(it):
    return memory_pb2.ImportMemoriesRequest(
        memories=[write_memory(x) for x in it.memories],
    )


def read_import_memories_response(m):
    return t.ImportMemoriesResponse(
        imported=m.imported,
        skipped=m.skipped,
    )


def write_import_memories_response(it):
    return memory_pb2.ImportMemoriesResponse(
        imported=it.imported,
        skipped=it.skipped,
    )


def read_get_memory_stats_request(m):
    return t.GetMemoryStatsRequest(
    )


def write_get_memory_stats_request(it):
    return memory_pb2.GetMemoryStatsRequest(
    )


def read_get_memory_stats_response(m):
    return t.GetMemoryStatsResponse(
        memories=m.memories,
        superseded=m.superseded,
        subjects=m.subjects,
        recall_events=m.recall_events,
        embedding_model=m.embedding_model,
        embedded=m.embedded,
        embedding_queued=m.embedding_queued,
        embedding_failed=m.embedding_failed,
        file_bytes=m.file_bytes,
        words_queued=m.words_queued,
        reranker=m.reranker,
        documents=m.documents,
        document_bytes=m.document_bytes,
    )


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


def read_reindex_memories_request(m):
    return t.ReindexMemoriesRequest(
    )


def write_reindex_memories_request(it):
    return memory_pb2.ReindexMemoriesRequest(
    )


def read_reindex_memories_response(m):
    return t.ReindexMemoriesResponse(
        queued=m.queued,
    )


def write_reindex_memories_response(it):
    return memory_pb2.ReindexMemoriesResponse(
        queued=it.queued,
    )


def read_search_transcripts_request(m):
    return t.SearchTranscriptsRequest(
        query=m.query,
        session_id=m.session_id,
        subject=m.subject,
        after=read_time(m.after) if m.HasField('after') else None,
        before=read_time(m.before) if m.HasField('before') else None,
        roles=[t.Role(x) for x in m.roles],
        limit=m.limit,
        tool_name=m.tool_name,
        context_turns=m.context_turns,
        page_token=m.page_token,
    )


def write_search_transcripts_request(it):
    return memory_pb2.SearchTranscriptsRequest(
        query=it.query,
        session_id=it.session_id,
        subject=it.subject,
        after=None if it.after is None else write_time(it.after),
        before=None if it.before is None else write_time(it.before),
        roles=[x for x in it.roles],
        limit=it.limit,
        tool_name=it.tool_name,
        context_turns=it.context_turns,
        page_token=it.page_token,
    )


def read_search_transcripts_response(m):
    return t.SearchTranscriptsResponse(
        hits=[read_transcript_hit(x) for x in m.hits],
        next_page_token=m.next_page_token,
        incomplete=m.incomplete,
    )


def write_search_transcripts_response(it):
    return memory_pb2.SearchTranscriptsResponse(
        hits=[write_transcript_hit(x) for x in it.hits],
        next_page_token=it.next_page_token,
        incomplete=it.incomplete,
    )


def read_transcript_hit(m):
    return t.TranscriptHit(
        snippet=m.snippet,
        session_id=m.session_id,
        generation=m.generation,
        seq=m.seq,
        role=t.Role(m.role),
        time=read_time(m.time) if m.HasField('time') else None,
        score=m.score,
        turns=[read_turn(x) for x in m.turns],
    )


def write_transcript_hit(it):
    return memory_pb2.TranscriptHit(
        snippet=it.snippet,
        session_id=it.session_id,
        generation=it.generation,
        seq=it.seq,
        role=it.role,
        time=None if it.time is None else write_time(it.time),
        score=it.score,
        turns=[write_turn(x) for x in it.turns],
    )


def read_session_info(m):
    return t.SessionInfo(
        session_id=m.session_id,
        generation=m.generation,
        subject=m.subject,
        history_turns=m.history_turns,
        history_bytes=m.history_bytes,
        history_tokens=m.history_tokens,
        last_seq=m.last_seq,
        created_at=read_time(m.created_at) if m.HasField('created_at') else None,
        last_access=read_time(m.last_access) if m.HasField('last_access') else None,
        expires_at=read_time(m.expires_at) if m.HasField('expires_at') else None,
        has_summary=m.has_summary,
        state_version=m.state_version,
        compaction=read_compaction_info(m.compaction) if m.HasField('compaction') else None,
        state_json=m.state_json,
        labels=dict(m.labels),
        ttl_class=m.ttl_class,
        keep_all=m.keep_all,
    )


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
    )


def read_compaction_info(m):
    return t.CompactionInfo(
        breaker=m.breaker,
        consecutive_failures=m.consecutive_failures,
        last_error=m.last_error,
        running=m.running,
        summaries=m.summaries,
        through_seq=m.through_seq,
    )


def write_compaction_info(it):
    return session_pb2.CompactionInfo(
        breaker=it.breaker,
        consecutive_failures=it.consecutive_failures,
        last_error=it.last_error,
        running=it.running,
        summaries=it.summaries,
        through_seq=it.through_seq,
    )


def read_summary_info(m):
    return t.SummaryInfo(
        number=m.number,
        first_seq=m.first_seq,
        through_seq=m.through_seq,
        turns=m.turns,
        made_at=read_time(m.made_at) if m.HasField('made_at') else None,
        made_by=m.made_by,
    )


def write_summary_info(it):
    return session_pb2.SummaryInfo(
        number=it.number,
        first_seq=it.first_seq,
        through_seq=it.through_seq,
        turns=it.turns,
        made_at=None if it.made_at is None else write_time(it.made_at),
        made_by=it.made_by,
    )


def read_session_notes(m):
    return t.SessionNotes(
        files=list(m.files),
        last_error=m.last_error,
        decisions=list(m.decisions),
        pending_questions=list(m.pending_questions),
    )


def write_session_notes(it):
    return session_pb2.SessionNotes(
        files=write_texts(it.files),
        last_error=it.last_error,
        decisions=write_texts(it.decisions),
        pending_questions=write_texts(it.pending_questions),
    )


def read_append_request(m):
    return t.AppendRequest(
        session_id=m.session_id,
        turns=[read_turn(x) for x in m.turns],
        messages_json=m.messages_json,
        format=t.MessageFormat(m.format),
        subject=m.subject,
        idempotency_key=m.idempotency_key,
        expected_seq=m.expected_seq if m.HasField('expected_seq') else None,
        expected_generation=m.expected_generation,
        usage=read_model_usage(m.usage) if m.HasField('usage') else None,
        partial=m.partial,
        state_patch_json=m.state_patch_json,
        expected_state_version=m.expected_state_version if m.HasField('expected_state_version') else None,
        labels=dict(m.labels),
        ttl_class=m.ttl_class,
        keep_all=m.keep_all if m.HasField('keep_all') else None,
    )


def write_append_request(it):
    return session_pb2.AppendRequest(
        session_id=it.session_id,
        turns=[write_turn(x) for x in it.turns],
        messages_json=write_json(it.messages_json),
        format=it.format,
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
    return t.AppendResponse(
        session=read_session_info(m.session) if m.HasField('session') else None,
        first_seq=m.first_seq,
        last_seq=m.last_seq,
        dropped_turns=m.dropped_turns,
        duplicate=m.duplicate,
    )


def write_append_response(it):
    return session_pb2.AppendResponse(
        session=None if it.session is None else write_session_info(it.session),
        first_seq=it.first_seq,
        last_seq=it.last_seq,
        dropped_turns=it.dropped_turns,
        duplicate=it.duplicate,
    )


def read_get_context_request(m):
    return t.GetContextRequest(
        session_id=m.session_id,
        append=read_append_request(m.append) if m.HasField('append') else None,
        model=m.model,
        budget=read_budget(m.budget) if m.HasField('budget') else None,
        overhead_tokens=m.overhead_tokens,
        system=m.system,
        tools_json=m.tools_json,
        policy=read_window_policy(m.policy) if m.HasField('policy') else None,
        format=t.MessageFormat(m.format),
        attempt=m.attempt,
        memories=read_recall_request(m.memories) if m.HasField('memories') else None,
        set_cache_control=m.set_cache_control,
        peek=m.peek,
    )


def write_get_context_request(it):
    return session_pb2.GetContextRequest(
        session_id=it.session_id,
        append=None if it.append is None else write_append_request(it.append),
        model=it.model,
        budget=None if it.budget is None else write_budget(it.budget),
        overhead_tokens=it.overhead_tokens,
        system=it.system,
        tools_json=write_json(it.tools_json),
        policy=None if it.policy is None else write_window_policy(it.policy),
        format=it.format,
        attempt=it.attempt,
        memories=None if it.memories is None else write_recall_request(it.memories),
        set_cache_control=it.set_cache_control,
        peek=it.peek,
    )


def read_get_context_response(m):
    return t.GetContextResponse(
        turns=[read_turn(x) for x in m.turns],
        system=m.system,
        messages_json=m.messages_json,
        memories=[read_recall_hit(x) for x in m.memories],
        session=read_session_info(m.session) if m.HasField('session') else None,
        report=read_context_report(m.report) if m.HasField('report') else None,
        memories_text=m.memories_text,
    )


def write_get_context_response(it):
    return session_pb2.GetContextResponse(
        turns=[write_turn(x) for x in it.turns],
        system=it.system,
        messages_json=write_json(it.messages_json),
        memories=[write_recall_hit(x) for x in it.memories],
        session=None if it.session is None else write_session_info(it.session),
        report=None if it.report is None else write_context_report(it.report),
        memories_text=it.memories_text,
    )


def read_context_report(m):
    return t.ContextReport(
        input_budget=m.input_budget,
        tokens_total=m.tokens_total,
        tokens_by_block=read_tokens_by_block(m.tokens_by_block) if m.HasField('tokens_by_block') else None,
        turns_included=m.turns_included,
        turns_omitted=m.turns_omitted,
        results_trimmed=m.results_trimmed,
        stable_prefix_tokens=m.stable_prefix_tokens,
        cache_breakpoints=list(m.cache_breakpoints),
        turn_tokens=list(m.turn_tokens),
        token_factor=m.token_factor,
        token_margin=m.token_margin,
        policy=m.policy,
        degraded=m.degraded,
        notes=list(m.notes),
        budget=read_budget(m.budget) if m.HasField('budget') else None,
        omissions=[read_omission(x) for x in m.omissions],
        model=m.model,
        summary=read_summary_info(m.summary) if m.HasField('summary') else None,
        next_cut=read_next_cut(m.next_cut) if m.HasField('next_cut') else None,
    )


def write_context_report(it):
    return session_pb2.ContextReport(
        input_budget=it.input_budget,
        tokens_total=it.tokens_total,
        tokens_by_block=None if it.tokens_by_block is None else write_tokens_by_block(it.tokens_by_block),
        turns_included=it.turns_included,
        turns_omitted=it.turns_omitted,
        results_trimmed=it.results_trimmed,
        stable_prefix_tokens=it.stable_prefix_tokens,
        cache_breakpoints=it.cache_breakpoints,
        turn_tokens=it.turn_tokens,
        token_factor=it.token_factor,
        token_margin=it.token_margin,
        policy=it.policy,
        degraded=it.degraded,
        notes=write_texts(it.notes),
        budget=None if it.budget is None else write_budget(it.budget),
        omissions=[write_omission(x) for x in it.omissions],
        model=it.model,
        summary=None if it.summary is None else write_summary_info(it.summary),
        next_cut=None if it.next_cut is None else write_next_cut(it.next_cut),
    )


def read_next_cut(m):
    return t.NextCut(
        at_tokens=m.at_tokens,
        in_turns=m.in_turns if m.HasField('in_turns') else None,
        tokens_after=m.tokens_after,
        summary_ready=m.summary_ready,
        omissions=[read_omission(x) for x in m.omissions],
    )


def write_next_cut(it):
    return session_pb2.NextCut(
        at_tokens=it.at_tokens,
        in_turns=it.in_turns,
        tokens_after=it.tokens_after,
        summary_ready=it.summary_ready,
        omissions=[write_omission(x) for x in it.omissions],
    )


def read_omission(m):
    return t.Omission(
        first_seq=m.first_seq,
        last_seq=m.last_seq,
        reason=t.OmissionReason(m.reason),
    )


def write_omission(it):
    return session_pb2.Omission(
        first_seq=it.first_seq,
        last_seq=it.last_seq,
        reason=it.reason,
    )


def read_tokens_by_block(m):
    return t.TokensByBlock(
        system=m.system,
        summary=m.summary,
        memories=m.memories,
        anchor=m.anchor,
        tail=m.tail,
    )


def write_tokens_by_block(it):
    return session_pb2.TokensByBlock(
        system=it.system,
        summary=it.summary,
        memories=it.memories,
        anchor=it.anchor,
        tail=it.tail,
    )


def read_get_history_request(m):
    return t.GetHistoryRequest(
        session_id=m.session_id,
        generation=m.generation,
        scope=t.HistoryScope(m.scope),
        after_seq=m.after_seq,
        limit=m.limit,
        last=m.last,
        before_seq=m.before_seq,
        format=t.MessageFormat(m.format),
    )


def write_get_history_request(it):
    return session_pb2.GetHistoryRequest(
        session_id=it.session_id,
        generation=it.generation,
        scope=it.scope,
        after_seq=it.after_seq,
        limit=it.limit,
        last=it.last,
        before_seq=it.before_seq,
        format=it.format,
    )


def read_get_history_response(m):
    return t.GetHistoryResponse(
        turns=[read_turn(x) for x in m.turns],
        next_after_seq=m.next_after_seq,
        messages_json=m.messages_json,
        system=m.system,
        session=read_session_info(m.session) if m.HasField('session') else None,
        previous_before_seq=m.previous_before_seq,
    )


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
    return t.GetSessionRequest(
        session_id=m.session_id,
        include_state=m.include_state,
    )


def write_get_session_request(it):
    return session_pb2.GetSessionRequest(
        session_id=it.session_id,
        include_state=it.include_state,
    )


def read_get_session_response(m):
    return t.GetSessionResponse(
        session=read_session_info(m.session) if m.HasField('session') else None,
        summary=read_summary_info(m.summary) if m.HasField('summary') else None,
        summary_text=m.summary_text,
        notes=read_session_notes(m.notes) if m.HasField('notes') else None,
        state_json=m.state_json,
    )


def write_get_session_response(it):
    return session_pb2.GetSessionResponse(
        session=None if it.session is None else write_session_info(it.session),
        summary=None if it.summary is None else write_summary_info(it.summary),
        summary_text=it.summary_text,
        notes=None if it.notes is None else write_session_notes(it.notes),
        state_json=write_json(it.state_json),
    )


def read_list_sessions_request(m):
    return t.ListSessionsRequest(
        page_size=m.page_size,
        page_token=m.page_token,
        include_state=m.include_state,
        id_prefix=m.id_prefix,
        subject=m.subject,
        labels=dict(m.labels),
        updated_after=read_time(m.updated_after) if m.HasField('updated_after') else None,
        updated_before=read_time(m.updated_before) if m.HasField('updated_before') else None,
        order=t.SessionOrder(m.order),
    )


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
        order=it.order,
    )


def read_list_sessions_response(m):
    return t.ListSessionsResponse(
        sessions=[read_session_info(x) for x in m.sessions],
        next_page_token=m.next_page_token,
    )


def write_list_sessions_response(it):
    return session_pb2.ListSessionsResponse(
        sessions=[write_session_info(x) for x in it.sessions],
        next_page_token=it.next_page_token,
    )


def read_patch_state_request(m):
    return t.PatchStateRequest(
        session_id=m.session_id,
        merge_patch_json=m.merge_patch_json,
        expected_version=m.expected_version if m.HasField('expected_version') else None,
        create=m.create,
        replace=m.replace,
        labels=dict(m.labels),
        ttl_class=m.ttl_class,
        keep_all=m.keep_all if m.HasField('keep_all') else None,
    )


def write_patch_state_request(it):
    return session_pb2.PatchStateRequest(
        session_id=it.session_id,
        merge_patch_json=write_json(it.merge_patch_json),
        expected_version=it.expected_version,
        create=it.create,
        replace=it.replace,
        labels=dict(it.labels),
        ttl_class=it.ttl_class,
        keep_all=it.keep_all,
    )


def read_patch_state_response(m):
    return t.PatchStateResponse(
        state_json=m.state_json,
        version=m.version,
    )


def write_patch_state_response(it):
    return session_pb2.PatchStateResponse(
        state_json=write_json(it.state_json),
        version=it.version,
    )


def read_rewind_session_request(m):
    return t.RewindSessionRequest(
        session_id=m.session_id,
        after_seq=m.after_seq,
        turns=[read_turn(x) for x in m.turns],
        messages_json=m.messages_json,
        format=t.MessageFormat(m.format),
        expected_seq=m.expected_seq if m.HasField('expected_seq') else None,
        expected_generation=m.expected_generation,
        idempotency_key=m.idempotency_key,
    )


def write_rewind_session_request(it):
    return session_pb2.RewindSessionRequest(
        session_id=it.session_id,
        after_seq=it.after_seq,
        turns=[write_turn(x) for x in it.turns],
        messages_json=write_json(it.messages_json),
        format=it.format,
        expected_seq=it.expected_seq,
        expected_generation=it.expected_generation,
        idempotency_key=it.idempotency_key,
    )


def read_rewind_session_response(m):
    return t.RewindSessionResponse(
        session=read_session_info(m.session) if m.HasField('session') else None,
        removed=[read_turn(x) for x in m.removed],
        removed_turns=m.removed_turns,
        first_seq=m.first_seq,
        last_seq=m.last_seq,
        dropped_turns=m.dropped_turns,
        duplicate=m.duplicate,
        removed_forgotten=m.removed_forgotten,
    )


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
    return t.UpdateTurnRequest(
        session_id=m.session_id,
        seq=m.seq,
        turn=read_turn(m.turn) if m.HasField('turn') else None,
        expected_generation=m.expected_generation,
        client_id=m.client_id,
    )


def write_update_turn_request(it):
    return session_pb2.UpdateTurnRequest(
        session_id=it.session_id,
        seq=it.seq,
        turn=None if it.turn is None else write_turn(it.turn),
        expected_generation=it.expected_generation,
        client_id=it.client_id,
    )


def read_update_turn_response(m):
    return t.UpdateTurnResponse(
        turn=read_turn(m.turn) if m.HasField('turn') else None,
        session=read_session_info(m.session) if m.HasField('session') else None,
    )


def write_update_turn_response(it):
    return session_pb2.UpdateTurnResponse(
        turn=None if it.turn is None else write_turn(it.turn),
        session=None if it.session is None else write_session_info(it.session),
    )


def read_copy_session_request(m):
    return t.CopySessionRequest(
        session_id=m.session_id,
        generation=m.generation,
        through_seq=m.through_seq,
        target_session_id=m.target_session_id,
        expected_absent=m.expected_absent if m.HasField('expected_absent') else None,
        idempotency_key=m.idempotency_key,
    )


def write_copy_session_request(it):
    return session_pb2.CopySessionRequest(
        session_id=it.session_id,
        generation=it.generation,
        through_seq=it.through_seq,
        target_session_id=it.target_session_id,
        expected_absent=it.expected_absent,
        idempotency_key=it.idempotency_key,
    )


def read_copy_session_response(m):
    return t.CopySessionResponse(
        session=read_session_info(m.session) if m.HasField('session') else None,
        turns=m.turns,
        dropped_turns=m.dropped_turns,
        duplicate=m.duplicate,
    )


def write_copy_session_response(it):
    return session_pb2.CopySessionResponse(
        session=None if it.session is None else write_session_info(it.session),
        turns=it.turns,
        dropped_turns=it.dropped_turns,
        duplicate=it.duplicate,
    )


def read_compact_session_request(m):
    return t.CompactSessionRequest(
        session_id=m.session_id,
        keep_exchanges=m.keep_exchanges if m.HasField('keep_exchanges') else None,
    )


def write_compact_session_request(it):
    return session_pb2.CompactSessionRequest(
        session_id=it.session_id,
        keep_exchanges=it.keep_exchanges,
    )


def read_compact_session_response(m):
    return t.CompactSessionResponse(
        session=read_session_info(m.session) if m.HasField('session') else None,
        first_seq=m.first_seq,
        last_seq=m.last_seq,
        summary=m.summary,
        summary_info=read_summary_info(m.summary_info) if m.HasField('summary_info') else None,
        tokens_before=m.tokens_before,
        tokens_after=m.tokens_after,
        probe_score=m.probe_score,
        is_new=m.is_new,
    )


def write_compact_session_response(it):
    return session_pb2.CompactSessionResponse(
        session=None if it.session is None else write_session_info(it.session),
        first_seq=it.first_seq,
        last_seq=it.last_seq,
        summary=it.summary,
        summary_info=None if it.summary_info is None else write_summary_info(it.summary_info),
        tokens_before=it.tokens_before,
        tokens_after=it.tokens_after,
        probe_score=it.probe_score,
        is_new=it.is_new,
    )


def read_undo_compaction_request(m):
    return t.UndoCompactionRequest(
        session_id=m.session_id,
    )


def write_undo_compaction_request(it):
    return session_pb2.UndoCompactionRequest(
        session_id=it.session_id,
    )


def read_undo_compaction_response(m):
    return t.UndoCompactionResponse(
        session=read_session_info(m.session) if m.HasField('session') else None,
        restored_turns=m.restored_turns,
    )


def write_undo_compaction_response(it):
    return session_pb2.UndoCompactionResponse(
        session=None if it.session is None else write_session_info(it.session),
        restored_turns=it.restored_turns,
    )


def read_reset_session_request(m):
    return t.ResetSessionRequest(
        session_id=m.session_id,
        run_hooks=m.run_hooks,
    )


def write_reset_session_request(it):
    return session_pb2.ResetSessionRequest(
        session_id=it.session_id,
        run_hooks=it.run_hooks,
    )


def read_reset_session_response(m):
    return t.ResetSessionResponse(
        session=read_session_info(m.session) if m.HasField('session') else None,
        ended_generation=m.ended_generation,
    )


def write_reset_session_response(it):
    return session_pb2.ResetSessionResponse(
        session=None if it.session is None else write_session_info(it.session),
        ended_generation=it.ended_generation,
    )


def read_end_session_request(m):
    return t.EndSessionRequest(
        session_id=m.session_id,
    )


def write_end_session_request(it):
    return session_pb2.EndSessionRequest(
        session_id=it.session_id,
    )


def read_end_session_response(m):
    return t.EndSessionResponse(
        session=read_session_info(m.session) if m.HasField('session') else None,
    )


def write_end_session_response(it):
    return session_pb2.EndSessionResponse(
        session=None if it.session is None else write_session_info(it.session),
    )


def read_erase_session_request(m):
    return t.EraseSessionRequest(
        session_id=m.session_id,
        generation=m.generation,
    )


def write_erase_session_request(it):
    return session_pb2.EraseSessionRequest(
        session_id=it.session_id,
        generation=it.generation,
    )


def read_erase_session_response(m):
    return t.EraseSessionResponse(
        job_id=m.job_id,
        done=m.done,
        erased=read_erased(m.erased) if m.HasField('erased') else None,
        outside=list(m.outside),
    )


def write_erase_session_response(it):
    return session_pb2.EraseSessionResponse(
        job_id=it.job_id,
        done=it.done,
        erased=None if it.erased is None else write_erased(it.erased),
        outside=write_texts(it.outside),
    )


def read_erase_subject_request(m):
    return t.EraseSubjectRequest(
        subject=m.subject,
    )


def write_erase_subject_request(it):
    return session_pb2.EraseSubjectRequest(
        subject=it.subject,
    )


def read_erase_subject_response(m):
    return t.EraseSubjectResponse(
        job_id=m.job_id,
        done=m.done,
        erased=read_erased(m.erased) if m.HasField('erased') else None,
        outside=list(m.outside),
    )


def write_erase_subject_response(it):
    return session_pb2.EraseSubjectResponse(
        job_id=it.job_id,
        done=it.done,
        erased=None if it.erased is None else write_erased(it.erased),
        outside=write_texts(it.outside),
    )


def read_get_erasure_request(m):
    return t.GetErasureRequest(
        job_id=m.job_id,
    )


def write_get_erasure_request(it):
    return session_pb2.GetErasureRequest(
        job_id=it.job_id,
    )


def read_get_erasure_response(m):
    return t.GetErasureResponse(
        job_id=m.job_id,
        done=m.done,
        erased=read_erased(m.erased) if m.HasField('erased') else None,
        outside=list(m.outside),
    )


def write_get_erasure_response(it):
    return session_pb2.GetErasureResponse(
        job_id=it.job_id,
        done=it.done,
        erased=None if it.erased is None else write_erased(it.erased),
        outside=write_texts(it.outside),
    )


def read_erased(m):
    return t.Erased(
        turns=m.turns,
        summaries=m.summaries,
        keys=m.keys,
        memories=m.memories,
        deliveries=m.deliveries,
        commits=m.commits,
    )


def write_erased(it):
    return session_pb2.Erased(
        turns=it.turns,
        summaries=it.summaries,
        keys=it.keys,
        memories=it.memories,
        deliveries=it.deliveries,
        commits=it.commits,
    )


def read_watch_events_request(m):
    return t.WatchEventsRequest(
        after_event_id=m.after_event_id,
        all_tenants=m.all_tenants,
    )


def write_watch_events_request(it):
    return session_pb2.WatchEventsRequest(
        after_event_id=it.after_event_id,
        all_tenants=it.all_tenants,
    )


def read_watch_events_response(m):
    return t.WatchEventsResponse(
        event=read_event(m.event) if m.HasField('event') else None,
        missed=m.missed,
        missed_tenant=m.missed_tenant,
    )


def write_watch_events_response(it):
    return session_pb2.WatchEventsResponse(
        event=None if it.event is None else write_event(it.event),
        missed=it.missed,
        missed_tenant=it.missed_tenant,
    )


def read_event(m):
    return t.Event(
        event_id=m.event_id,
        time=read_time(m.time) if m.HasField('time') else None,
        kind=m.kind,
        tenant=m.tenant,
        session_id=m.session_id,
        generation=m.generation,
        reason=t.EndReason(m.reason),
        detail_json=m.detail_json,
    )


def write_event(it):
    return session_pb2.Event(
        event_id=it.event_id,
        time=None if it.time is None else write_time(it.time),
        kind=it.kind,
        tenant=it.tenant,
        session_id=it.session_id,
        generation=it.generation,
        reason=it.reason,
        detail_json=write_json(it.detail_json),
    )
