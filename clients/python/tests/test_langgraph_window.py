"""The window of a graph's messages."""

import asyncio
import itertools
import json
import sys
from concurrent import futures
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from readme import example
from typing_extensions import TypedDict

import memoird
from memoird.langgraph import MemoirdSaver, Window, window

window_module = sys.modules["memoird.langgraph.window"]

THREADS = (f"window-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def client():
    with memoird.local() as client:
        yield client


@pytest.fixture
def thread():
    return {"configurable": {"thread_id": next(THREADS)}}


def asked(thread, chosen, messages):
    return chosen.invoke({"messages": messages}, thread)["llm_input_messages"]


def talk(count):
    kinds = itertools.cycle([HumanMessage, AIMessage])
    words = "parcel " * 60
    return [kind(f"{n}: {words}", id=f"m{n}") for n, kind in zip(range(count), kinds, strict=False)]


def test_a_window_is_of_the_messages_themselves(client, thread):
    chosen = window(client=client)
    call = {"id": "c1", "name": "find", "args": {"order": 7}}
    messages = [
        HumanMessage("Where is my parcel?", id="1"),
        AIMessage("", id="2", tool_calls=[call], additional_kwargs={"own": 1}),
        ToolMessage("in Oslo", id="3", tool_call_id="c1"),
    ]
    assert asked(thread, chosen, messages[:1]) == messages[:1]
    assert asked(thread, chosen, messages) == messages
    assert asked(thread, chosen, messages) == messages
    turns = client.get_history(thread["configurable"]["thread_id"]).turns
    assert [turn.role.name for turn in turns] == ["USER", "ASSISTANT", "TOOL"]


def test_a_window_has_a_budget(client, thread):
    small = memoird.Budget(
        context_window=3_000, max_reply_tokens=500, safety_headroom=0, tool_result_headroom=0
    )
    chosen, messages = window(Window(budget=small), client=client), talk(301)
    given = asked(thread, chosen, messages)
    assert given[-1] is messages[-1] and len(given) < 30
    assert any(message not in messages for message in given), "what is left out is told of"
    turns = client.get_history(
        thread["configurable"]["thread_id"], scope=memoird.HistoryScope.JOURNAL
    ).turns
    assert len(turns) == 301


def test_messages_that_were_changed_are_told_anew(client, thread):
    chosen, messages = window(client=client), talk(6)
    asked(thread, chosen, messages[:5])
    other = HumanMessage("other words", id=messages[2].id)
    for changed in (
        messages[:3],
        [*messages[:2], *messages[4:]],
        messages,
        [*messages[:2], other, *messages[3:]],
    ):
        assert asked(thread, chosen, changed) == changed
        kept = client.get_history(thread["configurable"]["thread_id"]).turns
        assert len(kept) == len(changed)


def test_a_call_reads_only_the_new_messages_of_a_long_thread(client, thread, monkeypatch):
    chosen, messages = window(client=client), talk(2_001)
    asked(thread, chosen, messages[:2_000])
    written = []
    dumps = json.dumps
    monkeypatch.setattr(window_module.json, "dumps", lambda it, **how: written.append(it) or dumps(it, **how))
    assert asked(thread, chosen, messages)[-1] is messages[-1]
    # Copies with the same contents, as a checkpointer makes them, are the same messages.
    copies = [message.model_copy() for message in messages]
    assert asked(thread, chosen, copies)[-1] is copies[-1]
    assert [it[0] for it in written if isinstance(it, list)] == ["m2000"]
    # A message that was changed in place is a different one.
    copies[3].content = "other words"
    asked(thread, chosen, copies)
    first = client.get_history(
        thread["configurable"]["thread_id"], scope=memoird.HistoryScope.JOURNAL, after_seq=2_001, limit=4
    )
    assert [turn.parts[0].text for turn in first.turns][3] == "other words"


def test_a_call_that_somebody_changed_is_told_anew(client, thread):
    chosen = window(client=client)

    def calling(order):
        call = {"id": "c1", "name": "find", "args": {"order": order}}
        return [HumanMessage("Where is it?", id="1"), AIMessage("", id="2", tool_calls=[call])]

    for order in (7, 8):
        assert asked(thread, chosen, calling(order)) == calling(order)
    turns = client.get_history(thread["configurable"]["thread_id"]).turns
    assert [turn.parts[-1].tool_use.input for turn in turns[1:]] == [{"order": 8}]


def test_messages_of_any_provider(client, thread):
    blocks = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "parcel"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "text", "text": "It is in Oslo.", "citations": []},
    ]
    pdf = {"type": "media", "mime_type": "application/pdf", "data": "JVBERi0="}
    messages = [
        HumanMessage([{"type": "text", "text": "Where is it?"}, pdf], id="1"),
        AIMessage(blocks, id="2"),
        HumanMessage("Since when?", id="4"),
    ]
    assert asked(thread, window(client=client), messages) == messages
    turns = client.get_history(thread["configurable"]["thread_id"]).turns
    assert turns[1].parts[0].text == "It is in Oslo."


