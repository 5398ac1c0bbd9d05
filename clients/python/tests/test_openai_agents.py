"""`MemoirdSession` against a real daemon, beyond the SDK's own tests."""

import asyncio
import random
from types import SimpleNamespace

import pytest
from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.memory import OpenAIResponsesCompactionSession, Session, SessionSettings
from agents.models.interface import Model
from agents.run_config import ModelInputData
from agents.usage import Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from readme import example
from responses_items import SHAPES

import memoird
from memoird import _steps, errors
from memoird.openai_agents import MemoirdSession, Window

set_tracing_disabled(True)


class Provider(Model):
    """Reports the number of items it got."""

    def __init__(self):
        self.shown = []

    async def get_response(self, system_instructions, input, *_, **__):
        self.shown.append(input)
        text = ResponseOutputText(
            text=f"{len(input)} items", type="output_text", annotations=[], logprobs=[]
        )
        message = ResponseOutputMessage(
            id=f"msg_{len(self.shown)}",
            type="message",
            role="assistant",
            status="completed",
            content=[text],
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=f"resp_{len(self.shown)}")

    def stream_response(self, *_, **__):
        raise NotImplementedError


SUMMARY = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}


class Compactor:
    """The compaction call of OpenAI's client. `meanwhile` is awaited during each call."""

    responses = property(lambda self: self)

    def __init__(self, meanwhile=None):
        self.meanwhile, self.calls = meanwhile, 0

    async def compact(self, **_):
        self.calls += 1
        if self.meanwhile:
            await self.meanwhile()
        return SimpleNamespace(output=[SUMMARY])


@pytest.fixture(scope="module")
def daemon():
    with memoird.local() as client:
        yield client


@pytest.fixture
def calls(daemon):
    return memoird.AsyncClient(daemon.addr)


def made(number):
    return {"role": "user" if number % 2 else "assistant", "content": f"message {number}"}


def test_it_is_a_session_of_the_sdk(calls):
    assert isinstance(MemoirdSession("chat", client=calls), Session)


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_is_given_back_equal(calls, name):
    async def read():
        session = MemoirdSession(f"shape {name}", client=calls)
        await session.add_items([SHAPES[name]])
        assert await session.get_items() == [SHAPES[name]]
        assert await session.get_items(1) == [SHAPES[name]]
        assert await session.pop_item() == SHAPES[name]
        assert await session.get_items() == []
        assert await session.pop_item() is None

    asyncio.run(read())


def test_all_shapes_at_once_and_in_any_order(calls):
    items = list(SHAPES.values())

    async def read(seed):
        shuffled = random.Random(seed).sample(items, len(items))
        session = MemoirdSession(f"all {seed}", client=calls)
        await session.add_items(shuffled)
        assert await session.get_items() == shuffled, f"seed {seed}"
        for limit in (1, 2, 7, len(items), len(items) + 1):
            assert await session.get_items(limit) == shuffled[-limit:], f"seed {seed}"
        while shuffled:
            assert await session.pop_item() == shuffled.pop(), f"seed {seed}"
            assert await session.get_items(3) == shuffled[-3:], f"seed {seed}"
        assert await session.pop_item() is None

    for seed in range(5):
        asyncio.run(read(seed))


def test_a_long_session_is_read_whole_and_from_its_end(calls):
    async def read():
        session = MemoirdSession("long", client=calls)
        items = [made(number) for number in range(2500)]
        for start in range(0, len(items), 500):
            await session.add_items(items[start : start + 500])
        assert await session.get_items() == items
        assert await session.get_items(20) == items[-20:]
        assert await session.get_items(1200) == items[-1200:]

    asyncio.run(read())


def test_what_the_model_said_in_a_row_may_be_long(calls):
    async def read():
        session = MemoirdSession("row", client=calls)
        items = [{"role": "assistant", "content": str(number)} for number in range(300)]
        await session.add_items(items)
        assert await session.get_items() == items
        assert await session.pop_item() == items[-1]
        assert await session.get_items() == items[:-1]

    asyncio.run(read())


