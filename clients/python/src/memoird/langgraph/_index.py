"""Semantic search in a store: by vectors of the caller's function, or by memoird's memories."""

from __future__ import annotations

import array
import hashlib
import json
import math
import operator
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    IndexConfig,
    PutOp,
    SearchOp,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from .. import errors
from .._documents import asked, done, each_document, minutes, removed
from .._kept import CONTENT_BYTES, QUERY_BYTES, TAG_BYTES, cut
from .._steps import Call, Step, Steps
from ..client import AsyncClient, Client
from ..types import (
    DeleteDocumentRequest,
    Document,
    DocumentOperation,
    Memory,
    MemoryKind,
    PutDocumentRequest,
)

HITS_MAX = 100
# Metadata key of a memory: namespace and key of its item.
ITEM = "item"
# Maximum number of tries to change a document that is changed concurrently.
TRIES_MAX = 20

Place = tuple[str, ...]
# Namespace and key of an item.
Name = tuple[Place, str]


@dataclass(slots=True, frozen=True)
class MemoirdIndex:
    """Lets memoird find items by words and, if an embedder is configured, by meaning.

    The texts of items are memories of a subject, the first label of the namespace. So they can be
    recalled into windows of that subject's sessions. An erasure of the subject removes the
    memories, but not the items.
    """

    fields: Sequence[str] = ("$",)
    """Paths of the texts in an item, as in LangGraph. `$` is the whole item."""
    kind: MemoryKind = MemoryKind.PROJECT
    """Kind of the memories."""


