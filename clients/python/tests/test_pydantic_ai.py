"""Histories of Pydantic AI against a real daemon."""

import asyncio
import base64

import pytest
from pydantic_ai import Agent, BinaryContent, ImageUrl
from pydantic_ai.messages import (
    CompactionPart,
    FilePart,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel
from readme import example

import memoird
from memoird import errors
from memoird.pydantic_ai import MemoirdHistory, Window

MESSAGES = [
    ModelRequest([SystemPromptPart("Be brief."), UserPromptPart("Where is my parcel? \u00fc")]),
    ModelResponse(
        [
            ThinkingPart("He asks. " * 30, signature="s"),
            TextPart("Let me look."),
            ToolCallPart("find", {"order": 7.5}, "c1"),
            ToolCallPart("weigh", '{"order": 7}', "c2"),
        ],
        model_name="m",
        provider_response_id="r1",
    ),
    ModelRequest(
        [
            ToolReturnPart("find", {"city": "Oslo"}, "c1"),
            ToolReturnPart("weigh", "no such order", "c2", outcome="failed"),
        ]
    ),
    ModelResponse([TextPart("In Oslo.")]),
    ModelRequest(
        [
            UserPromptPart(
                ["What is this?", ImageUrl("https://example.org/a.png"), BinaryContent(b"\x89PNG", media_type="image/png")]
            )
        ],
        instructions="Be brief.",
    ),
    ModelRequest([SystemPromptPart("A system's alone.")]),
    ModelRequest([ToolReturnPart("find", "of a call that nobody knows", "c9")]),
    ModelRequest([RetryFeedbackPart("Say it in JSON.", retry=RetryInfo("model_retry"))]),
    ModelResponse([]),
]

# As loaded from the framework's own JSON, which detects images in bytes.
MESSAGES = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(MESSAGES))


@pytest.fixture(scope="module")
def daemon():
    with memoird.local() as client:
        yield client


def test_each_message_is_given_back_equal(daemon):
    for number, message in enumerate(MESSAGES):
        history = MemoirdHistory(f"one {number}", sync_client=daemon)
        history.add_sync([message])
        assert history.messages_sync() == [message]


def test_all_messages_and_those_set_instead(daemon):
    history = MemoirdHistory("all", sync_client=daemon, subject="ann")
    history.add_sync(MESSAGES)
    assert history.messages_sync() == MESSAGES
    history.set_sync(MESSAGES[:1])
    assert history.messages_sync() == MESSAGES[:1]
    history.clear_sync()
    assert history.messages_sync() == []
    history.set_sync(MESSAGES[3:])
    history.erase_sync()
    assert history.messages_sync() == []


@pytest.mark.parametrize("kind", ["client", "sync_client"])
def test_a_client_of_one_kind_is_enough_for_all_calls(daemon, monkeypatch, kind):
    # Using the environment's daemon would fail.
    monkeypatch.setenv("MEMOIRD_ADDR", "ftp://nowhere")
    calls = {kind: daemon if kind == "sync_client" else daemon.for_event_loops()}
    history = MemoirdHistory(f"one {kind}", **calls)
    history.set_sync(MESSAGES[:1])
    history.clear_sync()
    history.add_sync(MESSAGES[:1])
    assert history.messages_sync() == MESSAGES[:1]
    history.erase_sync()

    async def talk():
        await history.set(MESSAGES[:1])
        await history.clear()
        await history.add(MESSAGES[:1])
        assert await history.messages() == MESSAGES[:1]
        await history.erase()

    asyncio.run(talk())


def test_media_is_kept_once_as_providers_take_it(daemon):
    picture = BinaryContent(b"\x89PNG" + b"\xfb\xff\xbf" * 1_000, media_type="image/png")
    alike = {"kind": "binary", "data": "a+b-c"}
    messages = [
        ModelRequest([UserPromptPart(["What is this?", picture])]),
        ModelResponse([FilePart(picture)]),
        ModelRequest([ToolReturnPart("find", alike, "c1")]),
    ]
    messages = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))
    history = MemoirdHistory("media", sync_client=daemon)
    history.add_sync(messages)
    assert history.messages_sync() == messages
    data = base64.b64encode(picture.data).decode()
    for turn in daemon.get_history("media").turns[:2]:
        assert turn.parts[-1].media.uri == f"data:image/png;base64,{data}"
        assert len(turn.client_json) < len(data)