def test_more_bytes_than_one_call_takes(calls):
    async def read():
        session = MemoirdSession("bytes", client=calls)
        items = [made(number) | {"content": "\u00fc" * 450_000} for number in range(10)]
        await session.add_items(items)
        assert await session.get_items() == items

    asyncio.run(read())


def test_everything_can_be_taken_back(calls):
    async def read():
        session = MemoirdSession("back", client=calls)
        items = [made(number) for number in range(300)]
        await session.add_items(items)
        # More than the history keeps. Dropped items are read from the journal.
        for item in reversed(items):
            assert await session.pop_item() == item
        assert await session.get_items() == []

    asyncio.run(read())


def test_each_item_is_popped_once(calls):
    async def read():
        items = [made(number) for number in range(24)]
        one, other = (MemoirdSession("pops", client=calls) for _ in range(2))
        await one.add_items(items)
        pops = [session.pop_item() for _ in range(12) for session in (one, other)]
        popped = await asyncio.gather(*pops)
        assert sorted(popped, key=str) == sorted(items, key=str)
        assert await one.pop_item() is None

    asyncio.run(read())


def test_an_item_that_looks_like_one_that_is_kept_comes_back_equal(calls):
    async def talk():
        session = MemoirdSession("wrapped", client=calls)
        item = {"role": "user", "content": [{"type": "memoird_item", "item": "inside"}]}
        await session.add_items([item, item])
        assert await session.get_items() == [item, item]
        assert await session.pop_item() == item

    asyncio.run(talk())


def test_what_is_cleared_is_gone_and_others_stay(calls):
    async def read():
        session, other = MemoirdSession("cleared", client=calls), MemoirdSession("kept", client=calls)
        await session.clear_session()
        for it in (session, other):
            await it.add_items([made(1), made(2)])
        await session.clear_session()
        assert await session.get_items() == []
        assert len(await other.get_items()) == 2
        await session.add_items([made(3)])
        assert await session.get_items() == [made(3)]
        await session.erase_session()
        assert await session.get_items() == []

    asyncio.run(read())


def test_a_compaction_of_the_sdk_takes_the_place_of_all_in_one_step(calls):
    async def compact():
        session = MemoirdSession("compacted", client=calls)
        await session.add_items([made(number) for number in range(300)])
        compacting = OpenAIResponsesCompactionSession("compacted", session, client=Compactor())
        await compacting.run_compaction({"force": True, "compaction_mode": "input"})
        assert await session.get_items() == [SUMMARY]
        page = await calls.get_history("compacted", scope=memoird.HistoryScope.JOURNAL, last=2)
        assert [turn.removed for turn in page.turns] == [True, False]
        assert page.session.last_seq == 301
        # More than one call accepts.
        items = [made(number) for number in range(300)]
        assert await session._atomic_replace_items(items)
        assert await session.get_items() == items

    asyncio.run(compact())


def test_compaction_during_a_run_keeps_messages_of_another_worker(calls):
    async def compact():
        name = "two workers"
        session, other = (MemoirdSession(name, client=calls) for _ in range(2))
        before = [made(number) for number in range(1, 21)]
        await session.add_items(before)
        compactor = Compactor(lambda: other.add_items([made(21)]))
        compacting = OpenAIResponsesCompactionSession(
            name, session, client=compactor, compaction_mode="input"
        )
        agent = Agent(name="bot", model=Provider())
        await Runner.run(agent, "question", session=compacting)
        assert compactor.calls == 1
        items = await session.get_items()
        assert items[:20] == before and items[20]["content"] == "question"
        assert items[-1] == made(21) and len(items) == 23
        # Without a concurrent change, the next run compacts everything.
        compactor.meanwhile = None
        await Runner.run(agent, "again", session=compacting)
        assert await session.get_items() == [SUMMARY]

    asyncio.run(compact())


