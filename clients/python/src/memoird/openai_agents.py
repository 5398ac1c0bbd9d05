"""Sessions of the OpenAI Agents SDK, kept by memoird: `pip install memoird[openai-agents]`.

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
# A turn takes 128 parts, and what the model says in a row is one turn.
MODEL_PARTS_MAX = 64
_ROLES = ("user", "assistant", "system", "developer")
# What is no item of OpenAI's is kept inside a message, in a part of this type.
_KEPT = "memoird_item"

__all__ = ["MemoirdSession", "Window"]


class MemoirdSession:
    """A conversation in memoird, as the SDK's `Session`.

    `session_id` has 1 to 256 bytes. `subject` says whose memories its facts become. `client` may be of either kind;
    without one it is the one that the environment names (`MEMOIRD_ADDR`, `MEMOIRD_KEY`). Items are given back equal
    to what was added. One that is no item of OpenAI's API, such as the envelopes of `EncryptedSession`, is kept
    whole, but memoird cannot read it.

    With a `window`, `get_items` without a limit gives what memoird chooses for the next model call. A run reads it
    once, at its start: `filter_model_input` does it for each model call of the run. Otherwise
    it gives every item of the live session, or the newest `limit`. A session that ended, for instance because
    nothing touched it for its TTL, has none; with durability `off` the oldest leave at the daemon's
    `max_history_turns`.
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
        # End of the session as of the oldest read since items were replaced, plus items added here. A
        # compaction session caches what it read, so later reads do not count.
        self._known: _history.Tail | None = None

    @property
    def client(self) -> AsyncClient:
        """What calls the daemon."""
        return self._clients.looping()

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """The newest `limit` items, oldest first; without a limit all of them, or memoird's window.

        All are read in calls of 1,000 turns or 2 MiB.
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
        """Adds items, in one call for up to 256, with up to 64 parts of the model's in a row.

        An item has at most 20 MiB unless configured otherwise (`limits.turn_bytes`).
        """
        steps = _history.add(self.session_id, _appends(items), self.subject, self._known)
        self._known = await self._clients.ado(steps)

    async def pop_item(
        self, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> TResponseInputItem | None:
        """Takes the newest item back, and gives it; None where there is none.

        No window and no search shows it any more; the journal keeps it, marked, until retention.
        """
        async with _pop_lock(self.session_id):
            popped = await self._clients.ado(_history.pop(self.session_id, FORMAT))
        self._known = None
        return _unwrapped([popped[1]])[0] if popped else None

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Takes all items back, as `pop_item` does with one; state and memories stay."""
        self._known = await self._clients.ado(_history.clear(self.session_id))

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replaces all items, for the SDK's compaction session.

        The first 256 items or 6 MiB are one step with the removal. Raises StaleSeq, and changes nothing,
        if another client has written since this session was read: then compact again.
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

        The snapshot replaces its suffix only while no client has written since. `prune_prefix` selects
        items to remove from the beginning; they go if what stays fits one call, else only the suffix does.
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
        """Chooses the `window` again before each model call of a run.

            RunConfig(call_model_input_filter=session.filter_model_input)

        Items that the SDK has not stored yet follow the window. The input stays as it is without a `window`,
        or if it does not contain the newest item of the session, such as after a filter of a handoff.
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
        """Removes for good all that memoird has of the session, from the disk and from memories too.

        Waits up to a minute until it is done.
        """
        await self._clients.ado(_history.erase(self.session_id))

    def close(self) -> None:
        """Nothing: the client belongs to who made it."""


def _transforms_items(session: MemoirdSession) -> bool:
    """True for a subclass that reads or adds items in its own way: replacing them here would bypass it."""
    own = type(session)
    return (own.get_items, own.add_items) != (MemoirdSession.get_items, MemoirdSession.add_items)


_Locks = weakref.WeakValueDictionary[str, asyncio.Lock]
_POPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Locks] = weakref.WeakKeyDictionary()


def _pop_lock(session_id: str) -> asyncio.Lock:
    """Who pops in one loop waits, instead of trying again when another was faster."""
    locks = _POPS.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    return locks.setdefault(session_id, asyncio.Lock())


def _appends(items: list[TResponseInputItem]) -> list[dict[str, Any]]:
    """What `_history.add` takes."""
    if isinstance(items, (str, bytes, dict)):
        problem = f"items takes a list of items, not a {type(items).__name__}"
        raise InvalidArgument(
            problem, code=grpc.StatusCode.INVALID_ARGUMENT, facts={"field": "items"}
        )
    texts = [_text(index, _wrapped(_plain(item))) for index, item in enumerate(items)]
    return [{"messages_json": chunk, "format": FORMAT} for chunk in _chunks(texts)]


def _text(index: int, item: Any) -> tuple[str, int]:
    """The item as JSON, and how many parts it adds to what the model said in a row."""
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
    """The item, or a message that holds it where it is none of OpenAI's."""
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
    """True where memoird takes it as an item of OpenAI's responses."""
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
    """As much as the daemon takes in one call, as JSON."""
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
    """How many parts an item adds to what the model said in a row; 0 where it is not the model's."""
    if "role" in item:
        content = item.get("content")
        said = max(len(content), 1) if isinstance(content, list) else 1
        return said if item["role"] == "assistant" else 0
    kind = str(item.get("type"))
    return 0 if kind.endswith("_output") or kind == "mcp_approval_response" else 1
