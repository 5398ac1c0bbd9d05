"""A provider in the place of OpenAI's client, which fails where a test wants it to."""

import importlib.util
import json
import pathlib
from types import SimpleNamespace

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


class Provider:
    """Asks for a train once, then answers with what it was told; fails at these calls."""

    def __init__(self, fails_at=()):
        self.asked, self.fails_at = [], set(fails_at)
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, *, model, messages, tools):
        self.asked.append(messages)
        if len(self.asked) in self.fails_at:
            raise ConnectionError("the provider is down")
        last, call = messages[-1], {}
        if last["role"] == "tool":
            said = {"role": "assistant", "content": f"There is {last['content']}."}
        else:
            call = {"name": "trains", "arguments": json.dumps({"to": "Oslo"})}
            # A model's second try differs from its first one.
            id = f"call-{len(self.asked)}"
            said = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": id, "type": "function", "function": call}],
            }
        return completion(model, said)


def completion(model, said):
    """What OpenAI's client answers where the model says this."""
    message = SimpleNamespace(model_dump=lambda exclude_none: dict(said), content=said["content"])
    usage = SimpleNamespace(prompt_tokens=100, completion_tokens=10)
    return SimpleNamespace(model=model, usage=usage, choices=[SimpleNamespace(message=message)])


def example(name):
    """A module of the examples."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