def test_a_run_with_a_limit_compacts_only_what_it_sent(calls):
    async def compact():
        session = MemoirdSession("suffix", client=calls)
        before = [made(number) for number in range(1, 41)]
        await session.add_items(before)
        ids = [turn.timestamp for turn in (await calls.get_history("suffix")).turns]
        compacting = OpenAIResponsesCompactionSession(
            "suffix", session, client=Compactor(), compaction_mode="input"
        )
        config = RunConfig(session_settings=SessionSettings(limit=20))
        agent = Agent(name="bot", model=Provider())
        await Runner.run(agent, "question", session=compacting, run_config=config)
        assert await session.get_items() == [*before[:20], SUMMARY]
        # Items that stay are not appended again.
        assert [turn.timestamp for turn in (await calls.get_history("suffix")).turns][:20] == ids[:20]

    asyncio.run(compact())


def test_a_suffix_may_begin_within_a_turn(calls):
    async def compact():
        session = MemoirdSession("within", client=calls)
        row = [{"role": "assistant", "content": str(number)} for number in range(5)]
        for items in ([made(1)], row, [made(3)]):
            await session.add_items(items)
        for start in range(7, 0, -1):
            snapshot = await session._get_compaction_snapshot(100)
            assert snapshot.complete and len(snapshot.items) == 7
            kept = snapshot.items[: start - 1]
            assert await snapshot.replace_suffix(start - 1, [made(8), made(9)])
            assert await session.get_items() == [*kept, made(8), made(9)]
            # The session has changed since.
            assert not await snapshot.replace_suffix(0, [])
            await session._atomic_replace_items([made(1), *row, made(3)])
        snapshot = await session._get_compaction_snapshot(3)
        assert not snapshot.complete and snapshot.items == [*row[-2:], made(3)]
        assert await snapshot.replace_suffix(1, [SUMMARY])
        assert await session.get_items() == [made(1), *row[:4], SUMMARY]

    asyncio.run(compact())


def test_a_replacement_that_is_refused_changes_nothing(calls):
    async def compact():
        session = MemoirdSession("refused", client=calls)
        items = [made(number) for number in range(4)]
        await session.add_items(items)
        snapshot = await session._get_compaction_snapshot(10)
        with pytest.raises(errors.InvalidArgument):
            await snapshot.replace_suffix(2, [{"role": "user", "content": "x" * (24 << 20)}])
        assert await session.get_items() == items
        with pytest.raises(errors.InvalidArgument):
            await session._atomic_replace_items([{"role": "user", "content": "x" * (24 << 20)}])
        assert await session.get_items() == items
        assert await snapshot.replace_suffix(2, [SUMMARY])
        assert await session.get_items() == [*items[:2], SUMMARY]

    asyncio.run(compact())


def test_a_cancelled_compaction_finishes_before_the_next_append(calls, monkeypatch):
    replace_suffix = MemoirdSession._replace_suffix

    async def compact():
        begun, goes_on = asyncio.Event(), asyncio.Event()
        session = MemoirdSession("cancelled", client=calls)

        class Gate(_steps.Step):
            async def amake(self, _):
                begun.set()
                await goes_on.wait()

        def gated(self, *arguments):
            yield Gate()
            return (yield from replace_suffix(self, *arguments))

        monkeypatch.setattr(MemoirdSession, "_replace_suffix", gated)
        compacting = OpenAIResponsesCompactionSession(
            "cancelled",
            session,
            client=Compactor(),
            compaction_mode="input",
            should_trigger_compaction=lambda _: True,
        )
        agent = Agent(name="bot", model=Provider())
        work = asyncio.create_task(Runner.run(agent, "question", session=compacting))
        await begun.wait()
        work.cancel()
        append = asyncio.create_task(compacting.add_items([made(1)]))
        await asyncio.sleep(0)
        assert not append.done() and not work.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        await append
        assert await session.get_items() == [SUMMARY, made(1)]

    asyncio.run(compact())


