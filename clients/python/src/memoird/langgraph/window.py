"""The window of a graph's messages, chosen by memoird."""

from __future__ import annotations

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
from .._history import Window
from .._steps import Call, Clients, Steps
from ..client import AsyncClient, Client
from ..types import AppendRequest, GetContextResponse, MessageFormat, Role, Turn

# Turns of one append.
APPEND_MAX = 256
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

    def choose(state: Mapping[str, Any], config: RunnableConfig) -> Any:
        return clients.do(_choose(how, state[messages_key], config))

    async def achoose(state: Mapping[str, Any], config: RunnableConfig) -> Any:
        return await clients.ado(_choose(how, state[messages_key], config))

    return RunnableLambda(choose, achoose, name="window")


def _choose(how: Window, messages: Sequence[BaseMessage], config: RunnableConfig) -> Steps:
    session_id = str(config["configurable"]["thread_id"])
    base = told = 0
    try:
        found = yield Call("get_session", session_id=session_id, include_state=True)
    except errors.SessionNotFound:
        pass
    else:
        known, base = (found.state or {}).get(STATE), found.session.last_seq
        if known and _is_told(known, base, messages):
            base, told = known["base"], known["count"]
        elif base:
            yield Call("rewind_session", session_id=session_id, after_seq=0, expected_seq=base)
    append: dict[str, Any] | None = None
    while told < len(messages):
        if append:
            yield Call("append", session_id=session_id, **append)
        some = messages[told : told + APPEND_MAX]
        mark = {"base": base, "count": told + len(some), "last": some[-1].id}
        append = {
            "messages_json": convert_to_openai_messages(some),
            "format": MessageFormat.OPENAI,
            "expected_seq": base + told,
            "state_patch_json": {STATE: mark},
        }
        told += len(some)
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
    yield {"llm_input_messages": _messages(chosen, messages, base)}


def _is_told(known: Mapping[str, Any], last_seq: int, messages: Sequence[BaseMessage]) -> bool:
    count = known["count"]
    is_whole = known["base"] + count == last_seq and 0 < count <= len(messages)
    return bool(is_whole and messages[count - 1].id == known["last"])


def _messages(
    chosen: GetContextResponse, messages: Sequence[BaseMessage], base: int
) -> list[BaseMessage]:
    given: list[BaseMessage] = [SystemMessage(chosen.system)] if chosen.system else []
    for turn in chosen.turns:
        index = turn.seq - base - 1
        if turn.seq and "memoird" not in turn.metadata and 0 <= index < len(messages):
            given.append(messages[index])
        else:
            given += _made(turn)
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
