"""The services for Google's ADK. ADK's own tests of sessions and memory have the same checks."""

import asyncio
import itertools
import json
import time
from datetime import date, datetime

import pytest
from google.adk.agents import Agent, ParallelAgent
from google.adk.apps import App
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types
from pydantic import BaseModel
from readme import example

import memoird
from memoird import errors
from memoird.adk import (
    MemoirdMemoryService,
    MemoirdSessionService,
    MemoirdWindowPlugin,
    Window,
)

APPS = itertools.count()


@pytest.fixture(scope="module")
def client():
    with memoird.local() as client:
        yield client


@pytest.fixture(scope="module")
def run():
    loop = asyncio.new_event_loop()
    yield loop.run_until_complete
    loop.close()


@pytest.fixture
def service(client):
    return MemoirdSessionService(client.for_event_loops())


@pytest.fixture
def app():
    return f"app-{next(APPS)}"


def event(author="user", text=None, **fields):
    content = text and types.Content(role=author, parts=[types.Part(text=text)])
    return Event(author=author, invocation_id="inv", content=content or None, **fields)


def changing(**delta):
    return event(actions=EventActions(state_delta={k.replace("__", ":"): v for k, v in delta.items()}))


def test_a_session_that_nobody_made(run, service, app):
    assert run(service.get_session(app_name=app, user_id="ann", session_id="none")) is None


def test_made_read_and_deleted(run, service, app):
    of = {"app_name": app, "user_id": "ann"}
    made = run(service.create_session(**of, state={"key": "value"}))
    assert (made.app_name, made.user_id, made.state) == (app, "ann", {"key": "value"})
    assert made.id and made.last_update_time <= time.time()
    read = run(service.get_session(**of, session_id=made.id))
    assert read == made
    run(service.delete_session(**of, session_id=made.id))
    assert run(service.get_session(**of, session_id=made.id)) is None
    run(service.delete_session(**of, session_id=made.id))


def test_sessions_are_listed_with_their_state(run, service, app):
    ids = [f"session/{number}" for number in range(5)]
    for id in ids:
        run(service.create_session(app_name=app, user_id="ann", session_id=id, state={"id": id}))
    listed = run(service.list_sessions(app_name=app, user_id="ann")).sessions
    assert [session.id for session in listed] == ids, "by the time of their last event"
    assert all(session.state == {"id": session.id} for session in listed)
    assert all(session.events == [] for session in listed)


def test_sessions_of_all_users(run, service, app):
    for user, id in [("ann", "a"), ("ann", "b"), ("ann/b", "c"), ("bob", "a")]:
        state = {"at": f"{user} {id}", "app:all": 1, f"user:{user}": 2}
        run(service.create_session(app_name=app, user_id=user, session_id=id, state=state))
    run(service.create_session(app_name=app + "0", user_id="ann", session_id="a"))
    of_ann = run(service.list_sessions(app_name=app, user_id="ann")).sessions
    assert {session.id for session in of_ann} == {"a", "b"}
    everybody = run(service.list_sessions(app_name=app)).sessions
    assert {(session.user_id, session.id) for session in everybody} == {
        ("ann", "a"), ("ann", "b"), ("ann/b", "c"), ("bob", "a"),
    }
    for session in everybody:
        state = {"at": f"{session.user_id} {session.id}", "app:all": 1}
        assert session.state == state | {f"user:{session.user_id}": 2}


def test_state_of_the_app(run, service, app):
    one = run(service.create_session(app_name=app, user_id="ann", session_id="1", state={"app:a": 1}))
    run(service.append_event(one, changing(app__b=2)))
    two = run(service.create_session(app_name=app, user_id="bob", session_id="2"))
    assert two.state == {"app:a": 1, "app:b": 2}
    read = run(service.get_session(app_name=app, user_id="ann", session_id="1"))
    assert read.state == {"app:a": 1, "app:b": 2}


def test_state_of_a_user(run, service, app):
    one = run(service.create_session(app_name=app, user_id="ann", state={"user:a": 1}))
    run(service.append_event(one, changing(user__b=2)))
    assert run(service.create_session(app_name=app, user_id="ann")).state == {"user:a": 1, "user:b": 2}
    assert run(service.create_session(app_name=app, user_id="bob")).state == {}


def test_state_of_a_session(run, service, app):
    one = run(service.create_session(app_name=app, user_id="ann", session_id="1", state={"a": 1}))
    run(service.append_event(one, changing(b=2)))
    read = run(service.get_session(app_name=app, user_id="ann", session_id="1"))
    assert read.state == {"a": 1, "b": 2}
    assert run(service.create_session(app_name=app, user_id="ann")).state == {}


