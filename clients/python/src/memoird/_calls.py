"""The methods of both clients.

Generated from the contract by generate.py."""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from . import _wire as w
from .types import *
from .types import Bytes, Json
from .v1 import document_pb2, memory_pb2, session_pb2


Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Call(Generic[Asked, Answer]):
    """A method of the contract."""

    __slots__ = ("name", "path", "repeatable", "write", "request", "read", "response")

    def __init__(self, path, repeatable, write, request, read, response) -> None:  # type: ignore
        self.name, self.path = path.rsplit("/", 1)[-1], path
        self.repeatable = repeatable
        self.write, self.request = write, request
        self.read, self.response = read, response


GET_DOCUMENT: Call[GetDocumentRequest, GetDocumentResponse] = Call(
    "/memoird.v1.DocumentService/GetDocument",
    True,
    w.write_get_document_request,
    document_pb2.GetDocumentRequest,
    w.read_get_document_response,
    document_pb2.GetDocumentResponse,
)
PUT_DOCUMENT: Call[PutDocumentRequest, PutDocumentResponse] = Call(
    "/memoird.v1.DocumentService/PutDocument",
    True,
    w.write_put_document_request,
    document_pb2.PutDocumentRequest,
    w.read_put_document_response,
    document_pb2.PutDocumentResponse,
)
DELETE_DOCUMENT: Call[DeleteDocumentRequest, DeleteDocumentResponse] = Call(
    "/memoird.v1.DocumentService/DeleteDocument",
    True,
    w.write_delete_document_request,
    document_pb2.DeleteDocumentRequest,
    w.read_delete_document_response,
    document_pb2.DeleteDocumentResponse,
)
DELETE_DOCUMENTS: Call[DeleteDocumentsRequest, DeleteDocumentsResponse] = Call(
    "/memoird.v1.DocumentService/DeleteDocuments",
    True,
    w.write_delete_documents_request,
    document_pb2.DeleteDocumentsRequest,
    w.read_delete_documents_response,
    document_pb2.DeleteDocumentsResponse,
)
LIST_DOCUMENTS: Call[ListDocumentsRequest, ListDocumentsResponse] = Call(
    "/memoird.v1.DocumentService/ListDocuments",
    True,
    w.write_list_documents_request,
    document_pb2.ListDocumentsRequest,
    w.read_list_documents_response,
    document_pb2.ListDocumentsResponse,
)
LIST_NAMESPACES: Call[ListNamespacesRequest, ListNamespacesResponse] = Call(
    "/memoird.v1.DocumentService/ListNamespaces",
    True,
    w.write_list_namespaces_request,
    document_pb2.ListNamespacesRequest,
    w.read_list_namespaces_response,
    document_pb2.ListNamespacesResponse,
)
BATCH_DOCUMENTS: Call[BatchDocumentsRequest, BatchDocumentsResponse] = Call(
    "/memoird.v1.DocumentService/BatchDocuments",
    True,
    w.write_batch_documents_request,
    document_pb2.BatchDocumentsRequest,
    w.read_batch_documents_response,
    document_pb2.BatchDocumentsResponse,
)
REMEMBER: Call[RememberRequest, RememberResponse] = Call(
    "/memoird.v1.MemoryService/Remember",
    True,
    w.write_remember_request,
    memory_pb2.RememberRequest,
    w.read_remember_response,
    memory_pb2.RememberResponse,
)
RECALL: Call[RecallRequest, RecallResponse] = Call(
    "/memoird.v1.MemoryService/Recall",
    True,
    w.write_recall_request,
    memory_pb2.RecallRequest,
    w.read_recall_response,
    memory_pb2.RecallResponse,
)
GET_MEMORY: Call[GetMemoryRequest, GetMemoryResponse] = Call(
    "/memoird.v1.MemoryService/GetMemory",
    True,
    w.write_get_memory_request,
    memory_pb2.GetMemoryRequest,
    w.read_get_memory_response,
    memory_pb2.GetMemoryResponse,
)
LIST_MEMORIES: Call[ListMemoriesRequest, ListMemoriesResponse] = Call(
    "/memoird.v1.MemoryService/ListMemories",
    True,
    w.write_list_memories_request,
    memory_pb2.ListMemoriesRequest,
    w.read_list_memories_response,
    memory_pb2.ListMemoriesResponse,
)
LIST_SUBJECTS: Call[ListSubjectsRequest, ListSubjectsResponse] = Call(
    "/memoird.v1.MemoryService/ListSubjects",
    True,
    w.write_list_subjects_request,
    memory_pb2.ListSubjectsRequest,
    w.read_list_subjects_response,
    memory_pb2.ListSubjectsResponse,
)
LIST_CONFLICTS: Call[ListConflictsRequest, ListConflictsResponse] = Call(
    "/memoird.v1.MemoryService/ListConflicts",
    True,
    w.write_list_conflicts_request,
    memory_pb2.ListConflictsRequest,
    w.read_list_conflicts_response,
    memory_pb2.ListConflictsResponse,
)
UPDATE_MEMORY: Call[UpdateMemoryRequest, UpdateMemoryResponse] = Call(
    "/memoird.v1.MemoryService/UpdateMemory",
    False,
    w.write_update_memory_request,
    memory_pb2.UpdateMemoryRequest,
    w.read_update_memory_response,
    memory_pb2.UpdateMemoryResponse,
)
FORGET: Call[ForgetRequest, ForgetResponse] = Call(
    "/memoird.v1.MemoryService/Forget",
    True,
    w.write_forget_request,
    memory_pb2.ForgetRequest,
    w.read_forget_response,
    memory_pb2.ForgetResponse,
)
GET_MANIFEST: Call[GetManifestRequest, GetManifestResponse] = Call(
    "/memoird.v1.MemoryService/GetManifest",
    True,
    w.write_get_manifest_request,
    memory_pb2.GetManifestRequest,
    w.read_get_manifest_response,
    memory_pb2.GetManifestResponse,
)
LEASE_EXTRACTION: Call[LeaseExtractionRequest, LeaseExtractionResponse] = Call(
    "/memoird.v1.MemoryService/LeaseExtraction",
    False,
    w.write_lease_extraction_request,
    memory_pb2.LeaseExtractionRequest,
    w.read_lease_extraction_response,
    memory_pb2.LeaseExtractionResponse,
)
COMMIT_EXTRACTION: Call[CommitExtractionRequest, CommitExtractionResponse] = Call(
    "/memoird.v1.MemoryService/CommitExtraction",
    True,
    w.write_commit_extraction_request,
    memory_pb2.CommitExtractionRequest,
    w.read_commit_extraction_response,
    memory_pb2.CommitExtractionResponse,
)
LEARN_SESSION: Call[LearnSessionRequest, LearnSessionResponse] = Call(
    "/memoird.v1.MemoryService/LearnSession",
    False,
    w.write_learn_session_request,
    memory_pb2.LearnSessionRequest,
    w.read_learn_session_response,
    memory_pb2.LearnSessionResponse,
)
IMPORT_MEMORIES: Call[ImportMemoriesRequest, ImportMemoriesResponse] = Call(
    "/memoird.v1.MemoryService/ImportMemories",
    True,
    w.write_import_memories_request,
    memory_pb2.ImportMemoriesRequest,
    w.read_import_memories_response,
    memory_pb2.ImportMemoriesResponse,
)
GET_MEMORY_STATS: Call[GetMemoryStatsRequest, GetMemoryStatsResponse] = Call(
    "/memoird.v1.MemoryService/GetMemoryStats",
    True,
    w.write_get_memory_stats_request,
    memory_pb2.GetMemoryStatsRequest,
    w.read_get_memory_stats_response,
    memory_pb2.GetMemoryStatsResponse,
)
APPEND: Call[AppendRequest, AppendResponse] = Call(
    "/memoird.v1.SessionService/Append",
    True,
    w.write_append_request,
    session_pb2.AppendRequest,
    w.read_append_response,
    session_pb2.AppendResponse,
)
BUILD_CONTEXT: Call[BuildContextRequest, BuildContextResponse] = Call(
    "/memoird.v1.SessionService/BuildContext",
    True,
    w.write_build_context_request,
    session_pb2.BuildContextRequest,
    w.read_build_context_response,
    session_pb2.BuildContextResponse,
)
RESOLVE_RECALL_TOOL: Call[ResolveRecallToolRequest, ResolveRecallToolResponse] = Call(
    "/memoird.v1.SessionService/ResolveRecallTool",
    True,
    w.write_resolve_recall_tool_request,
    session_pb2.ResolveRecallToolRequest,
    w.read_resolve_recall_tool_response,
    session_pb2.ResolveRecallToolResponse,
)
GET_HISTORY: Call[GetHistoryRequest, GetHistoryResponse] = Call(
    "/memoird.v1.SessionService/GetHistory",
    True,
    w.write_get_history_request,
    session_pb2.GetHistoryRequest,
    w.read_get_history_response,
    session_pb2.GetHistoryResponse,
)
GET_SESSION: Call[GetSessionRequest, GetSessionResponse] = Call(
    "/memoird.v1.SessionService/GetSession",
    True,
    w.write_get_session_request,
    session_pb2.GetSessionRequest,
    w.read_get_session_response,
    session_pb2.GetSessionResponse,
)
LIST_SESSIONS: Call[ListSessionsRequest, ListSessionsResponse] = Call(
    "/memoird.v1.SessionService/ListSessions",
    True,
    w.write_list_sessions_request,
    session_pb2.ListSessionsRequest,
    w.read_list_sessions_response,
    session_pb2.ListSessionsResponse,
)
SEARCH_TRANSCRIPTS: Call[SearchTranscriptsRequest, SearchTranscriptsResponse] = Call(
    "/memoird.v1.SessionService/SearchTranscripts",
    True,
    w.write_search_transcripts_request,
    session_pb2.SearchTranscriptsRequest,
    w.read_search_transcripts_response,
    session_pb2.SearchTranscriptsResponse,
)
UPDATE_SESSION: Call[UpdateSessionRequest, UpdateSessionResponse] = Call(
    "/memoird.v1.SessionService/UpdateSession",
    True,
    w.write_update_session_request,
    session_pb2.UpdateSessionRequest,
    w.read_update_session_response,
    session_pb2.UpdateSessionResponse,
)
REWIND_SESSION: Call[RewindSessionRequest, RewindSessionResponse] = Call(
    "/memoird.v1.SessionService/RewindSession",
    True,
    w.write_rewind_session_request,
    session_pb2.RewindSessionRequest,
    w.read_rewind_session_response,
    session_pb2.RewindSessionResponse,
)
UPDATE_TURN: Call[UpdateTurnRequest, UpdateTurnResponse] = Call(
    "/memoird.v1.SessionService/UpdateTurn",
    True,
    w.write_update_turn_request,
    session_pb2.UpdateTurnRequest,
    w.read_update_turn_response,
    session_pb2.UpdateTurnResponse,
)
COPY_SESSION: Call[CopySessionRequest, CopySessionResponse] = Call(
    "/memoird.v1.SessionService/CopySession",
    True,
    w.write_copy_session_request,
    session_pb2.CopySessionRequest,
    w.read_copy_session_response,
    session_pb2.CopySessionResponse,
)
COMPACT_SESSION: Call[CompactSessionRequest, CompactSessionResponse] = Call(
    "/memoird.v1.SessionService/CompactSession",
    True,
    w.write_compact_session_request,
    session_pb2.CompactSessionRequest,
    w.read_compact_session_response,
    session_pb2.CompactSessionResponse,
)
UNDO_COMPACTION: Call[UndoCompactionRequest, UndoCompactionResponse] = Call(
    "/memoird.v1.SessionService/UndoCompaction",
    False,
    w.write_undo_compaction_request,
    session_pb2.UndoCompactionRequest,
    w.read_undo_compaction_response,
    session_pb2.UndoCompactionResponse,
)
RESET_SESSION: Call[ResetSessionRequest, ResetSessionResponse] = Call(
    "/memoird.v1.SessionService/ResetSession",
    True,
    w.write_reset_session_request,
    session_pb2.ResetSessionRequest,
    w.read_reset_session_response,
    session_pb2.ResetSessionResponse,
)
END_SESSION: Call[EndSessionRequest, EndSessionResponse] = Call(
    "/memoird.v1.SessionService/EndSession",
    True,
    w.write_end_session_request,
    session_pb2.EndSessionRequest,
    w.read_end_session_response,
    session_pb2.EndSessionResponse,
)
ERASE_SESSION: Call[EraseSessionRequest, EraseSessionResponse] = Call(
    "/memoird.v1.SessionService/EraseSession",
    True,
    w.write_erase_session_request,
    session_pb2.EraseSessionRequest,
    w.read_erase_session_response,
    session_pb2.EraseSessionResponse,
)
ERASE_SUBJECT: Call[EraseSubjectRequest, EraseSubjectResponse] = Call(
    "/memoird.v1.SessionService/EraseSubject",
    True,
    w.write_erase_subject_request,
    session_pb2.EraseSubjectRequest,
    w.read_erase_subject_response,
    session_pb2.EraseSubjectResponse,
)
GET_ERASURE: Call[GetErasureRequest, GetErasureResponse] = Call(
    "/memoird.v1.SessionService/GetErasure",
    True,
    w.write_get_erasure_request,
    session_pb2.GetErasureRequest,
    w.read_get_erasure_response,
    session_pb2.GetErasureResponse,
)
WATCH_EVENTS: Call[WatchEventsRequest, WatchEventsResponse] = Call(
    "/memoird.v1.SessionService/WatchEvents",
    False,
    w.write_watch_events_request,
    session_pb2.WatchEventsRequest,
    w.read_watch_events_response,
    session_pb2.WatchEventsResponse,
)


