"""What adapters do with a session's turns, said once for both clients.

Each function gives steps: see `_steps`.
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
    GetContextResponse,
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
# Somebody else took what was to be taken: each try means that somebody did.
POPS_TRIED_MAX = 64


@dataclass(slots=True, frozen=True)
class Window:
    """Lets memoird choose what the model is shown, within a budget of tokens, rather than all of a session.

    What does not fit is cut where the conversation allows it, and a summary stands for it; calls stay with
    their results, and between two cuts the beginning stays the same, so that a provider's cache is of use.
    """

    model: str = ""
    """A model profile of the daemon's configuration; empty: its `default_model`."""
    budget: Budget | None = None
    """Overrides of the profile's budget, in tokens."""
    policy: WindowPolicy | None = None
    """How to choose the turns; None: as configured."""
    overhead_tokens: int = 0
    """Tokens of what else is sent: instructions, tools and the new message."""
    memories: RecallRequest | None = None
    """What to recall into the window; with an empty query, by what was said last in the session."""


def read_all(
    session_id: str, format: MessageFormat = MessageFormat.UNSPECIFIED, *, plain: bool = False
) -> Steps[list[Any]]:
    """All turns of a live session, oldest first, in pages of 1,000 turns or 2 MiB; no page where none lives.

    Pages are as `get_history` gives them, or `plain`: as they come, for who looks at little of them.
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
    """The newest turns of a live session, oldest first, as `read_all` gives pages."""
    if 0 < turns <= TURNS_PER_PAGE and format is MessageFormat.UNSPECIFIED:
        # From memory, without the journal; mostly that is all there is. In a provider's format it
        # has notes in place of results without their calls, and messages are read back as they came.
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
    """Seq of the newest turn; 0 if there is none."""
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
    """Finds the turn of `read.messages[index]`: its position in `read.seqs`, and the index of its first message.

    A page does not say which messages a turn has, so this bisects. None if the session changed.
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
    """True where nothing is missing between the newest turn and the first, and the first is the oldest or the last."""
    turns_of_page = page.turns
    if not turns_of_page:
        return False
    # They are in order, so that the ends tell whether one is missing.
    first, last, count = turns_of_page[0].seq, turns_of_page[-1].seq, len(turns_of_page)
    if last != page.session.last_seq or last - first != count - 1:
        return False
    return count == turns or first == 1


def _plain(call: WireCall[Any, Any]) -> WireCall[Any, Any]:
    """The same call, whose answer stays as it comes: for who looks at little of it, or at nothing."""
    return WireCall(call.path, call.repeatable, call.write, call.request, lambda it: it, call.response)


_PLAIN_HISTORY, _PLAIN_APPEND = _plain(GET_HISTORY), _plain(APPEND)


def _page(session_id: str, format: MessageFormat, plain: bool, **which: Any) -> Steps[Any]:
    """A page of a session that lives; what ended is the journal's, and is not the session any more."""
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
    """Appends; each chunk is added whole or not at all, and those before it stay.

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
    """What `add` takes."""
    return [{"turns": chunk} for chunk in batched(turns, turn_bytes)]


def turns(session_id: str, chosen_by: Window | None) -> Steps[list[Turn]]:
    """All turns of a live session, oldest first, or those of memoird's window and one with its memories."""
    if chosen_by is not None:
        answer = yield from window(session_id, chosen_by)
        if answer is None:
            return []
        # A block of its own, behind the turns.
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
    """Takes back all turns after `after_seq` and adds others: the first chunk in one step, then the rest.

    Raises StaleSeq or StaleGeneration if the session no longer ends with `expected`.
    """
    if not chunks:
        return (yield from clear(session_id, after_seq, expected))
    if subject and not after_seq:
        try:
            yield Call("get_session", session_id=session_id)
        except SessionNotFound:
            # A rewind starts a session, too, but nobody's.
            return (yield from add(session_id, chunks, subject))
    tail = yield from _rewind(session_id, after_seq, expected, **chunks[0])
    return (yield from add(session_id, chunks[1:], subject, tail))


def clear(
    session_id: str, after_seq: int = 0, expected: Tail | None = None
) -> Steps[Tail]:
    """Takes back all turns after `after_seq`: windows omit them, and the journal keeps them until retention."""
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
    """Removes for good all that memoird has of the session; waits up to so many seconds until it is done."""
    answer = yield Call("erase_session", session_id=session_id)
    ends, pause = time.monotonic() + wait, 0.05
    while not answer.done:
        if time.monotonic() > ends:
            raise Unavailable(
                f"the erasure {answer.job_id} is still under way: ask get_erasure for it"
            )
        yield Pause(pause)
        pause = min(pause * 2, 1.0)
        answer = yield Call("get_erasure", job_id=answer.job_id)


def check(window: Any) -> None:
    """Refuses what is no `Window`."""
    if not isinstance(window, Window):
        problem = f"window takes a memoird Window, not a {type(window).__name__}"
        raise InvalidArgument(
            problem, code=grpc.StatusCode.INVALID_ARGUMENT, facts={"field": "window"}
        )


def window(
    session_id: str, window: Window, format: MessageFormat = MessageFormat.UNSPECIFIED
) -> Steps[GetContextResponse | None]:
    """What memoird chooses of a session; None where none lives."""
    check(window)
    try:
        return (yield from context(session_id, window, format=format))
    except SessionNotFound:
        return None


def context(session_id: str, window: Window, **more: Any) -> Steps[GetContextResponse]:
    """The call for a window."""
    answer = yield Call(
        "get_context",
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
    """Takes the newest message back, and gives its turn and, where a format is asked for, the message.

    One is given to one caller. The rest of its turn, and calls whose result it was, are added again.
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
            # Somebody was faster, between the turns and the session.
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
    """The turns from the call on whose result this is; none where nobody knows the call."""
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
    """Where the call of a result is."""
    for index in range(at - 1, -1, -1):
        for part in turns[index].parts:
            if part.tool_use and part.tool_use.id == tool_use_id:
                return index
            if part.tool_result and part.tool_result.tool_use_id == tool_use_id:
                # Answered already: this is the result of a call that nobody knows.
                return None
    return None