def test_a_value_of_the_state_is_replaced_whole(run, service, app):
    of = {"app_name": app, "user_id": "ann", "session_id": "1"}
    session = run(service.create_session(**of, state={"deep": {"a": {"b": 1}}, "list": [1]}))
    run(service.append_event(session, changing(deep={"c": None}, none=None, list=[])))
    assert run(service.get_session(**of)).state == {"deep": {"c": None}, "none": None, "list": []}


def test_temporary_state(run, service, app):
    session = run(service.create_session(app_name=app, user_id="ann", session_id="1"))
    said = run(service.append_event(session, changing(temp__a=1, b=2)))
    assert session.state == {"temp:a": 1, "b": 2}
    assert said.actions.state_delta == {"b": 2}
    read = run(service.get_session(app_name=app, user_id="ann", session_id="1"))
    assert read.state == {"b": 2} and read.events[0].actions.state_delta == {"b": 2}


@pytest.mark.parametrize("kind", ["app", "user"])
def test_changes_of_shared_state_at_the_same_time(run, service, app, kind):
    async def change(number):
        session = await service.create_session(app_name=app, user_id="ann")
        await service.append_event(session, changing(**{f"{kind}__{number}": number}))

    async def all():
        await asyncio.gather(*(change(number) for number in range(8)))

    run(all())
    state = run(service.create_session(app_name=app, user_id="ann")).state
    assert state == {f"{kind}:{number}": number for number in range(8)}


def test_users_have_sessions_of_the_same_id(run, service, app):
    one = run(service.create_session(app_name=app, user_id="ann", session_id="1"))
    run(service.append_event(one, event(text="Hi")))
    run(service.create_session(app_name=app, user_id="bob", session_id="1"))
    other = run(service.get_session(app_name=app, user_id="bob", session_id="1"))
    assert (other.user_id, other.events) == ("bob", [])


def test_an_id_that_is_there(run, service, app):
    of = {"app_name": app, "user_id": "ann", "session_id": " 1 "}
    assert run(service.create_session(**of)).id == "1"
    with pytest.raises(AlreadyExistsError):
        run(service.create_session(**of))
    assert run(service.get_session(**of)).id == "1"
    run(service.delete_session(**of))
    assert run(service.get_session(app_name=app, user_id="ann", session_id="1")) is None


def test_bytes_come_back(run, service, app):
    session = run(service.create_session(app_name=app, user_id="ann"))
    image = types.Part.from_bytes(data=bytes(range(256)) * 2_000, mime_type="image/png")
    content = types.Content(role="user", parts=[image, types.Part(text="What is this?")])
    search = types.SearchEntryPoint(sdk_blob=b"\xff\xfe")
    grounding = types.GroundingMetadata(search_entry_point=search)
    said = Event(author="user", content=content, grounding_metadata=grounding)
    run(service.append_event(session, said))
    [read] = run(
        service.get_session(app_name=app, user_id="ann", session_id=session.id)
    ).events
    assert read == said and read.content == content


def test_an_event_comes_back_equal(run, service, app):
    of = {"app_name": app, "user_id": "ann"}
    session = run(service.create_session(**of))
    usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=1, total_token_count=2)
    parts = [
        types.Part(text="thinking", thought=True, thought_signature=b"\x00\xff"),
        types.Part(text="A sentence that is long enough to be kept once: where is my parcel?"),
        types.Part(function_call=types.FunctionCall(id="c1", name="find", args={"order": 7})),
    ]
    said = Event(
        author="agent",
        invocation_id="inv",
        content=types.Content(role="model", parts=parts),
        turn_complete=True,
        partial=False,
        actions=EventActions(artifact_delta={"file": 0}, transfer_to_agent="agent", escalate=True),
        long_running_tool_ids={"c1"},
        error_code="code",
        error_message="message",
        interrupted=True,
        usage_metadata=usage,
        citation_metadata=types.CitationMetadata(),
        custom_metadata={"key": "value"},
        branch="agent.other",
        timestamp=1700000000.123456,
    )
    run(service.append_event(session, said))
    answer = types.FunctionResponse(id="c1", name="find", response={"at": "Oslo"})
    run(service.append_event(session, Event(
        author="agent",
        content=types.Content(role="user", parts=[types.Part(function_response=answer)]),
    )))
    assert run(service.get_session(**of, session_id=session.id)) == session