class SyncCalls:
    """The calls, blocking."""

    def _call(
        self, call: Call[Asked, Answer], request: Asked, timeout: float | None
    ) -> Answer:
        raise NotImplementedError

    def _stream(
        self, call: Call[Asked, Answer], request: Asked, timeout: float | None
    ) -> Iterator[Answer]:
        raise NotImplementedError

    def get_document(
        self,
        namespace: Sequence[str] = (),
        key: str = "",
        ttl: timedelta | None = None,
        *,
        timeout: float | None = None,
    ) -> GetDocumentResponse:
        """Reads a document. Fails with DOCUMENT_NOT_FOUND if it does not exist."""
        request = GetDocumentRequest(
            namespace=namespace,
            key=key,
            ttl=ttl,
        )
        return self._call(GET_DOCUMENT, request, timeout)

    def put_document(
        self,
        namespace: Sequence[str] = (),
        key: str = "",
        json: Json | None = None,
        *,
        bytes: Bytes | None = None,
        expected_version: int | None = None,
        ttl: timedelta | None = None,
        idempotency_key: str = "",
        timeout: float | None = None,
    ) -> PutDocumentResponse:
        """Creates or replaces a document. Returns once it is on disk."""
        request = PutDocumentRequest(
            namespace=namespace,
            key=key,
            json=json,
            bytes=bytes,
            expected_version=expected_version,
            ttl=ttl,
            idempotency_key=idempotency_key,
        )
        return self._call(PUT_DOCUMENT, request, timeout)

    def delete_document(
        self,
        namespace: Sequence[str] = (),
        key: str = "",
        expected_version: int | None = None,
        *,
        timeout: float | None = None,
    ) -> DeleteDocumentResponse:
        """Deletes a document. Does nothing if it does not exist."""
        request = DeleteDocumentRequest(
            namespace=namespace,
            key=key,
            expected_version=expected_version,
        )
        return self._call(DELETE_DOCUMENT, request, timeout)

    def delete_documents(
        self,
        namespace_prefix: Sequence[str] = (),
        exact_namespace: bool = False,
        key_prefix: str = "",
        *,
        key_from: str = "",
        key_before: str = "",
        erase: bool = False,
        timeout: float | None = None,
    ) -> DeleteDocumentsResponse:
        """Deletes all documents of a namespace and of those below it, in steps. If it fails, some
        may be deleted already; a retry deletes the rest.
        """
        request = DeleteDocumentsRequest(
            namespace_prefix=namespace_prefix,
            exact_namespace=exact_namespace,
            key_prefix=key_prefix,
            key_from=key_from,
            key_before=key_before,
            erase=erase,
        )
        return self._call(DELETE_DOCUMENTS, request, timeout)

    def list_documents(
        self,
        namespace_prefix: Sequence[str] = (),
        exact_namespace: bool = False,
        key_prefix: str = "",
        *,
        key_from: str = "",
        key_before: str = "",
        filter_json: Json = "",
        descending: bool = False,
        include_values: bool | None = None,
        page_size: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> ListDocumentsResponse:
        """Lists documents by namespace, then by key."""
        request = ListDocumentsRequest(
            namespace_prefix=namespace_prefix,
            exact_namespace=exact_namespace,
            key_prefix=key_prefix,
            key_from=key_from,
            key_before=key_before,
            filter_json=filter_json,
            descending=descending,
            include_values=include_values,
            page_size=page_size,
            page_token=page_token,
        )
        return self._call(LIST_DOCUMENTS, request, timeout)

    def list_namespaces(
        self,
        prefix: Sequence[str] = (),
        suffix: Sequence[str] = (),
        max_depth: int = 0,
        *,
        page_size: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> ListNamespacesResponse:
        """Lists namespaces that have documents, in order."""
        request = ListNamespacesRequest(
            prefix=prefix,
            suffix=suffix,
            max_depth=max_depth,
            page_size=page_size,
            page_token=page_token,
        )
        return self._call(LIST_NAMESPACES, request, timeout)

    def batch_documents(
        self,
        operations: Sequence[DocumentOperation] = (),
        *,
        timeout: float | None = None,
    ) -> BatchDocumentsResponse:
        """Applies several operations in order, in one transaction. Later operations see the
        effects of earlier ones. An error names the operation that failed.
        """
        request = BatchDocumentsRequest(
            operations=operations,
        )
        return self._call(BATCH_DOCUMENTS, request, timeout)

    def remember(
        self,
        subject: str,
        kind: MemoryKind = MemoryKind.UNSPECIFIED,
        content: str = "",
        *,
        tags: Sequence[str] = (),
        importance: float | None = None,
        source: MemorySource | None = None,
        observed_at: datetime | None = None,
        expires_at: datetime | None = None,
        supersedes_id: str = "",
        pinned: bool = False,
        polarity: Polarity = Polarity.UNSPECIFIED,
        idempotency_key: str = "",
        visibility: Visibility = Visibility.UNSPECIFIED,
        near_duplicate: NearDuplicate = NearDuplicate.UNSPECIFIED,
        external_key: str = "",
        metadata_json: Json = "",
        vector: Sequence[float] = (),
        keep_apart: bool = False,
        timeout: float | None = None,
    ) -> RememberResponse:
        """Stores a fact. Returns once it is on disk."""
        request = RememberRequest(
            subject=subject,
            kind=kind,
            content=content,
            tags=tags,
            importance=importance,
            source=source,
            observed_at=observed_at,
            expires_at=expires_at,
            supersedes_id=supersedes_id,
            pinned=pinned,
            polarity=polarity,
            idempotency_key=idempotency_key,
            visibility=visibility,
            near_duplicate=near_duplicate,
            external_key=external_key,
            metadata_json=metadata_json,
            vector=vector,
            keep_apart=keep_apart,
        )
        return self._call(REMEMBER, request, timeout)

    def recall(
        self,
        query: str = "",
        subjects: Sequence[str] = (),
        kinds: Sequence[MemoryKind] = (),
        *,
        tags: Sequence[str] = (),
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int = 0,
        mode: RecallMode = RecallMode.UNSPECIFIED,
        session_id: str = "",
        explain: bool = False,
        rerank: bool | None = None,
        metadata_filter_json: Json = "",
        subject_prefix: str = "",
        vector: Sequence[float] = (),
        min_relevance: float | None = None,
        timeout: float | None = None,
    ) -> RecallResponse:
        """Searches memories by words (lexical) and by meaning (vectors)."""
        request = RecallRequest(
            query=query,
            subjects=subjects,
            kinds=kinds,
            tags=tags,
            after=after,
            before=before,
            limit=limit,
            mode=mode,
            session_id=session_id,
            explain=explain,
            rerank=rerank,
            metadata_filter_json=metadata_filter_json,
            subject_prefix=subject_prefix,
            vector=vector,
            min_relevance=min_relevance,
        )
        return self._call(RECALL, request, timeout)

    def get_memory(
        self,
        id: str = "",
        subject: str = "",
        external_key: str = "",
        *,
        timeout: float | None = None,
    ) -> GetMemoryResponse:
        """Reads one memory, even if it is superseded or expired."""
        request = GetMemoryRequest(
            id=id,
            subject=subject,
            external_key=external_key,
        )
        return self._call(GET_MEMORY, request, timeout)

    def list_memories(
        self,
        subject: str = "",
        kind: MemoryKind = MemoryKind.UNSPECIFIED,
        tag: str = "",
        *,
        page_size: int = 0,
        page_token: str = "",
        include_history: bool = False,
        metadata_filter_json: Json = "",
        subject_prefix: str = "",
        timeout: float | None = None,
    ) -> ListMemoriesResponse:
        """Lists memories by id, oldest first."""
        request = ListMemoriesRequest(
            subject=subject,
            kind=kind,
            tag=tag,
            page_size=page_size,
            page_token=page_token,
            include_history=include_history,
            metadata_filter_json=metadata_filter_json,
            subject_prefix=subject_prefix,
        )
        return self._call(LIST_MEMORIES, request, timeout)

    def list_subjects(
        self,
        prefix: str = "",
        page_size: int = 0,
        page_token: str = "",
        *,
        timeout: float | None = None,
    ) -> ListSubjectsResponse:
        """Lists the subjects that have memories, by id."""
        request = ListSubjectsRequest(
            prefix=prefix,
            page_size=page_size,
            page_token=page_token,
        )
        return self._call(LIST_SUBJECTS, request, timeout)

    def list_conflicts(
        self,
        subject: str,
        page_size: int = 0,
        page_token: str = "",
        *,
        timeout: float | None = None,
    ) -> ListConflictsResponse:
        """Lists memories of a subject that may contradict each other, most similar first."""
        request = ListConflictsRequest(
            subject=subject,
            page_size=page_size,
            page_token=page_token,
        )
        return self._call(LIST_CONFLICTS, request, timeout)

    def update_memory(
        self,
        memory: Memory | None = None,
        update_mask: Sequence[str] = (),
        *,
        timeout: float | None = None,
    ) -> UpdateMemoryResponse:
        """Changes fields of a memory."""
        request = UpdateMemoryRequest(
            memory=memory,
            update_mask=update_mask,
        )
        return self._call(UPDATE_MEMORY, request, timeout)

    def forget(
        self,
        id: str | None = None,
        subject: str | None = None,
        filter: MemoryFilter | None = None,
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> ForgetResponse:
        """Removes memories from all indexes, caches and responses, and from disk. The removal is
        durable before it starts, and continues after a crash.
        """
        request = ForgetRequest(
            id=id,
            subject=subject,
            filter=filter,
            dry_run=dry_run,
        )
        return self._call(FORGET, request, timeout)

    def get_manifest(
        self,
        subject: str,
        max_lines: int = 0,
        max_bytes: int = 0,
        *,
        timeout: float | None = None,
    ) -> GetManifestResponse:
        """Returns the memories of a subject as text, one line each: pinned first, then by
        importance.
        """
        request = GetManifestRequest(
            subject=subject,
            max_lines=max_lines,
            max_bytes=max_bytes,
        )
        return self._call(GET_MANIFEST, request, timeout)

    def lease_extraction(
        self,
        session_id: str,
        generation: str = "",
        subject: str = "",
        *,
        timeout: float | None = None,
    ) -> LeaseExtractionResponse:
        """Leases the turns of a session from which facts have not been extracted, with a prompt
        for a model. Delivery is at least once: if a lease is not committed in time, its turns
        are leased again.
        """
        request = LeaseExtractionRequest(
            session_id=session_id,
            generation=generation,
            subject=subject,
        )
        return self._call(LEASE_EXTRACTION, request, timeout)

    def commit_extraction(
        self,
        lease: str,
        memories: Sequence[ExtractedMemory] = (),
        *,
        timeout: float | None = None,
    ) -> CommitExtractionResponse:
        """Stores the facts found in leased turns and marks the turns as extracted, atomically. A
        repeat with the same facts returns the same response. Fails with LEASE_LOST, and stores
        nothing, if the lease has expired, or if a leased turn was updated or rewound since.
        """
        request = CommitExtractionRequest(
            lease=lease,
            memories=memories,
        )
        return self._call(COMMIT_EXTRACTION, request, timeout)

    def learn_session(
        self,
        session_id: str,
        generation: str = "",
        subject: str = "",
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> LearnSessionResponse:
        """Runs the model of `long_term.extraction` on the next turns of a session now, and stores
        the facts it finds. A dry run returns the facts it would store or reject, with the
        reasons.
        """
        request = LearnSessionRequest(
            session_id=session_id,
            generation=generation,
            subject=subject,
            dry_run=dry_run,
        )
        return self._call(LEARN_SESSION, request, timeout)

    def import_memories(
        self,
        memories: Sequence[Memory] = (),
        *,
        timeout: float | None = None,
    ) -> ImportMemoriesResponse:
        """Stores memories as returned by ListMemories, with their ids and times. Memories that
        exist are skipped.
        """
        request = ImportMemoriesRequest(
            memories=memories,
        )
        return self._call(IMPORT_MEMORIES, request, timeout)

    def get_memory_stats(
        self,
        *,
        timeout: float | None = None,
    ) -> GetMemoryStatsResponse:
        """Returns counts of the tenant's memories, and the progress of their embedding."""
        request = GetMemoryStatsRequest()
        return self._call(GET_MEMORY_STATS, request, timeout)

    def append(
        self,
        session_id: str,
        turns: Sequence[Turn] = (),
        messages_json: Json = "",
        *,
        format: MessageFormat = MessageFormat.UNSPECIFIED,
        subject: str = "",
        idempotency_key: str = "",
        expected_seq: int | None = None,
        expected_generation: str = "",
        usage: ModelUsage | None = None,
        partial: bool = False,
        state_patch_json: Json = "",
        expected_state_version: int | None = None,
        labels: Mapping[str, str] = MappingProxyType({}),
        ttl_class: str = "",
        keep_all: bool | None = None,
        timeout: float | None = None,
    ) -> AppendResponse:
        """Appends turns to a session atomically, and starts the session if none is live. Returns
        once the turns are as durable as configured. Touches the session.
        """
        request = AppendRequest(
            session_id=session_id,
            turns=turns,
            messages_json=messages_json,
            format=format,
            subject=subject,
            idempotency_key=idempotency_key,
            expected_seq=expected_seq,
            expected_generation=expected_generation,
            usage=usage,
            partial=partial,
            state_patch_json=state_patch_json,
            expected_state_version=expected_state_version,
            labels=labels,
            ttl_class=ttl_class,
            keep_all=keep_all,
        )
        return self._call(APPEND, request, timeout)

    def build_context(
        self,
        session_id: str,
        append: AppendRequest | None = None,
        model: str = "",
        *,
        budget: Budget | None = None,
        overhead_tokens: int = 0,
        system: str = "",
        tools_json: Json = "",
        policy: WindowPolicy | None = None,
        format: MessageFormat = MessageFormat.UNSPECIFIED,
        attempt: int = 0,
        memories: RecallRequest | None = None,
        set_cache_control: bool = False,
        peek: bool = False,
        recall_tool: bool = False,
        timeout: float | None = None,
    ) -> BuildContextResponse:
        """Builds the window for the next model call, optionally after an append, so that a message
        takes one round trip. Touches the session unless `peek` is set.
        """
        request = BuildContextRequest(
            session_id=session_id,
            append=append,
            model=model,
            budget=budget,
            overhead_tokens=overhead_tokens,
            system=system,
            tools_json=tools_json,
            policy=policy,
            format=format,
            attempt=attempt,
            memories=memories,
            set_cache_control=set_cache_control,
            peek=peek,
            recall_tool=recall_tool,
        )
        return self._call(BUILD_CONTEXT, request, timeout)

    def resolve_recall_tool(
        self,
        session_id: str,
        arguments_json: Json = "",
        call_id: str = "",
        *,
        format: MessageFormat = MessageFormat.UNSPECIFIED,
        max_bytes: int = 0,
        model: str = "",
        budget: Budget | None = None,
        timeout: float | None = None,
    ) -> ResolveRecallToolResponse:
        """Resolves a call of the tool `read_earlier_turns`, which BuildContext offers with
        `recall_tool`. Invalid arguments do not fail the rpc: the result has `is_error` and
        explains the correction to the model. Does not touch the session.
        """
        request = ResolveRecallToolRequest(
            session_id=session_id,
            arguments_json=arguments_json,
            call_id=call_id,
            format=format,
            max_bytes=max_bytes,
            model=model,
            budget=budget,
        )
        return self._call(RESOLVE_RECALL_TOOL, request, timeout)

    def get_history(
        self,
        session_id: str,
        generation: str = "",
        scope: HistoryScope = HistoryScope.UNSPECIFIED,
        *,
        after_seq: int = 0,
        limit: int = 0,
        last: int = 0,
        before_seq: int = 0,
        format: MessageFormat = MessageFormat.UNSPECIFIED,
        timeout: float | None = None,
    ) -> GetHistoryResponse:
        """Reads turns, oldest first. Does not touch the session."""
        request = GetHistoryRequest(
            session_id=session_id,
            generation=generation,
            scope=scope,
            after_seq=after_seq,
            limit=limit,
            last=last,
            before_seq=before_seq,
            format=format,
        )
        return self._call(GET_HISTORY, request, timeout)

    def get_session(
        self,
        session_id: str,
        include_state: bool = False,
        *,
        timeout: float | None = None,
    ) -> GetSessionResponse:
        """Reads one live session. Does not touch it."""
        request = GetSessionRequest(
            session_id=session_id,
            include_state=include_state,
        )
        return self._call(GET_SESSION, request, timeout)

    def list_sessions(
        self,
        page_size: int = 0,
        page_token: str = "",
        include_state: bool = False,
        *,
        id_prefix: str = "",
        subject: str = "",
        labels: Mapping[str, str] = MappingProxyType({}),
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        order: SessionOrder = SessionOrder.UNSPECIFIED,
        state: SessionState = SessionState.UNSPECIFIED,
        timeout: float | None = None,
    ) -> ListSessionsResponse:
        """Lists the tenant's live sessions, ended generations or both, most recent first by
        default. Touches none. Ended generations are listed until `journal.retention` or an
        erasure removes them.
        """
        request = ListSessionsRequest(
            page_size=page_size,
            page_token=page_token,
            include_state=include_state,
            id_prefix=id_prefix,
            subject=subject,
            labels=labels,
            updated_after=updated_after,
            updated_before=updated_before,
            order=order,
            state=state,
        )
        return self._call(LIST_SESSIONS, request, timeout)

    def search_transcripts(
        self,
        query: str,
        session_id: str = "",
        subject: str = "",
        *,
        after: datetime | None = None,
        before: datetime | None = None,
        roles: Sequence[Role] = (),
        page_size: int = 0,
        tool_name: str = "",
        context_turns: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> SearchTranscriptsResponse:
        """Searches the turns of live and ended sessions, as long as the journal has them. Touches
        none.
        """
        request = SearchTranscriptsRequest(
            query=query,
            session_id=session_id,
            subject=subject,
            after=after,
            before=before,
            roles=roles,
            page_size=page_size,
            tool_name=tool_name,
            context_turns=context_turns,
            page_token=page_token,
        )
        return self._call(SEARCH_TRANSCRIPTS, request, timeout)

    def update_session(
        self,
        session_id: str,
        state_patch_json: Json = "",
        state_json: Json = "",
        *,
        labels: Mapping[str, str] = MappingProxyType({}),
        ttl_class: str = "",
        keep_all: bool | None = None,
        update_mask: Sequence[str] = (),
        expected_state_version: int | None = None,
        allow_missing: bool = False,
        idempotency_key: str = "",
        timeout: float | None = None,
    ) -> UpdateSessionResponse:
        """Changes the state (a free-form JSON object), the labels, `ttl_class` or `keep_all` of a
        live session, atomically. Touches the session.
        """
        request = UpdateSessionRequest(
            session_id=session_id,
            state_patch_json=state_patch_json,
            state_json=state_json,
            labels=labels,
            ttl_class=ttl_class,
            keep_all=keep_all,
            update_mask=update_mask,
            expected_state_version=expected_state_version,
            allow_missing=allow_missing,
            idempotency_key=idempotency_key,
        )
        return self._call(UPDATE_SESSION, request, timeout)

    def rewind_session(
        self,
        session_id: str,
        after_seq: int = 0,
        turns: Sequence[Turn] = (),
        *,
        messages_json: Json = "",
        format: MessageFormat = MessageFormat.UNSPECIFIED,
        expected_seq: int | None = None,
        expected_generation: str = "",
        idempotency_key: str = "",
        timeout: float | None = None,
    ) -> RewindSessionResponse:
        """Removes the newest turns of a live session and appends others, atomically: to pop a
        turn, to regenerate a reply, to edit the last message, or to replace all messages. If no
        session is live, a rewind with `after_seq` 0 that adds turns starts one, and any other
        fails with SESSION_NOT_FOUND. Fails with TOOL_UNIT_SPLIT if it would separate a tool
        call from its result; for units that the history has dropped, this is checked within
        1,000 turns and 2 MiB on both sides of `after_seq`. Rewound turns leave all windows,
        summaries and searches, and are not passed to hooks. The journal keeps them, with
        `removed` set, until retention. Seqs are not reused: new turns get seqs above the
        highest ever assigned. A summary that covers a rewound turn is undone. An Append that
        repeats the `idempotency_key` of a rewound turn fails with IDEMPOTENCY_KEY_REWOUND.
        Touches the session.
        """
        request = RewindSessionRequest(
            session_id=session_id,
            after_seq=after_seq,
            turns=turns,
            messages_json=messages_json,
            format=format,
            expected_seq=expected_seq,
            expected_generation=expected_generation,
            idempotency_key=idempotency_key,
        )
        return self._call(REWIND_SESSION, request, timeout)

    def update_turn(
        self,
        session_id: str,
        seq: int = 0,
        turn: Turn | None = None,
        *,
        expected_generation: str = "",
        client_id: str = "",
        idempotency_key: str = "",
        messages_json: Json = "",
        format: MessageFormat = MessageFormat.UNSPECIFIED,
        timeout: float | None = None,
    ) -> UpdateTurnResponse:
        """Replaces the content of a turn of a live session permanently. When it returns, the old
        content is in no history, window, summary, marker or search. It leaves the disk's pages
        some minutes later, with the next round of retention. The turn keeps its seq, role,
        time, pin, tool calls and results, so that tool units stay intact (TURN_UPDATE_INVALID).
        Summaries that cover the turn are undone, and the cuts of windows are discarded. With a
        journal, turns that the history has dropped and rewound turns can be updated too.
        Memories made from the turn stay (see Forget), and so does everything that hooks
        received of earlier generations. Does not touch the session.
        """
        request = UpdateTurnRequest(
            session_id=session_id,
            seq=seq,
            turn=turn,
            expected_generation=expected_generation,
            client_id=client_id,
            idempotency_key=idempotency_key,
            messages_json=messages_json,
            format=format,
        )
        return self._call(UPDATE_TURN, request, timeout)

    def copy_session(
        self,
        session_id: str,
        generation: str = "",
        through_seq: int = 0,
        *,
        target_session_id: str = "",
        replace_existing: bool = False,
        idempotency_key: str = "",
        timeout: float | None = None,
    ) -> CopySessionResponse:
        """Copies the turns of a session through a seq into a new generation of the target session,
        to fork a chat or to restore one that has ended. It is atomic. The copy has the turns
        with new seqs, the state, the subject, the labels, `ttl_class` and `keep_all`, but no
        rewound turns, summaries, cuts or idempotency keys. The maximum is 100,000 turns and 64
        MiB, or a quarter of `limits.memory` if that is less (COPY_TOO_LARGE). Without a
        journal, only turns that the history still has are copied. Touches the copy, not the
        source.
        """
        request = CopySessionRequest(
            session_id=session_id,
            generation=generation,
            through_seq=through_seq,
            target_session_id=target_session_id,
            replace_existing=replace_existing,
            idempotency_key=idempotency_key,
        )
        return self._call(COPY_SESSION, request, timeout)

    def compact_session(
        self,
        session_id: str,
        keep_exchanges: int | None = None,
        *,
        timeout: float | None = None,
    ) -> CompactSessionResponse:
        """Replaces the oldest exchanges by a summary now. The anchor (the first user turn), system
        turns and pinned turns are never summarized. All turns stay in the journal. Fails with
        CALL_PENDING while a tool call has no result or a reply is streaming, with
        COMPACTION_RUNNING during another compaction, and with COMPACTION_FAILED, without any
        change, if the summarizer fails. Does not touch the session.
        """
        request = CompactSessionRequest(
            session_id=session_id,
            keep_exchanges=keep_exchanges,
        )
        return self._call(COMPACT_SESSION, request, timeout)

    def undo_compaction(
        self,
        session_id: str,
        *,
        timeout: float | None = None,
    ) -> UndoCompactionResponse:
        """Undoes the last compaction: the summary before it applies again, and windows show the
        replaced turns as far as the history still has them. Fails with NO_SUMMARY if there is
        none. Does not touch the session.
        """
        request = UndoCompactionRequest(
            session_id=session_id,
        )
        return self._call(UNDO_COMPACTION, request, timeout)

    def reset_session(
        self,
        session_id: str,
        run_hooks: bool = False,
        expected_generation: str = "",
        *,
        idempotency_key: str = "",
        timeout: float | None = None,
    ) -> ResetSessionResponse:
        """Clears history, summary and state of a live session and starts a new generation. Touches
        the session.
        """
        request = ResetSessionRequest(
            session_id=session_id,
            run_hooks=run_hooks,
            expected_generation=expected_generation,
            idempotency_key=idempotency_key,
        )
        return self._call(RESET_SESSION, request, timeout)

    def end_session(
        self,
        session_id: str,
        expected_generation: str = "",
        idempotency_key: str = "",
        *,
        timeout: float | None = None,
    ) -> EndSessionResponse:
        """Ends the live generation. The next append starts a new one."""
        request = EndSessionRequest(
            session_id=session_id,
            expected_generation=expected_generation,
            idempotency_key=idempotency_key,
        )
        return self._call(END_SESSION, request, timeout)

    def erase_session(
        self,
        session_id: str,
        generation: str = "",
        *,
        timeout: float | None = None,
    ) -> EraseSessionResponse:
        """Permanently removes all data of a session: turns, summaries, state, idempotency keys,
        memories made from it, entries in the search index, and checkpoints. A live session is
        ended first, and its pending hook deliveries are cancelled. The erasure is a job that is
        durable before the first row is removed, and it continues after a crash. Returns when
        the job is done, or after a few seconds with `done` false: poll `GetErasure`. For a
        session that does not exist nothing is removed. Fails with ERASURES_TOO_MANY if many
        erasures of the tenant are in progress.
        """
        request = EraseSessionRequest(
            session_id=session_id,
            generation=generation,
        )
        return self._call(ERASE_SESSION, request, timeout)

    def erase_subject(
        self,
        subject: str,
        *,
        timeout: float | None = None,
    ) -> EraseSubjectResponse:
        """Erases a subject in the same way: every generation that belongs to it, and all its
        memories. Data from later messages is not affected.
        """
        request = EraseSubjectRequest(
            subject=subject,
        )
        return self._call(ERASE_SUBJECT, request, timeout)

    def get_erasure(
        self,
        id: str,
        *,
        timeout: float | None = None,
    ) -> GetErasureResponse:
        """Returns the progress or the result of an erasure. The last 10,000 are available."""
        request = GetErasureRequest(
            id=id,
        )
        return self._call(GET_ERASURE, request, timeout)

    def watch_events(
        self,
        after_cursor: str = "",
        all_tenants: bool = False,
        *,
        timeout: float | None = None,
    ) -> Iterator[WatchEventsResponse]:
        """Streams events of the tenant's sessions as they happen. Calls never wait for a watcher:
        one that falls behind receives the number of events it missed (`missed`), and one that
        reads nothing for 30 seconds is disconnected (WATCHER_TOO_SLOW).
        """
        request = WatchEventsRequest(
            after_cursor=after_cursor,
            all_tenants=all_tenants,
        )
        return self._stream(WATCH_EVENTS, request, timeout)


class AsyncCalls:
    """The calls, asynchronous."""

    async def _call(
        self, call: Call[Asked, Answer], request: Asked, timeout: float | None
    ) -> Answer:
        raise NotImplementedError

    def _stream(
        self, call: Call[Asked, Answer], request: Asked, timeout: float | None
    ) -> AsyncIterator[Answer]:
        raise NotImplementedError

    async def get_document(
        self,
        namespace: Sequence[str] = (),
        key: str = "",
        ttl: timedelta | None = None,
        *,
        timeout: float | None = None,
    ) -> GetDocumentResponse:
        """Reads a document. Fails with DOCUMENT_NOT_FOUND if it does not exist."""
        request = GetDocumentRequest(
            namespace=namespace,
            key=key,
            ttl=ttl,
        )
        return await self._call(GET_DOCUMENT, request, timeout)

    async def put_document(
        self,
        namespace: Sequence[str] = (),
        key: str = "",
        json: Json | None = None,
        *,
        bytes: Bytes | None = None,
        expected_version: int | None = None,
        ttl: timedelta | None = None,
        idempotency_key: str = "",
        timeout: float | None = None,
    ) -> PutDocumentResponse:
        """Creates or replaces a document. Returns once it is on disk."""
        request = PutDocumentRequest(
            namespace=namespace,
            key=key,
            json=json,
            bytes=bytes,
            expected_version=expected_version,
            ttl=ttl,
            idempotency_key=idempotency_key,
        )
        return await self._call(PUT_DOCUMENT, request, timeout)

    async def delete_document(
        self,
        namespace: Sequence[str] = (),
        key: str = "",
        expected_version: int | None = None,
        *,
        timeout: float | None = None,
    ) -> DeleteDocumentResponse:
        """Deletes a document. Does nothing if it does not exist."""
        request = DeleteDocumentRequest(
            namespace=namespace,
            key=key,
            expected_version=expected_version,
        )
        return await self._call(DELETE_DOCUMENT, request, timeout)

    async def delete_documents(
        self,
        namespace_prefix: Sequence[str] = (),
        exact_namespace: bool = False,
        key_prefix: str = "",
        *,
        key_from: str = "",
        key_before: str = "",
        erase: bool = False,
        timeout: float | None = None,
    ) -> DeleteDocumentsResponse:
        """Deletes all documents of a namespace and of those below it, in steps. If it fails, some
        may be deleted already; a retry deletes the rest.
        """
        request = DeleteDocumentsRequest(
            namespace_prefix=namespace_prefix,
            exact_namespace=exact_namespace,
            key_prefix=key_prefix,
            key_from=key_from,
            key_before=key_before,
            erase=erase,
        )
        return await self._call(DELETE_DOCUMENTS, request, timeout)

    async def list_documents(
        self,
        namespace_prefix: Sequence[str] = (),
        exact_namespace: bool = False,
        key_prefix: str = "",
        *,
        key_from: str = "",
        key_before: str = "",
        filter_json: Json = "",
        descending: bool = False,
        include_values: bool | None = None,
        page_size: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> ListDocumentsResponse:
        """Lists documents by namespace, then by key."""
        request = ListDocumentsRequest(
            namespace_prefix=namespace_prefix,
            exact_namespace=exact_namespace,
            key_prefix=key_prefix,
            key_from=key_from,
            key_before=key_before,
            filter_json=filter_json,
            descending=descending,
            include_values=include_values,
            page_size=page_size,
            page_token=page_token,
        )
        return await self._call(LIST_DOCUMENTS, request, timeout)

    async def list_namespaces(
        self,
        prefix: Sequence[str] = (),
        suffix: Sequence[str] = (),
        max_depth: int = 0,
        *,
        page_size: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> ListNamespacesResponse:
        """Lists namespaces that have documents, in order."""
        request = ListNamespacesRequest(
            prefix=prefix,
            suffix=suffix,
            max_depth=max_depth,
            page_size=page_size,
            page_token=page_token,
        )
        return await self._call(LIST_NAMESPACES, request, timeout)

    async def batch_documents(
        self,
        operations: Sequence[DocumentOperation] = (),
        *,
        timeout: float | None = None,
    ) -> BatchDocumentsResponse:
        """Applies several operations in order, in one transaction. Later operations see the
        effects of earlier ones. An error names the operation that failed.
        """
        request = BatchDocumentsRequest(
            operations=operations,
        )
        return await self._call(BATCH_DOCUMENTS, request, timeout)

    async def remember(
        self,
        subject: str,
        kind: MemoryKind = MemoryKind.UNSPECIFIED,
        content: str = "",
        *,
        tags: Sequence[str] = (),
        importance: float | None = None,
        source: MemorySource | None = None,
        observed_at: datetime | None = None,
        expires_at: datetime | None = None,
        supersedes_id: str = "",
        pinned: bool = False,
        polarity: Polarity = Polarity.UNSPECIFIED,
        idempotency_key: str = "",
        visibility: Visibility = Visibility.UNSPECIFIED,
        near_duplicate: NearDuplicate = NearDuplicate.UNSPECIFIED,
        external_key: str = "",
        metadata_json: Json = "",
        vector: Sequence[float] = (),
        keep_apart: bool = False,
        timeout: float | None = None,
    ) -> RememberResponse:
        """Stores a fact. Returns once it is on disk."""
        request = RememberRequest(
            subject=subject,
            kind=kind,
            content=content,
            tags=tags,
            importance=importance,
            source=source,
            observed_at=observed_at,
            expires_at=expires_at,
            supersedes_id=supersedes_id,
            pinned=pinned,
            polarity=polarity,
            idempotency_key=idempotency_key,
            visibility=visibility,
            near_duplicate=near_duplicate,
            external_key=external_key,
            metadata_json=metadata_json,
            vector=vector,
            keep_apart=keep_apart,
        )
        return await self._call(REMEMBER, request, timeout)

    async def recall(
        self,
        query: str = "",
        subjects: Sequence[str] = (),
        kinds: Sequence[MemoryKind] = (),
        *,
        tags: Sequence[str] = (),
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int = 0,
        mode: RecallMode = RecallMode.UNSPECIFIED,
        session_id: str = "",
        explain: bool = False,
        rerank: bool | None = None,
        metadata_filter_json: Json = "",
        subject_prefix: str = "",
        vector: Sequence[float] = (),
        min_relevance: float | None = None,
        timeout: float | None = None,
    ) -> RecallResponse:
        """Searches memories by words (lexical) and by meaning (vectors)."""
        request = RecallRequest(
            query=query,
            subjects=subjects,
            kinds=kinds,
            tags=tags,
            after=after,
            before=before,
            limit=limit,
            mode=mode,
            session_id=session_id,
            explain=explain,
            rerank=rerank,
            metadata_filter_json=metadata_filter_json,
            subject_prefix=subject_prefix,
            vector=vector,
            min_relevance=min_relevance,
        )
        return await self._call(RECALL, request, timeout)

    async def get_memory(
        self,
        id: str = "",
        subject: str = "",
        external_key: str = "",
        *,
        timeout: float | None = None,
    ) -> GetMemoryResponse:
        """Reads one memory, even if it is superseded or expired."""
        request = GetMemoryRequest(
            id=id,
            subject=subject,
            external_key=external_key,
        )
        return await self._call(GET_MEMORY, request, timeout)

    async def list_memories(
        self,
        subject: str = "",
        kind: MemoryKind = MemoryKind.UNSPECIFIED,
        tag: str = "",
        *,
        page_size: int = 0,
        page_token: str = "",
        include_history: bool = False,
        metadata_filter_json: Json = "",
        subject_prefix: str = "",
        timeout: float | None = None,
    ) -> ListMemoriesResponse:
        """Lists memories by id, oldest first."""
        request = ListMemoriesRequest(
            subject=subject,
            kind=kind,
            tag=tag,
            page_size=page_size,
            page_token=page_token,
            include_history=include_history,
            metadata_filter_json=metadata_filter_json,
            subject_prefix=subject_prefix,
        )
        return await self._call(LIST_MEMORIES, request, timeout)

    async def list_subjects(
        self,
        prefix: str = "",
        page_size: int = 0,
        page_token: str = "",
        *,
        timeout: float | None = None,
    ) -> ListSubjectsResponse:
        """Lists the subjects that have memories, by id."""
        request = ListSubjectsRequest(
            prefix=prefix,
            page_size=page_size,
            page_token=page_token,
        )
        return await self._call(LIST_SUBJECTS, request, timeout)

    async def list_conflicts(
        self,
        subject: str,
        page_size: int = 0,
        page_token: str = "",
        *,
        timeout: float | None = None,
    ) -> ListConflictsResponse:
        """Lists memories of a subject that may contradict each other, most similar first."""
        request = ListConflictsRequest(
            subject=subject,
            page_size=page_size,
            page_token=page_token,
        )
        return await self._call(LIST_CONFLICTS, request, timeout)

    async def update_memory(
        self,
        memory: Memory | None = None,
        update_mask: Sequence[str] = (),
        *,
        timeout: float | None = None,
    ) -> UpdateMemoryResponse:
        """Changes fields of a memory."""
        request = UpdateMemoryRequest(
            memory=memory,
            update_mask=update_mask,
        )
        return await self._call(UPDATE_MEMORY, request, timeout)

    async def forget(
        self,
        id: str | None = None,
        subject: str | None = None,
        filter: MemoryFilter | None = None,
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> ForgetResponse:
        """Removes memories from all indexes, caches and responses, and from disk. The removal is
        durable before it starts, and continues after a crash.
        """
        request = ForgetRequest(
            id=id,
            subject=subject,
            filter=filter,
            dry_run=dry_run,
        )
        return await self._call(FORGET, request, timeout)

    async def get_manifest(
        self,
        subject: str,
        max_lines: int = 0,
        max_bytes: int = 0,
        *,
        timeout: float | None = None,
    ) -> GetManifestResponse:
        """Returns the memories of a subject as text, one line each: pinned first, then by
        importance.
        """
        request = GetManifestRequest(
            subject=subject,
            max_lines=max_lines,
            max_bytes=max_bytes,
        )
        return await self._call(GET_MANIFEST, request, timeout)

    async def lease_extraction(
        self,
        session_id: str,
        generation: str = "",
        subject: str = "",
        *,
        timeout: float | None = None,
    ) -> LeaseExtractionResponse:
        """Leases the turns of a session from which facts have not been extracted, with a prompt
        for a model. Delivery is at least once: if a lease is not committed in time, its turns
        are leased again.
        """
        request = LeaseExtractionRequest(
            session_id=session_id,
            generation=generation,
            subject=subject,
        )
        return await self._call(LEASE_EXTRACTION, request, timeout)

    async def commit_extraction(
        self,
        lease: str,
        memories: Sequence[ExtractedMemory] = (),
        *,
        timeout: float | None = None,
    ) -> CommitExtractionResponse:
        """Stores the facts found in leased turns and marks the turns as extracted, atomically. A
        repeat with the same facts returns the same response. Fails with LEASE_LOST, and stores
        nothing, if the lease has expired, or if a leased turn was updated or rewound since.
        """
        request = CommitExtractionRequest(
            lease=lease,
            memories=memories,
        )
        return await self._call(COMMIT_EXTRACTION, request, timeout)

    async def learn_session(
        self,
        session_id: str,
        generation: str = "",
        subject: str = "",
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> LearnSessionResponse:
        """Runs the model of `long_term.extraction` on the next turns of a session now, and stores
        the facts it finds. A dry run returns the facts it would store or reject, with the
        reasons.
        """
        request = LearnSessionRequest(
            session_id=session_id,
            generation=generation,
            subject=subject,
            dry_run=dry_run,
        )
        return await self._call(LEARN_SESSION, request, timeout)

    async def import_memories(
        self,
        memories: Sequence[Memory] = (),
        *,
        timeout: float | None = None,
    ) -> ImportMemoriesResponse:
        """Stores memories as returned by ListMemories, with their ids and times. Memories that
        exist are skipped.
        """
        request = ImportMemoriesRequest(
            memories=memories,
        )
        return await self._call(IMPORT_MEMORIES, request, timeout)

    async def get_memory_stats(
        self,
        *,
        timeout: float | None = None,
    ) -> GetMemoryStatsResponse:
        """Returns counts of the tenant's memories, and the progress of their embedding."""
        request = GetMemoryStatsRequest()
        return await self._call(GET_MEMORY_STATS, request, timeout)

    async def append(
        self,
        session_id: str,
        turns: Sequence[Turn] = (),
        messages_json: Json = "",
        *,
        format: MessageFormat = MessageFormat.UNSPECIFIED,
        subject: str = "",
        idempotency_key: str = "",
        expected_seq: int | None = None,
        expected_generation: str = "",
        usage: ModelUsage | None = None,
        partial: bool = False,
        state_patch_json: Json = "",
        expected_state_version: int | None = None,
        labels: Mapping[str, str] = MappingProxyType({}),
        ttl_class: str = "",
        keep_all: bool | None = None,
        timeout: float | None = None,
    ) -> AppendResponse:
        """Appends turns to a session atomically, and starts the session if none is live. Returns
        once the turns are as durable as configured. Touches the session.
        """
        request = AppendRequest(
            session_id=session_id,
            turns=turns,
            messages_json=messages_json,
            format=format,
            subject=subject,
            idempotency_key=idempotency_key,
            expected_seq=expected_seq,
            expected_generation=expected_generation,
            usage=usage,
            partial=partial,
            state_patch_json=state_patch_json,
            expected_state_version=expected_state_version,
            labels=labels,
            ttl_class=ttl_class,
            keep_all=keep_all,
        )
        return await self._call(APPEND, request, timeout)

    async def build_context(
        self,
        session_id: str,
        append: AppendRequest | None = None,
        model: str = "",
        *,
        budget: Budget | None = None,
        overhead_tokens: int = 0,
        system: str = "",
        tools_json: Json = "",
        policy: WindowPolicy | None = None,
        format: MessageFormat = MessageFormat.UNSPECIFIED,
        attempt: int = 0,
        memories: RecallRequest | None = None,
        set_cache_control: bool = False,
        peek: bool = False,
        recall_tool: bool = False,
        timeout: float | None = None,
    ) -> BuildContextResponse:
        """Builds the window for the next model call, optionally after an append, so that a message
        takes one round trip. Touches the session unless `peek` is set.
        """
        request = BuildContextRequest(
            session_id=session_id,
            append=append,
            model=model,
            budget=budget,
            overhead_tokens=overhead_tokens,
            system=system,
            tools_json=tools_json,
            policy=policy,
            format=format,
            attempt=attempt,
            memories=memories,
            set_cache_control=set_cache_control,
            peek=peek,
            recall_tool=recall_tool,
        )
        return await self._call(BUILD_CONTEXT, request, timeout)

    async def resolve_recall_tool(
        self,
        session_id: str,
        arguments_json: Json = "",
        call_id: str = "",
        *,
        format: MessageFormat = MessageFormat.UNSPECIFIED,
        max_bytes: int = 0,
        model: str = "",
        budget: Budget | None = None,
        timeout: float | None = None,
    ) -> ResolveRecallToolResponse:
        """Resolves a call of the tool `read_earlier_turns`, which BuildContext offers with
        `recall_tool`. Invalid arguments do not fail the rpc: the result has `is_error` and
        explains the correction to the model. Does not touch the session.
        """
        request = ResolveRecallToolRequest(
            session_id=session_id,
            arguments_json=arguments_json,
            call_id=call_id,
            format=format,
            max_bytes=max_bytes,
            model=model,
            budget=budget,
        )
        return await self._call(RESOLVE_RECALL_TOOL, request, timeout)

    async def get_history(
        self,
        session_id: str,
        generation: str = "",
        scope: HistoryScope = HistoryScope.UNSPECIFIED,
        *,
        after_seq: int = 0,
        limit: int = 0,
        last: int = 0,
        before_seq: int = 0,
        format: MessageFormat = MessageFormat.UNSPECIFIED,
        timeout: float | None = None,
    ) -> GetHistoryResponse:
        """Reads turns, oldest first. Does not touch the session."""
        request = GetHistoryRequest(
            session_id=session_id,
            generation=generation,
            scope=scope,
            after_seq=after_seq,
            limit=limit,
            last=last,
            before_seq=before_seq,
            format=format,
        )
        return await self._call(GET_HISTORY, request, timeout)

    async def get_session(
        self,
        session_id: str,
        include_state: bool = False,
        *,
        timeout: float | None = None,
    ) -> GetSessionResponse:
        """Reads one live session. Does not touch it."""
        request = GetSessionRequest(
            session_id=session_id,
            include_state=include_state,
        )
        return await self._call(GET_SESSION, request, timeout)

    async def list_sessions(
        self,
        page_size: int = 0,
        page_token: str = "",
        include_state: bool = False,
        *,
        id_prefix: str = "",
        subject: str = "",
        labels: Mapping[str, str] = MappingProxyType({}),
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        order: SessionOrder = SessionOrder.UNSPECIFIED,
        state: SessionState = SessionState.UNSPECIFIED,
        timeout: float | None = None,
    ) -> ListSessionsResponse:
        """Lists the tenant's live sessions, ended generations or both, most recent first by
        default. Touches none. Ended generations are listed until `journal.retention` or an
        erasure removes them.
        """
        request = ListSessionsRequest(
            page_size=page_size,
            page_token=page_token,
            include_state=include_state,
            id_prefix=id_prefix,
            subject=subject,
            labels=labels,
            updated_after=updated_after,
            updated_before=updated_before,
            order=order,
            state=state,
        )
        return await self._call(LIST_SESSIONS, request, timeout)

    async def search_transcripts(
        self,
        query: str,
        session_id: str = "",
        subject: str = "",
        *,
        after: datetime | None = None,
        before: datetime | None = None,
        roles: Sequence[Role] = (),
        page_size: int = 0,
        tool_name: str = "",
        context_turns: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> SearchTranscriptsResponse:
        """Searches the turns of live and ended sessions, as long as the journal has them. Touches
        none.
        """
        request = SearchTranscriptsRequest(
            query=query,
            session_id=session_id,
            subject=subject,
            after=after,
            before=before,
            roles=roles,
            page_size=page_size,
            tool_name=tool_name,
            context_turns=context_turns,
            page_token=page_token,
        )
        return await self._call(SEARCH_TRANSCRIPTS, request, timeout)

    async def update_session(
        self,
        session_id: str,
        state_patch_json: Json = "",
        state_json: Json = "",
        *,
        labels: Mapping[str, str] = MappingProxyType({}),
        ttl_class: str = "",
        keep_all: bool | None = None,
        update_mask: Sequence[str] = (),
        expected_state_version: int | None = None,
        allow_missing: bool = False,
        idempotency_key: str = "",
        timeout: float | None = None,
    ) -> UpdateSessionResponse:
        """Changes the state (a free-form JSON object), the labels, `ttl_class` or `keep_all` of a
        live session, atomically. Touches the session.
        """
        request = UpdateSessionRequest(
            session_id=session_id,
            state_patch_json=state_patch_json,
            state_json=state_json,
            labels=labels,
            ttl_class=ttl_class,
            keep_all=keep_all,
            update_mask=update_mask,
            expected_state_version=expected_state_version,
            allow_missing=allow_missing,
            idempotency_key=idempotency_key,
        )
        return await self._call(UPDATE_SESSION, request, timeout)

    async def rewind_session(
        self,
        session_id: str,
        after_seq: int = 0,
        turns: Sequence[Turn] = (),
        *,
        messages_json: Json = "",
        format: MessageFormat = MessageFormat.UNSPECIFIED,
        expected_seq: int | None = None,
        expected_generation: str = "",
        idempotency_key: str = "",
        timeout: float | None = None,
    ) -> RewindSessionResponse:
        """Removes the newest turns of a live session and appends others, atomically: to pop a
        turn, to regenerate a reply, to edit the last message, or to replace all messages. If no
        session is live, a rewind with `after_seq` 0 that adds turns starts one, and any other
        fails with SESSION_NOT_FOUND. Fails with TOOL_UNIT_SPLIT if it would separate a tool
        call from its result; for units that the history has dropped, this is checked within
        1,000 turns and 2 MiB on both sides of `after_seq`. Rewound turns leave all windows,
        summaries and searches, and are not passed to hooks. The journal keeps them, with
        `removed` set, until retention. Seqs are not reused: new turns get seqs above the
        highest ever assigned. A summary that covers a rewound turn is undone. An Append that
        repeats the `idempotency_key` of a rewound turn fails with IDEMPOTENCY_KEY_REWOUND.
        Touches the session.
        """
        request = RewindSessionRequest(
            session_id=session_id,
            after_seq=after_seq,
            turns=turns,
            messages_json=messages_json,
            format=format,
            expected_seq=expected_seq,
            expected_generation=expected_generation,
            idempotency_key=idempotency_key,
        )
        return await self._call(REWIND_SESSION, request, timeout)

    async def update_turn(
        self,
        session_id: str,
        seq: int = 0,
        turn: Turn | None = None,
        *,
        expected_generation: str = "",
        client_id: str = "",
        idempotency_key: str = "",
        messages_json: Json = "",
        format: MessageFormat = MessageFormat.UNSPECIFIED,
        timeout: float | None = None,
    ) -> UpdateTurnResponse:
        """Replaces the content of a turn of a live session permanently. When it returns, the old
        content is in no history, window, summary, marker or search. It leaves the disk's pages
        some minutes later, with the next round of retention. The turn keeps its seq, role,
        time, pin, tool calls and results, so that tool units stay intact (TURN_UPDATE_INVALID).
        Summaries that cover the turn are undone, and the cuts of windows are discarded. With a
        journal, turns that the history has dropped and rewound turns can be updated too.
        Memories made from the turn stay (see Forget), and so does everything that hooks
        received of earlier generations. Does not touch the session.
        """
        request = UpdateTurnRequest(
            session_id=session_id,
            seq=seq,
            turn=turn,
            expected_generation=expected_generation,
            client_id=client_id,
            idempotency_key=idempotency_key,
            messages_json=messages_json,
            format=format,
        )
        return await self._call(UPDATE_TURN, request, timeout)

    async def copy_session(
        self,
        session_id: str,
        generation: str = "",
        through_seq: int = 0,
        *,
        target_session_id: str = "",
        replace_existing: bool = False,
        idempotency_key: str = "",
        timeout: float | None = None,
    ) -> CopySessionResponse:
        """Copies the turns of a session through a seq into a new generation of the target session,
        to fork a chat or to restore one that has ended. It is atomic. The copy has the turns
        with new seqs, the state, the subject, the labels, `ttl_class` and `keep_all`, but no
        rewound turns, summaries, cuts or idempotency keys. The maximum is 100,000 turns and 64
        MiB, or a quarter of `limits.memory` if that is less (COPY_TOO_LARGE). Without a
        journal, only turns that the history still has are copied. Touches the copy, not the
        source.
        """
        request = CopySessionRequest(
            session_id=session_id,
            generation=generation,
            through_seq=through_seq,
            target_session_id=target_session_id,
            replace_existing=replace_existing,
            idempotency_key=idempotency_key,
        )
        return await self._call(COPY_SESSION, request, timeout)

    async def compact_session(
        self,
        session_id: str,
        keep_exchanges: int | None = None,
        *,
        timeout: float | None = None,
    ) -> CompactSessionResponse:
        """Replaces the oldest exchanges by a summary now. The anchor (the first user turn), system
        turns and pinned turns are never summarized. All turns stay in the journal. Fails with
        CALL_PENDING while a tool call has no result or a reply is streaming, with
        COMPACTION_RUNNING during another compaction, and with COMPACTION_FAILED, without any
        change, if the summarizer fails. Does not touch the session.
        """
        request = CompactSessionRequest(
            session_id=session_id,
            keep_exchanges=keep_exchanges,
        )
        return await self._call(COMPACT_SESSION, request, timeout)

    async def undo_compaction(
        self,
        session_id: str,
        *,
        timeout: float | None = None,
    ) -> UndoCompactionResponse:
        """Undoes the last compaction: the summary before it applies again, and windows show the
        replaced turns as far as the history still has them. Fails with NO_SUMMARY if there is
        none. Does not touch the session.
        """
        request = UndoCompactionRequest(
            session_id=session_id,
        )
        return await self._call(UNDO_COMPACTION, request, timeout)

    async def reset_session(
        self,
        session_id: str,
        run_hooks: bool = False,
        expected_generation: str = "",
        *,
        idempotency_key: str = "",
        timeout: float | None = None,
    ) -> ResetSessionResponse:
        """Clears history, summary and state of a live session and starts a new generation. Touches
        the session.
        """
        request = ResetSessionRequest(
            session_id=session_id,
            run_hooks=run_hooks,
            expected_generation=expected_generation,
            idempotency_key=idempotency_key,
        )
        return await self._call(RESET_SESSION, request, timeout)

    async def end_session(
        self,
        session_id: str,
        expected_generation: str = "",
        idempotency_key: str = "",
        *,
        timeout: float | None = None,
    ) -> EndSessionResponse:
        """Ends the live generation. The next append starts a new one."""
        request = EndSessionRequest(
            session_id=session_id,
            expected_generation=expected_generation,
            idempotency_key=idempotency_key,
        )
        return await self._call(END_SESSION, request, timeout)

    async def erase_session(
        self,
        session_id: str,
        generation: str = "",
        *,
        timeout: float | None = None,
    ) -> EraseSessionResponse:
        """Permanently removes all data of a session: turns, summaries, state, idempotency keys,
        memories made from it, entries in the search index, and checkpoints. A live session is
        ended first, and its pending hook deliveries are cancelled. The erasure is a job that is
        durable before the first row is removed, and it continues after a crash. Returns when
        the job is done, or after a few seconds with `done` false: poll `GetErasure`. For a
        session that does not exist nothing is removed. Fails with ERASURES_TOO_MANY if many
        erasures of the tenant are in progress.
        """
        request = EraseSessionRequest(
            session_id=session_id,
            generation=generation,
        )
        return await self._call(ERASE_SESSION, request, timeout)

    async def erase_subject(
        self,
        subject: str,
        *,
        timeout: float | None = None,
    ) -> EraseSubjectResponse:
        """Erases a subject in the same way: every generation that belongs to it, and all its
        memories. Data from later messages is not affected.
        """
        request = EraseSubjectRequest(
            subject=subject,
        )
        return await self._call(ERASE_SUBJECT, request, timeout)

    async def get_erasure(
        self,
        id: str,
        *,
        timeout: float | None = None,
    ) -> GetErasureResponse:
        """Returns the progress or the result of an erasure. The last 10,000 are available."""
        request = GetErasureRequest(
            id=id,
        )
        return await self._call(GET_ERASURE, request, timeout)

    def watch_events(
        self,
        after_cursor: str = "",
        all_tenants: bool = False,
        *,
        timeout: float | None = None,
    ) -> AsyncIterator[WatchEventsResponse]:
        """Streams events of the tenant's sessions as they happen. Calls never wait for a watcher:
        one that falls behind receives the number of events it missed (`missed`), and one that
        reads nothing for 30 seconds is disconnected (WATCHER_TOO_SLOW).
        """
        request = WatchEventsRequest(
            after_cursor=after_cursor,
            all_tenants=all_tenants,
        )
        return self._stream(WATCH_EVENTS, request, timeout)
