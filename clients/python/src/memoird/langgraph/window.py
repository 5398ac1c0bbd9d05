"""The window of a graph's messages, chosen by memoird."""

from __future__ import annotations

import hashlib
import json
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import grpc
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
from .._history import Window, check, context
from .._kept import ID_BYTES_MAX
from .._steps import Call, Clients, Pause, Steps
from ..client import AsyncClient, Client
from ..langchain import said_in
from ..types import (
    AppendRequest,
    GetContextResponse,
    MessageFormat,
    Part,
    Role,
    SessionInfo,
    Turn,
)

# What the session's state has of the messages that it was told.
STATE = "langgraph"
# Of steps that run at once, each of which may append.
TRIES_MAX = 20
# In seconds.
FIRST_PAUSE, PAUSE_MAX = 0.005, 1.0


def window(
    how: Window | None = None,
    *,
    client: Client | AsyncClient | None = None,
    messages_key: str = "messages",
) -> RunnableLambda[Any, Any]:
    """A step before the model, which is given the messages that memoird chooses of those in the state.

    It is a `pre_model_hook` of LangGraph's agents, and can be invoked in a node: it gives
    `{"llm_input_messages": [...]}` and leaves the state as it is. The session has the thread's id as its
    own; that of a subgraph has the names of its nodes behind it (`THREAD|researcher`).

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
    if not messages:
        return {"llm_input_messages": []}
    ids = [message.id or str(number) for number, message in enumerate(messages)]
    session_id = _session(config)
    for left in reversed(range(TRIES_MAX)):
        try:
            told, chosen = yield from _choose(how, session_id, messages, ids)
        except (
            errors.StaleSeq,
            errors.StaleGeneration,
            errors.StaleStateVersion,
            errors.SessionNotFound,
        ):
            # Another step of the graph was faster, or the session ended meanwhile.
            if not left:
                raise
        else:
            if _same(told, chosen.session):
                return {"llm_input_messages": _messages(chosen, dict(zip(ids, messages, strict=True)))}
        # Of many, one at a time gets through.
        yield Pause(random.uniform(0, min(FIRST_PAUSE * 2 ** (TRIES_MAX - left), PAUSE_MAX)))
    problem = f"steps that run at once told {session_id!r} other messages {TRIES_MAX} times"
    raise errors.Conflict(problem, code=grpc.StatusCode.ABORTED)


def _session(config: RunnableConfig) -> str:
    names = config["configurable"]
    # Behind a node's name stands the id of its task; the last one is the node that asks.
    *path, _ = str(names.get("checkpoint_ns") or "").split("|")
    id = "|".join([str(names["thread_id"]), *(node.partition(":")[0] for node in path)])
    encoded = id.encode(errors="surrogatepass")
    return hashlib.sha256(encoded).hexdigest() if path and len(encoded) > ID_BYTES_MAX else id


def _choose(
    how: Window, session_id: str, messages: Sequence[BaseMessage], ids: Sequence[str]
) -> Steps[tuple[SessionInfo, GetContextResponse]]:
    """Tells the session what it has not; gives how it is then, and a window."""
    session, told, after_seq = SessionInfo(), 0, 0
    try:
        found = yield Call("get_session", session_id=session_id, include_state=True)
    except errors.SessionNotFound:
        pass
    else:
        session, known = found.session, (found.state or {}).get(STATE)
        # What others had said before is no part of the thread, and stays.
        after_seq = min(known.get("after", 0), session.last_seq) if known else session.last_seq
        if session.last_seq > after_seq:
            told = _told(known, ids, messages)
        if session.last_seq > after_seq and not told:
            rewound = yield Call(
                "rewind_session",
                session_id=session_id,
                after_seq=after_seq,
                expected_seq=session.last_seq,
            )
            session = rewound.session
    append: dict[str, Any] | None = None
    turns = [_turn(message, id) for message, id in zip(messages[told:], ids[told:], strict=True)]
    for batch in batched(turns, turn_bytes):
        if append:
            made = yield Call("append", session_id=session_id, **append)
            session = made.session
        told += len(batch)
        append = {
            "turns": batch,
            "expected_seq": session.last_seq,
            "expected_generation": session.generation,
            "expected_state_version": session.state_version,
            "state_patch_json": {
                STATE: {
                    "count": told,
                    "digest": _digest(ids, messages, told),
                    "after": after_seq,
                    # Each append is another version.
                    "by": uuid.uuid4().hex,
                }
            },
        }
    if append:
        last_seq, version = session.last_seq + len(append["turns"]), session.state_version + 1
        session = replace(session, last_seq=last_seq, state_version=version)
    chosen = yield from context(session_id, how, append=AppendRequest(**append) if append else None)
    return session, chosen


def _same(told: SessionInfo, now: SessionInfo | None) -> bool:
    """True where no other step told the session anything, or took it back, before its window was chosen."""
    if now is None:
        return False
    is_told = told.state_version == now.state_version and told.last_seq <= now.last_seq
    return is_told and told.generation in ("", now.generation)


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