def test_a_tool_may_answer_what_is_no_json(run, service, client, app):
    class Train(BaseModel):
        leaves: datetime

    answer = {"train": Train(leaves=datetime(2026, 5, 1, 6, 2)), "on": {date(2026, 5, 1)}}
    call = types.FunctionCall(id="c1", name="trains", args={"on": date(2026, 5, 1)})
    result = types.FunctionResponse(id="c1", name="trains", response=answer)
    session = run(service.create_session(app_name=app, user_id="ann", session_id="1"))
    for part in (types.Part(function_call=call), types.Part(function_response=result)):
        said = Event(author="agent", content=types.Content(role="model", parts=[part]))
        run(service.append_event(session, said))
    turns = client.get_history(f"adk/{app}/ann/1").turns
    assert turns[0].parts[0].tool_use.input == {"on": "2026-05-01"}
    assert json.loads(turns[1].parts[0].tool_result.content) == {
        "train": {"leaves": "2026-05-01T06:02:00"}, "on": ["2026-05-01"]
    }
    assert len(run(service.get_session(app_name=app, user_id="ann", session_id="1")).events) == 2


def test_the_time_of_the_last_event(run, service, app):
    of = {"app_name": app, "user_id": "ann"}
    session = run(service.create_session(**of))
    before = session.last_update_time
    run(service.append_event(session, event(timestamp=before + 10)))
    assert session.last_update_time == before + 10
    assert run(service.get_session(**of, session_id=session.id)).last_update_time == before + 10


def test_a_stale_session_is_refused(run, service, app):
    of = {"app_name": app, "user_id": "ann"}
    stale = run(service.create_session(**of))
    run(service.append_event(stale, changing(a=1)))
    fresh = run(service.get_session(**of, session_id=stale.id))
    run(service.append_event(fresh, changing(b=2)))
    with pytest.raises(ValueError, match="modified in storage"):
        run(service.append_event(stale, changing(c=3)))
    read = run(service.get_session(**of, session_id=stale.id))
    assert (len(read.events), read.state) == (2, {"a": 1, "b": 2})


def test_of_two_stale_writers_one_is_refused(run, service, app):
    of = {"app_name": app, "user_id": "ann"}
    made = run(service.create_session(**of))

    async def both(number):
        latest = await service.get_session(**of, session_id=made.id)
        copies = [latest.model_copy(deep=True) for _ in range(2)]
        appends = (service.append_event(copy, changing(**{f"s{number}": 1})) for copy in copies)
        return await asyncio.gather(*appends, return_exceptions=True)

    for number in range(8):
        refused = [done for done in run(both(number)) if isinstance(done, Exception)]
        assert len(refused) == 1 and isinstance(refused[0], ValueError)
    assert len(run(service.get_session(**of, session_id=made.id)).events) == 8


def test_a_session_that_is_gone_is_not_begun_again(run, service, app):
    of = {"app_name": app, "user_id": "ann"}
    session = run(service.create_session(**of))
    run(service.append_event(session, event(text="Hi")))
    run(service.delete_session(**of, session_id=session.id))
    with pytest.raises(ValueError, match="not found"):
        run(service.append_event(session, event(text="Hello?")))
    assert run(service.get_session(**of, session_id=session.id)) is None


def test_a_session_that_has_expired(run, app):
    of = {"app_name": app, "user_id": "ann", "session_id": "1"}
    with memoird.local(config="short_term: { session_ttl: 1s }\n") as short:
        service = MemoirdSessionService(short.for_event_loops())
        session = run(service.create_session(**of, state={"user:a": 1}))
        run(service.append_event(session, event(text="Hi")))
        while run(service.get_session(**of)):
            continue
        with pytest.raises(ValueError, match="has expired"):
            run(service.append_event(session, event(text="Hello?")))
        again = run(service.create_session(**of))
        assert (again.events, again.state) == ([], {"user:a": 1})


def test_an_event_is_appended_once(run, service, app):
    of = {"app_name": app, "user_id": "ann"}
    session = run(service.create_session(**of))
    said = event(text="Hi")
    run(service.append_event(session, said))
    run(service.append_event(session.model_copy(deep=True), said))
    assert len(run(service.get_session(**of, session_id=session.id)).events) == 1


def test_other_events_of_the_same_id_are_events(run, service, app):
    of = {"app_name": app, "user_id": "ann"}
    session = run(service.create_session(**of))
    for author in ("user", "agent", "user"):
        run(service.append_event(session, Event(id="e", author=author, timestamp=1.0)))
    read = run(service.get_session(**of, session_id=session.id))
    assert [it.author for it in read.events] == ["user", "agent"]


