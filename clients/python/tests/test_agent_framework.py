"""The history provider of Microsoft's Agent Framework against a real daemon."""

import asyncio
import itertools
import sys
from types import SimpleNamespace

import pytest
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    InMemoryHistoryProvider,
    Message,
    tool,
)
from readme import example

import memoird
from memoird import errors
from memoird.agent_framework import MemoirdHistoryProvider, Window

MESSAGES = [
    Message("system", ["Be brief."]),
    Message("user", ["Where is my parcel? \u00fc"], author_name="ann", message_id="m1"),
    Message(
        "assistant",
        [
            Content.from_text_reasoning(text="He asks. " * 30),
            Content.from_text("Let me look. " * 20),
            Content.from_function_call("c1", "find", arguments='{"order": 7.5}'),
            Content.from_function_call("c2", "weigh", arguments={"order": 7}),
        ],
        additional_properties={"deep": {"a": [1, None]}},
    ),
    Message("tool", [Content.from_function_result("c1", result="in Oslo")]),
    Message("tool", [Content.from_function_result("c2", result="", exception="no such order")]),
    Message("assistant", ["In Oslo."]),
    Message(
        "user",
        [
            Content.from_text("What is this?"),
            Content.from_uri("https://example.org/a.png", media_type="image/png"),
            Content.from_data(b"\x89PNG" * 100, "image/png"),
        ],
    ),
    Message("tool", [Content.from_function_result("c9", result="of a call that nobody knows")]),
    Message("user", []),
    Message("user", ["So much: " * 20], additional_properties={"most": float("inf"), "least": -1e400}),
]


