"""Operations of adapters on a session's turns, shared by both clients.

Each function returns steps: see `_steps`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from ._batches import batched, turn_bytes
from ._calls import APPEND, GET_HISTORY
from ._calls import Call as WireCall
from ._steps import Call, Pause, Steps
from .errors import (
    GenerationNotFound,
    InvalidArgument,
    SessionNotFound,
    StaleGeneration,
    StaleSeq,
    Unavailable,
)
from .types import (
    AppendRequest,
    Budget,
    BuildContextResponse,
    GetHistoryRequest,
    HistoryScope,
    MessageFormat,
    Part,
    RecallRequest,
    Role,
    Turn,
    WindowPolicy,
)

TURNS_PER_PAGE = 1000
# Maximum number of tries of a pop. Each failed one means that another caller succeeded.
POPS_TRIED_MAX = 64


@dataclass(slots=True, frozen=True)
class Window:
    """Options for windows, which replace the whole session in model calls, within a token budget.

    Content that does not fit is cut where the conversation allows it, and replaced by a summary.
    Tool calls stay with their results. Between two cuts the prefix stays the same, so that the
    provider can cache it.
    """

    model: str = ""
    """A model profile of the daemon's configuration. If empty, its `default_model`."""
    budget: Budget | None = None
    """Overrides of the profile's budget, in tokens."""
    policy: WindowPolicy | None = None
    """How to select turns. If None, as configured."""
    overhead_tokens: int = 0
    """Tokens of everything else that is sent: instructions, tools and the new message."""
    memories: RecallRequest | None = None
    """What to recall into the window. With an empty query, by the current exchange."""


def read_all(
    session_id: str, format: MessageFormat = MessageFormat.UNSPECIFIED, *, plain: bool = False
) -> Steps[list[Any]]:
    """Reads all turns of a session, oldest first, in pages of 1,000 turns or 2 MiB.

    Returns no page if the session is not live, else pages as `get_history` does, or with `plain`
    as protobuf messages, for callers that need few fields.
    """
    pages: list[Any] = []
    after_seq, generation = 0, ""
    while True:
        which = {"generation": generation, "after_seq": after_seq, "limit": TURNS_PER_PAGE}
        page = yield from _page(session_id, format, plain, **which)
        if page is None:
            return pages
        pages.append(page)
        after_seq = page.next_after_seq
        if not after_seq:
            return pages
        generation = page.session.generation


def read_last(
    session_id: str,
    turns: int,
    format: MessageFormat = MessageFormat.UNSPECIFIED,
    *,
    plain: bool = False,
) -> Steps[list[Any]]:
    """Reads the newest turns of a live session, oldest first, in pages as `read_all` does."""
    if 0 < turns <= TURNS_PER_PAGE and format is MessageFormat.UNSPECIFIED:
        # Read from memory, without the journal; mostly that is sufficient. In a provider's format,
        # results without their calls are notes there, but messages must be returned as they were
        # added.
        page = yield from _page(session_id, format, plain, scope=HistoryScope.LIVE, last=turns)
        if page is None or _is_whole(page, turns):
            return [page] if page else []
    pages: list[Any] = []
    before_seq, generation = 0, ""
    while turns > 0:
        which = {"generation": generation, "before_seq": before_seq, "last": min(turns, TURNS_PER_PAGE)}
        page = yield from _page(session_id, format, plain, **which)
        if page is None:
            break
        pages.insert(0, page)
        turns -= len(page.turns)
        before_seq, generation = page.previous_before_seq, page.session.generation
        if not before_seq:
            break
    return pages


@dataclass(slots=True, frozen=True)
class Tail:
    """End of a session as one caller has read or written it."""

    generation: str = ""
    """Empty if no session is live."""
    last_seq: int = 0
    """Seq of the newest turn, or 0 if there is none."""
    next_seq: int = 1
    """Seq of the next turn, unless another client writes or rewinds first."""


@dataclass(slots=True, frozen=True)
class MessagesRead:
    """Messages of a live session in one format, oldest first."""

    messages: list[Any]
    seqs: list[int]
    """Seqs of their turns. A turn has one message or more."""
    tail: Tail


def read_messages(
    session_id: str, format: MessageFormat, last: int | None = None
) -> Steps[MessagesRead]:
    """Reads all messages, or those of the newest `last` turns."""
    pages = yield from (
        read_all(session_id, format, plain=True)
        if last is None
        else read_last(session_id, last, format, plain=True)
    )
    seqs = [turn.seq for page in pages for turn in page.turns]
    return MessagesRead(_messages(pages), seqs, _tail(pages[-1], seqs) if pages else Tail())


def _messages(pages: list[Any]) -> list[Any]:
    return [message for page in pages for message in json.loads(page.messages_json or "[]")]


def _tail(page: Any, seqs: list[int]) -> Tail:
    last_seq = seqs[-1] if seqs else 0
    return Tail(page.session.generation, last_seq, last_seq + 1)


