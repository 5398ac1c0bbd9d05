"""LangGraph's store: items as documents, found by namespace, filter and meaning."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

from .._documents import PAGE_MAX, asked, done, minutes, removed
from .._steps import Call, Clients, Steps
from ..client import AsyncClient, Client
from ..types import Document, DocumentOperation, PutDocumentRequest
from ._index import MemoirdIndex, MemoryIndex, Name, Place, VectorIndex


class MemoirdStore(BaseStore):
    """Items below `namespace`.

    `client` may be of either kind; by default it is configured by the environment (`MEMOIRD_ADDR`,
    `MEMOIRD_KEY`). Items belong to no session. They stay until they are deleted or their ttl (in
    minutes) expires, which reads restart. `ttl` sets the defaults, as in LangGraph.

    `index` determines how `search` uses a `query`:

    - None: it is ignored. Items are found by namespace and filter.
    - `MemoirdIndex`: memoird finds the items by words and by meaning: the best 100, followed by other items
      that match the filter, if there is one. An item is found by meaning once the daemon has embedded it,
      some moments after it was put.
    - LangGraph's own (`dims`, `embed`, `fields`): your function embeds the texts. The vectors are stored next
      to the items. A search reads all vectors below its prefix and compares them in this process. Suitable
      for a few thousand items.

    A batch reads before it writes. Up to 256 documents and 8 MiB are written in one transaction.

    Limits: an item has up to `long_term.document_bytes` (4 MiB) of JSON, a key up to 512 bytes, and
    a namespace up to 13 labels of up to 256 bytes.
    """

    supports_ttl = True

    def __init__(
        self,
        client: Client | AsyncClient | None = None,
        *,
        index: MemoirdIndex | IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        namespace: Sequence[str] = ("langgraph", "store"),
    ) -> None:
        self._clients = Clients(client)
        self._place = tuple(namespace)
        self.ttl_config, self.index_config = ttl, index
        beside = (*namespace[:-1], f"{namespace[-1]}.index")
        self._index: VectorIndex | MemoryIndex | None = None
        self.embeddings: Embeddings | None = None
        if isinstance(index, MemoirdIndex):
            self._index = MemoryIndex(index, beside)
        elif index:
            self._index = VectorIndex(index, beside)
            self.embeddings = self._index.embeddings

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Runs several operations."""
        return self._clients.do(self._batch(list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`."""
        return await self._clients.ado(self._batch(list(ops)))

    def _batch(self, ops: list[Op]) -> Steps[Any]:
        results: list[Result] = [None] * len(ops)
        gets: dict[int, GetOp] = {}
        puts: dict[Name, PutOp] = {}
        for number, op in enumerate(ops):
            validate_op_namespace(op)
            if isinstance(op, GetOp):
                gets[number] = op
            elif isinstance(op, PutOp):
                # The last one wins.
                puts[op.namespace, op.key] = op
            elif isinstance(op, SearchOp):
                results[number] = yield from self._search(op)
            elif isinstance(op, ListNamespacesOp):
                results[number] = yield from self._namespaces(op)
            else:
                raise ValueError(f"unknown operation {type(op)}")
        reads = [asked([*self._place, *op.namespace], op.key) for op in gets.values()]
        made = yield from done(reads)
        refreshed = []
        for (number, op), result in zip(gets.items(), made, strict=True):
            if document := result.document:
                results[number] = Item(**self._own(document))
                refreshed += [document] if op.refresh_ttl else []
        yield from self._refresh(refreshed)
        yield from self._put(list(puts.values()))
        return results

    def _put(self, ops: list[PutOp]) -> Steps[Any]:
        writes = [self._write(op) for op in ops]
        if self._index and ops:
            writes += yield from self._index.writes(ops)
        yield from done(writes)
        if self._index:
            yield from self._index.written(ops)

    def _write(self, op: PutOp) -> DocumentOperation:
        place = [*self._place, *op.namespace]
        if op.value is None:
            return removed(place, op.key)
        held: dict[str, Any] = {"value": op.value}
        if op.ttl is not None:
            held["ttl"] = op.ttl
        body = json.dumps(held, ensure_ascii=False, separators=(",", ":"))
        put = PutDocumentRequest(place, op.key, json=body, ttl=minutes(op.ttl))
        return DocumentOperation(put=put)

    def _own(self, document: Document) -> dict[str, Any]:
        """Returns the fields of an item from its document."""
        return {
            "namespace": self._name(document)[0],
            "key": document.key,
            "value": document.value["value"],
            "created_at": document.created_at,
            "updated_at": document.updated_at,
        }

    def _name(self, document: Document) -> Name:
        return tuple(document.namespace[len(self._place) :]), document.key

    def _refresh(self, documents: Sequence[Document]) -> Steps[Any]:
        """Restarts the time to live of items that were read."""
        live = [
            (self._name(document), ttl)
            for document in documents
            if (ttl := document.value.get("ttl")) is not None
        ]
        yield from done([asked([*self._place, *place], key, minutes(ttl)) for (place, key), ttl in live])
        if self._index:
            # The index entries must live as long as the item.
            yield from self._index.refreshed(live)

    def _search(self, op: SearchOp) -> Steps[Any]:
        if op.query and self._index:
            found = yield from self._ranked(op)
        else:
            listed = yield from self._listed(op.namespace_prefix, op.filter, op.offset + op.limit)
            found = [(None, document) for document in listed[op.offset :]]
        if op.refresh_ttl:
            yield from self._refresh([document for _, document in found])
        return [SearchItem(**self._own(document), score=score) for score, document in found]

    def _ranked(self, op: SearchOp) -> Steps[Any]:
        """Returns the items found by the index, followed by others that match the filter."""
        assert self._index
        ranked: list[tuple[float | None, Name]]
        ranked, are_more = yield from self._index.ranked(op)
        if op.filter or are_more:
            listed = yield from self._listed(
                op.namespace_prefix, op.filter, None, include_values=False
            )
            fitting = dict.fromkeys(map(self._name, listed))
            ranked = [(score, name) for score, name in ranked if name in fitting]
            if are_more:
                found = {name for _, name in ranked}
                ranked += [(None, name) for name in fitting if name not in found]
        chosen = ranked[op.offset : op.offset + op.limit]
        reads = [asked([*self._place, *place], key) for _, (place, key) in chosen]
        made = yield from done(reads)
        return [
            (score, result.document)
            for (score, _), result in zip(chosen, made, strict=True)
            if result.document
        ]

    def _listed(
        self,
        prefix: Sequence[str],
        filter: Mapping[str, Any] | None,
        most: int | None,
        **more: Any,
    ) -> Steps[Any]:
        """Returns the first documents that match."""
        found: list[Document] = []
        token = ""
        while most is None or len(found) < most:
            page = yield Call(
                "list_documents",
                namespace_prefix=[*self._place, *prefix],
                filter_json={"value": filter} if filter else "",
                page_size=PAGE_MAX if most is None else min(PAGE_MAX, most - len(found)),
                page_token=token,
                **more,
            )
            found += page.documents
            token = page.next_page_token
            if not token:
                break
        return found

    def _namespaces(self, op: ListNamespacesOp) -> Steps[Any]:
        conditions = op.match_conditions or ()
        ask: dict[str, Sequence[str]] = {"prefix": (), "suffix": ()}
        for condition in conditions:
            ask[condition.match_type] = ask[condition.match_type] or condition.path
        found: dict[Place, None] = {}
        token = ""
        while len(found) < op.offset + op.limit:
            page = yield Call(
                "list_namespaces",
                prefix=[*self._place, *ask["prefix"]],
                suffix=[*ask["suffix"]],
                page_size=PAGE_MAX,
                page_token=token,
            )
            for namespace in page.namespaces:
                place = tuple(namespace.parts[len(self._place) :])
                if all(_matches(condition, place) for condition in conditions):
                    found[place[: op.max_depth]] = None
            token = page.next_page_token
            if not token:
                break
        return [*found][op.offset : op.offset + op.limit]


def _matches(condition: MatchCondition, place: Place) -> bool:
    path = condition.path
    part = place[: len(path)] if condition.match_type == "prefix" else place[-len(path) :]
    named = zip(path, part, strict=False)
    return len(part) == len(path) and all(label in ("*", own) for label, own in named)
