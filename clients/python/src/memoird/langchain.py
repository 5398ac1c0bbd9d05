"""LangChain's chat message history and byte store on memoird: `pip install memoird[langchain]`.

    chain = RunnableWithMessageHistory(model, MemoirdChatMessageHistory)
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from ._extras import needs

needs("langchain")

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from langchain_core.stores import BaseStore

from . import _history
from ._documents import PAGE_MAX, asked, done, removed
from ._history import Window
from ._kept import base64_uri, is_id, is_name, kept, kept_in, media, opaque, text_of
from ._steps import Call, Clients, Steps
from .client import AsyncClient, Client
from .types import (
    DocumentOperation,
    MessageFormat,
    Part,
    PutDocumentRequest,
    Role,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
)

NAME = "langchain"

__all__ = ["MemoirdByteStore", "MemoirdChatMessageHistory", "Window"]

# Keys of `additional_kwargs` that an integration sends again.
_SENT_AGAIN = (
    "reasoning",
    "reasoning_details",
    "thinking_blocks",
    "tool_outputs",
    "__gemini_function_call_thought_signatures__",
)
# Blocks of calls that are in a message's `tool_calls` as well.
_CALLS = ("function_call", "input_json_delta", "tool_call", "tool_call_chunk", "tool_use")
_FORMATS = {
    "anthropic": MessageFormat.ANTHROPIC,
    "openai": MessageFormat.OPENAI_RESPONSES,
}
_ROLES = {
    "human": Role.USER,
    "user": Role.USER,
    "ai": Role.ASSISTANT,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}


class MemoirdChatMessageHistory(BaseChatMessageHistory):
    """The messages of a session, returned exactly as they were added.

    `session_id` has 1 to 256 bytes. `subject` is the owner of the memories made from the session.
    By default the clients are configured by the environment (`MEMOIRD_ADDR`, `MEMOIRD_KEY`); one of
    them is enough for all methods.

    With a `window`, `messages` is the window for the next model call. Content changed or made by
    memoird, such as a summary, is in separate messages. The window stays the same until this object
    adds or removes messages: `RunnableWithMessageHistory` reads them before and after a run, and
    treats additional ones as new. Otherwise `messages` is the whole live session. A session that
    ended, for example because it was not touched for its TTL, has no messages. With durability
    `off`, the oldest are dropped at the daemon's `max_history_turns`.

    A message has at most 20 MiB by default (`limits.turn_bytes`), and 256 KiB besides its texts and
    media (`limits.client_json_bytes`). Messages that cannot be encoded as JSON, for example because
    of their `artifact`, raise a TypeError.
    """

    def __init__(
        self,
        session_id: str,
        *,
        client: Client | None = None,
        async_client: AsyncClient | None = None,
        subject: str = "",
        window: Window | None = None,
    ) -> None:
        self.session_id, self.subject, self.window = session_id, subject, window
        self._clients = Clients(client, async_client)
        # The window of the current run.
        self._chosen: list[BaseMessage] | None = None

    @property
    def messages(self) -> list[BaseMessage]:
        """All messages, oldest first, or the window. Reads pages of 1,000 messages or 2 MiB."""
        return self._clients.do(self._messages())

    @messages.setter
    def messages(self, messages: Sequence[BaseMessage]) -> None:
        self.set_messages(messages)

    async def aget_messages(self) -> list[BaseMessage]:
        """`messages`, in an event loop."""
        return await self._clients.ado(self._messages())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Appends messages, up to 256 per call."""
        self._clients.do(self._add(messages))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """`add_messages`, in an event loop."""
        await self._clients.ado(self._add(messages))

    def set_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Replaces all messages, atomically for up to 256."""
        self._clients.do(self._set(messages))

    async def aset_messages(self, messages: Sequence[BaseMessage]) -> None:
        """`set_messages`, in an event loop."""
        await self._clients.ado(self._set(messages))

    def clear(self) -> None:
        """Rewinds all messages: windows and searches omit them, and the journal keeps them until retention."""
        self._clients.do(self._changed(_history.clear(self.session_id)))

    async def aclear(self) -> None:
        """`clear`, in an event loop."""
        await self._clients.ado(self._changed(_history.clear(self.session_id)))

    def erase(self) -> None:
        """Permanently removes all data of the session. Waits up to a minute for completion."""
        self._clients.do(self._changed(_history.erase(self.session_id)))

    async def aerase(self) -> None:
        """`erase`, in an event loop."""
        await self._clients.ado(self._changed(_history.erase(self.session_id)))

    def _messages(self) -> Steps[list[BaseMessage]]:
        if self._chosen is not None:
            return [*self._chosen]
        turns = yield from _history.turns(self.session_id, self.window)
        messages = [_message(turn) for turn in turns]
        if self.window is not None:
            self._chosen = [*messages]
        return messages

    def _changed(self, steps: Steps[Any]) -> Steps[None]:
        """Runs steps and discards the cached window afterwards, even if they fail."""
        self._chosen = None
        yield from steps

    def _set(self, messages: Sequence[BaseMessage]) -> Steps[None]:
        chunks = _history.turns_in_chunks(_turns(messages))
        return self._changed(_history.replace(self.session_id, chunks, self.subject))

    def _add(self, messages: Sequence[BaseMessage]) -> Steps[None]:
        chunks = _history.turns_in_chunks(_turns(messages))
        return self._changed(_history.add(self.session_id, chunks, self.subject))


class MemoirdByteStore(BaseStore[str, bytes]):
    """Bytes by key, stored in documents that do not expire.

    `namespace` separates the store's keys from those of others: up to 16 parts. A key has 1 to 512
    bytes, a value up to 4 MiB by default (`long_term.document_bytes`). Up to 256 keys and 6 MiB are
    read, set or deleted in one call. Each call is atomic. If one fails, those before it stay.
    """

    def __init__(
        self,
        namespace: Sequence[str] = ("langchain",),
        *,
        client: Client | None = None,
        async_client: AsyncClient | None = None,
    ) -> None:
        self.namespace = list(namespace)
        self._clients = Clients(client, async_client)

    def mget(self, keys: Sequence[str]) -> list[bytes | None]:
        """Returns the value of each key. None if it has none."""
        return self._clients.do(self._get(keys))

    async def amget(self, keys: Sequence[str]) -> list[bytes | None]:
        """`mget`, in an event loop."""
        return await self._clients.ado(self._get(keys))

    def mset(self, key_value_pairs: Sequence[tuple[str, bytes]]) -> None:
        """Sets or replaces values."""
        self._clients.do(done(self._puts(key_value_pairs)))

    async def amset(self, key_value_pairs: Sequence[tuple[str, bytes]]) -> None:
        """`mset`, in an event loop."""
        await self._clients.ado(done(self._puts(key_value_pairs)))

    def mdelete(self, keys: Sequence[str]) -> None:
        """Deletes values. Keys without a value are ignored."""
        self._clients.do(done([removed(self.namespace, key) for key in keys]))

    async def amdelete(self, keys: Sequence[str]) -> None:
        """`mdelete`, in an event loop."""
        await self._clients.ado(done([removed(self.namespace, key) for key in keys]))

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Yields all keys with this prefix, in the order of their bytes."""
        token = ""
        while True:
            keys, token = self._clients.do(self._keys(prefix, token))
            yield from keys
            if not token:
                return

    async def ayield_keys(self, *, prefix: str | None = None) -> AsyncIterator[str]:
        """`yield_keys`, in an event loop."""
        token = ""
        while True:
            keys, token = await self._clients.ado(self._keys(prefix, token))
            for key in keys:
                yield key
            if not token:
                return

    def _get(self, keys: Sequence[str]) -> Steps[list[bytes | None]]:
        results = yield from done([asked(self.namespace, key) for key in keys])
        return [it.document.bytes if it.document else None for it in results]

    def _puts(self, pairs: Sequence[tuple[str, bytes]]) -> list[DocumentOperation]:
        return [
            DocumentOperation(put=PutDocumentRequest(self.namespace, key, bytes=value))
            for key, value in pairs
        ]

    def _keys(self, prefix: str | None, token: str) -> Steps[tuple[list[str], str]]:
        page = yield Call(
            "list_documents",
            namespace_prefix=self.namespace,
            exact_namespace=True,
            key_prefix=prefix or "",
            include_values=False,
            page_size=PAGE_MAX,
            page_token=token,
        )
        return [document.key for document in page.documents], page.next_page_token