def test_a_run_with_a_tool_goes_on_from_the_last(daemon):
    seen = []

    def answer(messages, info):
        seen.append(messages)
        called = any(isinstance(part, ToolReturnPart) for part in messages[-1].parts)
        if called or len(seen) > 2:
            return ModelResponse([TextPart("In Oslo.")])
        return ModelResponse([ToolCallPart("find", {"order": 7})])

    agent = Agent(FunctionModel(answer))

    @agent.tool_plain
    def find(order: int) -> str:
        return f"{order} is in Oslo"

    async def talk():
        history = MemoirdHistory("run", client=memoird.AsyncClient(daemon.addr))
        for text in ("Where is it?", "And now?"):
            result = await agent.run(text, message_history=await history.messages())
            await history.add(result.new_messages())
        assert await history.messages() == result.all_messages()
        assert len(seen[-1]) == 5
        await history.clear()
        await history.set(MESSAGES[:1])
        await history.erase()

    asyncio.run(talk())


def test_memoird_chooses_the_window(daemon):
    window = Window(policy=memoird.WindowPolicy(sliding_window=memoird.SlidingWindow(turns=4)))
    history = MemoirdHistory("window", sync_client=daemon, window=window)
    assert history.messages_sync() == []
    messages = [ModelRequest([UserPromptPart(str(number))]) for number in range(40)]
    history.add_sync(messages)
    shown = history.messages_sync()
    assert "are not shown here" in shown[0].parts[0].content
    assert 1 < len(shown) <= 5 and shown[1:] == messages[1 - len(shown) :]


def test_a_window_has_memories(daemon):
    daemon.remember("ann", memoird.MemoryKind.USER, "Ann lives in Oslo")
    recall = memoird.RecallRequest(query="Where does Ann live?", subjects=["ann"])
    history = MemoirdHistory("recalls", sync_client=daemon, window=Window(memories=recall))
    history.add_sync([MESSAGES[0], MESSAGES[3]])
    seen = []

    def answer(messages, info):
        seen.extend(part.content for message in messages for part in message.parts)
        return ModelResponse([TextPart("In Oslo.")])

    shown = history.messages_sync()
    result = Agent(FunctionModel(answer)).run_sync("Where do I live?", message_history=shown)
    assert len(shown) == 3 and "Ann lives in Oslo" in shown[-1].parts[0].content
    assert any("Ann lives in Oslo" in str(said) for said in seen)
    history.add_sync(result.new_messages())
    kept = MemoirdHistory("recalls", sync_client=daemon).messages_sync()
    said = [part.content for message in kept[2:] for part in message.parts]
    assert said == ["Where do I live?", "In Oslo."]


def test_what_memoird_says_in_other_words_is_a_message(daemon):
    history = MemoirdHistory("abandoned", sync_client=daemon, window=Window())
    history.add_sync([MESSAGES[0], MESSAGES[1], MESSAGES[0]])
    shown = history.messages_sync()
    results = [part for message in shown for part in message.parts if part.part_kind == "tool-return"]
    assert [(part.tool_name, part.tool_call_id) for part in results] == [("find", "c1"), ("weigh", "c2")]


def test_refusals_are_typed(daemon):
    with pytest.raises(errors.InvalidArgument):
        MemoirdHistory("large", sync_client=daemon).add_sync(
            [ModelRequest([UserPromptPart("x" * (24 << 20))])]
        )


def test_the_example_of_the_readme(daemon, monkeypatch):
    monkeypatch.setenv("MEMOIRD_ADDR", daemon.addr)
    names = example("memoird[pydantic-ai]", {}, {'"openai:gpt-5"': '"test"'})
    assert names["answer"] == "success (no tool calls)"
    kinds = [message.kind for message in MemoirdHistory("telegram:4711").messages_sync()]
    assert kinds == ["request", "response"]


