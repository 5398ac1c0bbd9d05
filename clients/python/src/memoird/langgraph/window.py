"""Windows for the messages of a graph."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import threading
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
from .._kept import ID_BYTES_MAX, turn_format
from .._steps import Call, Clients, Pause, Steps
from ..client import AsyncClient, Client
from ..langchain import provider_format, said_in
from ..types import (
    AppendRequest,
    BuildContextResponse,
    Part,
    Role,
    SessionInfo,
    Turn,
)

# Key in the session's state: position in the thread's messages.
STATE = "langgraph"
# Maximum number of tries. Steps that run concurrently may each append.
TRIES_MAX = 20
# Maximum number of messages in cached digests of threads. Each takes about 200 bytes.
CACHED_MESSAGES_MAX = 100_000
# Pauses between tries, in seconds.
FIRST_PAUSE, PAUSE_MAX = 0.005, 1.0


def window(
    how: Window | None = None,
    *,
    client: Client | AsyncClient | None = None,
    messages_key: str = "messages",
) -> RunnableLambda[Any, Any]:
    """Returns a step that replaces the model's input by a window of the state's messages.

    It is a `pre_model_hook` of LangGraph's agents, and can be invoked in a node. It returns
    `{"llm_input_messages": [...]}` and does not change the state. The session has the thread's id.
    For a subgraph, the names of its nodes are appended (`THREAD|researcher`).

    Messages of the state that the session does not have are appended in the same call. If several
    steps do this concurrently, one of them appends. If a thread continues from an earlier
    checkpoint, or its messages were changed or removed, the session is rewound to the start of the
    thread and all messages are appended. Messages from before the start of the thread stay in the
    session and its windows.
    """
    chooser = Chooser(how, client)

    def messages_of(state: Any) -> Sequence[BaseMessage]:
        # A state may also be a pydantic model.
        is_mapping = isinstance(state, Mapping)
        found: Sequence[BaseMessage] = state[messages_key] if is_mapping else getattr(state, messages_key)
        return found

    def choose(state: Any, config: RunnableConfig) -> Any:
        steps = chooser.choose(messages_of(state), config)
        return {"llm_input_messages": chooser.clients.do(steps)}

    async def achoose(state: Any, config: RunnableConfig) -> Any:
        steps = chooser.choose(messages_of(state), config)
        return {"llm_input_messages": await chooser.clients.ado(steps)}

    return RunnableLambda(choose, achoose, name="window")


class Chooser:
    """Appends the messages of threads to sessions, and builds windows."""

    def __init__(self, how: Window | None, client: Client | AsyncClient | None) -> None:
        self.clients, self.how = Clients(client), how or Window()
        check(self.how)
        self._prefixes = _Prefixes()

    def choose(
        self, messages: Sequence[BaseMessage], config: RunnableConfig
    ) -> Steps[list[BaseMessage]]:
        """Returns the messages of a window. Unchanged messages are the given objects."""
        if not messages:
            return []
        session_id = _session(config)
        prefix = self._prefixes.taken(session_id, messages)
        for left in reversed(range(TRIES_MAX)):
            try:
                told, chosen = yield from _choose(self.how, session_id, messages, prefix)
            except (
                errors.StaleSeq,
                errors.StaleGeneration,
                errors.StaleStateVersion,
                errors.SessionNotFound,
            ):
                # Another step of the graph was faster, or the session ended in the meantime.
                if not left:
                    raise
            else:
                if _same(told, chosen.session):
                    self._prefixes.put(session_id, prefix)
                    return _messages(chosen, messages, prefix)
            # Random backoff, so that concurrent steps succeed one after another.
            yield Pause(random.uniform(0, min(FIRST_PAUSE * 2 ** (TRIES_MAX - left), PAUSE_MAX)))
        problem = f"steps that run at once told {session_id!r} other messages {TRIES_MAX} times"
        raise errors.Conflict(problem, code=grpc.StatusCode.ABORTED)


class _Prefix:
    """Digest of the first messages of a thread. A longer thread extends it by its new messages."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # Index of the newest message of each id.
        self.places: dict[str, int] = {}
        self._marks: list[int] = []
        self._hasher = hashlib.sha256(b"[")

    def __len__(self) -> int:
        return len(self._marks)

    def begins(self, messages: Sequence[BaseMessage]) -> bool:
        """Whether these messages are a prefix of `messages`."""
        return len(self) <= len(messages) and self._marks == list(
            map(_mark, itertools.islice(messages, len(self)))
        )

    def digest(self, messages: Sequence[BaseMessage], count: int) -> str:
        """Returns the digest of the first `count` messages, and extends the prefix to them."""
        if count < len(self):
            self._reset()
        for message in itertools.islice(messages, len(self), count):
            id = message_id(message, len(self))
            said = message.__dict__
            seen = [id, message.type, message.content, said.get("tool_calls"), said.get("tool_call_id")]
            separator = b", " if self._marks else b""
            self._hasher.update(separator + json.dumps(seen, default=str).encode())
            self.places[id] = len(self)
            self._marks.append(_mark(message))
        whole = self._hasher.copy()
        whole.update(b"]")
        return whole.hexdigest()


