"""Message histories for Pydantic AI: `pip install memoird[pydantic-ai]`.

    history = MemoirdHistory("telegram:4711")
    result = await agent.run("Where is my parcel?", message_history=await history.messages())
    await history.add(result.new_messages())
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from ._extras import needs

needs("pydantic-ai")

from pydantic import ValidationError
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from pydantic_ai.tools import RunContext
from pydantic_core import PydanticSerializationError

from . import _history
from ._history import Window
from ._kept import (
    FOR_ADDRESSES,
    FOR_URIS,
    base64_uri,
    is_id,
    is_name,
    kept,
    kept_in,
    media,
    opaque,
    text_of,
)
from ._steps import Clients, Steps
from .client import AsyncClient, Client
from .errors import InvalidArgument, InvalidSetting
from .types import Part, Role, Thinking, ToolResult, ToolUse, Turn

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestContext

NAME = "pydantic_ai"
_log = logging.getLogger(__name__)

__all__ = ["MemoirdHistory", "Window"]

_RESULTS = {"tool-return", "retry-prompt"}
_SAID = {"system-prompt", "user-prompt", "text", "retry-prompt", "retry-feedback", "compaction"}
# Values of a tool's result that are sent to providers as files.
_FILES = ("audio-url", "binary", "document-url", "image-url", "video-url")


class MemoirdHistory:
    """The messages of a session, returned exactly as they were added.

    `session_id` has 1 to 256 bytes. `subject` is the owner of the memories made from the session.
    By default the clients are configured by the environment (`MEMOIRD_ADDR`, `MEMOIRD_KEY`); one of
    them is enough for all methods.

    With a `window`, `messages` returns the window for the next model call. Content changed or made
    by memoird, such as a summary, is in separate messages. Otherwise it returns the whole live
    session. A session that ended, for example because it was not touched for its TTL, has no
    messages. With durability `off`, the oldest are dropped at the daemon's `max_history_turns`.

    A run reads its `message_history` once. With `capabilities=[history.window_per_call()]`, each
    model call of the run gets a new window.

    A message has at most 20 MiB by default (`limits.turn_bytes`), and 256 KiB besides its texts and
    media (`limits.client_json_bytes`). If Pydantic AI could not load a message again,
    InvalidArgument is raised and no message of the call is added.
    """

    def __init__(
        self,
        session_id: str,
        *,
        client: AsyncClient | None = None,
        sync_client: Client | None = None,
        subject: str = "",
        window: Window | None = None,
    ) -> None:
        self.session_id, self.subject, self.window = session_id, subject, window
        self._clients = Clients(client, sync_client)

    async def messages(self) -> list[ModelMessage]:
        """Returns all messages, oldest first, or the window. Pass them as the `message_history` of a run."""
        return await self._clients.ado(self._messages())

    def messages_sync(self) -> list[ModelMessage]:
        """`messages`, outside of an event loop."""
        return self._clients.do(self._messages())

    async def add(self, messages: Sequence[ModelMessage]) -> None:
        """Appends messages, such as `new_messages()` of a run, up to 256 per call."""
        await self._clients.ado(self._add(messages))

    def add_sync(self, messages: Sequence[ModelMessage]) -> None:
        """`add`, outside of an event loop."""
        self._clients.do(self._add(messages))

    def window_per_call(self) -> AbstractCapability[Any]:
        """Returns a capability that gives each model call of a run a new window.

            result = await agent.run(text, message_history=await history.messages(),
                                     capabilities=[history.window_per_call()])
            await history.add(result.new_messages())

        It appends the messages of the run before each call, and `add` skips these. A run that fails
        leaves its question and the results of its tools in the session.
        """
        if self.window is None:
            raise InvalidSetting(
                "window takes a memoird Window for window_per_call",
                code=grpc.StatusCode.INVALID_ARGUMENT,
                facts={"field": "window"},
            )
        return _WindowPerCall(self)

    async def set(self, messages: Sequence[ModelMessage]) -> None:
        """Replaces all messages, atomically for up to 256."""
        await self._clients.ado(self._set(messages))

    def set_sync(self, messages: Sequence[ModelMessage]) -> None:
        """`set`, outside of an event loop."""
        self._clients.do(self._set(messages))

    async def clear(self) -> None:
        """Rewinds all messages: windows and searches omit them, and the journal keeps them until retention."""
        await self._clients.ado(_history.clear(self.session_id))

    def clear_sync(self) -> None:
        """`clear`, outside of an event loop."""
        self._clients.do(_history.clear(self.session_id))

    async def erase(self) -> None:
        """Permanently removes all data of the session. Waits up to a minute for completion."""
        await self._clients.ado(_history.erase(self.session_id))

    def erase_sync(self) -> None:
        """`erase`, outside of an event loop."""
        self._clients.do(_history.erase(self.session_id))

    def _messages(self) -> Steps[list[ModelMessage]]:
        turns = yield from _history.turns(self.session_id, self.window)
        return _read(turns)

    def _set(self, messages: Sequence[ModelMessage]) -> Steps[Any]:
        chunks = _history.turns_in_chunks(_turns(messages))
        return _history.replace(self.session_id, chunks, self.subject)

    def _add(self, messages: Sequence[ModelMessage]) -> Steps[Any]:
        turns = _turns(messages)
        if self.window is not None and turns:
            # A capability may have appended messages of the run. They are recognized by the ids of
            # turns.
            pages = yield from _history.read_last(self.session_id, len(turns) + 1)
            there = [
                (turn.client_id, turn.client_json)
                for page in pages
                for turn in page.turns
                if turn.client_id
            ]
            turns = [turn for turn in turns if (turn.client_id, turn.client_json) not in there]
        chunks = _history.turns_in_chunks(turns)
        return (yield from _history.add(self.session_id, chunks, self.subject))

    def _add_and_choose(self, messages: Sequence[ModelMessage]) -> Steps[list[ModelMessage]]:
        chunks = _history.turns_in_chunks(_turns(messages))
        yield from _history.add(self.session_id, chunks, self.subject)
        return (yield from self._messages())


@dataclass
class _WindowPerCall(AbstractCapability[Any]):
    history: MemoirdHistory
    run_id: str = ""
    added: int = 0
    """Number of messages of this run that are in the session."""

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        clients = self.history._clients
        of_run = [it for it in request_context.messages if it.run_id == ctx.run_id]
        if self.run_id != ctx.run_id:
            self.run_id, self.added = ctx.run_id or "", 0
        if not self.added and ctx.prompt is None:
            # A run without a prompt may start with the last request of its history.
            pages = await clients.ado(_history.read_last(self.history.session_id, 1))
            newest = [turn for page in pages for turn in page.turns][-1:]
            self.added = sum(turn.role is not Role.ASSISTANT for turn in newest)
        steps = self.history._add_and_choose(of_run[self.added :])
        request_context.messages = await clients.ado(steps)
        self.added = len(of_run)
        return request_context

    @classmethod
    def get_serialization_name(cls) -> str | None:
        return None


def _turns(messages: Sequence[ModelMessage]) -> list[Turn]:
    """Returns the turns of messages. Raises InvalidArgument if one could not be loaded again."""
    try:
        dumped = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
        ModelMessagesTypeAdapter.validate_python(dumped)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        raise _unreadable(_place(first["loc"]), f"cannot be read again: {first['msg']}") from problem
    except PydanticSerializationError as problem:
        raise _unreadable("messages", f"takes what JSON can hold: {problem}") from problem
    return [_turn(_translated(message, FOR_URIS)) for message in dumped]


def _place(loc: tuple[int | str, ...]) -> str:
    """Returns the path of a part from an error location, which also contains names of union members."""
    message, _, *within = loc
    path = f"messages[{message}]"
    if len(within) > 1 and within[0] == "parts":
        path += f".parts[{within[1]}]" + "".join(f".{it}" for it in within[3:4])
    return path


def _unreadable(field: str, problem: str) -> InvalidArgument:
    return InvalidArgument(
        f"{field} {problem}; nothing was stored, correct this part and add the messages again",
        code=grpc.StatusCode.INVALID_ARGUMENT,
        facts={"field": field},
    )


def _translated(message: dict[str, Any], letters: dict[int, int]) -> dict[str, Any]:
    """Converts the base64 of a message's data to that of data URIs or back, so that it is stored only once."""
    for part in message["parts"]:
        if part["part_kind"] in ("user-prompt", "file"):
            content = part["content"]
            for it in content if isinstance(content, list) else [content]:
                if isinstance(it, dict) and isinstance(it.get("data"), str):
                    it["data"] = it["data"].translate(letters)
    return message


