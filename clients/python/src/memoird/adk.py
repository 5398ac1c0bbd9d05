"""Google's ADK on memoird: sessions with events as turns, and a memory service.

    pip install "memoird[adk]"

    runner = Runner(
        app_name="trains",
        agent=agent,
        session_service=MemoirdSessionService(),
        memory_service=MemoirdMemoryService(),
    )
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from ._extras import needs

needs("adk")

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import (
    BaseMemoryService,
    SearchMemoryResponse,
)
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from google.genai import types

from . import errors
from ._documents import PAGE_MAX, asked, done
from ._history import Window, read_all, read_last, window
from ._kept import (
    CONTENT_BYTES,
    FOR_ADDRESSES,
    FOR_URIS,
    QUERY_BYTES,
    TAG_BYTES,
    base64_uri,
    cut,
    is_id,
    kept,
    kept_in,
    media,
    opaque,
)
from ._steps import Clients
from .client import AsyncClient, Client
from .types import (
    AppendResponse,
    DocumentOperation,
    Erasure,
    Memory,
    MemoryKind,
    MessageFormat,
    NearDuplicate,
    Part,
    PutDocumentRequest,
    Role,
    SessionInfo,
    SessionOrder,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
)

__all__ = ["MemoirdMemoryService", "MemoirdSessionService", "MemoirdWindowPlugin", "Window"]

FRAMEWORK = "adk"
# Number of concurrent Remember calls.
REMEMBERED_AT_ONCE = 32
# Maximum number of reads of a session until two of them are consistent.
READS_MAX = 5
# Consecutive lost responses after which a write of shared state fails.
LOST_MAX = 5
# Key of the document with the state of an app or a user.
STATE = "state"
# Metadata key of events that memoird made or changed: a summary, memories, an excerpt.
MADE = "memoird"
# Metadata key of a memory: `_deleted` of the original text.
SAID = "said"
# Prefix of the author's name in a label of a memory.
AUTHOR = "author:"


class MemoirdSessionService(BaseSessionService):
    """ADK sessions on memoird. An event is a turn, and is returned exactly as it was appended.

    `client` may be of either kind; by default it is configured by the environment (`MEMOIRD_ADDR`,
    `MEMOIRD_KEY`). Each event loop has its own connection.

    With `window`, `get_session` returns the events of a window within a token budget instead of all
    events, with a summary in place of omitted ones. A runner reads the session once, at the start
    of a run; use `MemoirdWindowPlugin` for a new window before each model call. A
    `GetSessionConfig` that limits the events takes precedence.

    An event is appended once, even if the response of the first try was lost. If another process
    has appended to the session since it was read, `StaleSessionError` is raised, as with ADK's
    databases.

    Limits: a session expires after `short_term.session_ttl`, an event has up to `limits.turn_bytes`
    (20 MiB), and the state of a session up to `limits.state_bytes` (64 KiB). State with the prefix
    `app:` or `user:` does not expire. With durability `off`, a session keeps
    `short_term.max_history_turns` events, else all.
    """

    def __init__(
        self, client: Client | AsyncClient | None = None, *, window: Window | None = None
    ) -> None:
        self._clients = Clients(client)
        self._client = self._clients.looping()
        self._window = window

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Starts a session. Raises `AlreadyExistsError` if one with this id is live."""
        session_id = (session_id or "").strip() or str(uuid.uuid4())
        now = time.time()
        delta = _Delta(state)
        about = {"app_name": app_name, "user_id": user_id, "id": session_id}
        try:
            made = await self._client.update_session(
                _name(app_name, user_id, session_id),
                {"adk": about, "updated": now, "values": delta.session},
                expected_state_version=0,
                allow_missing=True,
            )
        except errors.StaleStateVersion:
            raise AlreadyExistsError(f"Session with id {session_id} already exists.") from None
        await self._write_shared(app_name, user_id, delta)
        session = Session(
            id=session_id,
            app_name=app_name,
            user_id=user_id,
            state=_values(delta.session) | (await self._shared(app_name, user_id))[user_id],
            last_update_time=now,
        )
        _mark(session, made.session.state_version)
        return session

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Returns a session with its events, or those of its window. None if none is live."""
        session_id = session_id.strip()
        name = _name(app_name, user_id, session_id)
        for _ in range(READS_MAX):
            try:
                found, shared, (events, last_seq) = await asyncio.gather(
                    self._client.get_session(name, include_state=True),
                    self._shared(app_name, user_id),
                    self._events(name, config),
                )
            except errors.NotFound:
                return None
            info, state = found.session, found.session.state
            assert info is not None
            if "adk" not in state:
                return None
            # Skip turns that were appended between the two reads.
            if last_seq >= info.last_seq:
                break
        session = Session(
            id=session_id,
            app_name=app_name,
            user_id=user_id,
            state=_values(state["values"]) | shared[user_id],
            events=[event for seq, event in events if seq <= info.last_seq],
            last_update_time=state["updated"],
        )
        _mark(session, info.state_version)
        return session

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Lists the sessions of an app, or of one of its users, with state and without events."""
        if user_id is None:
            states = await self._states(_name(app_name))
            users = {state["adk"]["user_id"]: None for state in states}
            shared = await self._shared(app_name, *users)
        else:
            states, shared = await asyncio.gather(
                self._states(_name(app_name, user_id)), self._shared(app_name, user_id)
            )
        sessions = [
            Session(
                **state["adk"],
                state=_values(state["values"]) | shared[state["adk"]["user_id"]],
                last_update_time=state["updated"],
            )
            for state in states
        ]
        sessions.sort(key=lambda session: session.last_update_time)
        return ListSessionsResponse(sessions=sessions)

    async def _states(self, id_prefix: str) -> list[dict[str, Any]]:
        """Returns the states of the sessions with this id prefix."""
        found: list[SessionInfo] = []
        token = ""
        while True:
            page = await self._client.list_sessions(
                PAGE_MAX, token, include_state=True, id_prefix=id_prefix, order=SessionOrder.ID
            )
            # An older daemon ignores `id_prefix`.
            found += (it for it in page.sessions if it.session_id.startswith(id_prefix))
            token = page.next_page_token
            if not token:
                return [state for info in found if "adk" in (state := info.state)]

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Erases a session. No hook is called, and no data of it stays on the daemon's disk."""
        await self._client.erase_session(_name(app_name, user_id, session_id.strip()))

    async def erase_user(self, *, app_name: str, user_id: str) -> Erasure:
        """Erases a user of an app: sessions, including ended ones, memories and state.

        If `done` is False, it is still in progress: see GetErasure. `outside` lists the data passed
        to hooks.
        """
        erased = (await self._client.erase_subject(_subject(app_name, user_id))).erasure
        # Sessions have a subject only from their first event on.
        for state in await self._states(_name(app_name, user_id)):
            await self.delete_session(
                app_name=app_name, user_id=user_id, session_id=state["adk"]["id"]
            )
        place = [*_user(app_name, user_id)]
        await self._client.delete_documents(place, exact_namespace=True, erase=True)
        return erased

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns the state of a user, without the prefix `user:`."""
        [found] = await self._clients.ado(done([asked(_user(app_name, user_id), STATE)]))
        return found.document.value if found.document else {}

    async def append_event(self, session: Session, event: Event) -> Event:
        """Appends an event and applies its changes of the state."""
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        delta = _Delta(event.actions.state_delta)
        name = _name(session.app_name, session.user_id, session.id)
        patch = {"updated": event.timestamp, "values": delta.session}
        try:
            appended = await self._append(name, session, event, patch)
        except errors.StaleStateVersion as error:
            raise await self._refused(session, error) from None
        await self._write_shared(session.app_name, session.user_id, delta)
        assert appended.session
        _mark(session, appended.session.state_version)
        session.last_update_time = event.timestamp
        return await super().append_event(session, event)

    async def _append(
        self, name: str, session: Session, event: Event, patch: dict[str, Any]
    ) -> AppendResponse:
        how: dict[str, Any] = {
            "subject": _subject(session.app_name, session.user_id),
            # A repeated append has the same key. Another event with the same id has not.
            "idempotency_key": _digest(json.dumps(event.model_dump(mode="json"))),
            "state_patch_json": patch,
            "expected_state_version": _marked(session),
        }
        try:
            return await self._client.append(name, [_turn(event)], **how)
        except errors.IdempotencyKeyReused:
            # It was appended as text before.
            pass
        except errors.InvalidArgument as error:
            if error.reason != "TOOL_USE_UNKNOWN":
                raise
        # ADK sends several results of a call if its tool is long-running.
        return await self._client.append(name, [_turn(event, in_words=True)], **how)

    async def _refused(self, session: Session, error: errors.StaleStateVersion) -> ValueError:
        try:
            await self._client.get_session(
                _name(session.app_name, session.user_id, session.id)
            )
        except errors.SessionNotFound:
            return SessionNotFoundError(
                f"Session {session.id} not found: it was deleted, or has expired."
            )
        return StaleSessionError(
            "The session has been modified in storage since it was loaded. "
            f"Load it again before you append to it ({error})."
        )

    async def _events(
        self, name: str, config: GetSessionConfig | None
    ) -> tuple[list[tuple[int, Event]], int]:
        """Returns events with their seqs, and the newest seq of the session."""
        recent = config.num_recent_events if config else None
        after = config.after_timestamp if config else None
        if self._window and recent is None and after is None:
            return await self._windowed(name)
        some = recent if recent is not None and after is None else PAGE_MAX
        pages = await self._clients.ado(read_last(name, max(some, 1)))
        if (recent is None or after is not None) and sum(len(it.turns) for it in pages) == PAGE_MAX:
            pages = await self._clients.ado(read_all(name))
        turns = [turn for page in pages for turn in page.turns]
        # A page's session may be newer than its turns.
        last_seq = turns[-1].seq if turns else 0
        events = [(turn.seq, _event(turn)) for turn in turns if turn.client_json]
        if after is not None:
            events = [(seq, event) for seq, event in events if event.timestamp >= after]
        if recent is not None:
            events = events[-recent:] if recent else []
        return events, last_seq

    async def _chosen(self, session: Session) -> list[Event] | None:
        """Returns the events of a window. None without one, or while a call of the session is open."""
        events = session.events
        called = {call.id for event in events for call in event.get_function_calls()}
        answered = {answer.id for event in events for answer in event.get_function_responses()}
        if not self._window or called - answered:
            return None
        chosen, _ = await self._windowed(_name(session.app_name, session.user_id, session.id))
        return [event for _, event in chosen]

    async def _windowed(self, name: str) -> tuple[list[tuple[int, Event]], int]:
        assert self._window
        chosen = await self._clients.ado(window(name, self._window))
        if chosen is None or chosen.session is None:
            return [], 0
        events = [(turn.seq, _event(turn)) for turn in chosen.turns if turn.parts]
        if chosen.memories_text:
            events.append((0, _said(Role.USER, [types.Part(text=chosen.memories_text)])))
        return events, chosen.session.last_seq

    async def _shared(self, app_name: str, *user_ids: str) -> dict[str, dict[str, Any]]:
        """Returns the state of the app and of each user, with the prefixes of a session's state."""
        places = [_app(app_name), *(_user(app_name, id) for id in user_ids)]
        read = await self._clients.ado(done([asked(place, STATE) for place in places]))
        of_app, *of_users = (it.document.value if it.document else {} for it in read)
        of_app = {State.APP_PREFIX + key: value for key, value in of_app.items()}
        return {
            user_id: of_app | {State.USER_PREFIX + key: value for key, value in of_user.items()}
            for user_id, of_user in zip(user_ids, of_users, strict=True)
        }

    async def _write_shared(self, app_name: str, user_id: str, delta: _Delta) -> None:
        changes = {_app(app_name): delta.app, _user(app_name, user_id): delta.user}
        changes = {place: change for place, change in changes.items() if change}
        lost = 0
        while changes:
            read = await self._clients.ado(done([asked(place, STATE) for place in changes]))
            writes = []
            for (place, change), result in zip(changes.items(), read, strict=True):
                there = result.document
                whole = {**(there.value if there else {}), **change}
                version = there.version if there else 0
                put = PutDocumentRequest([*place], STATE, json=whole, expected_version=version)
                writes.append(DocumentOperation(put=put))
            try:
                await self._client.batch_documents(writes)
                return
            except errors.StaleVersion:
                # A concurrent change was stored: apply this one to it.
                lost = 0
            except errors.Unavailable:
                # The outcome is unknown: read the state and apply the change again.
                lost += 1
                if lost == LOST_MAX:
                    raise


