"""Sessions for the OpenAI Agents SDK: `pip install memoird[openai-agents]`.

    session = MemoirdSession("telegram:4711")
    result = await Runner.run(agent, "Where is my parcel?", session=session)
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import grpc

from ._extras import needs

needs("openai-agents")

from agents.memory import SessionSettings
from agents.memory.session_settings import (
    coerce_session_settings,
    resolve_session_limit,
)

from . import _history, _wire
from ._batches import batched, text_bytes
from ._history import Window
from ._kept import is_id
from ._steps import Clients, Steps
from .client import AsyncClient, Client
from .errors import (
    InvalidArgument,
    SessionNotFound,
    StaleGeneration,
    StaleSeq,
    ToolUnitSplit,
)
from .types import MessageFormat

if TYPE_CHECKING:
    from agents import RunContextWrapper, TResponseInputItem
    from agents.memory.session import _CompactionSnapshot
    from agents.run_config import CallModelData, ModelInputData

FORMAT = MessageFormat.OPENAI_RESPONSES
# A turn has at most 128 parts, and consecutive items of the model are one turn.
MODEL_PARTS_MAX = 64
_ROLES = ("user", "assistant", "system", "developer")
# Type of a message part that contains an object which is not an item of OpenAI's API.
_KEPT = "memoird_item"

__all__ = ["MemoirdSession", "Window"]


class MemoirdSession:
    """A conversation in memoird, as the SDK's `Session`.

    `session_id` has 1 to 256 bytes. `subject` is the owner of the memories made from the session.
    `client` may be of either kind; by default it is configured by the environment (`MEMOIRD_ADDR`,
    `MEMOIRD_KEY`). Items are returned exactly as they were added. Objects that are not items of
    OpenAI's API, such as the envelopes of `EncryptedSession`, are stored, but memoird cannot read
    them.

    With a `window`, `get_items` without a limit returns the window for the next model call. A run
    reads it once, at its start; use `filter_model_input` for a new window before each model call.
    Otherwise it returns all items of the live session, or the newest `limit`. A session that ended,
    for example because it was not touched for its TTL, has no items. With durability `off`, the
    oldest are dropped at the daemon's `max_history_turns`.
    """

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        *,
        client: Client | AsyncClient | None = None,
        subject: str = "",
        window: Window | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id, self.subject, self.window = session_id, subject, window
        self.session_settings = coerce_session_settings(session_settings or {})
        self._clients = Clients(client)
        # End of the session as of the oldest read since items were replaced, plus items added here.
        # A compaction session caches what it read, so later reads do not count.
        self._known: _history.Tail | None = None

    @property
    def client(self) -> AsyncClient:
        """The client used for all calls."""
        return self._clients.looping()

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """Returns the newest `limit` items, oldest first; without a limit all items, or the window.

        Reads pages of 1,000 turns or 2 MiB.
        """
        limit = resolve_session_limit(limit, self.session_settings)
        if limit is not None and limit <= 0:
            return []
        if limit is None and self.window is not None:
            return await self._window(self.window)
        read = await self._clients.ado(_history.read_messages(self.session_id, FORMAT, limit))
        self._known = self._known or read.tail
        items = _unwrapped(read.messages)
        return items if limit is None else items[-limit:]

    async def _window(self, window: Window) -> list[TResponseInputItem]:
        answer = await self._clients.ado(_history.window(self.session_id, window, FORMAT))
        session = answer.session if answer else None
        last_seq = session.last_seq if session else 0
        tail = _history.Tail(session.generation if session else "", last_seq, last_seq + 1)
        self._known = self._known or tail
        return _unwrapped(answer.messages) if answer else []

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None
    ) -> None:
        """Appends items: up to 256 per call, with up to 64 consecutive parts of the model.

        An item has at most 20 MiB by default (`limits.turn_bytes`).
        """
        steps = _history.add(self.session_id, _appends(items), self.subject, self._known)
        self._known = await self._clients.ado(steps)

    async def pop_item(
        self, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> TResponseInputItem | None:
        """Removes and returns the newest item. None if there is none.

        Windows and searches omit it. The journal keeps it, marked as removed, until retention.
        """
        async with _pop_lock(self.session_id):
            popped = await self._clients.ado(_history.pop(self.session_id, FORMAT))
        self._known = None
        return _unwrapped([popped[1]])[0] if popped else None

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Removes all items as `pop_item` does with one. State and memories stay."""
        self._known = await self._clients.ado(_history.clear(self.session_id))

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replaces all items, for the SDK's compaction session.

        The first 256 items or 6 MiB are one step with the removal. Raises StaleSeq, and changes
        nothing, if another client has written since this session was read: then compact again.
        """
        if _transforms_items(self):
            return False
        expected, self._known = self._known, None
        steps = _history.replace(
            self.session_id, _appends(items), self.subject, expected=expected
        )
        self._known = await self._clients.ado(steps)
        return True

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[TResponseInputItem], bool] | None = None
    ) -> _CompactionSnapshot | None:
        """Reads the newest `limit` items, for the SDK's compaction session.

        The snapshot replaces its suffix only while no client has written since. `prune_prefix`
        selects items to remove from the beginning; they go if what stays fits one call, else only
        the suffix does.
        """
        if _transforms_items(self):
            return None
        from agents.memory.session import _CompactionSnapshot

        # One turn more than items: an item of it is older than the snapshot.
        read = await self._clients.ado(_history.read_messages(self.session_id, FORMAT, limit + 1))
        skipped = max(len(read.messages) - limit, 0)

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            if skipped + start >= len(read.messages):
                return False
            steps = self._replace_suffix(read, skipped + start, output, prune_prefix)
            try:
                self._known = await self._clients.ado(steps)
            except (StaleSeq, StaleGeneration, SessionNotFound, ToolUnitSplit):
                return False
            return self._known is not None

        return _CompactionSnapshot(_unwrapped(read.messages[skipped:]), not skipped, replace_suffix)

    def _replace_suffix(
        self,
        read: _history.MessagesRead,
        start: int,
        output: list[TResponseInputItem],
        prune_prefix: Callable[[TResponseInputItem], bool] | None,
    ) -> Steps[_history.Tail | None]:
        """Replaces `read.messages[start:]`. Returns None, and changes nothing, if the session changed."""
        if prune_prefix is not None:
            whole = yield from _history.read_messages(self.session_id, FORMAT)
            older = whole.messages[: len(whole.messages) - len(read.messages) + start]
            retained = list(itertools.dropwhile(prune_prefix, _unwrapped(older)))
            chunks = _appends([*retained, *output])
            if len(retained) < len(older) and len(chunks) <= 1:
                return (yield from self._replaced(chunks, 0, read.tail))
        found = yield from _history.turn_of_message(self.session_id, FORMAT, read, start)
        if found is None:
            return None
        turn, first = found
        chunks = _appends([*_unwrapped(read.messages[first:start]), *output])
        return (yield from self._replaced(chunks, read.seqs[turn] - 1, read.tail))

    def _replaced(
        self, chunks: list[dict[str, Any]], after_seq: int, expected: _history.Tail
    ) -> Steps[_history.Tail | None]:
        return (
            yield from _history.replace(
                self.session_id, chunks, self.subject, after_seq=after_seq, expected=expected
            )
        )

    async def filter_model_input(self, data: CallModelData[Any]) -> ModelInputData:
        """Replaces the input of each model call of a run by a new window.

            RunConfig(call_model_input_filter=session.filter_model_input)

        Items that the SDK has not stored yet follow the window. The input is unchanged without a
        `window`, or if it does not contain the newest item of the session, for example after a
        filter of a handoff.
        """
        given = data.model_data
        if self.window is None:
            return given
        newest = await self._clients.ado(_history.read_messages(self.session_id, FORMAT, 1))
        stored = _unwrapped(newest.messages)[-1:]
        ends = [at for at, item in enumerate(given.input, 1) if [_plain(item)] == stored]
        if not ends:
            return given
        chosen = await self._window(self.window)
        return dataclasses.replace(given, input=[*chosen, *given.input[ends[-1] :]])

    async def erase_session(self) -> None:
        """Permanently removes all data of the session, including from the disk and from memories.

        Waits up to a minute for completion.
        """
        await self._clients.ado(_history.erase(self.session_id))

    def close(self) -> None:
        """Does nothing, because the client may be shared."""


def _transforms_items(session: MemoirdSession) -> bool:
    """Whether a subclass overrides the reading or adding of items, which a replacement here would bypass."""
    own = type(session)
    return (own.get_items, own.add_items) != (MemoirdSession.get_items, MemoirdSession.add_items)


_Locks = weakref.WeakValueDictionary[str, asyncio.Lock]
_POPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Locks] = weakref.WeakKeyDictionary()


def _pop_lock(session_id: str) -> asyncio.Lock:
    """Serializes pops of one event loop, so that they do not conflict with each other."""
    locks = _POPS.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    return locks.setdefault(session_id, asyncio.Lock())


def _appends(items: list[TResponseInputItem]) -> list[dict[str, Any]]:
    """Returns the argument of `_history.add` for items."""
    if isinstance(items, (str, bytes, dict)):
        problem = f"items takes a list of items, not a {type(items).__name__}"
        raise InvalidArgument(
            problem, code=grpc.StatusCode.INVALID_ARGUMENT, facts={"field": "items"}
        )
    texts = [_text(index, _wrapped(_plain(item))) for index, item in enumerate(items)]
    return [{"messages_json": chunk, "format": FORMAT} for chunk in _chunks(texts)]


def _text(index: int, item: Any) -> tuple[str, int]:
    """Returns the item as JSON, and the number of parts that it adds to a turn of the model."""
    try:
        return _wire.write_json(item), _parts_by_model(item)  # type: ignore[no-untyped-call]
    except (TypeError, ValueError, RecursionError) as problem:
        field = f"items[{index}]"
        raise InvalidArgument(
            f"{field} takes JSON: {problem}",
            code=grpc.StatusCode.INVALID_ARGUMENT,
            facts={"field": field},
        ) from None


def _plain(item: Any) -> Any:
    return item.model_dump(exclude_unset=True) if hasattr(item, "model_dump") else item


def _wrapped(item: Any) -> Any:
    """Returns the item, or a message that contains it if it is not an item of OpenAI's API."""
    if _is_readable(item) and _kept(item) is item:
        return item
    return {"role": "user", "content": [{"type": _KEPT, "item": item}]}