def turn_of_message(
    session_id: str, format: MessageFormat, read: MessagesRead, index: int
) -> Steps[tuple[int, int] | None]:
    """Returns the position in `read.seqs` of the turn of `read.messages[index]`.

    Also returns the index of the turn's first message. A page does not show which messages belong
    to a turn, so this bisects. None if the session changed.
    """
    low, high, first = 0, len(read.seqs), 0
    while high - low > 1:
        which = {"after_seq": read.seqs[low] - 1, "limit": min((high - low) // 2, TURNS_PER_PAGE)}
        page = yield from _page(
            session_id, format, plain=True, generation=read.tail.generation, **which
        )
        if page is None or not page.turns:
            return None
        middle, count = low + len(page.turns), len(_messages([page]))
        if index < first + count:
            high = middle
        else:
            low, first = middle, first + count
    return low, first


def _is_whole(page: Any, turns: int) -> bool:
    """Whether the page has all turns from the oldest or `turns` last ones to the newest, without gaps."""
    turns_of_page = page.turns
    if not turns_of_page:
        return False
    # The turns are ordered, so the first and last seq show whether one is missing.
    first, last, count = turns_of_page[0].seq, turns_of_page[-1].seq, len(turns_of_page)
    if last != page.session.last_seq or last - first != count - 1:
        return False
    return count == turns or first == 1


def _plain(call: WireCall[Any, Any]) -> WireCall[Any, Any]:
    """Returns the call without decoding of its response, for callers that need few fields or none."""
    return WireCall(call.path, call.repeatable, call.write, call.request, lambda it: it, call.response)


_PLAIN_HISTORY, _PLAIN_APPEND = _plain(GET_HISTORY), _plain(APPEND)


def _page(session_id: str, format: MessageFormat, plain: bool, **which: Any) -> Steps[Any]:
    """Returns a page of a live session. An ended one is only in the journal, and not part of the history."""
    asked = {"session_id": session_id, "format": format, "scope": HistoryScope.LONGEST, **which}
    call = Call("get_history", **asked)
    if plain:
        request = GetHistoryRequest(**asked)
        call = Call("_call", call=_PLAIN_HISTORY, request=request, timeout=None)
    try:
        page = yield call
    except (SessionNotFound, GenerationNotFound):
        return None
    is_live = page.HasField("session") if plain else page.session is not None
    return page if is_live else None


def add(
    session_id: str,
    chunks: Iterable[dict[str, Any]],
    subject: str = "",
    tail: Tail | None = None,
) -> Steps[Tail | None]:
    """Appends chunks, each atomically. If one fails, those before it stay.

    Returns the new tail if no other client wrote since `tail`, else `tail`.
    """
    for chunk in chunks:
        request = AppendRequest(session_id=session_id, subject=subject, **chunk)
        answer = yield Call("_call", call=_PLAIN_APPEND, request=request, timeout=None)
        generation = answer.session.generation
        if tail is None or tail.next_seq != answer.first_seq:
            continue
        if tail.generation in ("", generation):
            tail = Tail(generation, answer.last_seq, answer.last_seq + 1)
    return tail


def turns_in_chunks(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Returns the argument of `add` for turns."""
    return [{"turns": chunk} for chunk in batched(turns, turn_bytes)]


def turns(session_id: str, chosen_by: Window | None) -> Steps[list[Turn]]:
    """Returns all turns of a live session, oldest first, or those of its window and one with its memories."""
    if chosen_by is not None:
        answer = yield from window(session_id, chosen_by)
        if answer is None:
            return []
        # A separate block after the turns.
        told = [Turn(Role.USER, [Part(text=answer.memories_text)])] if answer.memories_text else []
        return [*answer.turns, *told]
    pages = yield from read_all(session_id)
    return [turn for page in pages for turn in page.turns]


def replace(
    session_id: str,
    chunks: list[dict[str, Any]],
    subject: str = "",
    *,
    after_seq: int = 0,
    expected: Tail | None = None,
) -> Steps[Tail | None]:
    """Rewinds all turns after `after_seq` and appends others.

    The first chunk is appended atomically with the rewind. Raises StaleSeq or StaleGeneration if
    the session no longer ends with `expected`.
    """
    if not chunks:
        return (yield from clear(session_id, after_seq, expected))
    if subject and not after_seq:
        try:
            yield Call("get_session", session_id=session_id)
        except SessionNotFound:
            # A rewind could start the session as well, but without a subject.
            return (yield from add(session_id, chunks, subject))
    tail = yield from _rewind(session_id, after_seq, expected, **chunks[0])
    return (yield from add(session_id, chunks[1:], subject, tail))


def clear(
    session_id: str, after_seq: int = 0, expected: Tail | None = None
) -> Steps[Tail]:
    """Rewinds all turns after `after_seq`: windows omit them, and the journal keeps them until retention."""
    try:
        return (yield from _rewind(session_id, after_seq, expected))
    except SessionNotFound:
        return Tail()


def _rewind(session_id: str, after_seq: int, expected: Tail | None, **more: Any) -> Steps[Tail]:
    if expected is not None:
        more |= {"expected_seq": expected.last_seq, "expected_generation": expected.generation}
    answer = yield Call("rewind_session", session_id=session_id, after_seq=after_seq, **more)
    session = answer.session
    return Tail(session.generation, session.last_seq, answer.last_seq + 1)


def erase(session_id: str, wait: float = 60.0) -> Steps[None]:
    """Permanently removes all data of the session. Waits up to `wait` seconds for completion."""
    erasure = (yield Call("erase_session", session_id=session_id)).erasure
    ends, pause = time.monotonic() + wait, 0.05
    while not erasure.done:
        if time.monotonic() > ends:
            raise Unavailable(
                f"the erasure {erasure.id} is still under way: ask get_erasure for it"
            )
        yield Pause(pause)
        pause = min(pause * 2, 1.0)
        erasure = (yield Call("get_erasure", id=erasure.id)).erasure


def check(window: Any) -> None:
    """Raises unless the argument is a `Window`."""
    if not isinstance(window, Window):
        problem = f"window takes a memoird Window, not a {type(window).__name__}"
        raise InvalidArgument(
            problem, code=grpc.StatusCode.INVALID_ARGUMENT, facts={"field": "window"}
        )


def window(
    session_id: str, window: Window, format: MessageFormat = MessageFormat.UNSPECIFIED
) -> Steps[BuildContextResponse | None]:
    """Returns the window of a session. None if no session is live."""
    check(window)
    try:
        return (yield from context(session_id, window, format=format))
    except SessionNotFound:
        return None


def context(session_id: str, window: Window, **more: Any) -> Steps[BuildContextResponse]:
    """Returns the call for a window."""
    answer = yield Call(
        "build_context",
        session_id=session_id,
        model=window.model,
        budget=window.budget,
        policy=window.policy,
        overhead_tokens=window.overhead_tokens,
        memories=window.memories,
        **more,
    )
    return answer  # type: ignore[no-any-return]


def pop(
    session_id: str, format: MessageFormat = MessageFormat.UNSPECIFIED
) -> Steps[tuple[Turn, Any] | None]:
    """Rewinds the newest message. Returns its turn and, if a format is requested, the message.

    Each message is returned to one caller only. The rest of its turn, and the calls that it
    answered, are appended again.
    """
    for tried in range(POPS_TRIED_MAX):
        if tried:
            yield Pause(random.uniform(0, 0.002 * tried))
        pages = yield from read_last(session_id, 1, format)
        if not pages or not pages[-1].turns:
            return None
        page = pages[-1]
        newest, messages, session = page.turns[-1], page.messages or [], page.session
        if newest.seq != session.last_seq:
            # Another caller popped between the read of the turns and of the session.
            continue
        change: dict[str, Any] = {"after_seq": newest.seq - 1}
        if len(messages) > 1:
            change |= {"messages_json": messages[:-1], "format": format}
        elif any(part.tool_result for part in newest.parts):
            unit = yield from _unit_of(session_id, newest)
            if unit:
                change |= {"after_seq": unit[0].seq - 1, "turns": unit[:-1]}
        change |= {"expected_seq": newest.seq, "expected_generation": session.generation}
        try:
            yield Call("rewind_session", session_id=session_id, **change)
        except (StaleSeq, StaleGeneration, SessionNotFound):
            continue
        return newest, (messages[-1] if messages else None)
    raise Unavailable(f"others took what was newest in {session_id!r} {POPS_TRIED_MAX} times")


def _unit_of(session_id: str, newest: Turn) -> Steps[list[Turn]]:
    """Returns the turns from the call of this result on. Empty if the call is unknown."""
    count = 8
    while True:
        pages = yield from read_last(session_id, count)
        turns = [turn for page in pages for turn in page.turns]
        start = len(turns) - 1
        if not turns or turns[start].seq != newest.seq:
            return []
        missing = False
        at = start
        while at >= start:
            for part in turns[at].parts:
                if part.tool_result:
                    call = _call_before(turns, at, part.tool_result.tool_use_id)
                    missing |= call is None
                    start = start if call is None else min(start, call)
            at -= 1
        if not missing or len(turns) < count or count >= TURNS_PER_PAGE:
            return turns[start:] if start < len(turns) - 1 else []
        count = min(count * 8, TURNS_PER_PAGE)


def _call_before(turns: list[Turn], at: int, tool_use_id: str) -> int | None:
    """Returns the index of the turn with the call of a result."""
    for index in range(at - 1, -1, -1):
        for part in turns[index].parts:
            if part.tool_use and part.tool_use.id == tool_use_id:
                return index
            if part.tool_result and part.tool_result.tool_use_id == tool_use_id:
                # The call has a result already, so this result belongs to an unknown call.
                return None
    return None