class MemoirdWindowPlugin(BasePlugin):
    """Gives each model call of a run a new window of a session service.

        service = MemoirdSessionService(window=Window())
        app = App(name="trains", root_agent=agent, plugins=[MemoirdWindowPlugin(service)])
        runner = Runner(app=app, session_service=service)

    Contents that do not come from the session, such as dynamic instructions, stay. A request is not
    changed while a tool call of the session is open, as in agents that run in parallel, or if
    another plugin or processor has changed its contents.
    """

    def __init__(self, service: MemoirdSessionService, name: str = "memoird_window") -> None:
        super().__init__(name)
        self._service = service

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> None:
        """Replaces the contents of the request that come from events by those of the window."""
        context = callback_context._invocation_context
        chosen = await self._service._chosen(context.session)
        if chosen is None:
            return
        from_session = await _contents_of(context, context.session.events, [])
        others = [it for it in llm_request.contents if it not in from_session]
        if len(others) + len(from_session) == len(llm_request.contents):
            llm_request.contents = await _contents_of(context, chosen, others)


async def _contents_of(
    context: InvocationContext, events: list[Event], others: list[types.Content]
) -> list[types.Content]:
    """Returns the contents that ADK makes of events for an agent, added to a request with `others`."""
    from google.adk.flows.llm_flows.contents import request_processor

    session = context.session.model_copy(update={"events": events})
    request = LlmRequest(contents=[*others])
    async for _ in request_processor.run_async(
        context.model_copy(update={"session": session}), request
    ):
        pass
    contents: list[types.Content] = request.contents
    return contents


