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
    convert_to_openai_messages,
)
from langchain_core.runnables import RunnableConfig, RunnableLambda

from .. import errors
from .._batches import batched, json_bytes
from .._history import Window, check
from .._steps import Call, Clients, Steps
from ..client import AsyncClient, Client
from ..types import AppendRequest, GetContextResponse, MessageFormat, Role, Turn

# What the session's state has of the messages that it was told.
STATE = "langgraph"


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

    What the state has and the session has not is appended in the same call. Where a thread goes on from
    an earlier checkpoint, or messages of it were changed or removed, the session is rewound to its
    beginning and told all of them.
    """
    clients, how = Clients(client), how or Window()
    check(how)

    def choose(state: Mapping[str, Any], config: RunnableConfig) -> Any:
        return clients.do(_choose(how, state[messages_key], config))

    async def achoose(state: Mapping[str, Any], config: RunnableConfig) -> Any:
        return await clients.ado(_choose(how, state[messages_key], config))

    return RunnableLambda(choose, achoose, name="window")


def _choose(how: Window, messages: Sequence[BaseMessage], config: RunnableConfig) -> Steps:
    session_id = str(config["configurable"]["thread_id"])
    ids = [message.id or str(number) for number, message in enumerate(messages)]
    told = last_seq = 0
    try:
        found = yield Call("get_session", session_id=session_id, include_state=True)
    except errors.SessionNotFound:
        pass
    else:
        last_seq = found.session.last_seq
        told = _told((found.state or {}).get(STATE), ids, messages) if last_seq else 0
        if last_seq and not told:
            rewound = yield Call(
                "rewind_session", session_id=session_id, after_seq=0, expected_seq=last_seq
            )
            last_seq = rewound.session.last_seq
    append: dict[str, Any] | None = None
    for batch in batched(_named(messages[told:], ids[told:]), json_bytes):
        if append:
            made = yield Call("append", session_id=session_id, **append)
            last_seq = made.last_seq
        told += len(batch)
        append = {
            "messages_json": batch,
            "format": MessageFormat.OPENAI,
            "expected_seq": last_seq,
            "state_patch_json": {STATE: {"count": told, "digest": _digest(ids, messages, told)}},
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
    yield {"llm_input_messages": _messages(chosen, dict(zip(ids, messages, strict=True)))}


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
    said = ([id, it.type, it.content] for id, it in zip(ids[:count], messages, strict=False))
    return hashlib.sha256(json.dumps(list(said), default=str).encode()).hexdigest()


def _named(messages: Sequence[BaseMessage], ids: Sequence[str]) -> list[dict[str, Any]]:
    said = convert_to_openai_messages(list(messages))
    assert isinstance(said, list)
    return [{**one, "memoird_client_id": id} for one, id in zip(said, ids, strict=True)]


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