@pytest.mark.parametrize("read", ["before", "cached", "meanwhile"])
def test_a_compaction_by_hand_keeps_messages_of_another_worker(calls, read):
    async def compact():
        session, other = (MemoirdSession(f"by hand {read}", client=calls) for _ in range(2))
        await session.add_items([made(number) for number in range(3)])
        meanwhile = (lambda: other.add_items([made(3)])) if read == "meanwhile" else None
        compacting = OpenAIResponsesCompactionSession(
            session.session_id, session, client=Compactor(meanwhile), compaction_mode="input"
        )
        if read == "cached":
            # The SDK caches the items it read.
            compacting.should_trigger_compaction = lambda _: False
            await compacting.run_compaction()
        await compacting.add_items([made(4)])
        if read != "meanwhile":
            await other.add_items([made(3)])
        if read == "before":
            await compacting.run_compaction({"force": True})
        else:
            with pytest.raises(errors.StaleSeq):
                await compacting.run_compaction({"force": True})
            assert await session.get_items() == [made(number) for number in (0, 1, 2, 4, 3)]
            compacting.client.meanwhile = None
            await compacting.run_compaction({"force": True})
        assert await session.get_items() == [SUMMARY]
        # Items added here do not make it stale.
        await compacting.add_items([made(1)])
        await compacting.run_compaction({"force": True})
        await compacting.clear_session()
        await compacting.add_items([made(1), made(2)])
        await compacting.run_compaction({"force": True})
        assert await session.get_items() == [SUMMARY]

    asyncio.run(compact())


def test_a_subclass_that_changes_items_is_not_compacted_past_its_methods(calls):
    class Doubling(MemoirdSession):
        async def add_items(self, items, **options):
            await super().add_items([*items, *items], **options)

    async def compact():
        session = Doubling("doubling", client=calls)
        assert await session._get_compaction_snapshot(10) is None
        assert not await session._atomic_replace_items([])

    asyncio.run(compact())


def test_limits_of_the_session_and_of_the_call(calls):
    async def read():
        settings = SessionSettings(limit=2)
        session = MemoirdSession("limited", client=calls, session_settings=settings)
        await session.add_items([made(number) for number in range(5)])
        assert await session.get_items() == [made(3), made(4)]
        assert await session.get_items(1) == [made(4)]
        assert await session.get_items(0) == []

    asyncio.run(read())


def test_a_client_for_threads_is_enough(daemon):
    async def talk():
        session = MemoirdSession("threads", client=daemon)
        await session.add_items([made(1)])
        return await session.get_items()

    assert asyncio.run(talk()) == [made(1)]


def test_refusals_are_typed(calls):
    async def read():
        with pytest.raises(errors.InvalidArgument, match="session_id"):
            await MemoirdSession("x" * 300, client=calls).add_items([made(1)])
        with pytest.raises(errors.InvalidArgument):
            await MemoirdSession("large", client=calls).add_items(
                [{"role": "user", "content": "x" * (24 << 20)}]
            )
        for items in (made(1), "text"):
            with pytest.raises(errors.InvalidArgument, match="items takes a list"):
                await MemoirdSession("typed", client=calls).add_items(items)
        halved = {"type": "function_call", "call_id": "\ud800", "name": "f", "arguments": "{}"}
        with pytest.raises(errors.InvalidArgument, match="messages_json"):
            await MemoirdSession("typed", client=calls).add_items([halved])
        with pytest.raises(errors.InvalidArgument, match=r"items\[1\] takes JSON") as wrong:
            await MemoirdSession("typed", client=calls).add_items([made(1), {"type": {1, 2}}])
        assert wrong.value.field == "items[1]"
        assert await MemoirdSession("typed", client=calls).get_items() == []
        with pytest.raises(errors.InvalidArgument, match="window takes a memoird Window") as wrong:
            await MemoirdSession("typed", client=calls, window="gpt-4.1").get_items()
        assert wrong.value.facts["field"] == "window"

    asyncio.run(read())


def test_memoird_chooses_the_window(daemon, calls):
    async def talk():
        provider = Provider()
        agent = Agent(name="bot", model=provider)
        window = Window(policy=memoird.WindowPolicy(sliding_window=memoird.SlidingWindow(turns=4)))
        session = MemoirdSession("window", client=calls, window=window)
        for number in range(8):
            await Runner.run(agent, f"question {number}", session=session)
        shown = provider.shown[-1]
        # A marker replaces the omitted turns.
        assert len(shown) <= 6 and "are not shown here" in shown[0]["content"]
        assert shown[-1]["content"] == "question 7"
        assert len(await session.get_items(1000)) == 16
        plain = MemoirdSession("window", client=calls)
        await Runner.run(agent, "all", session=plain, run_config=RunConfig())
        assert len(provider.shown[-1]) == 17

    asyncio.run(talk())