class MemoirdMemoryService(BaseMemoryService):
    """The messages of users in added sessions, found by words and, with an embedder, by meaning.

    `client` may be of either kind; by default it is configured by the environment (`MEMOIRD_ADDR`,
    `MEMOIRD_KEY`). A user of an app is a subject. An event with text is a memory of `kind`. An
    event that is added again, or two events with the same text, reinforce one memory. After a
    memory was deleted, older events with its text are not added again. Events that memoird made are
    not added.

    A text of more than `long_term.content_bytes` (8 KiB) is truncated. A search returns up to
    `limit` memories, at most 100. Suspected secrets are redacted before storing.
    """

    def __init__(
        self,
        client: Client | AsyncClient | None = None,
        *,
        kind: MemoryKind = MemoryKind.PROJECT,
        limit: int = 10,
    ) -> None:
        self._clients = Clients(client)
        self._client = self._clients.looping()
        self._kind, self._limit = kind, limit

    async def add_session_to_memory(self, session: Session) -> None:
        """Adds the events of a session that were not added yet."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Adds some events, except those made by memoird in a window."""
        subject = _subject(app_name, user_id)
        events = [event for event in events if not (event.custom_metadata or {}).get(MADE)]
        for start in range(0, len(events), REMEMBERED_AT_ONCE):
            some = events[start : start + REMEMBERED_AT_ONCE]
            place = _user(app_name, user_id)
            reads = [asked(place, _deleted(_text(it.content))) for it in some]
            deleted = [it.document for it in await self._clients.ado(done(reads))]
            await asyncio.gather(
                *(
                    self._remember(
                        subject,
                        event.content,
                        event.author,
                        datetime.fromtimestamp(event.timestamp, timezone.utc),
                        event.id,
                    )
                    for event, there in zip(some, deleted, strict=True)
                    if not there or there.value < event.timestamp
                )
            )

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Adds facts unchanged."""
        for memory in memories:
            told = memory.timestamp
            # Python 3.10 cannot parse `Z`.
            said = datetime.fromisoformat(told.replace("Z", "+00:00")) if told else None
            await self._remember(
                _subject(app_name, user_id), memory.content, memory.author or "", said, memory.id
            )

    async def search_memory(
        self, *, app_name: str, user_id: str, query: str
    ) -> SearchMemoryResponse:
        """Returns the best matching memories of a user."""
        if not query.strip():
            return SearchMemoryResponse()
        found = await self._client.recall(
            cut(query, QUERY_BYTES), [_subject(app_name, user_id)], limit=self._limit
        )
        return SearchMemoryResponse(memories=[_entry(hit.memory) for hit in found.hits if hit.memory])

    async def delete_memory(
        self, *, app_name: str, user_id: str, memory_id: str | None = None
    ) -> None:
        """Permanently deletes a memory of the user. Does nothing if it does not exist."""
        if not memory_id:
            raise ValueError("memory_id is the id of a memory that search_memory gave")
        try:
            found = await self._client.get_memory(memory_id)
        except errors.NotFound:
            return
        if found.memory and found.memory.subject == _subject(app_name, user_id):
            if said := (found.memory.metadata or {}).get(SAID):
                await self._client.put_document([*_user(app_name, user_id)], said, json=time.time())
            await self._client.forget(id=memory_id)

    async def _remember(
        self,
        subject: str,
        content: types.Content | None,
        author: str,
        said: datetime | None,
        id: str | None,
    ) -> None:
        text = _text(content)
        if not text.strip():
            return
        own = f"{subject} {id or uuid.uuid4()}"
        try:
            await self._client.remember(
                subject,
                self._kind,
                cut(text, CONTENT_BYTES),
                tags=[cut(AUTHOR + author, TAG_BYTES)] if author else [],
                observed_at=said,
                metadata_json={SAID: _deleted(text)},
                idempotency_key=_digest(own),
                near_duplicate=NearDuplicate.KEEP,
            )
        except errors.IdempotencyKeyReused:
            # An event with this id exists, and stays unchanged.
            return


# Names.


def _name(*parts: str | None) -> str:
    """Returns a session id, or a prefix of session ids if trailing parts are omitted."""
    given = [_quoted(part) for part in parts if part is not None]
    return "/".join(["adk", *given, *([""] if len(given) < 3 else [])])


def _quoted(part: str) -> str:
    # Lone surrogates are valid in ids.
    return quote(part, safe="", errors="surrogatepass")


def _subject(app_name: str, user_id: str) -> str:
    return f"{_quoted(app_name)}/{_quoted(user_id)}"


def _app(app_name: str) -> tuple[str, ...]:
    return ("adk", "app", app_name)


def _user(app_name: str, user_id: str) -> tuple[str, ...]:
    return ("adk", "user", app_name, user_id)


def _deleted(text: str) -> str:
    """Returns the key of the document that records when a memory with this text was deleted."""
    return f"deleted/{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


# State.


class _Delta:
    """A change of state, split by scope.

    Each value of the session is in a list, so that a merge patch replaces it as a whole and stores
    None.
    """

    def __init__(self, state: Mapping[str, Any] | None) -> None:
        self.app: dict[str, Any] = {}
        self.user: dict[str, Any] = {}
        self.session: dict[str, Any] = {}
        for key, value in (state or {}).items():
            if key.startswith(State.APP_PREFIX):
                self.app[key.removeprefix(State.APP_PREFIX)] = value
            elif key.startswith(State.USER_PREFIX):
                self.user[key.removeprefix(State.USER_PREFIX)] = value
            elif not key.startswith(State.TEMP_PREFIX):
                self.session[key] = [value]


def _values(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, [value] in state.items()}


def _mark(session: Session, version: int) -> None:
    """Records the version of the daemon's state in a session."""
    session._storage_update_marker = str(version)