class Provider(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Calls a tool if there is one, then reports the number of messages it got."""

    def __init__(self, **_):
        super().__init__()
        self.shown = []

    def _inner_get_response(self, *, messages, stream, options, **_):
        async def answer():
            self.shown.append(list(messages))
            content = Content.from_text(f"{len(messages)} messages")
            if options.get("tools") and messages[-1].role != "tool":
                content = Content.from_function_call(f"c{len(self.shown)}", "find", arguments="{}")
            return ChatResponse(messages=[Message("assistant", [content])])

        return answer()


@pytest.fixture(scope="module")
def daemon():
    with memoird.local() as client:
        yield client


@pytest.fixture
def calls(daemon):
    return memoird.AsyncClient(daemon.addr)


def dumped(messages):
    return [message.to_dict() for message in messages]


def test_each_message_is_given_back_equal(calls):
    async def read():
        history = MemoirdHistoryProvider(client=calls)
        for number, message in enumerate(MESSAGES):
            await history.save_messages(f"one {number}", [message])
            assert dumped(await history.get_messages(f"one {number}")) == dumped([message])

    asyncio.run(read())


def test_all_messages_under_a_prefix(calls):
    async def read():
        history = MemoirdHistoryProvider(client=calls, prefix="af:", subject="ann")
        assert await history.get_messages("all") == []
        await history.save_messages("all", MESSAGES, state={})
        assert dumped(await history.get_messages("all", state={})) == dumped(MESSAGES)
        assert (await calls.get_session("af:all")).session.subject == "ann"
        await history.clear("all")
        assert await history.get_messages("all") == []
        await history.save_messages(None, MESSAGES[:1])
        await history.erase(None)
        assert await history.get_messages(None) == []

    asyncio.run(read())


def test_an_agent_with_a_tool_goes_on_from_the_last_run(calls):
    @tool(approval_mode="never_require")
    def find() -> str:
        """Finds it."""
        return "in Oslo"

    async def talk():
        provider = Provider()
        history = MemoirdHistoryProvider(client=calls)
        agent = Agent(provider, tools=[find], context_providers=[history])
        for text in ("Where is it?", "And now?"):
            session = agent.create_session(session_id="run")
            answer = await agent.run(text, session=session)
        assert answer.text == "7 messages"
        roles = [str(message.role) for message in await history.get_messages("run")]
        assert roles == ["user", "assistant", "tool", "assistant"] * 2

    asyncio.run(talk())


def test_what_is_repeated_is_kept_as_the_framework_keeps_it(calls):
    def said(*texts):
        roles = itertools.cycle(["user", "assistant"])
        return [Message(role, [text]) for role, text in zip(roles, texts, strict=False)]

    async def talk():
        history, own, state = MemoirdHistoryProvider(client=calls), InMemoryHistoryProvider(), {}
        transcript = said("Hi", "Hello", "Hi", "Hello", "And?")
        for batch in (
            [],
            said("Hi"),
            said("Hi"),
            said("Hi", "Hello"),
            transcript[:3],
            transcript,
            [*transcript, *said("More", "Sure")],
            [Message("user", ["Hi"], message_id="1"), Message("assistant", ["Hello"], message_id="2")],
            [Message("user", ["Hi"], message_id="1"), Message("assistant", ["Hello"], message_id="3")],
            said(*"abcdefgh"),
            said(*"efgh", *"ij"),
            said("j"),
        ):
            await history.save_messages("repeats", batch)
            await own.save_messages("repeats", batch, state=state)
            kept = await own.get_messages("repeats", state=state)
            assert dumped(await history.get_messages("repeats")) == dumped(kept)

    asyncio.run(talk())


def test_memoird_chooses_the_window(calls):
    async def read():
        window = Window(policy=memoird.WindowPolicy(sliding_window=memoird.SlidingWindow(turns=4)))
        history = MemoirdHistoryProvider(client=calls, window=window)
        assert await history.get_messages("window") == []
        messages = [Message("user", [str(number)]) for number in range(40)]
        await history.save_messages("window", messages)
        shown = await history.get_messages("window")
        assert "are not shown here" in shown[0].text
        assert 1 < len(shown) <= 5 and dumped(shown[1:]) == dumped(messages[1 - len(shown) :])

    asyncio.run(read())


# About 1,200 tokens.
FOUND = " ".join(str(number * 7919) for number in range(350))


class Caller(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Calls a tool 25 times."""

    def __init__(self):
        super().__init__(function_invocation_configuration={"max_iterations": 30})
        self.shown = []

    def _inner_get_response(self, *, messages, stream, options, **_):
        async def answer():
            self.shown.append(list(messages))
            content = Content.from_text("done")
            if len(self.shown) <= 25:
                content = Content.from_function_call(f"c{len(self.shown)}", "look", arguments="{}")
            return ChatResponse(messages=[Message("assistant", [content])])

        return answer()


def test_a_window_is_chosen_for_each_model_call(calls):
    @tool(approval_mode="never_require")
    def look() -> str:
        """Looks."""
        return FOUND

    async def talk():
        budget = memoird.Budget(
            context_window=4_000, max_reply_tokens=500, safety_headroom=0, tool_result_headroom=0
        )
        # The result of the pending call is added afterwards.
        window = Window(budget=budget, overhead_tokens=1_300)
        history = MemoirdHistoryProvider(client=calls, window=window)
        caller = Caller()
        agent = Agent(
            caller,
            context_providers=[history],
            tools=[look],
            require_per_service_call_history_persistence=True,
        )
        await agent.run("Where is it?", session=agent.create_session(session_id="calls"))
        assert len(caller.shown) == 26
        for number, shown in enumerate(caller.shown):
            contents = [content for message in shown for content in message.contents]
            assert sum(len(str(content.result or content.text)) for content in contents) < 14_000
            assert any(content.text == "Where is it?" for content in contents)
            called = [it.call_id for it in contents if it.type == "function_call"]
            assert called == [it.call_id for it in contents if it.type == "function_result"]
            assert not number or contents[-1].result == FOUND
        everything = await MemoirdHistoryProvider(client=calls).get_messages("calls")
        assert len(everything) == 52

    asyncio.run(talk())


def test_a_service_that_stores_the_conversation_is_not_sent_it_again(calls, caplog):
    class Storing(Provider):
        STORES_BY_DEFAULT = True

        def _inner_get_response(self, *, options, **how):
            async def answer():
                response = await super(Storing, self)._inner_get_response(options=options, **how)
                if options.get("store") is not False:
                    response.conversation_id = "resp_1"
                return response

            return answer()

    async def talk(name, **options):
        provider = Storing()
        history = MemoirdHistoryProvider(client=calls)
        agent = Agent(provider, context_providers=[history], default_options=options)
        session = agent.create_session(session_id=name)
        for text in ("one", "two"):
            await agent.run(text, session=session)
        assert len(await history.get_messages(name)) == 4
        return [[message.text for message in shown] for shown in provider.shown]

    assert asyncio.run(talk("stored")) == [["one"], ["two"]]
    assert "store" in caplog.text
    assert asyncio.run(talk("not stored", store=False)) == [["one"], ["one", "1 messages", "two"]]


# About 24,000 tokens.
MUCH = " ".join(str(number * 7919) for number in range(6_000))


@pytest.mark.parametrize(
    ("contents", "tokens"),
    [
        ([Content.from_text_reasoning(text=MUCH)], 23_900),
        ([Content.from_text_reasoning(text="", protected_data="Z0FB" * 10_000)], 6_600),
        (
            [
                Content("search_tool_call", call_id="s1", tool_name="web_search", arguments={"query": "parcel"}),
                Content("search_tool_result", call_id="s1", outputs=[Content.from_text(MUCH)]),
                Content.from_text("In Oslo."),
            ],
            23_900,
        ),
        (
            [
                Content("mcp_server_tool_call", call_id="s1", tool_name="find", arguments="{}"),
                Content("mcp_server_tool_result", call_id="s1", output=[Content.from_text(MUCH)]),
            ],
            23_900,
        ),
        ([Content("usage", usage_details={"input_token_count": 7}), Content.from_text("In Oslo.")], 40),
    ],
)
def test_what_the_model_is_sent_again_is_counted(daemon, calls, contents, tokens):
    async def talk():
        name = f"counted {contents[0].type} {tokens}"
        messages = [
            Message("user", ["Where is it?"]),
            Message("assistant", contents),
            Message("user", ["Since when?"]),
        ]
        history = MemoirdHistoryProvider(client=calls)
        await history.save_messages(name, messages)
        assert dumped(await history.get_messages(name)) == dumped(messages)
        counted = (await calls.build_context(name)).report.tokens_total
        assert abs(counted - tokens) < tokens / 20 + 60
        turns = (await calls.get_history(name)).turns
        assert len(turns[1].client_json) < 2_000

    asyncio.run(talk())


def test_a_window_has_memories(calls):
    async def read():
        await calls.remember("ann", memoird.MemoryKind.USER, "Ann lives in Oslo")
        recall = memoird.RecallRequest(query="Where does Ann live?", subjects=["ann"])
        history = MemoirdHistoryProvider(client=calls, window=Window(memories=recall))
        await history.save_messages("recalls", [Message("user", ["Hello"]), Message("assistant", ["Hi"])])
        shown = await history.get_messages("recalls")
        assert [message.role for message in shown] == ["user", "assistant", "user"]
        assert "Ann lives in Oslo" in shown[-1].text

    asyncio.run(read())


def test_a_client_for_threads_is_enough(daemon):
    async def talk():
        history = MemoirdHistoryProvider(client=daemon)
        await history.save_messages("threads", MESSAGES[:2])
        return await history.get_messages("threads")

    assert dumped(asyncio.run(talk())) == dumped(MESSAGES[:2])


def test_what_memoird_says_in_other_words_is_a_message(calls):
    async def read():
        history = MemoirdHistoryProvider(client=calls, window=Window())
        await history.save_messages("abandoned", [*MESSAGES[1:3], MESSAGES[1]])
        shown = await history.get_messages("abandoned")
        results = [it.call_id for message in shown for it in message.contents if it.type == "function_result"]
        assert results == ["c1", "c2"]

    asyncio.run(read())


def test_what_a_compaction_excluded_is_not_loaded(calls):
    async def read():
        history = MemoirdHistoryProvider(client=calls, skip_excluded=True)
        excluded = Message("user", ["old"], additional_properties={"_excluded": True})
        await history.save_messages("excluded", [excluded, MESSAGES[1]])
        assert dumped(await history.get_messages("excluded")) == dumped([MESSAGES[1]])
        everything = MemoirdHistoryProvider(client=calls)
        assert len(await everything.get_messages("excluded")) == 2

    asyncio.run(read())


def test_refusals_are_typed(calls):
    async def read():
        with pytest.raises(errors.InvalidArgument):
            await MemoirdHistoryProvider(client=calls).save_messages(
                "large", [Message("user", ["x" * (24 << 20)])]
            )

    asyncio.run(read())


def test_the_example_of_the_readme(daemon, monkeypatch):
    monkeypatch.setenv("MEMOIRD_ADDR", daemon.addr)
    provider = SimpleNamespace(OpenAIChatClient=Provider)
    monkeypatch.setitem(sys.modules, "agent_framework.openai", provider)
    assert example("memoird[agent-framework]", {})["answer"] == "1 messages"
