"""A replacement for OpenAI's client that fails at the calls a test selects."""

import importlib.util
import json
import pathlib
from types import SimpleNamespace

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


class Provider:
    """Calls the train tool once, then answers with its result. Fails at the given calls."""

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
    """Returns a response of OpenAI's client with this content of the model."""
    message = SimpleNamespace(model_dump=lambda exclude_none: dict(said), content=said["content"])
    usage = SimpleNamespace(prompt_tokens=100, completion_tokens=10)
    return SimpleNamespace(model=model, usage=usage, choices=[SimpleNamespace(message=message)])


def example(name):
    """Imports a module of the examples."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