def _marked(session: Session) -> int | None:
    marker = getattr(session, "_storage_update_marker", None)
    return int(marker) if marker else None


# Events.


def _turn(event: Event, *, in_words: bool = False) -> Turn:
    """Returns the turn of an event. With `in_words`, results are text and answer no open call."""
    own = (event.content and event.content.parts) or []
    calls = any(part.function_call for part in own)
    role = Role.ASSISTANT
    if any(part.function_response for part in own) and not calls:
        role = Role.TOOL
    elif own and event.author == "user" and not calls:
        role = Role.USER
    held = event.model_dump(mode="json", exclude_none=True)
    plain = (held.get("content") or {}).get("parts") or ()
    made = [
        _part(part, dumped, role, f"{event.id}/{number}")
        for number, (part, dumped) in enumerate(zip(own, plain, strict=True))
    ]
    parts = [part for part in made if part]
    if in_words:
        role, parts = Role.USER, [it for part in parts for it in _told(part)]
    turn = kept(role, parts, FRAMEWORK, _translated(held, FOR_URIS), event.id)
    said = datetime.fromtimestamp(event.timestamp, timezone.utc)
        # A result of an unknown call is rejected, and then appended as text.
    has_results = any(part.tool_result for part in turn.parts)
    format = MessageFormat.UNSPECIFIED if has_results else turn.format
    return replace(turn, timestamp=said, format=format)


