"""Windows of LangChain's agents against a real daemon."""

import asyncio

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from readme import example

import memoird
from memoird import errors
from memoird.langchain_agents import MemoirdMiddleware, Window
from memoird.langgraph import MemoirdSaver

# About 1,200 tokens.
FOUND = " ".join(str(number * 7919) for number in range(350))
SMALL = memoird.Budget(
    context_window=4_000, max_reply_tokens=500, safety_headroom=0, tool_result_headroom=0
)


class Model(BaseChatModel):
    """Calls a tool `calls` times, and then answers with the number of messages."""

    calls: int = 0
    asked: list = []

    @property
    def _llm_type(self):
        return "fake"

    def bind_tools(self, tools, **_):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **_):
        self.asked.append(messages)
        number = len(self.asked)
        call = {"id": f"c{number}", "name": "look", "args": {}}
        said = AIMessage("", tool_calls=[call]) if number <= self.calls else AIMessage(str(len(messages)))
        return ChatResult(generations=[ChatGeneration(message=said)])


@tool
def look() -> str:
    """Looks."""
    return FOUND


@pytest.fixture(scope="module")
def client():
    with memoird.local() as client:
        yield client


@pytest.mark.parametrize("mode", ["threads", "event loop"])
def test_a_window_is_chosen_for_each_model_call(client, mode):
    model = Model(calls=25, asked=[])
    middleware = MemoirdMiddleware(Window(budget=SMALL), client=client)
    agent = create_agent(
        model, [look], system_prompt="Be brief.", middleware=[middleware], checkpointer=MemoirdSaver(client)
    )
    thread = {"configurable": {"thread_id": f"calls {mode}"}, "recursion_limit": 100}
    question = {"messages": [HumanMessage("Where is it?")]}
    if mode == "threads":
        state = agent.invoke(question, thread)
    else:
        state = asyncio.run(agent.ainvoke(question, thread))
    assert len(model.asked) == 26
    for number, messages in enumerate(model.asked):
        assert messages[0].content == "Be brief."
        assert sum(len(str(message.content)) for message in messages) < 14_000
        assert any(message.content == "Where is it?" for message in messages)
        called = [call["id"] for it in messages if isinstance(it, AIMessage) for call in it.tool_calls]
        assert called == [it.tool_call_id for it in messages if isinstance(it, ToolMessage)]
        if number:
            assert messages[-1].content == FOUND
    # Both the state and the session have all messages.
    assert len(state["messages"]) == 52
    assert client.get_session(f"calls {mode}").session.last_seq == 51


def test_a_thread_without_an_id_is_refused(client):
    agent = create_agent(Model(asked=[]), [], middleware=[MemoirdMiddleware(client=client)])
    with pytest.raises(errors.InvalidSetting, match="thread_id"):
        agent.invoke({"messages": [HumanMessage("Where is it?")]})


def test_the_example_of_the_readme(client, monkeypatch):
    monkeypatch.setenv("MEMOIRD_ADDR", client.addr)
    names = example("memoird[langchain-agents]", {"model": Model(asked=[])}, {'"openai:gpt-5"': "model"})
    assert names["answer"] == "3"
