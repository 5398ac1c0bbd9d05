"""The checkpointer and the store for LangGraph, beyond LangGraph's own test suites."""

import asyncio
import itertools
import time
from typing import Annotated, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.store.base import PutOp
from langgraph.types import Command, interrupt

import memoird
from memoird import errors
from memoird.langgraph import MemoirdIndex, MemoirdSaver, MemoirdStore

THREADS = (f"thread-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def client():
    with memoird.local() as client:
        yield client


@pytest.fixture
def thread():
    return {"configurable": {"thread_id": next(THREADS)}}


class State(TypedDict, total=False):
    steps: Annotated[list[str], lambda old, new: [*old, *new]]


def graph(saver, store=None):
    """A graph with an interrupt in its second step."""

    def first(state: State) -> State:
        return {"steps": ["first"]}

    def second(state: State) -> State:
        return {"steps": [f"second: {interrupt('go on?')}"]}

    builder = StateGraph(State).add_sequence([first, second]).add_edge(START, "first")
    return builder.compile(checkpointer=saver, store=store)


def test_a_thread_goes_on_where_it_stopped(client, thread):
    stopped = graph(MemoirdSaver(client)).invoke({"steps": []}, thread)
    assert stopped["__interrupt__"][0].value == "go on?"
    done = graph(MemoirdSaver(client)).invoke(Command(resume="yes"), thread)
    assert done == {"steps": ["first", "second: yes"]}


def test_the_same_in_an_event_loop(client, thread):
    async def go():
        saver = MemoirdSaver(client.for_event_loops())
        await graph(saver).ainvoke({"steps": []}, thread)
        return await graph(saver).ainvoke(Command(resume="yes"), thread)

    assert asyncio.run(go()) == {"steps": ["first", "second: yes"]}
    # A thread can be started with one kind of client and read with the other.
    assert graph(MemoirdSaver(client)).get_state(thread).values["steps"][-1] == "second: yes"


def test_a_thread_goes_back(client, thread):
    made = graph(MemoirdSaver(client))
    made.invoke({"steps": []}, thread)
    made.invoke(Command(resume="yes"), thread)
    history = list(made.get_state_history(thread))
    assert [len(state.values.get("steps", [])) for state in history] == [2, 1, 0, 0]
    assert made.invoke(None, history[1].config)["__interrupt__"]
    assert made.invoke(Command(resume="no"), thread) == {"steps": ["first", "second: no"]}
    limited = list(made.get_state_history(thread, limit=2))
    assert limited == list(made.get_state_history(thread))[:2]


def test_a_graph_in_a_graph(client, thread):
    saver = MemoirdSaver(client)
    inner = graph(True)
    outer = StateGraph(State).add_node("inner", inner).add_edge(START, "inner")
    made = outer.compile(checkpointer=saver)
    made.invoke({"steps": []}, thread)
    state = made.get_state(thread, subgraphs=True)
    assert state.tasks[0].state.values == {"steps": ["first"]}
    assert made.invoke(Command(resume="yes"), thread)["steps"][-1] == "second: yes"
    saver.delete_thread(thread["configurable"]["thread_id"])
    assert list(saver.list(thread)) == []


def checkpoint(id, **values):
    return {"v": 1, "id": id, "ts": id, "channel_values": values, "channel_versions": {},
            "versions_seen": {}, "updated_channels": None}


def placed(thread, id=None, ns=""):
    names = thread["configurable"] | {"checkpoint_ns": ns}
    return {"configurable": names | ({"checkpoint_id": id} if id else {})}


def test_ids_that_begin_alike(client, thread):
    saver = MemoirdSaver(client)
    for id in ["1", "1-a", "1-a-b", "1.5", "10"]:
        saver.put(placed(thread), checkpoint(id, own=id), {"source": "loop"}, {})
        saver.put_writes(placed(thread, id), [("channel", id)], "task")
    for id in ["1", "1-a", "1-a-b", "1.5", "10"]:
        found = saver.get_tuple(placed(thread, id))
        assert found.checkpoint["channel_values"] == {"own": id}
        assert found.pending_writes == [("task", "channel", id)]
    listed = [found.checkpoint["id"] for found in saver.list(placed(thread))]
    assert listed == ["10", "1.5", "1-a-b", "1-a", "1"]
    assert saver.get_tuple(placed(thread)).checkpoint["id"] == "10"


def test_writes_that_come_before_their_checkpoint(client, thread):
    saver = MemoirdSaver(client)
    saver.put(placed(thread), checkpoint("1"), {}, {})
    saver.put_writes(placed(thread, "2"), [("channel", 2)], "task")
    assert saver.get_tuple(placed(thread)).checkpoint["id"] == "1"
    assert saver.get_tuple(placed(thread, "2")) is None
    saver.put(placed(thread, "1"), checkpoint("2"), {}, {})
    found = saver.get_tuple(placed(thread))
    assert found.pending_writes == [("task", "channel", 2)]
    assert found.parent_config == placed(thread, "1")


def test_writes_whose_checkpoint_is_still_to_come_are_not_pruned(client, thread):
    saver = MemoirdSaver(client)
    saver.put_writes(placed(thread, "1"), [("channel", 1)], "task")
    saver.prune([thread["configurable"]["thread_id"]])
    saver.put(placed(thread), checkpoint("1"), {}, {})
    assert saver.get_tuple(placed(thread)).pending_writes == [("task", "channel", 1)]


def test_what_a_task_wrote_first_stands(client, thread):
    saver = MemoirdSaver(client)
    saver.put(placed(thread), checkpoint("1"), {}, {})
    saver.put_writes(placed(thread, "1"), [("a", 1)], "task")
    saver.put_writes(placed(thread, "1"), [("a", 2), ("b", 3), ("__error__", "x")], "task")
    saver.put_writes(placed(thread, "1"), [("__error__", "y")], "task")
    writes = saver.get_tuple(placed(thread)).pending_writes
    assert sorted(writes) == [("task", "__error__", "y"), ("task", "a", 1), ("task", "b", 3)]


def test_more_writes_than_one_transaction_has(client, thread):
    saver = MemoirdSaver(client)
    saver.put(placed(thread), checkpoint("1"), {}, {})
    writes = [(f"channel-{number}", "x" * 40_000) for number in range(300)]
    saver.put_writes(placed(thread, "1"), writes, "task")
    found = saver.get_tuple(placed(thread)).pending_writes
    assert [(channel, value) for _, channel, value in found] == writes


def test_a_checkpoint_that_is_too_large(client, thread):
    saver = MemoirdSaver(client)
    with pytest.raises(errors.InvalidArgument, match="document_bytes"):
        saver.put(placed(thread), checkpoint("1", own="x" * (5 << 20)), {}, {})


@pytest.fixture
def store(client, request):
    return MemoirdStore(client, namespace=("store", request.node.name[:200]))


def test_items_of_both_kinds_of_program(client, store):
    store.put(("users", "ann"), "tea", {"milk": True})

    async def read():
        item = await store.aget(("users", "ann"), "tea")
        await store.adelete(("users", "ann"), "tea")
        return item

    assert asyncio.run(read()).value == {"milk": True}
    assert store.get(("users", "ann"), "tea") is None


def test_search_by_filter_and_page(store):
    for number in range(30):
        store.put(("users", f"u{number % 3}"), f"{number:02}", {"n": number, "in": {"even": number % 2 == 0}})
    found = store.search(("users",), filter={"n": {"$gte": 10}, "in": {"even": True}}, limit=100)
    assert sorted(item.value["n"] for item in found) == list(range(10, 30, 2))
    pages = [store.search(("users",), limit=7, offset=at) for at in range(0, 35, 7)]
    assert len({item.key for page in pages for item in page}) == 30
    assert store.search((), query="nobody looks at it", limit=1)


def test_items_of_more_bytes_than_one_call_takes(store):
    value = {"text": "\u00fc" * 1_500_000}
    store.batch([PutOp(("large",), key, value) for key in "abc"])
    assert [store.get(("large",), key).value for key in "abc"] == [value] * 3


def test_items_end(store):
    store.put(("a",), "long", {"n": 1}, ttl=10)
    store.put(("a",), "short", {"n": 2}, ttl=0.0001)
    store.put(("a",), "ever", {"n": 3})
    gone = {item.key for item in store.search(("a",))}
    while "short" in gone:
        gone = {item.key for item in store.search(("a",))}
    assert gone == {"long", "ever"}


def vectors(texts):
    return [[float(word in text) for word in ("tea", "parcel")] for text in texts]


@pytest.mark.parametrize("index", [{"dims": 2, "embed": vectors, "fields": ["text"]}, MemoirdIndex(fields=["text"])])
def test_what_finds_an_item_ends_with_the_item_and_not_before(client, index):
    space = f"ends-{type(index).__name__}"
    store = MemoirdStore(client, index=index, namespace=("store", space))
    ann, minutes = (space, "notes"), 0.03
    store.put(ann, "kept", {"text": "Ann drinks tea."}, ttl=minutes)
    store.put(ann, "gone", {"text": "Bob drinks tea, too."}, ttl=minutes)
    while store.get(ann, "gone", refresh_ttl=False):
        # Each read restarts its time to live.
        assert store.get(ann, "kept")
    found = store.search(ann, query="tea")
    assert [(it.key, it.score is not None) for it in found] == [("kept", True)]
    if isinstance(index, MemoirdIndex):
        store.put(ann, "ever", {"text": "Ann drinks tea."})
    while store.get(ann, "kept", refresh_ttl=False):
        pass
    found = {it.key for it in store.search(ann, query="tea")}
    assert found == ({"ever"} if isinstance(index, MemoirdIndex) else set())
    stay, ends = (1 if isinstance(index, MemoirdIndex) else 0), time.monotonic() + 30
    while len(client.list_documents(["store", f"{space}.index"]).documents) != stay:
        assert time.monotonic() < ends, "something is left of what has ended"
    memories = client.recall("tea", [space]).hits
    assert {hit.memory.content for hit in memories} <= {"Ann drinks tea."}


def test_a_batch_reads_before_it_writes(store):
    from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp

    store.put(("a",), "1", {"n": 1})
    got, put, searched, spaces = store.batch(
        [GetOp(("a",), "1"), PutOp(("a",), "1", {"n": 2}), SearchOp(("a",)), ListNamespacesOp()]
    )
    assert (got.value, put, searched[0].value, spaces) == ({"n": 1}, None, {"n": 1}, [("a",)])
    assert store.get(("a",), "1").value == {"n": 2}


def test_items_of_an_index_are_found_where_an_answer_was_lost(client, monkeypatch):
    store = MemoirdStore(client, index=MemoirdIndex(fields=["text"]), namespace=("store", "lost"))
    batch, lost = client.batch_documents, []

    def batch_documents(operations):
        done = batch(operations)
        writes = [write for it in operations if (write := it.put or it.delete)]
        if any("memories" in write.namespace for write in writes) and len(lost) < 2:
            lost.append(operations)
            raise errors.Unavailable("the answer was lost")
        return done

    monkeypatch.setattr(client, "batch_documents", batch_documents)
    store.put(("ann-loses",), "1", {"text": "Ann lost her umbrella."})
    assert [it.key for it in store.search(("ann-loses",), query="umbrella")] == ["1"]
    store.delete(("ann-loses",), "1")
    assert len(lost) == 2 and client.list_memories("ann-loses").memories == []


def test_an_item_that_is_put_twice_at_once_is_forgotten_whole(client, monkeypatch):
    store = MemoirdStore(client, index=MemoirdIndex(fields=["text"]), namespace=("store", "at once"))
    ann, batch, raced = ("ann-at-once",), client.batch_documents, []

    def batch_documents(operations):
        # Runs between the reads of a put and its writes of memories.
        if len(raced) < 2 and any(it.put and "memories" in it.put.namespace for it in operations):
            raced.append(operations)
            store.put(ann, "1", {"text": f"Ann has {len(raced)} umbrellas."})
        return batch(operations)

    monkeypatch.setattr(client, "batch_documents", batch_documents)
    store.put(ann, "1", {"text": "Ann lost her umbrella."})
    assert len(raced) == 2 and len(client.list_memories(ann[0]).memories) == 1
    store.delete(ann, "1")
    assert client.list_memories(ann[0]).memories == []


def test_the_same_words_in_many_namespaces(client):
    store = MemoirdStore(client, index=MemoirdIndex(fields=["text"]), namespace=("store", "many"))
    users = [f"user-{number}" for number in range(33)]
    for user in users:
        store.put(("wishes", user), "1", {"text": "Prefers short answers."})
    found = [user for user in users if store.search(("wishes", user), query="short answers")]
    assert found == users
    for user in users:
        store.delete(("wishes", user), "1")
    assert client.list_memories("wishes").memories == []


def test_what_fits_a_filter_is_found_behind_the_best_hundred(client):
    store = MemoirdStore(client, index=MemoirdIndex(fields=["text"]), namespace=("store", "behind"))
    puts = [PutOp(("behind",), f"{number}", {"text": f"Tea, tea, tea {number}", "of": "ann"}) for number in range(100)]
    last = PutOp(("behind",), "last", {"text": "A note on parcels that names tea once, and trains.", "of": "bob"})
    store.batch([*puts, last])
    found = store.search(("behind",), query="tea", filter={"of": "bob"})
    assert [(item.key, item.score) for item in found] == [("last", None)]
    assert len(store.search(("behind",), query="tea", limit=200)) == 100


def test_items_that_memoird_finds(client, store):
    store = MemoirdStore(client, index=MemoirdIndex(fields=["text"]), namespace=("store", "found"))
    ann = ("ann-finds", "notes")
    store.put(ann, "1", {"text": "Ann drinks tea in the morning.", "n": 1})
    store.put(ann, "2", {"text": "The parcel is in Oslo.", "n": 2})
    store.put((*ann, "below"), "1", {"text": "Tea is sold out.", "n": 3})
    store.put(("bob-finds",), "1", {"text": "Bob drinks tea."})
    store.put(ann, "3", {"text": "Tea, but nobody is to find it."}, index=False)

    def found(query, place=ann, **how):
        return [(it.namespace, it.key) for it in store.search(place, query=query, **how)]

    assert found("Who drinks tea?") == [(ann, "1"), ((*ann, "below"), "1")]
    assert found("tea", (*ann, "below")) == [((*ann, "below"), "1")]
    assert found("tea", filter={"n": {"$lt": 3}}) == [(ann, "1")]
    assert found("tea", limit=1, offset=1) and not found("tea", offset=2)
    store.put(ann, "1", {"text": "Ann drinks coffee."})
    store.put((*ann, "below"), "2", {"text": "Ann drinks coffee."})
    assert (ann, "1") not in found("tea")
    # For equal texts, the newer item.
    assert found("coffee") == [((*ann, "below"), "2"), (ann, "1")]
    store.delete(ann, "1")
    assert found("coffee") == [((*ann, "below"), "2")]
    store.delete((*ann, "below"), "2")
    assert found("coffee") == []
    assert client.list_memories("ann-finds").memories[0].content == "The parcel is in Oslo."
    with pytest.raises(ValueError, match="one label"):
        store.search((), query="tea")