def _turns(messages: Sequence[BaseMessage]) -> list[Turn]:
    return [_turn(message) for message in messages]


def _turn(message: BaseMessage) -> Turn:
    role, parts = said_in(message)
    held = message_to_dict(message)
    return kept(role, parts, NAME, held, message.id, provider_format(message))


def said_in(message: BaseMessage) -> tuple[Role, list[Part]]:
    """Returns the role of a message and the parts that models read."""
    name = message.type.removesuffix("MessageChunk").lower()
    if name == "remove":
        raise ValueError("a history holds no RemoveMessage: set the messages that are to stay")
    role = _ROLES.get(getattr(message, "role", name) if name == "chat" else name, Role.USER)
    parts: list[Part] = []
    if isinstance(message, ToolMessage) and is_id(message.tool_call_id):
        is_error = message.status == "error"
        blocks = _parts(message.content)
        text = "\n".join(part.text for part in blocks if part.text)
        result = ToolResult(message.tool_call_id, text, is_error=is_error)
        parts = [Part(tool_result=result), *(part for part in blocks if not part.text)]
        parts = [part for part in parts if part.tool_result or part.media or part.extra_json]
    else:
        parts = _parts(message.content, is_model=isinstance(message, AIMessage))
    if isinstance(message, AIMessage):
        parts = [*parts, *_beside(message.additional_kwargs)]
        for call in message.tool_calls:
            if is_id(call["id"]) and is_name(call["name"]):
                given = json.dumps(call["args"], ensure_ascii=False)
                parts.append(Part(tool_use=ToolUse(call["id"] or "", call["name"], given)))
    return role, parts