def _translated(held: dict[str, Any], letters: dict[int, int]) -> dict[str, Any]:
    """Converts the base64 of an event's data to that of data URIs or back, so that it is stored only once."""
    for part in (held.get("content") or {}).get("parts") or ():
        if data := (part.get("inline_data") or {}).get("data"):
            part["inline_data"]["data"] = data.translate(letters)
    return held


def _part(part: types.Part, dumped: dict[str, Any], role: Role, name: str) -> Part | None:
    """Returns the part that models read. `dumped` is the part as JSON, whose values may be any Python objects."""
    signature = dumped.get("thought_signature") or ""
    # Counted as reasoning.
    [signed] = opaque({"thought_signature": signature}) if signature else [Part()]
    if part.text is not None:
        if part.thought and role is Role.ASSISTANT:
            return Part(thinking=Thinking(part.text, signature))
        return Part(text=part.text, extra_json=signed.extra_json)
    if call := part.function_call:
        id = str(call.id) if is_id(call.id) else name
        args = dumped["function_call"].get("args") or {}
        use = ToolUse(id, call.name or "call", json.dumps(args))
        return Part(tool_use=use, extra_json=signed.extra_json)
    if answer := part.function_response:
        content = json.dumps(dumped["function_response"].get("response") or {}, ensure_ascii=False)
        if role is Role.TOOL and is_id(answer.id):
            files = [_media(it.inline_data, it.file_data) for it in answer.parts or ()]
            found = [file for file in files if file]
            return Part(tool_result=ToolResult(answer.id or "", content, found))
        return Part(text=f"{answer.name}: {content}")
    if file := _media(part.inline_data, part.file_data):
        return file
    if code := part.executable_code:
        return Part(text=code.code or "")
    if result := part.code_execution_result:
        return Part(text=result.output or "")
    for kind, id_name in (("tool_call", "id"), ("tool_response", "tool_use_id")):
        # Of tools that the provider runs itself.
        if of_server := dumped.get(kind):
            fields = {**of_server, "type": kind, id_name: of_server.get("id")}
            return next(iter(opaque(fields)), None)
    return next(iter(opaque(dumped)), None) if dumped else None