def test_a_write_of_shared_state_whose_answer_was_lost_is_done(run, client, app):
    calls = client.for_event_loops()
    batch, lost = calls.batch_documents, []

    async def batch_documents(operations):
        done = await batch(operations)
        if len(lost) < 2 and any(it.put for it in operations):
            lost.append(operations)
            raise errors.Unavailable("the answer was lost")
        return done

    calls.batch_documents = batch_documents
    service = MemoirdSessionService(calls)
    session = run(service.create_session(app_name=app, user_id="ann", state={"app:a": 1}))
    run(service.append_event(session, changing(app__b=2, user__c=3)))
    read = run(service.get_session(app_name=app, user_id="ann", session_id=session.id))
    assert (read.events, len(lost)) == (session.events, 2)
    assert read.state == {"app:a": 1, "app:b": 2, "user:c": 3}


class Racing(memoird.AsyncClient):
    """A client whose first pages have a session that is newer than the turns."""

    def __init__(self, addr, meanwhile):
        super().__init__(addr)
        self._meanwhile, self._raced = meanwhile, asyncio.Event()

    async def get_history(self, session_id, **which):
        page = await super().get_history(session_id, **which)
        if self._meanwhile:
            await self._meanwhile.pop(0)
            page.session = (await super().get_session(session_id)).session
            if not self._meanwhile:
                self._raced.set()
        return page

    async def get_session(self, *which, **how):
        await self._raced.wait()
        return await super().get_session(*which, **how)


def test_an_event_that_comes_amid_a_read_is_read(run, service, client, app):
    of = {"app_name": app, "user_id": "ann"}
    session = run(service.create_session(**of))
    run(service.append_event(session, event(text="one")))
    # The newest turns in memory, and those in the journal.
    meanwhile = [service.append_event(session, event(text=text)) for text in ("two", "three")]
    racing = Racing(client.addr, meanwhile)
    read = run(MemoirdSessionService(racing).get_session(**of, session_id=session.id))
    assert read.events == session.events and len(read.events) == 3


@pytest.mark.parametrize(
    ("config", "times"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"num_recent_events": 0}, []),
        ({"num_recent_events": 3}, [3, 4, 5]),
        ({"num_recent_events": 9}, [1, 2, 3, 4, 5]),
        ({"after_timestamp": 4.0}, [4, 5]),
        ({"after_timestamp": 50.0}, []),
        ({"num_recent_events": 3, "after_timestamp": 4.0}, [4, 5]),
        ({"num_recent_events": 1, "after_timestamp": 4.0}, [5]),
    ],
)
def test_some_of_the_events(run, service, app, config, times):
    of = {"app_name": app, "user_id": "ann"}
    session = run(service.create_session(**of))
    for number in range(1, 6):
        run(service.append_event(session, Event(author="user", timestamp=number)))
    config = GetSessionConfig(**config)
    read = run(service.get_session(**of, session_id=session.id, config=config))
    assert [said.timestamp for said in read.events] == times


def test_more_events_than_a_page_has(run, client, app):
    service = MemoirdSessionService(client.for_event_loops())
    of = {"app_name": app, "user_id": "ann"}
    session = run(service.create_session(**of))
    for number in range(1, 1_041):
        run(service.append_event(session, event(text=f"{number}", timestamp=number)))
    read = run(service.get_session(**of, session_id=session.id))
    assert [said.timestamp for said in read.events] == list(range(1, 1_041))
    recent = GetSessionConfig(num_recent_events=1_010)
    read = run(service.get_session(**of, session_id=session.id, config=recent))
    assert [said.timestamp for said in read.events] == list(range(31, 1_041))


def test_a_reply_that_streams_is_not_kept(run, service, app):
    of = {"app_name": app, "user_id": "ann"}
    session = run(service.create_session(**of))
    run(service.append_event(session, Event(author="user", partial=True)))
    assert session.events == []
    assert run(service.get_session(**of, session_id=session.id)).events == []


def test_what_a_user_has(run, service, app):
    assert run(service.get_user_state(app_name=app, user_id="ann")) == {}
    session = run(service.create_session(app_name=app, user_id="ann"))
    for count in (1, 2):
        run(service.append_event(session, changing(user__count=count, own=1, app__all=1)))
    assert run(service.get_user_state(app_name=app, user_id="ann")) == {"count": 2}
    assert run(service.get_user_state(app_name=app, user_id="bob")) == {}
    assert run(service.get_user_state(app_name=app + "0", user_id="ann")) == {}


def test_a_call_that_is_answered_twice(run, service, client, app):
    """ADK's long-running tools send several results."""
    of = {"app_name": app, "user_id": "ann"}
    session = run(service.create_session(**of))
    call = types.FunctionCall(id="c1", name="refund", args={})
    run(service.append_event(session, Event(
        author="agent", content=types.Content(role="model", parts=[types.Part(function_call=call)])
    )))
    for status in ("pending", "approved"):
        answer = types.FunctionResponse(id="c1", name="refund", response={"status": status})
        content = types.Content(role="user", parts=[types.Part(function_response=answer)])
        said = Event(author="user", content=content)
        run(service.append_event(session, said))
        run(service.append_event(session.model_copy(deep=True), said))
    assert run(service.get_session(**of, session_id=session.id)) == session
    turns = client.get_history(f"adk/{app}/ann/{session.id}").turns
    assert [turn.role.name for turn in turns] == ["ASSISTANT", "TOOL", "USER"]
    assert "approved" in turns[-1].parts[0].text


