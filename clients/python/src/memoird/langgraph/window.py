"""The window of a graph's messages, chosen by memoird."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableConfig, RunnableLambda

from .. import errors
from .._batches import batched, turn_bytes
from .._history import Window, check
from .._steps import Call, Clients, Steps
from ..client import AsyncClient, Client
from ..langchain import said_in
from ..types import AppendRequest, GetContextResponse, MessageFormat, Part, Role, Turn

# What the session's state has of the messages that it was told.
STATE = "langgraph"
# Of steps that run at once, each of which may append.
TRIES_MAX = 20


def window(
    how: Window | None = None,
    *,
    client: Client | AsyncClient | None = None,
    messages_key: str = "messages",
) -> RunnableLambda[Any, Any]:
    """A step before the model, which is given the messages that memoird chooses of those in the state.

    It is a `pre_model_hook` of LangGraph's agents, and can be invoked in a node: it gives
    `{"llm_input_messages": [...]}` and leaves the state as it is. The session has the thread's id as its
    own.

    What the state has and the session has not is appended in the same call; of steps that ask for the same
    at once, one appends it. Where a thread goes on from an earlier checkpoint, or messages of it were
    changed or removed, the session is rewound to where the thread began and told all of them. What others
    had said in it before the thread began stays, and is in windows.
    """
    clients, how = Clients(client), how or Window()
    check(how)

    def messages_of(state: Any) -> Sequence[BaseMessage]:
        # A state may be a model of pydantic, too.
        is_mapping = isinstance(state, Mapping)
        found: Sequence[BaseMessage] = state[messages_key] if is_mapping else getattr(state, messages_key)
        return found

    def choose(state: Any, config: RunnableConfig) -> Any:
        return clients.do(_chosen(how, messages_of(state), config))

    async def achoose(state: Any, config: RunnableConfig) -> Any:
        return await clients.ado(_chosen(how, messages_of(state), config))

    return RunnableLambda(choose, achoose, name="window")


def _chosen(how: Window, messages: Sequence[BaseMessage], config: RunnableConfig) -> Steps[Any]:
    for left in reversed(range(TRIES_MAX)):
        try:
            return (yield from _choose(how, messages, config))
        except (errors.StaleSeq, errors.StaleGeneration, errors.SessionNotFound):
            # Another step of the graph was faster, or the session ended meanwhile.
            if not left:
                raise


def _choose(how: Window, messages: Sequence[BaseMessage], config: RunnableConfig) -> Steps[Any]:
    if not messages:
        return {"llm_input_messages": []}
    session_id = str(config["configurable"]["thread_id"])
    ids = [message.id or str(number) for number, message in enumerate(messages)]
    told = after_seq = last_seq = 0
    try:
        found = yield Call("get_session", session_id=session_id, include_state=True)
    except errors.SessionNotFound:
        pass
    else:
        last_seq = found.session.last_seq
        known = (found.state or {}).get(STATE)
        told = _told(known, ids, messages) if last_seq else 0
        # What others had said before is no part of the thread, and stays.
        after_seq = min(known.get("after", 0), last_seq) if known else last_seq
        if last_seq > after_seq and not told:
            rewound = yield Call(
                "rewind_session", session_id=session_id, after_seq=after_seq, expected_seq=last_seq
            )
            last_seq = rewound.session.last_seq
    append: dict[str, Any] | None = None
    turns = [_turn(message, id) for message, id in zip(messages[told:], ids[told:], strict=True)]
    for batch in batched(turns, turn_bytes):
        if append:
            made = yield Call("append", session_id=session_id, **append)
            last_seq = made.last_seq
        told += len(batch)
        append = {
            "turns": batch,
            "expected_seq": last_seq,
            "state_patch_json": {
                STATE: {"count": told, "digest": _digest(ids, messages, told), "after": after_seq}
            },
        }
    chosen = yield Call(
        "get_context",
        session_id=session_id,
        append=AppendRequest(**append) if append else None,
        model=how.model,
        budget=how.budget,
        policy=how.policy,
        overhead_tokens=how.overhead_tokens,
        memories=how.memories,
    )
    return {"llm_input_messages": _messages(chosen, dict(zip(ids, messages, strict=True)))}


def _told(
    known: Mapping[str, Any] | None, ids: Sequence[str], messages: Sequence[BaseMessage]
) -> int:
    """How many of the messages the session has; 0 where it has others."""
    count = int(known["count"]) if known else 0
    if not known or count > len(ids) or _digest(ids, messages, count) != known["digest"]:
        return 0
    return count


def _digest(ids: Sequence[str], messages: Sequence[BaseMessage], count: int) -> str:
    """What tells the first messages from others."""
    said = (
        [id, it.type, it.content, getattr(it, "tool_calls", None), getattr(it, "tool_call_id", None)]
        for id, it in zip(ids[:count], messages, strict=False)
    )
    return hashlib.sha256(json.dumps(list(said), default=str).encode()).hexdigest()


def _turn(message: BaseMessage, id: str) -> Turn:
    role, parts = said_in(message)
    results = any(part.tool_result for part in parts)
    # Results may then be of calls that nobody knows.
    format = MessageFormat.OPENAI_RESPONSES if results else MessageFormat.UNSPECIFIED
    return Turn(role, parts or [Part(text="")], client_id=id, format=format)


def _messages(
    chosen: GetContextResponse, messages: Mapping[str, BaseMessage]
) -> list[BaseMessage]:
    given: list[BaseMessage] = [SystemMessage(chosen.system)] if chosen.system else []
    for turn in chosen.turns:
        own = None if "memoird" in turn.metadata else messages.get(turn.client_id)
        given += [own] if own else _made(turn)
    if chosen.memories_text:
        given.append(HumanMessage(chosen.memories_text))
    return given


def _made(turn: Turn) -> list[BaseMessage]:
    """A turn that memoird made, or shows in other words."""
    text = "".join(part.text for part in turn.parts if part.text)
    results: list[BaseMessage] = [
        ToolMessage(
            result.content,
            tool_call_id=result.tool_use_id,
            status="error" if result.is_error else "success",
        )
        for part in turn.parts
        if (result := part.tool_result)
    ]
    if results:
        return results
    if turn.role is Role.SYSTEM:
        return [SystemMessage(text)]
    if turn.role is Role.ASSISTANT:
        calls = [
            {"id": use.id, "name": use.name, "args": use.input or {}}
            for part in turn.parts
            if (use := part.tool_use)
        ]
        return [AIMessage(text, tool_calls=calls)]
    return [HumanMessage(text)]