def _media(blob: Any, file: Any) -> Part | None:
    if blob and blob.data:
        data = base64.b64encode(blob.data).decode()
        return media(blob.mime_type or "", base64_uri(blob.mime_type or "", data))
    return media(file.mime_type or "", file.file_uri) if file and file.file_uri else None


def _told(part: Part) -> list[Part]:
    result = part.tool_result
    return [Part(text=result.content), *result.parts] if result else [part]


def _event(turn: Turn) -> Event:
    """Returns the event of a turn. If memoird made or changed the turn, an event with its content."""
    if held := kept_in(turn, FRAMEWORK):
        return Event.model_validate(_translated(held, FOR_ADDRESSES))
    own = (turn.client or {}).get(FRAMEWORK)
    if not own:
        return _said(turn.role, _contents(turn))
    content = types.Content(role=own["content"].get("role"), parts=_contents(turn))
    about = {key: own[key] for key in ("id", "author", "invocation_id", "branch") if key in own}
    return Event(**about, content=content, timestamp=own["timestamp"], custom_metadata={MADE: True})


def _said(role: Role, parts: list[types.Part]) -> Event:
    # ADK rewrites events of other agents for an agent, but not those with this author.
    model = "model" if role is Role.ASSISTANT else "user"
    content = types.Content(role=model, parts=parts)
    return Event(author="user", content=content, custom_metadata={MADE: True})


def _contents(turn: Turn) -> list[types.Part]:
    made = []
    for part in turn.parts:
        if part.text:
            made.append(types.Part(text=part.text))
        elif use := part.tool_use:
            call = types.FunctionCall(id=use.id, name=use.name, args=use.input or {})
            made.append(types.Part(function_call=call))
        elif result := part.tool_result:
            id, answer = result.tool_use_id, {"result": result.content}
            response = types.FunctionResponse(id=id, name=_called(turn, id), response=answer)
            made.append(types.Part(function_response=response))
    return made


def _called(turn: Turn, id: str) -> str:
    """Returns the name of the call of a result."""
    own = ((turn.client or {}).get(FRAMEWORK) or {}).get("content") or {}
    answers = (part.get("function_response") or {} for part in own.get("parts") or ())
    return next((answer["name"] for answer in answers if answer.get("id") == id), "call")


def _text(content: types.Content | None) -> str:
    return " ".join(part.text for part in (content and content.parts) or () if part.text)


def _entry(memory: Memory) -> MemoryEntry:
    authors = [tag.removeprefix(AUTHOR) for tag in memory.tags if tag.startswith(AUTHOR)]
    author = authors[0] if authors else None
    return MemoryEntry(
        id=memory.id,
        content=types.Content(
            role="user" if author == "user" else "model", parts=[types.Part(text=memory.content)]
        ),
        author=author,
        timestamp=memory.observed_at.isoformat() if memory.observed_at else None,
    )