def _turn(message: dict[str, Any]) -> Turn:
    kinds = {part["part_kind"] for part in message["parts"]}
    parts = [made for part in message["parts"] for made in _parts(part)]
    if message["kind"] == "response":
        role = Role.ASSISTANT
    elif kinds and kinds <= {"system-prompt"}:
        role = Role.SYSTEM
    elif parts and all(part.tool_result for part in parts):
        role = Role.TOOL
    else:
        role = Role.USER
        # The framework sends the system prompt of a message again with each run.
        system = {p["content"] for p in message["parts"] if p["part_kind"] == "system-prompt"}
        parts = [part for part in parts if part.text not in system]
    return kept(role, parts, NAME, message, message.get("run_id"))


def _parts(part: dict[str, Any]) -> list[Part]:
    """Returns the parts of a message part that models read."""
    kind, content, id = part["part_kind"], part.get("content"), part.get("tool_call_id")
    details = part.get("provider_details") or {}
    more = opaque(details)[0].extra_json if details else ""
    if kind in _RESULTS and part.get("tool_name"):
        text, files = _result(content)
        if not is_id(id):
            return [Part(text=text), *files]
        is_error = part.get("outcome", "retried") != "success"
        return [Part(tool_result=ToolResult(str(id), text, files, is_error))]
    if kind == "tool-call" and is_id(id) and is_name(part["tool_name"]):
        return [Part(tool_use=ToolUse(str(id), part["tool_name"], _arguments(part)), extra_json=more)]
    if kind == "thinking":
        return _thinking(part, more)
    if kind == "builtin-tool-call":
        name = {"id": id, "name": part.get("tool_name")}
        return opaque({"type": "server_tool_use", **name, "input": part.get("args") or {}, **details})
    if kind == "builtin-tool-return":
        name = {"type": f"{part.get('tool_name')}_tool_result", "tool_use_id": id}
        return opaque({**name, "content": content, **details})
    if kind == "compaction" and details:
        return opaque({"type": kind, "content": content or "", **details})
    if kind == "file":
        return _media(content)
    if kind not in _SAID:
        return []
    if kind in ("retry-prompt", "retry-feedback") and not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False)
    if kind == "text" and content:
        return [Part(text=content, extra_json=more)]
    said = content if isinstance(content, list) else [content]
    return [made for it in said for made in _said(it)]