def partial_details():
    return [{"type": "missing", "loc": ("order",), "msg": "Field required"}]


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (lambda: RetryFeedbackPart(partial_details(), retry=RetryInfo("validation_error")), ".content"),
        (lambda: ToolCallPart("find", {"order": object()}, "c1"), None),
        (lambda: UserPromptPart(timestamp="yesterday", content="Hi"), ".timestamp"),
    ],
)
def test_what_could_not_be_read_again_is_refused(daemon, part, field):
    history = MemoirdHistory(f"unreadable {field}", sync_client=daemon)
    of = ModelResponse if isinstance(part(), ToolCallPart) else ModelRequest
    with pytest.raises(errors.InvalidArgument, match="nothing was stored") as refused:
        history.add_sync([*MESSAGES[:2], of([part()])])
    assert refused.value.field == (f"messages[2].parts[0]{field}" if field else "messages")
    assert history.messages_sync() == []
    history.add_sync(MESSAGES[:2])
    assert history.messages_sync() == MESSAGES[:2]


def test_a_message_of_another_version_does_not_hide_the_others(daemon):
    history = MemoirdHistory("versions", sync_client=daemon)
    history.add_sync(MESSAGES[:1])
    stored = {"pydantic_ai": {"kind": "request", "parts": [{"part_kind": "of-later"}]}, "whole": True}
    turn = memoird.user("Since when?")
    turn.client_json = stored
    daemon.append("versions", [turn])
    first, second = history.messages_sync()
    assert first == MESSAGES[0] and second.parts[0].content == "Since when?"


# About 1,200 tokens.
FOUND = " ".join(str(number * 7919) for number in range(350))
SMALL = memoird.Budget(
    context_window=4_000, max_reply_tokens=500, safety_headroom=0, tool_result_headroom=0
)


class Caller:
    """A model that calls a tool 25 times, and fails at one call."""

    def __init__(self, fails_at=None):
        self.asked, self.fails_at = [], fails_at

    def __call__(self, messages, info):
        self.asked.append(messages)
        number = len(self.asked)
        if number == self.fails_at:
            raise ConnectionError("the provider is down")
        if number > 25:
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart("look", {"number": number}, f"c{number}")])

    def agent(self):
        agent = Agent(FunctionModel(self), instructions="Be brief.")

        @agent.tool_plain
        def look(number: int) -> str:
            return FOUND

        return agent


def ids_in(messages, kind):
    parts = (part for message in messages for part in message.parts)
    return [part.tool_call_id for part in parts if isinstance(part, kind)]


def test_a_window_is_chosen_for_each_model_call(daemon):
    caller = Caller()
    history = MemoirdHistory("calls", sync_client=daemon, window=Window(budget=SMALL))
    history.add_sync(MESSAGES[:4])
    result = caller.agent().run_sync(
        "Where is it?",
        message_history=history.messages_sync(),
        capabilities=[history.window_per_call()],
    )
    assert result.output == "done" and len(caller.asked) == 26
    for number, messages in enumerate(caller.asked):
        assert len(str(messages)) < 20_000
        assert ids_in(messages, ToolCallPart) == ids_in(messages, ToolReturnPart)
        assert any("Where is it?" in str(message) for message in messages)
        assert messages[-1].instructions == "Be brief."
        if number:
            assert messages[-1].parts[-1].content == FOUND
    new = result.new_messages()
    assert len(new) == 52
    # The messages added by the run are skipped, by the same object or another one.
    for it in (history, MemoirdHistory("calls", sync_client=daemon, window=Window())):
        it.add_sync(new)
    plain = MemoirdHistory("calls", sync_client=daemon)
    assert plain.messages_sync() == [*MESSAGES[:4], *new]


def test_a_run_that_fails_goes_on_with_what_it_had(daemon):
    caller = Caller(fails_at=4)
    history = MemoirdHistory("failed", sync_client=daemon, window=Window())
    with pytest.raises(ConnectionError):
        caller.agent().run_sync("Where is it?", capabilities=[history.window_per_call()])
    messages = history.messages_sync()
    assert ids_in(messages, ToolReturnPart) == ["c1", "c2", "c3"]
    # Without a prompt, the run continues with the last request of its history.
    caller.asked = [None] * 25
    result = caller.agent().run_sync(
        message_history=messages, capabilities=[history.window_per_call()]
    )
    assert caller.asked[-1] == messages
    history.add_sync(result.new_messages())
    assert history.messages_sync() == [*messages, *result.new_messages()]
    assert len(history.messages_sync()) == 8