def test_what_is_too_large_is_named(run, service, app):
    session = run(service.create_session(app_name=app, user_id="ann"))
    with pytest.raises(errors.InvalidArgument) as refused:
        run(service.append_event(session, changing(big="x" * 100_000)))
    assert refused.value.reason == "STATE_TOO_LARGE"
    assert session.events == []


def test_a_window_rather_than_all(run, client, app):
    budget = memoird.Budget(
        context_window=3_000, max_reply_tokens=500, safety_headroom=0, tool_result_headroom=0
    )
    window = Window(budget=budget)
    service = MemoirdSessionService(client.for_event_loops(), window=window)
    of = {"app_name": app, "user_id": "ann"}
    session = run(service.create_session(**of))
    for number in range(60):
        author = "user" if number % 2 == 0 else "agent"
        run(service.append_event(session, event(author, f"{number}: " + "parcel " * 60)))
    chosen = run(service.get_session(**of, session_id=session.id)).events
    own = {said.id for said in session.events}
    assert chosen[-1] == session.events[-1]
    assert len(chosen) < 30
    made = [said for said in chosen if said.id not in own]
    assert made and all(said.author == "user" and said.content.parts[0].text for said in made)
    every = GetSessionConfig(num_recent_events=1_000)
    whole = run(service.get_session(**of, session_id=session.id, config=every))
    assert whole.events == session.events


def test_what_a_window_says_in_memoirds_words_is_no_memory(run, client, app):
    memories = MemoirdMemoryService(client.for_event_loops())
    subject = f"{app}/ann"
    client.remember(subject, memoird.MemoryKind.USER, "Ann lives in Oslo")
    recall = memoird.RecallRequest(query="Where does Ann live?", subjects=[subject])
    policy = memoird.WindowPolicy(sliding_window=memoird.SlidingWindow(turns=4))
    service = MemoirdSessionService(client, window=Window(policy=policy, memories=recall))
    of = {"app_name": app, "user_id": "ann"}
    session = run(service.create_session(**of, session_id="1"))
    for number in range(9):
        run(service.append_event(session, event("user", f"parcel {number}")))
    chosen = run(service.get_session(**of, session_id="1"))
    said = [it.content.parts[0].text for it in chosen.events]
    assert "are not shown here" in said[0] and "Ann lives in Oslo" in said[-1]
    for _ in range(2):
        run(memories.add_session_to_memory(chosen))
    kept = {memory.content for memory in client.list_memories(subject).memories}
    assert kept == {"Ann lives in Oslo", *(f"parcel {number}" for number in range(5, 9))}


# About 24,000 tokens.
MUCH = " ".join(str(number * 7919) for number in range(6_000))


@pytest.mark.parametrize(
    "parts",
    [
        [types.Part(text=MUCH, thought=True, thought_signature=b"sig")],
        [
            types.Part(tool_call=types.ToolCall(id="s1", tool_type="GOOGLE_SEARCH_WEB", args={"query": "parcel"})),
            types.Part(
                tool_response=types.ToolResponse(
                    id="s1", tool_type="GOOGLE_SEARCH_WEB", response={"found": [MUCH]}
                )
            ),
            types.Part(text="In Oslo.", thought_signature=b"sig" * 1_000),
        ],
    ],
)
def test_what_the_model_is_sent_again_is_counted(run, service, client, app, parts):
    of = {"app_name": app, "user_id": "ann", "session_id": "1"}
    session = run(service.create_session(**of))
    for said in (
        event(text="Where is it?"),
        Event(author="agent", content=types.Content(role="model", parts=parts)),
        event(text="Since when?"),
    ):
        run(service.append_event(session, said))
    assert run(service.get_session(**of)).events == session.events
    counted = client.build_context(f"adk/{app}/ann/1").report.tokens_total
    assert 23_000 < counted < 26_000
    assert len(client.get_history(f"adk/{app}/ann/1").turns[1].client_json) < 5_000