def _unwrapped(items: list[Any]) -> list[Any]:
    return [_kept(item) for item in items]


def _kept(item: Any) -> Any:
    content = item.get("content")
    if isinstance(content, list) and len(content) == 1 and content[0].get("type") == _KEPT:
        return content[0]["item"]
    return item


def _is_readable(item: Any) -> bool:
    """Whether memoird accepts it as an item of OpenAI's responses."""
    if not isinstance(item, dict):
        return False
    kind = item.get("type")
    if kind == "message" or (kind is None and "role" in item):
        return item.get("role") in _ROLES and _is_content(item.get("content"))
    if kind is None:
        return isinstance(item.get("id"), str)
    if kind == "function_call":
        texts = item.get("name"), item.get("arguments")
    elif kind == "custom_tool_call":
        texts = item.get("name"), item.get("input")
    elif kind in ("function_call_output", "custom_tool_call_output"):
        return is_id(item.get("call_id")) and _is_content(item.get("output"))
    else:
        return isinstance(kind, str)
    return is_id(item.get("call_id")) and is_id(texts[0]) and isinstance(texts[1], str)


def _is_content(content: Any) -> bool:
    if isinstance(content, list):
        return all(isinstance(it, dict) and isinstance(it.get("type"), str) for it in content)
    return isinstance(content, str)


def _chunks(texts: list[tuple[str, int]]) -> Iterator[str]:
    """Splits items into JSON arrays for one call each."""
    for batch in batched(texts, lambda it: text_bytes(it[0])):
        some: list[str] = []
        row = 0
        for text, parts in batch:
            row = row + parts if parts else 0
            if row > MODEL_PARTS_MAX:
                if some:
                    yield f"[{','.join(some)}]"
                some, row = [], parts
            some.append(text)
        yield f"[{','.join(some)}]"


def _parts_by_model(item: dict[str, Any]) -> int:
    """Returns the number of parts that an item adds to a turn of the model. 0 if it is not the model's."""
    if "role" in item:
        content = item.get("content")
        said = max(len(content), 1) if isinstance(content, list) else 1
        return said if item["role"] == "assistant" else 0
    kind = str(item.get("type"))
    return 0 if kind.endswith("_output") or kind == "mcp_approval_response" else 1