class Texts:
    """Extracts the indexed texts of items."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._paths = _paths(fields)

    def of(self, op: PutOp) -> list[str]:
        if op.value is None or op.index is False:
            return []
        paths = self._paths if op.index is None else _paths(op.index)
        return [text for path in paths for text in get_text_at_path(op.value, path)]


def _paths(fields: Iterable[str]) -> list[Any]:
    return [field if field == "$" else tokenize_path(field) for field in fields]


class VectorIndex:
    """Stores vectors in documents next to the items, and compares them in this process."""

    def __init__(self, config: IndexConfig, place: Place) -> None:
        self.embeddings = ensure_embeddings(config.get("embed"))
        self._texts = Texts(config.get("fields") or ["$"])
        self._place = place

    def writes(self, puts: Sequence[PutOp]) -> Steps[Any]:
        """Returns operations to run in the transaction that writes the items."""
        texts = [((op.namespace, op.key), text) for op in puts for text in self._texts.of(op)]
        bodies: dict[Name, bytes] = {}
        if texts:
            vectors = yield Embed(self.embeddings, [text for _, text in texts])
            for (name, _), vector in zip(texts, vectors, strict=True):
                bodies[name] = bodies.get(name, b"") + array.array("f", vector).tobytes()
        return [self._write(op, bodies.get((op.namespace, op.key))) for op in puts]

    def _write(self, op: PutOp, body: bytes | None) -> DocumentOperation:
        place = [*self._place, *op.namespace]
        if body is None:
            return removed(place, op.key)
        put = PutDocumentRequest(place, op.key, bytes=body, ttl=minutes(op.ttl))
        return DocumentOperation(put=put)

    def written(self, puts: Sequence[PutOp]) -> Steps[Any]:
        """Runs after the items were written."""
        return
        yield

    def refreshed(self, live: Sequence[tuple[Name, float]]) -> Steps[Any]:
        """Restarts the time to live, in minutes, of the vectors of items."""
        yield from done([asked([*self._place, *place], key, minutes(ttl)) for (place, key), ttl in live])

    def ranked(self, op: SearchOp) -> Steps[Any]:
        """Returns the items with the best cosine, best first, and that other items may follow them."""
        query = yield Embed(self.embeddings, str(op.query))
        found: list[tuple[float, Name]] = []

        def take(document: Document) -> None:
            place = tuple(document.namespace[len(self._place) :])
            found.append((cosine(query, document.bytes or b""), (place, document.key)))

        yield from each_document(take, namespace_prefix=[*self._place, *op.namespace_prefix])
        found.sort(key=lambda one: -one[0])
        return found, True


class MemoryIndex:
    """Stores texts as memories that name their items. A document for each item names its memories."""

    def __init__(self, config: MemoirdIndex, place: Place) -> None:
        self._texts, self._kind = Texts(config.fields), config.kind
        self._memories = (*place, "memories")

    def writes(self, puts: Sequence[PutOp]) -> Steps[Any]:
        """Returns no operations: memories are not written with the items."""
        return []
        yield

    def written(self, puts: Sequence[PutOp]) -> Steps[Any]:
        """Remembers the texts of written items, and forgets their previous texts."""
        for op in puts:
            new, until = set(), None if op.ttl is None else _until(op.ttl)
            for text in self._texts.of(op):
                if content := cut(text, CONTENT_BYTES).strip():
                    made = yield Call(
                        "remember",
                        subject=op.namespace[0],
                        kind=self._kind,
                        content=content,
                        tags=[_tag(op.namespace[:depth]) for depth in range(1, len(op.namespace) + 1)],
                        metadata_json={ITEM: json.dumps([*op.namespace, op.key], ensure_ascii=False)},
                        # Other items may have the same text.
                        keep_apart=True,
                        expires_at=until,
                        idempotency_key=uuid.uuid4().hex,
                    )
                    new.add(made.memory.id)
            gone = yield from self._note(op, new)
            for id in gone:
                try:
                    yield Call("forget", id=id)
                except errors.MemoryNotFound:
                    continue

    def refreshed(self, live: Sequence[tuple[Name, float]]) -> Steps[Any]:
        """Extends the time to live, in minutes, of the memories of items."""
        read = yield from done(
            [asked([*self._memories, *place], key, minutes(ttl)) for (place, key), ttl in live]
        )
        ids = [
            (id, ttl)
            for (_, ttl), result in zip(live, read, strict=True)
            for id in (result.document.value if result.document else [])
        ]
        for id, ttl in ids:
            try:
                found = yield Call("get_memory", id=id)
                yield from _live(found.memory, _until(ttl))
            except errors.MemoryNotFound:
                continue

    def _note(self, op: PutOp, new: set[str]) -> Steps[set[str]]:
        """Records the memories of an item. Returns those that it no longer has."""
        place, gone = [*self._memories, *op.namespace], set[str]()
        for left in reversed(range(TRIES_MAX)):
            [item] = yield from done([asked(place, op.key)])
            # Includes memories of an earlier try with an unknown outcome.
            gone |= set(item.document.value if item.document else ()) - new
            version = item.document.version if item.document else 0
            write = DocumentOperation(delete=DeleteDocumentRequest(place, op.key, expected_version=version))
            if new:
                body = json.dumps(sorted(new))
                put = PutDocumentRequest(
                    place, op.key, json=body, expected_version=version, ttl=minutes(op.ttl)
                )
                write = DocumentOperation(put=put)
            try:
                yield from done([write] if new or version else [])
                break
            except (errors.StaleVersion, errors.Unavailable):
                # A concurrent change, or the response was lost.
                if not left:
                    raise
        return gone

    def ranked(self, op: SearchOp) -> Steps[Any]:
        """Returns up to 100 items found by a recall, best first, and whether the filter may match others."""
        prefix = tuple(op.namespace_prefix)
        if not prefix:
            raise ValueError("a search with a query needs a namespace prefix of one label or more")
        recalled = yield Call(
            "recall",
            query=cut(str(op.query), QUERY_BYTES),
            subjects=[prefix[0]],
            tags=[_tag(prefix)],
            limit=HITS_MAX,
        )
        found: dict[Name, float] = {}
        for hit in recalled.hits:
            if named := hit.memory and (hit.memory.metadata or {}).get(ITEM):
                *place, key = json.loads(named)
                if tuple(place[: len(prefix)]) == prefix:
                    found.setdefault((tuple(place), key), hit.score)
        are_more = bool(op.filter) and len(recalled.hits) == HITS_MAX
        return [(score, name) for name, score in found.items()], are_more


def _until(ttl: float) -> datetime:
    """Returns the time in `ttl` minutes."""
    until = datetime.now(timezone.utc) + timedelta(minutes=ttl)
    return until.replace(microsecond=until.microsecond // 1000 * 1000)


def _live(memory: Memory, until: datetime) -> Steps[Any]:
    """Extends the life of a memory that expires to at least this time."""
    if memory.expires_at is not None and memory.expires_at < until:
        yield Call(
            "update_memory", memory=Memory(id=memory.id, expires_at=until), update_mask=["expires_at"]
        )


def _tag(namespace: Sequence[str]) -> str:
    """Returns a label for memories of a namespace and of all below it."""
    tag = "in:" + "/".join(quote(label, safe="", errors="surrogatepass") for label in namespace)
    if len(tag) <= TAG_BYTES:
        return tag
    return "in:" + hashlib.sha256(tag.encode()).hexdigest()


class Embed(Step):
    """Computes vectors of texts, or of one query, with the caller's function."""

    __slots__ = ("_by", "_texts")

    def __init__(self, by: Embeddings, texts: list[str] | str) -> None:
        self._by, self._texts = by, texts

    def make(self, client: Client) -> Any:
        if isinstance(self._texts, str):
            return self._by.embed_query(self._texts)
        return self._by.embed_documents(self._texts)

    async def amake(self, client: AsyncClient) -> Any:
        if isinstance(self._texts, str):
            return await self._by.aembed_query(self._texts)
        return await self._by.aembed_documents(self._texts)


def cosine(query: Sequence[float], body: bytes) -> float:
    """Returns the best cosine similarity of some vectors."""
    numbers, size = array.array("f", body), len(query)
    best, length = -1.0, math.hypot(*query)
    for start in range(0, len(numbers), size):
        vector = numbers[start : start + size]
        whole = length * math.hypot(*vector)
        product = sum(map(operator.mul, query, vector))
        best = max(best, product / whole if whole else 0.0)
    return best