class _Prefixes:
    """Prefixes of recently used threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, _Prefix] = {}
        self._messages = 0

    def taken(self, session_id: str, messages: Sequence[BaseMessage]) -> _Prefix:
        """Takes the prefix of a thread, or a new one. Concurrent steps get separate ones."""
        with self._lock:
            prefix = self._held.pop(session_id, None)
            self._messages -= len(prefix) if prefix else 0
        return prefix if prefix and prefix.begins(messages) else _Prefix()

    def put(self, session_id: str, prefix: _Prefix) -> None:
        with self._lock:
            replaced = self._held.pop(session_id, None)
            self._messages += len(prefix) - (len(replaced) if replaced else 0)
            self._held[session_id] = prefix
            while self._messages > CACHED_MESSAGES_MAX:
                self._messages -= len(self._held.pop(next(iter(self._held))))


def message_id(message: BaseMessage, number: int) -> str:
    return message.id or str(number)


def _mark(message: BaseMessage) -> int:
    """Process-local hash of a message."""
    said = message.__dict__
    content, calls = said["content"], said.get("tool_calls")
    if not isinstance(content, str):
        content = json.dumps(content, default=str)
    called = json.dumps(calls, default=str) if calls else ""
    return hash((said.get("id"), message.type, content, called, said.get("tool_call_id")))


def _session(config: RunnableConfig) -> str:
    names = config.get("configurable") or {}
    if not names.get("thread_id"):
        raise errors.InvalidSetting(
            'config["configurable"] needs a thread_id, which names the session',
            code=grpc.StatusCode.INVALID_ARGUMENT,
            facts={"field": "configurable.thread_id"},
        )
    # The name of a node is followed by the id of its task. The last one is the calling node.
    *path, _ = str(names.get("checkpoint_ns") or "").split("|")
    id = "|".join([str(names["thread_id"]), *(node.partition(":")[0] for node in path)])
    encoded = id.encode(errors="surrogatepass")
    return hashlib.sha256(encoded).hexdigest() if path and len(encoded) > ID_BYTES_MAX else id


def _choose(
    how: Window, session_id: str, messages: Sequence[BaseMessage], prefix: _Prefix
) -> Steps[tuple[SessionInfo, BuildContextResponse]]:
    """Appends missing messages to the session. Returns its state afterwards, and a window."""
    session, told, after_seq = SessionInfo(), 0, 0
    try:
        found = yield Call("get_session", session_id=session_id, include_state=True)
    except errors.SessionNotFound:
        pass
    else:
        session, known = found.session, (found.session.state or {}).get(STATE)
        # Messages from before the start of the thread stay.
        after_seq = min(known.get("after", 0), session.last_seq) if known else session.last_seq
        if session.last_seq > after_seq:
            told = _told(known, messages, prefix)
        if session.last_seq > after_seq and not told:
            rewound = yield Call(
                "rewind_session",
                session_id=session_id,
                after_seq=after_seq,
                expected_seq=session.last_seq,
            )
            session = rewound.session
    append: dict[str, Any] | None = None
    turns = [
        _turn(message, message_id(message, number))
        for number, message in enumerate(messages[told:], told)
    ]
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
                    "digest": prefix.digest(messages, told),
                    "after": after_seq,
                    # Makes the value of each append unique.
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
    """Whether no other step appended or rewound between the append and the window."""
    if now is None:
        return False
    is_told = told.state_version == now.state_version and told.last_seq <= now.last_seq
    return is_told and told.generation in ("", now.generation)


def _told(
    known: Mapping[str, Any] | None, messages: Sequence[BaseMessage], prefix: _Prefix
) -> int:
    """Number of the messages that the session has. 0 if it has other messages."""
    count = int(known["count"]) if known else 0
    if not known or count > len(messages):
        return 0
    return count if prefix.digest(messages, count) == known["digest"] else 0


def _turn(message: BaseMessage, id: str) -> Turn:
    role, parts = said_in(message)
    format = turn_format(parts, provider_format(message))
    return Turn(role, parts or [Part(text="")], client_id=id, format=format)


def _messages(
    chosen: BuildContextResponse, messages: Sequence[BaseMessage], prefix: _Prefix
) -> list[BaseMessage]:
    given: list[BaseMessage] = [SystemMessage(chosen.system)] if chosen.system else []
    for turn in chosen.turns:
        place = None if "memoird" in turn.metadata else prefix.places.get(turn.client_id)
        given += _made(turn) if place is None else [messages[place]]
    if chosen.memories_text:
        given.append(HumanMessage(chosen.memories_text))
    return given


def _made(turn: Turn) -> list[BaseMessage]:
    """Makes messages of a turn that memoird made or changed."""
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