class Caller(Provider):
    """Calls a tool `calls` times in every run."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    async def get_response(self, system_instructions, input, *_, **__):
        answer = await super().get_response(system_instructions, input)
        number = len(self.shown)
        if number <= self.calls:
            answer.output = [
                ResponseFunctionToolCall(
                    call_id=f"c{number}", type="function_call", name="look", arguments="{}"
                )
            ]
        return answer

    async def stream_response(self, system_instructions, input, *_, **__):
        answer = await self.get_response(system_instructions, input)
        response = SimpleNamespace(
            output=answer.output, id=answer.response_id, usage=None, error=None
        )
        event = ResponseCompletedEvent.model_construct(
            type="response.completed", response=Response.model_construct(**vars(response))
        )
        yield event


# About 800 tokens.
FOUND = " ".join(str(number * 7919) for number in range(350))


@function_tool
def look() -> str:
    """Looks."""
    return FOUND


SMALL = memoird.Budget(
    context_window=4_000, max_reply_tokens=500, safety_headroom=0, tool_result_headroom=0
)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("limit", [None, 50])
def test_a_window_is_chosen_for_each_model_call(calls, streamed, limit):
    async def talk():
        provider = Caller(25)
        agent = Agent(name="bot", model=provider, tools=[look])
        session = MemoirdSession(
            f"calls {streamed} {limit}",
            client=calls,
            window=Window(budget=SMALL),
            session_settings={"limit": limit},
        )
        await session.add_items([made(1), made(2)])
        config = RunConfig(call_model_input_filter=session.filter_model_input)
        if streamed:
            run = Runner.run_streamed(
                agent, "Where is it?", session=session, max_turns=30, run_config=config
            )
            async for _ in run.stream_events():
                pass
        else:
            await Runner.run(agent, "Where is it?", session=session, max_turns=30, run_config=config)
        assert len(provider.shown) == 26
        assert provider.shown[0] == [made(1), made(2), {"content": "Where is it?", "role": "user"}]
        for number, shown in enumerate(provider.shown[1:], 1):
            assert len(str(shown)) < 14_000
            # The question, and the newest result, unchanged.
            assert any(item.get("content") == "Where is it?" for item in shown)
            assert shown[-1]["call_id"] == f"c{number}" and shown[-1]["output"] == FOUND
            called = {item["call_id"] for item in shown if item.get("type") == "function_call"}
            assert called == {it["call_id"] for it in shown if it.get("type") == "function_call_output"}
        # All items are stored once.
        assert len(await session.get_items(1000)) == 54

    asyncio.run(talk())


def test_an_input_that_is_not_of_the_session_stays_as_it_is(calls):
    async def talk():
        session = MemoirdSession("other input", client=calls, window=Window())
        data = SimpleNamespace(model_data=ModelInputData([made(5)], "Be brief."))
        assert await session.filter_model_input(data) == data.model_data
        await session.add_items([made(1)])
        assert await session.filter_model_input(data) == data.model_data
        data.model_data.input = [made(3), made(1), made(5)]
        filtered = await session.filter_model_input(data)
        assert filtered == ModelInputData([made(1), made(5)], "Be brief.")
        session.window = None
        assert await session.filter_model_input(data) == data.model_data

    asyncio.run(talk())


def test_the_example_of_the_readme(daemon, monkeypatch):
    monkeypatch.setenv("MEMOIRD_ADDR", daemon.addr)
    provider = Provider()
    names = example("memoird[openai-agents]", {"model": provider}, {'"gpt-5"': "model"})
    assert names["answer"] == "1 items"
    items = asyncio.run(MemoirdSession("telegram:4711").get_items())
    assert [item["role"] for item in items] == ["user", "assistant"]