def provider_format(message: BaseMessage) -> MessageFormat:
    """Returns the format of the provider's blocks in a message."""
    provider = message.response_metadata.get("model_provider", "")
    return _FORMATS.get(provider, MessageFormat.UNSPECIFIED)


def _beside(more: dict[str, Any]) -> list[Part]:
    """Returns parts for the `additional_kwargs` that integrations send again."""
    parts: list[Part] = []
    for name, value in more.items():
        if name == "reasoning_content" and isinstance(value, str) and value:
            parts.append(Part(thinking=Thinking(value)))
        elif name in _SENT_AGAIN and value:
            blocks = value if isinstance(value, list) else [value]
            for block in blocks:
                typed = isinstance(block, dict) and "type" in block
                parts += opaque(block if typed else {name: block})
    return parts


def _parts(content: Any, *, is_model: bool = False) -> list[Part]:
    """Returns the parts of a message's content that models read."""
    parts: list[Part] = []
    for block in [content] if isinstance(content, str) else content:
        if isinstance(block, str):
            parts.append(Part(text=block))
            continue
        kind, text = block.get("type"), block.get("text")
        if isinstance(text, str):
            told = {name: block[name] for name in ("annotations", "citations") if block.get(name)}
            parts.append(Part(text=text, extra_json=opaque(told)[0].extra_json if told and text else ""))
        elif is_model and kind == "thinking":
            parts.append(Part(thinking=Thinking(block.get("thinking") or "", block.get("signature") or "")))
        elif is_model and kind == "redacted_thinking":
            parts.append(Part(thinking=Thinking(block.get("data") or "", redacted=True)))
        elif kind not in _CALLS:
            parts += _media(block) or opaque(block)
    # Texts first, because some clients read only the first part of a turn.
    return sorted(parts, key=lambda it: it.text == "" and bool(it.extra_json))


def _media(block: dict[str, Any]) -> list[Part]:
    """Returns a media part for an image, audio or file block. Empty for any other block."""
    # Formats of Anthropic and OpenAI.
    places = (block.get(name) for name in ("source", "image_url", "file", "input_audio"))
    within: dict[str, Any] = next((place for place in places if isinstance(place, dict)), {})
    kind = str(block.get("mime_type") or within.get("media_type") or "")
    if not kind and within.get("format"):
        kind = f"audio/{within['format']}"
    url = within.get("url") or within.get("file_data") or block.get("image_url") or block.get("url")
    if isinstance(url, str) and url:
        return [media(kind, url)]
    data = block.get("base64") or block.get("data") or within.get("data")
    return [media(kind, base64_uri(kind, data))] if isinstance(data, str) and data else []


def _message(turn: Turn) -> BaseMessage:
    held = kept_in(turn, NAME)
    if held is not None:
        return messages_from_dict([held])[0]
    text = text_of(turn)
    for part in turn.parts:
        if part.tool_result:
            return ToolMessage(
                text,
                tool_call_id=part.tool_result.tool_use_id,
                status="error" if part.tool_result.is_error else "success",
            )
    if turn.role is Role.SYSTEM:
        return SystemMessage(text)
    if turn.role is not Role.ASSISTANT:
        return HumanMessage(text)
    calls = [part.tool_use for part in turn.parts if part.tool_use]
    return AIMessage(
        text, tool_calls=[{"id": it.id, "name": it.name, "args": it.input or {}} for it in calls]
    )
