"""Checkpoints of LangGraph's threads, as documents.

The checkpoints of a thread with the same `checkpoint_ns` are in one namespace. The key of a
checkpoint is its id, and the keys of its writes have it as a prefix. So the newest checkpoint and
its writes are the last documents of the namespace, and a thread is deleted by a prefix of its
namespaces.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ormsgpack
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from .. import errors
from .._documents import batches, done, each_document
from .._steps import Call, Clients, Steps
from ..client import AsyncClient, Client
from ..types import Document, DocumentOperation, PutDocumentRequest

# Lower than any character of an id, so that the writes of an id directly follow it.
SEPARATOR, AFTER = "\x01", "\x02"
# Added to the index of a write. Special writes, such as errors, have negative indices.
FIRST_PLACE = 1_000
PAGE = 100

Place = list[str]
Documents = list[Document]
# Task, channel and value of each write.
Writes = list[tuple[str, str, Any]]


class MemoirdSaver(BaseCheckpointSaver[str]):
    """A checkpointer for graphs with and without event loops.

    `client` may be of either kind; by default it is configured by the environment (`MEMOIRD_ADDR`,
    `MEMOIRD_KEY`). Checkpoints are documents below `namespace`. They belong to no session, and stay
    until their thread is deleted or pruned. Each put is one call and one transaction, and can be
    repeated.

    Limits: a checkpoint or a write has up to `long_term.document_bytes` (4 MiB), the id of a thread
    up to 256 bytes, and subgraphs may be nested 13 deep.

    A checkpointer restores the state of a graph unchanged. To send the model a window of it, see
    `window`.
    """

    def __init__(
        self,
        client: Client | AsyncClient | None = None,
        *,
        serde: SerializerProtocol | None = None,
        namespace: Sequence[str] = ("langgraph", "checkpoints"),
    ) -> None:
        super().__init__(serde=serde)
        self._clients, self._namespace = Clients(client), tuple(namespace)

    # Methods that LangGraph calls.

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns the checkpoint named by `config`, or the newest one of its thread, with its writes."""
        return self._clients.do(self._get(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await self._clients.ado(self._get(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yields checkpoints with their writes, newest first in each `checkpoint_ns`."""
        yield from self._clients.each(self._list(config, filter, before, limit))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        async for found in self._clients.aeach(self._list(config, filter, before, limit)):
            yield found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint, replacing one with the same id."""
        return self._clients.do(self._put(config, checkpoint, metadata))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `put`."""
        return await self._clients.ado(self._put(config, checkpoint, metadata))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Stores the writes of a task after a checkpoint. Existing writes stay."""
        self._clients.do(self._put_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """As `put_writes`."""
        await self._clients.ado(self._put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Deletes a thread."""
        self._clients.do(self._delete_thread(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await self._clients.ado(self._delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints of runs. Reads all checkpoints."""
        self._clients.do(self._delete_for_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`."""
        await self._clients.ado(self._delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies the checkpoints of a thread and their writes to another thread."""
        self._clients.do(self._copy_thread(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`."""
        await self._clients.ado(self._copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes threads (`delete`), or everything their newest checkpoints do not need (`keep_latest`)."""
        self._clients.do(self._prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `prune`."""
        await self._clients.ado(self._prune(thread_ids, strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """Returns the writes to channels since they were last stored completely, oldest first."""
        return self._clients.do(self._history(config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """As `get_delta_channel_history`."""
        return await self._clients.ado(self._history(config, channels))

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """Returns a version: a counter, and a random number that distinguishes concurrent writers."""
        number = current if isinstance(current, int) else int((current or "0").split(".")[0])
        return f"{number + 1:032}.{random.random():016}"

    # Implementation.

    def _place(self, thread_id: Any, checkpoint_ns: str) -> Place:
        return [*self._namespace, str(thread_id), *checkpoint_ns.split("|")]

    def _config_of(self, place: Sequence[str], checkpoint_id: str) -> RunnableConfig:
        thread_id, *checkpoint_ns = place[len(self._namespace) :]
        return _config(thread_id, "|".join(checkpoint_ns), checkpoint_id)

    def _get(self, config: RunnableConfig) -> Steps[CheckpointTuple | None]:
        place = self._place(*_thread(config))
        found = yield from self._found(place, get_checkpoint_id(config))
        return self._tuple(*found) if found else None

    def _found(self, place: Place, checkpoint_id: str | None) -> Steps[Any]:
        """Returns a checkpoint with its writes. Without an id, the newest one."""
        if checkpoint_id:
            return (yield from self._read(place, checkpoint_id))
        before = ""
        while True:
            newest = yield Call(
                "list_documents",
                namespace_prefix=place,
                exact_namespace=True,
                key_before=before,
                descending=True,
                page_size=1,
            )
            if not newest.documents:
                return None
            before, *write = newest.documents[0].key.split(SEPARATOR)
            if not write:
                return newest.documents[0], []
            # Most checkpoints have no writes. This one has some, or is not stored yet.
            if found := (yield from self._read(place, before)):
                return found

    def _read(self, place: Place, checkpoint_id: str) -> Steps[Any]:
        """Returns a checkpoint with its writes."""
        found: Documents = []
        span = {"key_from": checkpoint_id, "key_before": checkpoint_id + AFTER}
        yield from each_document(found.append, namespace_prefix=place, exact_namespace=True, **span)
        if not found or SEPARATOR in found[0].key:
            return None
        return found[0], found[1:]

    def _ancestors(
        self,
        place: Place,
        checkpoint: Document,
        see: Callable[[Document, Documents], bool],
    ) -> Steps[Any]:
        """Yields the ancestors of a checkpoint with their writes, newest first, until the caller has enough."""
        parent, writes, token = _parent(checkpoint), [], ""
        while parent:
            page = yield Call(
                "list_documents",
                namespace_prefix=place,
                exact_namespace=True,
                key_before=checkpoint.key,
                descending=True,
                page_size=PAGE,
                page_token=token,
            )
            for document in page.documents:
                if SEPARATOR in document.key:
                    writes.append(document)
                    continue
                own = [write for write in writes if _is_of(write, document)]
                writes = []
                if document.key == parent:
                    if see(document, own):
                        return
                    parent = _parent(document)
            token = page.next_page_token
            if not token:
                return

    def _tuple(self, document: Document, writes: Sequence[Document]) -> CheckpointTuple:
        parent, body, metadata = _packed(document)
        return CheckpointTuple(
            config=self._config_of(document.namespace, document.key),
            checkpoint=self.serde.loads_typed(body),
            metadata=self.serde.loads_typed(metadata),
            parent_config=self._config_of(document.namespace, parent) if parent else None,
            pending_writes=self._pending(writes),
        )

    def _pending(self, documents: Sequence[Document]) -> Writes:
        """Returns writes in the order in which a graph applies them."""
        writes = []
        for document in documents:
            _, task_id, place = document.key.split(SEPARATOR)
            path, channel, kind, body = ormsgpack.unpackb(document.bytes or b"")
            order = writes_sort_key(path, task_id, int(place))
            writes.append((order, task_id, channel, (kind, body)))
        writes.sort(key=lambda write: write[0])
        return [(task, channel, self.serde.loads_typed(body)) for _, task, channel, body in writes]

    def _list(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Steps[Any]:
        where: dict[str, Any] = {"namespace_prefix": self._namespace}
        if config:
            thread_id, checkpoint_ns = _thread(config)
            where["namespace_prefix"] = [*self._namespace, thread_id]
            if "checkpoint_ns" in config["configurable"]:
                place = self._place(thread_id, checkpoint_ns)
                where = {"namespace_prefix": place, "exact_namespace": True}
            if checkpoint_id := get_checkpoint_id(config):
                where |= {"key_from": checkpoint_id, "key_before": checkpoint_id + AFTER}
        if before and (last := get_checkpoint_id(before)):
            where["key_before"] = min(last, where.get("key_before", last))
        left = limit
        if left is not None and left <= 0:
            return
        where["page_size"] = PAGE if left is None else min(PAGE, 4 * left)
        writes: Documents = []
        token = ""
        while True:
            page = yield Call("list_documents", descending=True, page_token=token, **where)
            for document in page.documents:
                if SEPARATOR in document.key:
                    writes.append(document)
                    continue
                own = [write for write in writes if _is_of(write, document)]
                writes = []
                found = self._tuple(document, own)
                if not _fits(found.metadata, filter):
                    continue
                yield found
                left = None if left is None else left - 1
                if left == 0:
                    return
            token = page.next_page_token
            if not token:
                return

    def _put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> Steps[RunnableConfig]:
        thread_id, checkpoint_ns = _thread(config)
        body = self.serde.dumps_typed(checkpoint)
        about = self.serde.dumps_typed(get_checkpoint_metadata(config, metadata))
        yield Call(
            "put_document",
            namespace=self._place(thread_id, checkpoint_ns),
            key=checkpoint["id"],
            bytes=ormsgpack.packb([get_checkpoint_id(config), *body, *about]),
        )
        return _config(thread_id, checkpoint_ns, checkpoint["id"])

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, path: str
    ) -> Steps[Any]:
        place = self._place(*_thread(config))
        checkpoint_id = str(config["configurable"]["checkpoint_id"])
        puts = []
        for index, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, index)
            key = SEPARATOR.join((checkpoint_id, task_id, f"{FIRST_PLACE + index:08}"))
            body = ormsgpack.packb([path, channel, *self.serde.dumps_typed(value)])
            # Writes of a task are stored once. Special writes, such as errors, may be replaced.
            version = None if index < 0 else 0
            put = PutDocumentRequest(place, key, bytes=body, expected_version=version)
            puts.append(DocumentOperation(put=put))
        for batch in batches(puts):
            try:
                yield Call("batch_documents", operations=batch)
            except (errors.StaleVersion, errors.Unavailable):
                yield from _put_missing(place, SEPARATOR.join((checkpoint_id, task_id)), batch)

    def _delete_thread(self, thread_id: str) -> Steps[Any]:
        yield Call("delete_documents", namespace_prefix=[*self._namespace, str(thread_id)])

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Steps[Any]:
        runs = set(run_ids)
        of_runs: Documents = []

        def take(document: Document) -> None:
            if SEPARATOR not in document.key:
                metadata = self.serde.loads_typed(_packed(document)[2])
                if metadata.get("run_id") in runs:
                    of_runs.append(document)

        if runs:
            yield from each_document(take, namespace_prefix=self._namespace)
        for document in of_runs:
            yield Call(
                "delete_documents",
                namespace_prefix=document.namespace,
                exact_namespace=True,
                key_from=document.key,
                key_before=document.key + AFTER,
            )

    def _copy_thread(self, source: str, target: str) -> Steps[Any]:
        place, token = [*self._namespace, str(source)], ""
        while True:
            page = yield Call(
                "list_documents", namespace_prefix=place, page_size=PAGE, page_token=token
            )
            puts = []
            for document in page.documents:
                copied = [*self._namespace, str(target), *document.namespace[len(place) :]]
                put = PutDocumentRequest(copied, document.key, bytes=document.bytes)
                puts.append(DocumentOperation(put=put))
            yield from done(puts)
            token = page.next_page_token
            if not token:
                return

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> Steps[Any]:
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"{strategy!r} is no strategy: `keep_latest` or `delete`")
        for thread_id in thread_ids:
            if strategy == "delete":
                yield from self._delete_thread(thread_id)
            else:
                yield from self._keep_latest(thread_id)

    def _keep_latest(self, thread_id: str) -> Steps[Any]:
        places, token = [], ""
        while True:
            page = yield Call(
                "list_namespaces", prefix=[*self._namespace, str(thread_id)], page_token=token
            )
            places += [found.parts for found in page.namespaces]
            token = page.next_page_token
            if not token:
                break
        for place in places:
            if oldest := (yield from self._oldest_needed(place)):
                yield Call(
                    "delete_documents", namespace_prefix=place, exact_namespace=True, key_before=oldest
                )

    def _oldest_needed(self, place: Place) -> Steps[Any]:
        """Returns the key of the oldest checkpoint that the newest one needs. Empty if there is none."""
        newest = yield from self._found(place, None)
        if newest is None:
            return ""
        checkpoint, _ = newest
        _, body, metadata = _packed(checkpoint)
        counters = self.serde.loads_typed(metadata).get("counters_since_delta_snapshot") or {}
        missing = set(counters) - set(self.serde.loads_typed(body)["channel_values"])
        oldest = checkpoint.key

        def see(ancestor: Document, _: Documents) -> bool:
            nonlocal oldest, missing
            oldest = ancestor.key
            missing -= set(self.serde.loads_typed(_packed(ancestor)[1])["channel_values"])
            return not missing

        if missing:
            yield from self._ancestors(place, checkpoint, see)
        return oldest

    def _history(self, config: RunnableConfig, channels: Sequence[str]) -> Steps[Any]:
        found: dict[str, Any] = {channel: {"writes": []} for channel in channels}
        open = set(channels)

        def see(ancestor: Document, writes: Documents) -> bool:
            for write in reversed(self._pending(writes)):
                if write[1] in open:
                    found[write[1]]["writes"].insert(0, write)
            values = self.serde.loads_typed(_packed(ancestor)[1])["channel_values"]
            for channel in open & set(values):
                found[channel]["seed"] = values[channel]
                open.remove(channel)
            return not open

        if open:
            place = self._place(*_thread(config))
            target = yield from self._found(place, get_checkpoint_id(config))
            if target:
                yield from self._ancestors(place, target[0], see)
        return found


def _packed(document: Document) -> tuple[str | None, tuple[str, bytes], tuple[str, bytes]]:
    """Returns the parent's id, the checkpoint and the metadata as packed."""
    parent, kind, body, metadata_kind, metadata = ormsgpack.unpackb(document.bytes or b"")
    return parent, (kind, body), (metadata_kind, metadata)


def _parent(document: Document) -> str | None:
    return _packed(document)[0]


def _thread(config: RunnableConfig) -> tuple[str, str]:
    names = config["configurable"]
    return str(names["thread_id"]), names.get("checkpoint_ns") or ""


def _config(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": checkpoint_ns,
            "checkpoint_id": checkpoint_id,
        }
    }


def _is_of(write: Document, checkpoint: Document) -> bool:
    id = write.key.split(SEPARATOR, 1)[0]
    return id == checkpoint.key and write.namespace == checkpoint.namespace


def _fits(metadata: Mapping[str, Any], filter: Mapping[str, Any] | None) -> bool:
    return all(metadata.get(name) == value for name, value in (filter or {}).items())


def _put_missing(
    place: Place, task: str, batch: Sequence[DocumentOperation]
) -> Steps[Any]:
    """Stores the writes of a task, some or all of which may exist."""
    there: set[str] = set()
    yield from each_document(
        lambda document: there.add(document.key),
        namespace_prefix=place,
        exact_namespace=True,
        key_prefix=task + SEPARATOR,
        include_values=False,
    )
    missing = [
        DocumentOperation(put=replace(put, expected_version=None))
        for operation in batch
        if (put := operation.put) and (put.expected_version is None or put.key not in there)
    ]
    if missing:
        yield Call("batch_documents", operations=missing)
