"""History provider for Microsoft's Agent Framework: `pip install memoird[agent-framework]`.

    agent = Agent(client, context_providers=[MemoirdHistoryProvider()])
    await agent.run("Where is my parcel?", session=agent.create_session(session_id="telegram:4711"))
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from ._extras import needs

needs("agent-framework")

from agent_framework import (
    AgentSession,
    Content,
    HistoryProvider,
    Message,
    SessionContext,
    SupportsAgentRun,
)
from agent_framework._sessions import filter_new_messages

from . import _history
from ._history import Window
from ._kept import is_id, is_name, kept, kept_in, media, opaque, text_of
from ._steps import Clients, Steps
from .client import AsyncClient, Client
from .types import Part, Role, Thinking, ToolResult, ToolUse, Turn

NAME = "agent_framework"

__all__ = ["MemoirdHistoryProvider", "Window"]

_log = logging.getLogger(__name__)
_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "tool": Role.TOOL, "system": Role.SYSTEM}
# Contents about a model call that are not sent with the next one.
_NOT_SENT = ("error", "usage")
_NAMES = {role: name for name, role in _ROLES.items()}


class MemoirdHistoryProvider(HistoryProvider):
    """Loads a session's messages before a run and stores those of the run after it.

    The session id in memoird is `prefix` and the framework's `session_id`, together 1 to 256 bytes.
    `subject` is the owner of the memories made from the session. `client` may be of either kind; by
    default it is configured by the environment (`MEMOIRD_ADDR`, `MEMOIRD_KEY`). With
    `skip_excluded`, messages that a compaction of the framework excluded are stored and not loaded.
    `options` are those of every history provider: `load_messages`, `store_inputs`, `store_outputs`
    and others.

    With a `window`, `get_messages` returns the window for the next model call. Content changed or
    made by memoird, such as a summary, is in separate messages. Otherwise it returns the whole live
    session. A run loads it once, unless the agent has
    `require_per_service_call_history_persistence=True`: then before each model call. A session that
    ended, for example because it was not touched for its TTL, has no messages. With durability
    `off`, the oldest are dropped at the daemon's `max_history_turns`.

    A service that stores the conversation itself, as OpenAI's Responses do by default, would get
    the history twice. Set `default_options={"store": False}` for the agent. Otherwise nothing is
    loaded, with a warning, as long as the session names a conversation of the service.

    A message has at most 20 MiB by default (`limits.turn_bytes`), and 256 KiB besides its texts and
    media (`limits.client_json_bytes`).
    """

    def __init__(
        self,
        source_id: str = "memoird",
        *,
        client: Client | AsyncClient | None = None,
        prefix: str = "",
        subject: str = "",
        window: Window | None = None,
        skip_excluded: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(source_id, **options)
        self.skip_excluded = skip_excluded
        self.prefix, self.subject, self.window = prefix, subject, window
        self._clients = Clients(client)

    async def before_run(
        self,
        *,
        agent: SupportsAgentRun,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Loads messages, unless the service stores them."""
        options = context.options or {}
        if (
            session.service_session_id
            or context.service_session_id
            or options.get("conversation_id")
        ):
            _log.warning(
                "memoird loads no history: the service stores the conversation of session %r itself; "
                'set default_options={"store": False} to load it from memoird',
                context.session_id,
            )
            return
        await super().before_run(agent=agent, session=session, context=context, state=state)

    async def get_messages(self, session_id: str | None, **_: Any) -> list[Message]:
        """Returns all messages, oldest first, or the window. Reads pages of 1,000 messages or 2 MiB."""
        steps = _history.turns(self._id(session_id), self.window)
        messages = [_message(turn) for turn in await self._clients.ado(steps)]
        if self.skip_excluded:
            return [it for it in messages if not it.additional_properties.get("_excluded")]
        return messages

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], **_: Any
    ) -> None:
        """Appends messages, up to 256 per call, after reading the same number of the newest ones.

        Messages that repeat the newest ones are skipped, because some clients send the whole
        transcript with each message. They are compared by id, else by role and contents, as in the
        framework's own providers.
        """
        await self._clients.ado(self._save(self._id(session_id), messages))

    async def clear(self, session_id: str | None) -> None:
        """Rewinds all messages: windows and searches omit them, and the journal keeps them until retention."""
        await self._clients.ado(_history.clear(self._id(session_id)))

    async def erase(self, session_id: str | None) -> None:
        """Permanently removes all data of the session. Waits up to a minute for completion."""
        await self._clients.ado(_history.erase(self._id(session_id)))

    def _save(self, id: str, messages: Sequence[Message]) -> Steps[None]:
        if not messages:
            return
        # One more, to detect whether there are older messages.
        pages = yield from _history.read_last(id, len(messages) + 1)
        there = [_message(turn) for page in pages for turn in page.turns]
        new = filter_new_messages(there, messages)
        chunks = _history.turns_in_chunks([_turn(message) for message in new])
        yield from _history.add(id, chunks, self.subject)

    def _id(self, session_id: str | None) -> str:
        return f"{self.prefix}{session_id or 'default'}"


def _turn(message: Message) -> Turn:
    dumped = message.to_dict()
    role = _ROLES.get(str(dumped["role"]), Role.USER)
    parts = [made for content in dumped["contents"] for made in _parts(content)]
    if role is not Role.ASSISTANT:
        # Only the model makes calls.
        parts = [part for part in parts if not part.tool_use and not part.thinking]
    if role in (Role.ASSISTANT, Role.SYSTEM):
        parts = [part for part in parts if not part.tool_result]
    return kept(role, parts, NAME, dumped, dumped.get("message_id"))


def _parts(content: dict[str, Any]) -> list[Part]:
    """Returns the parts of a content that models read."""
    kind, text = content.get("type"), content.get("text")
    if kind == "text" and isinstance(text, str):
        return [Part(text=text)]
    if kind == "text_reasoning":
        encrypted = content.get("protected_data") or ""
        return [Part(thinking=Thinking(text or "", encrypted))] if text or encrypted else []
    call = content.get("call_id")
    if kind == "function_call" and is_id(call) and is_name(content.get("name")):
        given = _text(content.get("arguments"))
        return [Part(tool_use=ToolUse(str(call), content["name"], given))]
    if kind == "function_result" and is_id(call):
        failed = bool(content.get("exception"))
        result = ToolResult(str(call), _text(content.get("result")), is_error=failed)
        return [Part(tool_result=result)]
    if kind in ("data", "uri") and isinstance(content.get("uri"), str) and content["uri"]:
        return [media(str(content.get("media_type") or ""), content["uri"])]
    return [] if kind in _NOT_SENT else opaque(content)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _message(turn: Turn) -> Message:
    held = kept_in(turn, NAME)
    if held is not None:
        return Message.from_dict(held)
    contents: list[Content] = []
    for part in turn.parts:
        if part.tool_use:
            call = part.tool_use
            contents.append(
                Content.from_function_call(call.id, call.name, arguments=call.input_json)
            )
        elif part.tool_result:
            result = part.tool_result
            contents.append(
                Content.from_function_result(result.tool_use_id, result=result.content)
            )
    if not contents or turn.role is not Role.TOOL:
        contents.insert(0, Content.from_text(text_of(turn)))
    return Message(_NAMES[turn.role], contents)
