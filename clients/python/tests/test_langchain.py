"""LangChain's chat message history against a real daemon."""

import asyncio
import json
import sys
from types import SimpleNamespace

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables.history import RunnableWithMessageHistory
from readme import example

import memoird
from memoird import errors
from memoird.langchain import MemoirdByteStore, MemoirdChatMessageHistory, Window

# Nine of these exceed the size of one call.
LARGE = "parcel " * 130_000
PNG = "iVBORw0KGgo=" * 40_000
CALL = {"id": "c1", "name": "find", "args": {"order": 7.5, "deep": [{"a": None}]}}
MESSAGES = [
    SystemMessage("Be brief."),
    HumanMessage("Where is my parcel? \u00fc", id="m1", name="ann", example=True),
    AIMessage(
        [{"type": "text", "text": "Let me look. " * 20}, {"type": "x", "$memoird": 1}],
        tool_calls=[CALL],
        invalid_tool_calls=[{"id": "c2", "name": "f", "args": "{", "error": "no JSON"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        response_metadata={"model": "m"},
    ),
    ToolMessage("in Oslo " * 100, tool_call_id="c1", artifact={"raw": [1]}, status="error"),
    ToolMessage("of a call that nobody knows", tool_call_id="c9"),
    AIMessage("In Oslo.", additional_kwargs={"refusal": None}),
    HumanMessage(
        [
            "What is this?",
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
            {"type": "image", "base64": PNG, "mime_type": "image/png"},
        ]
    ),
    FunctionMessage("3", name="add"),
    ChatMessage("Aside.", role="narrator"),
    HumanMessage([{"type": "text", "text": "a", "$memoird": [0, "text"]}, {"$memoird": [0, "text"]}]),
    HumanMessage(""),
    AIMessage("", tool_calls=[{"id": None, "name": "f", "args": {}}]),
]


@pytest.fixture(scope="module")
def daemon():
    with memoird.local() as client:
        yield client


def test_each_message_is_given_back_equal(daemon):
    for number, message in enumerate(MESSAGES):
        history = MemoirdChatMessageHistory(f"one {number}", client=daemon)
        history.add_message(message)
        assert history.messages == [message]


@pytest.mark.parametrize(
    ("block", "kind", "uri"),
    [
        ({"type": "image_url", "image_url": {"url": "https://a/b.png"}}, "", "https://a/b.png"),
        ({"type": "image_url", "image_url": "https://a/b.png"}, "", "https://a/b.png"),
        ({"type": "image", "url": "https://a/b.png", "mime_type": "image/png"}, "image/png", "https://a/b.png"),
        ({"type": "file", "base64": "AAAA", "mime_type": "a/b"}, "a/b", "data:a/b;base64,AAAA"),
        ({"type": "image", "source": {"type": "base64", "media_type": "a/b", "data": "AAAA"}}, "a/b", "data:a/b;base64,AAAA"),
        ({"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}, "", "https://a/b.png"),
        ({"type": "file", "file": {"file_data": "data:a/b;base64,AAAA"}}, "", "data:a/b;base64,AAAA"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "audio/wav", "data:audio/wav;base64,AAAA"),
    ],
)
def test_media_of_any_provider_is_seen(daemon, block, kind, uri):
    session = json.dumps(block)
    MemoirdChatMessageHistory(session, client=daemon).add_message(HumanMessage([block]))
    [part] = daemon.get_history(session).turns[0].parts
    assert (part.media.media_type, part.media.uri) == (kind, uri)
    assert MemoirdChatMessageHistory(session, client=daemon).messages == [HumanMessage([block])]


def test_all_messages_and_those_set_instead(daemon):
    history = MemoirdChatMessageHistory("all", client=daemon, subject="ann")
    history.add_messages(MESSAGES)
    assert history.messages == MESSAGES
    history.messages = MESSAGES[:2]
    assert history.messages == MESSAGES[:2]
    history.clear()
    assert history.messages == []
    history.set_messages(MESSAGES[5:])
    assert history.messages == MESSAGES[5:]
    history.erase()
    assert history.messages == []
    history.clear()


def test_many_messages_in_one_call(daemon):
    history = MemoirdChatMessageHistory("many", client=daemon)
    messages = [HumanMessage(str(number)) for number in range(1100)]
    history.add_messages(messages)
    assert history.messages == messages
    history.set_messages(messages[:600])
    assert history.messages == messages[:600]


def test_more_bytes_than_one_call_takes(daemon):
    history = MemoirdChatMessageHistory("bytes", client=daemon)
    messages = [HumanMessage(LARGE + str(number)) for number in range(10)]
    history.add_messages(messages)
    assert history.messages == messages
    history.set_messages(messages[1:])
    assert history.messages == messages[1:]
    store = MemoirdByteStore(["bytes"], client=daemon)
    pairs = [(key, bytes(4 << 20)) for key in "ab"]
    store.mset(pairs)
    assert store.mget(["a", "b"]) == [value for _, value in pairs]


@pytest.mark.parametrize("own", [True, False])
def test_in_an_event_loop(daemon, own):
    calls = {"async_client": memoird.AsyncClient(daemon.addr)} if own else {"client": daemon}

    async def talk():
        history = MemoirdChatMessageHistory(f"loop {own}", **calls)
        await history.aadd_messages(MESSAGES[:4])
        assert await history.aget_messages() == MESSAGES[:4]
        await history.aclear()
        assert await history.aget_messages() == []

    asyncio.run(talk())


@pytest.mark.parametrize("kind", ["client", "async_client"])
def test_a_client_of_one_kind_is_enough_for_all_calls(daemon, monkeypatch, kind):
    # Using the environment's daemon would fail.
    monkeypatch.setenv("MEMOIRD_ADDR", "ftp://nowhere")
    calls = {kind: daemon if kind == "client" else daemon.for_event_loops()}
    history = MemoirdChatMessageHistory(f"one {kind}", **calls)
    history.set_messages(MESSAGES[:2])
    assert history.messages == MESSAGES[:2]
    history.clear()
    history.add_messages(MESSAGES[:1])
    history.erase()
    store = MemoirdByteStore(["one", kind], **calls)
    store.mset([("a", b"1")])
    assert (store.mget(["a"]), list(store.yield_keys())) == ([b"1"], ["a"])
    store.mdelete(["a"])

    async def talk():
        await history.aset_messages(MESSAGES[:2])
        assert await history.aget_messages() == MESSAGES[:2]
        await history.aclear()
        await history.aadd_messages(MESSAGES[:1])
        await history.aerase()
        assert await history.aget_messages() == []
        await store.amset([("a", b"1")])
        assert await store.amget(["a"]) == [b"1"]
        assert [key async for key in store.ayield_keys()] == ["a"]
        await store.amdelete(["a"])

    asyncio.run(talk())


def test_what_is_no_client_is_refused(daemon):
    with pytest.raises(errors.InvalidArgument, match="client takes a memoird Client or AsyncClient, not a str"):
        MemoirdChatMessageHistory("typed", client=daemon.addr)


def test_memoird_chooses_the_window(daemon):
    window = Window(policy=memoird.WindowPolicy(sliding_window=memoird.SlidingWindow(turns=4)))
    history = MemoirdChatMessageHistory("window", client=daemon, window=window)
    assert history.messages == []
    messages = [HumanMessage(str(number)) for number in range(40)]
    history.add_messages(messages)
    shown = history.messages
    assert "are not shown here" in shown[0].content
    assert 1 < len(shown) <= 5 and shown[1:] == messages[1 - len(shown) :]


def test_a_run_adds_what_is_new_whatever_becomes_of_the_window_meanwhile(daemon):
    window = Window(policy=memoird.WindowPolicy(sliding_window=memoird.SlidingWindow(turns=4)))

    class Slow(FakeListChatModel):
        def _call(self, *args, **kwargs):
            # Another message of the chat is answered. A compaction would shorten the window.
            for number in range(6):
                daemon.append("amid", [memoird.user(str(number))])
            return super()._call(*args, **kwargs)

    def history(session_id: str) -> MemoirdChatMessageHistory:
        return MemoirdChatMessageHistory(session_id, client=daemon, window=window)

    bot = RunnableWithMessageHistory(Slow(responses=["In Oslo.", "Since noon."]), history)
    config = {"configurable": {"session_id": "amid"}}

    async def ask(text):
        return await bot.ainvoke(text, config)

    bot.invoke("Where is it?", config)
    asyncio.run(ask("Since when?"))
    said = [message.content for message in MemoirdChatMessageHistory("amid", client=daemon).messages]
    others = [str(number) for number in range(6)]
    assert said == [*others, "Where is it?", "In Oslo.", *others, "Since when?", "Since noon."]


def test_a_window_has_memories(daemon):
    daemon.remember("ann", memoird.MemoryKind.USER, "Ann lives in Oslo")
    recall = memoird.RecallRequest(query="Where does Ann live?", subjects=["ann"])
    history = MemoirdChatMessageHistory("recalls", client=daemon, window=Window(memories=recall))
    history.add_messages([HumanMessage("Hello"), AIMessage("Hi")])
    said = history.messages
    assert [message.type for message in said] == ["human", "ai", "human"]
    assert "Ann lives in Oslo" in said[-1].content


def test_messages_that_are_set_first_are_of_the_subject(daemon):
    history = MemoirdChatMessageHistory("set first", client=daemon, subject="ann")
    history.set_messages(MESSAGES[:2])
    assert history.messages == MESSAGES[:2]
    assert daemon.get_session("set first").session.subject == "ann"


def test_what_memoird_says_in_other_words_is_a_message(daemon):
    history = MemoirdChatMessageHistory("abandoned", client=daemon, window=Window())
    history.add_messages([HumanMessage("a"), AIMessage("", tool_calls=[CALL]), HumanMessage("b")])
    kinds = [message.type for message in history.messages]
    assert kinds == ["human", "ai", "tool", "human"]
    assert history.messages[2].status == "error"


def test_refusals_are_typed(daemon):
    history = MemoirdChatMessageHistory("refused", client=daemon)
    with pytest.raises(ValueError, match="RemoveMessage"):
        history.add_message(RemoveMessage(id="m1"))
    with pytest.raises(TypeError):
        history.add_message(ToolMessage("a", tool_call_id="c", artifact=object()))
    with pytest.raises(errors.InvalidArgument):
        history.add_message(HumanMessage("x" * (24 << 20)))
    with pytest.raises(errors.InvalidArgument, match="client_json"):
        history.add_message(HumanMessage("a", additional_kwargs={"x": "x" * (300 << 10)}))


def test_the_example_of_the_readme(daemon, monkeypatch):
    monkeypatch.setenv("MEMOIRD_ADDR", daemon.addr)
    fake = FakeListChatModel(responses=["In Oslo."])
    provider = SimpleNamespace(ChatOpenAI=lambda model: fake)
    monkeypatch.setitem(sys.modules, "langchain_openai", provider)
    assert example("memoird[langchain]", {})["answer"] == "In Oslo."
    said = MemoirdChatMessageHistory("telegram:4711").messages
    assert [message.content for message in said] == ["Where is my parcel?", "In Oslo."]


# About 24,000 tokens.
FOUND = " ".join(str(number * 7919) for number in range(6_000))


def blocks_of(provider):
    """Returns an answer with reasoning and a provider's tool, in LangChain's form."""
    if provider == "anthropic":
        return [
            {"type": "thinking", "thinking": "He asks. " * 500, "signature": "c2ln" * 500},
            {"type": "redacted_thinking", "data": "cmVk" * 4_000},
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "parcel"}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "s1",
                "content": [{"type": "web_search_result", "title": FOUND, "url": "https://example.org"}],
            },
            {
                "type": "text",
                "text": "It is in Oslo.",
                "citations": [{"type": "web_search_result_location", "cited_text": "Oslo " * 200}],
            },
        ]
    return [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "Z0FB" * 4_000},
        {"type": "file_search_call", "id": "fs_1", "queries": ["parcel"], "results": [{"text": FOUND}]},
        {"type": "text", "text": "It is in Oslo."},
    ]


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_what_the_model_is_sent_again_is_counted(daemon, provider):
    blocks = blocks_of(provider)
    message = AIMessage(blocks, id="m1", response_metadata={"model_provider": provider})
    messages = [HumanMessage("Where is it?"), message, HumanMessage("Since when?")]
    history = MemoirdChatMessageHistory(f"counted {provider}", client=daemon)
    history.add_messages(messages)
    assert history.messages == messages
    if provider == "anthropic":
        format, items = memoird.MessageFormat.ANTHROPIC, [{"role": "assistant", "content": blocks}]
    else:
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is in Oslo."}]}
        format, items = memoird.MessageFormat.OPENAI_RESPONSES, [*blocks[:2], said]
    asked = [{"role": "user", "content": text} for text in ("Where is it?", "Since when?")]
    daemon.append(f"plain {provider}", messages_json=[asked[0], *items, asked[1]], format=format)
    plain, kept = (daemon.build_context(f"{name} {provider}", format=format) for name in ("plain", "counted"))
    assert plain.report.tokens_total > 20_000
    assert abs(kept.report.tokens_total - plain.report.tokens_total) < plain.report.tokens_total / 100
    # The provider's blocks are sent to this provider only.
    other = memoird.MessageFormat.OPENAI
    assert FOUND not in str(daemon.build_context(f"counted {provider}", format=other).messages)
    # They are stored only once.
    [turn] = [turn for turn in daemon.get_history(f"counted {provider}").turns if turn.client_id == "m1"]
    assert len(turn.client_json) < 2_000


def test_reasoning_beside_the_content_is_counted(daemon):
    more = {
        "reasoning_content": "He asks. " * 500,
        "reasoning": {"type": "reasoning", "id": "rs_1", "summary": [{"text": FOUND}]},
        "tool_outputs": [{"type": "file_search_call", "id": "fs_1", "results": [{"text": FOUND}]}],
        "tool_calls": [{"id": "c1", "function": {"name": "find", "arguments": FOUND}}],
        "parsed": FOUND,
    }
    message = AIMessage("In Oslo.", additional_kwargs=more)
    history = MemoirdChatMessageHistory("beside", client=daemon)
    history.add_messages([HumanMessage("Where is it?"), message])
    assert history.messages[1] == message
    # Calls are in `tool_calls`, and parsed results are not sent.
    counted = daemon.build_context("beside").report.tokens_total
    assert 45_000 < counted < 55_000


def test_a_call_in_the_content_is_counted_once(daemon):
    call = {"id": "c1", "name": "find", "args": {"text": FOUND}}
    block = {"type": "tool_use", "id": "c1", "name": "find", "input": {"text": FOUND}}
    history = MemoirdChatMessageHistory("call", client=daemon)
    messages = [HumanMessage("Where is it?"), AIMessage([block], tool_calls=[call])]
    history.add_messages(messages)
    assert history.messages == messages
    assert daemon.build_context("call").report.tokens_total < 30_000


def test_a_message_of_very_many_blocks_is_kept(daemon):
    blocks = [{"type": "odd", "number": number, "text": None} for number in range(300)]
    message = AIMessage([*blocks, {"type": "text", "text": "In Oslo."}])
    history = MemoirdChatMessageHistory("blocks", client=daemon)
    history.add_messages([HumanMessage("Where is it?"), message])
    assert history.messages[1] == message
    assert daemon.build_context("blocks").report.tokens_total > 1_000