def test_what_others_had_said_before_stays(client, thread):
    id, chosen, messages = thread["configurable"]["thread_id"], window(client=client), talk(4)
    client.append(id, [memoird.user("Where is it?"), memoird.assistant("In Oslo.")])
    for own in (messages[:3], messages, [messages[0], messages[3]], messages[1:2]):
        given = asked(thread, chosen, own)
        assert [message.content for message in given[:2]] == ["Where is it?", "In Oslo."]
        assert given[2:] == own
    assert [turn.seq for turn in client.get_history(id).turns][:2] == [1, 2]


def test_steps_that_run_at_once_have_the_same_window(client, thread):
    chosen, messages = window(client=client), talk(12)
    with futures.ThreadPoolExecutor(8) as threads:
        for count in (3, 6, 9, 12):
            given = list(threads.map(lambda _: asked(thread, chosen, messages[:count]), range(8)))
            assert given == [messages[:count]] * 8
    turns = client.get_history(thread["configurable"]["thread_id"]).turns
    assert [turn.client_id for turn in turns] == [message.id for message in messages]


class Interrupted(memoird.Client):
    """Runs a callback before it requests a window."""

    before = None

    def build_context(self, *args, **kwargs):
        before, self.before = self.before, None
        if before:
            before()
        return super().build_context(*args, **kwargs)


def test_a_window_is_never_of_what_another_step_told(client, thread):
    slow, own = Interrupted(client.addr), talk(3)
    chosen = window(client=slow)
    assert asked(thread, chosen, own) == own
    others = [HumanMessage("Something else", id="other")]
    slow.before = lambda: asked(thread, window(client=client), others)
    assert asked(thread, chosen, own) == own


def test_steps_that_run_at_once_have_each_its_own_messages(client, thread):
    chosen, messages = window(client=client), talk(8)
    with futures.ThreadPoolExecutor(8) as threads:
        for _ in range(3):
            given = list(threads.map(lambda message: asked(thread, chosen, [message]), messages))
            assert given == [[message] for message in messages]


def test_subgraphs_have_sessions_of_their_own(client, thread):
    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]

    class Own(TypedDict):
        notes: Annotated[list[Any], add_messages]

    def thinks(key):
        chosen = window(client=client, messages_key=key)

        def think(state, config):
            assert chosen.invoke(state, config)["llm_input_messages"] == state[key]
            return {key: [AIMessage(f"thought of {len(state[key])}")]}

        return think

    def asks(graph):
        def ask(state):
            said = graph.invoke({"notes": [HumanMessage(state["messages"][-1].content)]})
            assert interrupt(len(said["notes"])) == "on"

        return ask

    notes = StateGraph(Own).add_node("think", thinks("notes")).add_edge(START, "think")
    builder = StateGraph(State).add_node("reply", thinks("messages"))
    for name in ("one", "two"):
        builder.add_node(name, asks(notes.compile(checkpointer=True))).add_edge(START, name)
    builder.add_edge(["one", "two"], "reply")
    graph = builder.compile(checkpointer=MemoirdSaver(client))
    for turn in (1, 2, 3):
        graph.invoke({"messages": [HumanMessage(f"question {turn}")]}, thread)
        waiting = graph.get_state(thread).interrupts
        assert [it.value for it in waiting] == [2 * turn] * 2
        said = graph.invoke(Command(resume={it.id: "on" for it in waiting}), thread)
        assert len(said["messages"]) == 2 * turn
    id = thread["configurable"]["thread_id"]
    # The model's answer is appended with the next message.
    for name in (id, f"{id}|one", f"{id}|two"):
        assert client.get_session(name).session.last_seq == 5


def test_a_state_may_be_a_model_and_have_no_messages(client, thread):
    class State(BaseModel):
        messages: list[Any]

    chosen, messages = window(client=client), talk(2)
    for said in ([], messages):
        given = chosen.invoke(State(messages=said), thread)
        assert given == {"llm_input_messages": said}


def test_a_window_in_an_event_loop(client, thread):
    chosen, messages = window(client=client.for_event_loops()), talk(3)
    given = asyncio.run(chosen.ainvoke({"messages": messages}, thread))
    assert given == {"llm_input_messages": messages}


def test_messages_of_more_bytes_than_one_call_takes(client, thread):
    chosen = window(client=client)
    messages = [HumanMessage(f"{number}: " + "parcel " * 130_000) for number in range(10)]
    small = HumanMessage("Where is it?")
    assert asked(thread, chosen, [*messages, small])[-1] == small
    turns = client.get_session(thread["configurable"]["thread_id"]).session.last_seq
    assert turns == 11


class Model(GenericFakeChatModel):
    """Gives scripted answers and records its input."""

    asked: list[Any] = []

    def _generate(self, messages, *args, **kwargs):
        self.asked.append(messages)
        return super()._generate(messages, *args, **kwargs)


def test_the_example(client, monkeypatch):
    monkeypatch.setenv("MEMOIRD_ADDR", client.addr)
    fake = Model(messages=iter([AIMessage("In Oslo."), AIMessage("Since noon.")]))
    provider = SimpleNamespace(ChatOpenAI=lambda model: fake)
    monkeypatch.setitem(sys.modules, "langchain_openai", provider)
    assert example("memoird[langgraph]", {})["answer"] == "Since noon."
    assert [len(messages) for messages in fake.asked] == [1, 3]


def test_what_is_no_window_is_refused():
    with pytest.raises(memoird.errors.InvalidArgument, match="window takes a memoird Window"):
        window("gpt-4.1")
