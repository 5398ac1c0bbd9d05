"""The example bot with a provider that fails at the calls a test selects."""

import json
import pathlib
import re
import sys
from types import SimpleNamespace

import pytest

import memoird
from provider import Provider, completion, example

bot_module = example("bot")


@pytest.fixture(scope="module")
def client():
    with memoird.local() as client:
        yield client


def bot(client, provider):
    made = bot_module.Bot(client, provider, "gpt-4.1", "You book trains.")
    parameters = {"type": "object", "properties": {"to": {"type": "string"}}}
    function = {"name": "trains", "parameters": parameters}
    made.tools = [{"type": "function", "function": function}]
    made.functions = {"trains": lambda to: f"a train to {to} at 6:02"}
    return made


@pytest.mark.parametrize("fails_at", [(), (1,), (2,), (1, 3)])
def test_a_message_that_is_delivered_again_is_answered_once(client, fails_at):
    provider = Provider(fails_at)
    chat, answers = f"chat-{fails_at}", []
    for _ in range(4):
        try:
            answers.append(bot(client, provider).answer(chat, "m1", "To Oslo, please."))
        except ConnectionError:
            continue
    assert set(answers) == {"There is a train to Oslo at 6:02."}
    assert len(provider.asked) == 2 + len(fails_at), "the model is asked for each step once"
    roles = [turn.role.name for turn in client.get_history(chat).turns]
    assert roles == ["USER", "ASSISTANT", "TOOL", "ASSISTANT"]


def test_a_tool_that_fails_is_told_to_the_model(client):
    made = bot(client, Provider())
    made.functions = {}
    assert made.answer("failing", "m1", "To Oslo, please.") == "There is Error: 'trains'."


def test_bot_without_tools_offers_the_recall_tool(client):
    asked = []

    def create(**request):
        asked.append(request)
        return completion("gpt-4.1", {"role": "assistant", "content": "Good morning."})

    provider = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    bare = bot_module.Bot(client, provider, "gpt-4.1", "You greet people.")
    assert bare.answer("bare", "m1", "Good morning!") == "Good morning."
    names = [tool["function"]["name"] for tool in asked[0]["tools"]]
    assert names == ["read_earlier_turns"]


class Recalling:
    """A model that calls its first tool once and `read_earlier_turns` in the same reply."""

    def __init__(self, calls):
        self.calls, self.asked = calls, []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, **request):
        self.asked.append(request)
        last = request["messages"][-1]
        if last["role"] == "user":
            function = lambda name, arguments: {"name": name, "arguments": json.dumps(arguments)}
            calls = [
                {"id": f"c{number}", "type": "function", "function": function(*call)}
                for number, call in enumerate(self.calls)
            ]
            return completion("gpt-4.1", {"role": "assistant", "content": None, "tool_calls": calls})
        results = [it["content"] for it in request["messages"] if it["role"] == "tool"]
        return completion("gpt-4.1", {"role": "assistant", "content": " | ".join(results)})


@pytest.mark.parametrize("with_other", [False, True])
def test_recall_tool_is_answered_by_memoird(client, with_other):
    other = [("trains", {"to": "Oslo"})] if with_other else []
    provider = Recalling([("read_earlier_turns", {"from_seq": 1, "to_seq": 1}), *other])
    chat = f"recall-{with_other}"
    answer = bot(client, provider).answer(chat, "m1", "My seat is 41.")
    assert "#1 user" in answer and "My seat is 41." in answer
    assert ("a train to Oslo" in answer) == with_other
    assert len(provider.asked) == 2


def test_resolve_recall_tool_gives_a_message_of_the_provider(client):
    client.append("resolve", [memoird.user("My seat is 41.")])
    reply = client.resolve_recall_tool(
        "resolve", {"from_seq": 1, "to_seq": 1}, "call_1", format=memoird.MessageFormat.OPENAI
    )
    assert not reply.is_error and "My seat is 41." in reply.text
    assert reply.messages == [{"role": "tool", "tool_call_id": "call_1", "content": reply.text}]
    refused = client.resolve_recall_tool("resolve", "{")
    assert refused.is_error and "not valid JSON" in refused.text


def test_the_bot_of_the_readme(client, monkeypatch):
    readme = pathlib.Path(__file__).parents[3] / "README.md"
    section = readme.read_text().split("## A bot in twenty lines", 1)[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
    provider = Provider(fails_at=(2,))
    monkeypatch.setitem(sys.modules, "openai", SimpleNamespace(OpenAI=lambda: provider))
    monkeypatch.setenv("MEMOIRD_ADDR", client.addr)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    tools = {"trains": lambda to: f"a train to {to} at 6:02"}
    with pytest.raises(ConnectionError):
        names["on_message"]("readme", "m1", "To Oslo, please.", tools)
    for _ in range(2):
        answer = names["on_message"]("readme", "m1", "To Oslo, please.", tools)
        assert answer == "There is a train to Oslo at 6:02."
    assert len(provider.asked) == 3