def test_messages_of_a_run_that_are_added_piece_by_piece(daemon):
    caller = Caller()
    result = caller.agent().run_sync("Where is it?")
    history = MemoirdHistory("pieces", sync_client=daemon, window=Window())
    for start in range(0, 52, 10):
        history.add_sync(result.new_messages()[start : start + 10])
    assert MemoirdHistory("pieces", sync_client=daemon).messages_sync() == result.new_messages()
    with pytest.raises(errors.InvalidSetting, match="window"):
        MemoirdHistory("pieces", sync_client=daemon).window_per_call()


# About 24,000 tokens.
MUCH = " ".join(str(number * 7919) for number in range(6_000))


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([ThinkingPart(MUCH, signature="c2ln")], 23_900),
        ([ThinkingPart("", signature="c2ln" * 10_000, provider_name="anthropic")], 6_600),
        ([ThinkingPart("", id="redacted_thinking", signature="c2ln" * 10_000, provider_name="anthropic")], 6_600),
        (
            [
                NativeToolCallPart("web_search", {"query": "parcel"}, "s1", provider_name="anthropic"),
                NativeToolReturnPart("web_search", [{"title": MUCH}], "s1", provider_name="anthropic"),
                TextPart("In Oslo."),
            ],
            23_900,
        ),
        (
            [
                CompactionPart(
                    provider_name="openai", provider_details={"encrypted_content": "Z0FB" * 10_000}
                )
            ],
            6_500,
        ),
    ],
)
def test_what_the_model_is_sent_again_is_counted(daemon, parts, tokens):
    name = f"counted {tokens} {type(parts[0]).__name__} {getattr(parts[0], 'id', None)}"
    history = MemoirdHistory(name, sync_client=daemon)
    messages = [
        ModelRequest([UserPromptPart("Where is it?")]),
        ModelResponse(parts),
        ModelRequest([UserPromptPart("Since when?")]),
    ]
    messages = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))
    history.add_sync(messages)
    assert history.messages_sync() == messages
    counted = daemon.build_context(name).report.tokens_total
    assert abs(counted - tokens) < tokens / 20
    # Stored only once.
    assert len(daemon.get_history(name).turns[1].client_json) < 2_000


def test_files_of_a_result_are_media(daemon):
    size = b"\r\n\x1a\n\0\0\0\rIHDR" + (1024).to_bytes(4, "big") + (768).to_bytes(4, "big")
    data = b"\x89PNG" + size + b"\xfb\xff\xbf" * 100_000
    screen = BinaryContent(data, media_type="image/png")
    nested = {"kind": "binary", "data": "a+b-c", "size": 7}
    call = ModelResponse([ToolCallPart("look", {}, f"c{number}") for number in range(3)])
    messages = [
        ModelRequest([UserPromptPart("What is on the screen?")]),
        call,
        ModelRequest(
            [
                ToolReturnPart("look", screen, "c0"),
                ToolReturnPart("look", ["a window", screen, ImageUrl("https://example.org/a.png")], "c1"),
                ToolReturnPart("look", nested, "c2"),
            ]
        ),
    ]
    messages = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))
    history = MemoirdHistory("screens", sync_client=daemon)
    history.add_sync(messages[:2])
    # Each about 400 kB as JSON.
    for part in messages[2].parts:
        history.add_sync([ModelRequest([part])])
    stored = history.messages_sync()
    assert [it.parts[0].content for it in stored[2:]] == [it.content for it in messages[2].parts]
    turns = daemon.get_history("screens").turns
    for turn, count in zip(turns[2:], (1, 2, 0), strict=True):
        assert turn.role is memoird.Role.TOOL
        [part] = turn.parts
        assert len(part.tool_result.parts) == count and len(turn.client_json) < 2_000
    assert turns[3].parts[0].tool_result.content.startswith('["a window", "See file ')
    assert turns[2].parts[0].tool_result.parts[0].media.uri.startswith("data:image/png;base64,iVBOR")
    # The tokens of two of them and of an image of unknown size.
    assert daemon.build_context("screens").report.tokens_total < 10_000