def test_files_of_a_result_are_media(run, service, client, app):
    size = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (1024).to_bytes(4, "big") + (768).to_bytes(4, "big")
    screen = types.FunctionResponsePart.from_bytes(
        data=size + b"\xfb\xff\xbf" * 100_000, mime_type="image/png"
    )
    of = {"app_name": app, "user_id": "ann", "session_id": "1"}
    session = run(service.create_session(**of))
    call = types.FunctionCall(id="c1", name="look", args={})
    answer = types.FunctionResponse(id="c1", name="look", response={"seen": "a window"}, parts=[screen])
    # The second result is appended as text.
    for part in (types.Part(function_call=call), *[types.Part(function_response=answer)] * 2):
        said = Event(author="agent", content=types.Content(role="model", parts=[part]))
        run(service.append_event(session, said))
    assert run(service.get_session(**of)).events == session.events
    turn = client.get_history(f"adk/{app}/ann/1").turns[1]
    [file] = turn.parts[0].tool_result.parts
    assert file.media.media_type == "image/png" and len(turn.client_json) < 2_000
    assert client.build_context(f"adk/{app}/ann/1").report.tokens_total < 5_000


class Model(BaseLlm):
    """Requests a train once, then reports the result."""

    model: str = "fake"
    asked: list = []

    async def generate_content_async(self, llm_request, stream=False):
        self.asked.append(llm_request)
        last = llm_request.contents[-1].parts[0]
        if last.function_response:
            part = types.Part(text=f"There is {json.dumps(last.function_response.response)}.")
        else:
            part = types.Part(function_call=types.FunctionCall(name="trains", args={"to": "Oslo"}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def trains(to: str) -> str:
    """Finds a train."""
    return f"a train to {to}"


class Caller(BaseLlm):
    """Calls a tool 25 times, `at_once` in a reply."""

    model: str = "fake"
    asked: list = []
    at_once: int = 1

    async def generate_content_async(self, llm_request, stream=False):
        self.asked.append([*llm_request.contents])
        number, ended = len(self.asked), len(self.asked) > 25 // self.at_once
        call = types.Part(function_call=types.FunctionCall(name="look", args={"number": number}))
        parts = [types.Part(text="done")] if ended else [call] * self.at_once
        yield LlmResponse(content=types.Content(role="model", parts=parts))


# About 800 tokens.
FOUND = " ".join(str(number * 7919) for number in range(350))
SMALL = memoird.Budget(
    context_window=4_000, max_reply_tokens=500, safety_headroom=0, tool_result_headroom=0
)


def look(number: int) -> str:
    """Looks."""
    return FOUND


def ids_of(contents, kind):
    parts = (part for content in contents for part in content.parts)
    return [found.id for part in parts if (found := getattr(part, kind))]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_window_is_chosen_for_each_model_call(run, client, app, at_once):
    async def ask():
        model = Caller(asked=[], at_once=at_once)
        service = MemoirdSessionService(client, window=Window(budget=SMALL))
        agent = Agent(name="agent", model=model, tools=[look])
        runner = Runner(
            app=App(name=app, root_agent=agent, plugins=[MemoirdWindowPlugin(service)]),
            session_service=service,
            auto_create_session=True,
        )
        content = types.Content(role="user", parts=[types.Part(text="Where is it?")])
        said = runner.run_async(user_id="ann", session_id="1", new_message=content)
        assert [step async for step in said][-1].content.parts[0].text == "done"
        return model.asked

    asked = run(ask())
    assert len(asked) == 25 // at_once + 1
    for contents in asked:
        texts = [part.model_dump_json() for content in contents for part in content.parts]
        assert sum(map(len, texts)) < 18_000
        assert any("Where is it?" in text for text in texts)
        calls = ids_of(contents, "function_call")
        assert calls == ids_of(contents, "function_response")
    if at_once == 1:
        # The newest result, unchanged.
        assert all(FOUND in contents[-1].parts[-1].model_dump_json() for contents in asked[1:])
    everything = MemoirdSessionService(client)
    read = run(everything.get_session(app_name=app, user_id="ann", session_id="1"))
    assert len(read.events) == 2 * (25 // at_once) + 2


def test_a_window_is_for_the_call_after_all_results_and_keeps_instructions(run, client, app):
    async def ask():
        model = Caller(asked=[], at_once=5)
        service = MemoirdSessionService(client, window=Window(budget=SMALL))
        agents = [
            Agent(
                name=name,
                model=model,
                tools=[look],
                static_instruction="You look.",
                instruction="Today is Sunday.",
            )
            for name in ("one", "other")
        ]
        agent = ParallelAgent(name="both", sub_agents=agents)
        runner = Runner(
            app=App(name=app, root_agent=agent, plugins=[MemoirdWindowPlugin(service)]),
            session_service=service,
            auto_create_session=True,
        )
        content = types.Content(role="user", parts=[types.Part(text="Where is it?")])
        said = runner.run_async(user_id="ann", session_id="1", new_message=content)
        assert [step async for step in said]
        return model.asked

    for contents in run(ask()):
        calls, answers = (ids_of(contents, f"function_{it}") for it in ("call", "response"))
        assert len(calls) == len(answers)
        assert "Today is Sunday." in str(contents) and "Where is it?" in str(contents)


def test_a_runner(run, client, app):
    async def ask(runner, text):
        content = types.Content(role="user", parts=[types.Part(text=text)])
        said = runner.run_async(user_id="ann", session_id="1", new_message=content)
        return [step async for step in said][-1].content.parts[0].text

    service = MemoirdSessionService(client.for_event_loops(), window=Window())
    model = Model()
    agent = Agent(name="trains", model=model, tools=[trains])
    runner = Runner(app_name=app, agent=agent, session_service=service)
    run(service.create_session(app_name=app, user_id="ann", session_id="1"))
    for _ in range(2):
        assert run(ask(runner, "To Oslo, please.")) == 'There is {"result": "a train to Oslo"}.'
    assert [len(request.contents) for request in model.asked] == [1, 3, 5, 7]
    turns = client.get_history(f"adk/{app}/ann/1").turns
    assert [turn.role.name for turn in turns] == ["USER", "ASSISTANT", "TOOL", "ASSISTANT"] * 2


def test_the_example(client, monkeypatch):
    monkeypatch.setenv("MEMOIRD_ADDR", client.addr)
    names = example("memoird[adk]", {"model": Model()}, {'"gemini-2.5-flash"': "model"})
    assert names["answer"] == 'There is {"result": "a train to Oslo at 6:02"}.'


def test_a_user_is_erased(run, service, client, app):
    memories = MemoirdMemoryService(client.for_event_loops())
    for user in ("ann", "bob"):
        state = {"user:a": 1, "app:b": 2}
        session = run(service.create_session(app_name=app, user_id=user, state=state))
        run(service.append_event(session, event(text="I like tea.")))
        run(memories.add_session_to_memory(session))
    run(service.create_session(app_name=app, user_id="ann"))
    erased = run(service.erase_user(app_name=app, user_id="ann"))
    assert erased.done and erased.erased.turns == 1 and erased.erased.memories == 1
    left = run(service.list_sessions(app_name=app)).sessions
    assert [(session.user_id, session.state) for session in left] == [("bob", state)]
    assert run(service.get_user_state(app_name=app, user_id="ann")) == {}
    assert [search(run, memories, app, "tea", user) for user in ("ann", "bob")] == [[], ["I like tea."]]


# Memories.


@pytest.fixture
def memories(client):
    return MemoirdMemoryService(client.for_event_loops())


def said(text, id, **fields):
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return Event(id=id, author=fields.pop("author", "user"), content=content, **fields)


def talk(app, *events, user="ann", id="1"):
    return Session(app_name=app, user_id=user, id=id, events=list(events))


def search(run, memories, app, query, user="ann"):
    found = run(memories.search_memory(app_name=app, user_id=user, query=query)).memories
    return [memory.content.parts[0].text for memory in found]


TALK = [
    ("The ADK is a great toolkit.", "a"),
    ("I agree. The Agent Development Kit (ADK) rocks!", "b"),
    ("I like to code in Python.", "c"),
]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("Python", {TALK[2][0]}),
        ("development", {TALK[1][0]}),
        ("How about ADK?", {TALK[0][0], TALK[1][0]}),
        ("nonexistent", set()),
        ("  ", set()),
    ],
)
def test_what_was_said_is_found(run, memories, app, query, found):
    of_app = talk(app, *(said(text, id) for text, id in TALK), Event(author="user", id="d"))
    run(memories.add_session_to_memory(of_app))
    assert set(search(run, memories, app, query)) == found


def test_a_memory_says_who_and_when(run, memories, app):
    one = said("I like tea.", "e", author="agent", timestamp=1700000000.0)
    run(memories.add_session_to_memory(talk(app, one)))
    [memory] = run(
        memories.search_memory(app_name=app, user_id="ann", query="tea")
    ).memories
    assert (memory.author, memory.content.role) == ("agent", "model")
    assert memory.timestamp == "2023-11-14T22:13:20+00:00" and memory.id


def test_a_session_without_events(run, memories, app):
    run(memories.add_session_to_memory(talk(app)))
    assert search(run, memories, app, "anything") == []


def test_a_session_that_is_added_again(run, memories, app):
    first = said("I like tea.", "f")
    run(memories.add_session_to_memory(talk(app, first)))
    run(memories.add_session_to_memory(talk(app, first, said("Tea with milk, that is.", "g"))))
    assert sorted(search(run, memories, app, "tea")) == ["I like tea.", "Tea with milk, that is."]


def test_some_events_are_added(run, memories, app):
    of = {"app_name": app, "user_id": "ann"}
    run(memories.add_events_to_memory(**of, events=[said("I like tea.", "h")]))
    again = [said("I like tea, I say.", "h")]
    run(memories.add_events_to_memory(**of, events=again, session_id="1"))
    assert search(run, memories, app, "tea") == ["I like tea."]


def test_facts_are_added(run, memories, app):
    content = types.Content(parts=[types.Part(text="Ann likes tea.")])
    fact = MemoryEntry(content=content, timestamp="2026-05-01T12:00:00Z")
    run(memories.add_memory(app_name=app, user_id="ann", memories=[fact]))
    assert search(run, memories, app, "tea") == ["Ann likes tea."]


def test_a_memory_is_deleted_by_its_users_service(run, memories, app):
    of = {"app_name": app, "user_id": "ann"}
    talked = talk(app, said("I like tea.", "m"))
    run(memories.add_session_to_memory(talked))
    [memory] = run(memories.search_memory(**of, query="tea")).memories
    run(memories.delete_memory(app_name=app, user_id="bob", memory_id=memory.id))
    assert search(run, memories, app, "tea") == ["I like tea."]
    for _ in range(2):
        run(memories.delete_memory(**of, memory_id=memory.id))
        assert search(run, memories, app, "tea") == []
        run(memories.add_session_to_memory(talked))
    run(memories.add_session_to_memory(talk(app, said("I like tea.", "n"))))
    assert search(run, memories, app, "tea") == ["I like tea."]


@pytest.mark.parametrize(("app_2", "user_2"), [("{}", "bob"), ("{}/ann", ""), ("{}-2", "ann")])
def test_memories_are_of_one_user_of_one_app(run, memories, app, app_2, user_2):
    run(memories.add_session_to_memory(talk(app, said("This is a secret.", "i"))))
    assert search(run, memories, app_2.format(app), "secret", user=user_2) == []
    assert search(run, memories, app, "secret") == ["This is a secret."]


@pytest.mark.parametrize(
    ("text", "query", "count"),
    [
        ("私の名前は太郎です", "太郎", 1),
        ("私の名前は太郎です", "天気", 0),
        ("我喜欢机器学习", "机器学习", 1),
        ("我喜欢机器学习", "天气预报", 0),
        ("제 이름은 민수입니다", "민수입니다", 1),
        ("Меня зовут Алексей", "Алексей", 1),
        ("太郎 works at ABC Corp", "ABC", 1),
        ("私はPythonを使う", "Python", 1),
        ("un cafe\u0301", "caf\u00e9", 1),
        ("I like to code in Python.", "thon", 0),
    ],
)
def test_any_script(run, memories, app, text, query, count):
    run(memories.add_session_to_memory(talk(app, said(text, "j"))))
    assert len(search(run, memories, app, query)) == count


def test_so_many_at_most(run, client, app):
    memories = MemoirdMemoryService(client.for_event_loops(), limit=3)
    notes = [said(f"note {number} about work", f"k{number}") for number in range(20)]
    run(memories.add_session_to_memory(talk(app, *notes)))
    assert len(search(run, memories, app, "work")) == 3


def test_long_texts_are_cut(run, memories, app):
    run(memories.add_session_to_memory(talk(app, said("tea " + "ü" * 9_000, "l"))))
    [text] = search(run, memories, app, "tea" + " x" * 5_000)
    assert text.startswith("tea ü") and len(text.encode()) <= 8_192


HALF = "\ud83d"


def test_half_a_character_as_models_sometimes_leave_it(run, service, client, app):
    of = {"app_name": app, "user_id": f"ann{HALF}"}
    for call in (service.get_session, service.create_session):
        with pytest.raises(errors.InvalidArgument):
            run(call(**of, session_id=HALF))
    session = run(service.create_session(app_name=app, user_id="ann"))
    with pytest.raises(errors.InvalidArgument) as refused:
        run(service.append_event(session, event(text=f"a word and {HALF}")))
    assert refused.value.field == "turns[0].parts[0].text"
    with pytest.raises(errors.InvalidArgument):
        run(service.append_event(session, event(text="a word", id=HALF)))
    memories = MemoirdMemoryService(client.for_event_loops())
    session.events.append(event(text=f"The parcel is red {HALF}", id=HALF))
    run(memories.add_session_to_memory(session))
    found = run(memories.search_memory(app_name=app, user_id="ann", query="parcel"))
    assert "parcel" in found.memories[0].content.parts[0].text