def _arguments(part: dict[str, Any]) -> str:
    given = part.get("args") or ""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _thinking(part: dict[str, Any], more: str) -> list[Part]:
    text, signature = part.get("content") or "", part.get("signature") or ""
    if part.get("id") == "redacted_thinking":
        return [Part(thinking=Thinking(signature, redacted=True), extra_json=more)]
    if text or signature or more:
        return [Part(thinking=Thinking(text, signature), extra_json=more)]
    return []


def _result(content: Any) -> tuple[str, list[Part]]:
    """Returns the text of a tool's result, and its files, which the text names as the framework does."""
    if isinstance(content, str):
        return content, []
    items = content if isinstance(content, list) else [content]
    found = [_media(it) if isinstance(it, dict) and it.get("kind") in _FILES else [] for it in items]
    files = [file for made in found for file in made]
    if not files:
        return json.dumps(content, ensure_ascii=False), []
    told = [
        f"See file {it.get('identifier')}." if made else it
        for it, made in zip(items, found, strict=True)
    ]
    return (json.dumps(told, ensure_ascii=False) if isinstance(content, list) else told[0]), files


def _said(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [Part(text=content)]
    if isinstance(content, dict) and isinstance(content.get("content"), str):
        return [Part(text=content["content"])]
    return _media(content)


def _media(content: Any) -> list[Part]:
    if not isinstance(content, dict):
        return []
    kind = str(content.get("media_type") or "")
    if isinstance(content.get("url"), str):
        return [media(kind, content["url"])]
    data = content.get("data")
    if not isinstance(data, str) or not data:
        return []
    return [media(kind, base64_uri(kind, data.translate(FOR_URIS)))] if kind else []


def _read(turns: Sequence[Turn]) -> list[ModelMessage]:
    messages: list[ModelMessage] = []
    names: dict[str, str] = {}
    for turn in turns:
        for part in turn.parts:
            if part.tool_use:
                names[part.tool_use.id] = part.tool_use.name
        held = kept_in(turn, NAME)
        if held is None:
            messages.append(_made(turn, names))
            continue
        try:
            held = _translated(held, FOR_ADDRESSES)
            messages.extend(ModelMessagesTypeAdapter.validate_python([held]))
        except ValidationError as problem:
            # Stored by another version of the framework. One message must not make the history
            # unreadable.
            _log.warning("turn %d is read without its details: %s", turn.seq, problem)
            messages.append(_made(turn, names))
    return messages


def _made(turn: Turn, names: dict[str, str]) -> ModelMessage:
    """Makes a message of a turn that contains none."""
    if turn.role is Role.ASSISTANT:
        said: list[ModelResponsePart] = []
        for part in turn.parts:
            if part.tool_use:
                call = part.tool_use
                said.append(ToolCallPart(call.name, call.input_json, call.id))
            elif part.text:
                said.append(TextPart(part.text))
        return ModelResponse(said or [TextPart("")])
    if turn.role is Role.SYSTEM:
        return ModelRequest([SystemPromptPart(text_of(turn))])
    asked: list[ModelRequestPart] = []
    for part in turn.parts:
        if part.tool_result:
            id = part.tool_result.tool_use_id
            asked.append(ToolReturnPart(names.get(id, "unknown"), part.tool_result.content, id))
        elif part.text:
            asked.append(UserPromptPart(part.text))
    return ModelRequest(asked or [UserPromptPart("")])
