"""Executes the example notebook cell by cell and compares the outputs with those in the notebook."""

import contextlib
import io
import json
import sys
from types import SimpleNamespace

from provider import EXAMPLES, completion


def openai():
    """OpenAI's module with a model that knows the parcel's number from its input."""

    def create(*, model, messages):
        assert messages[0]["role"] == "system"
        if messages[-1]["content"] == "Thank you.":
            answer = "You are welcome."
        elif len(messages) > 2:
            answer = "It has number 7." if "number 7" in messages[1]["content"] else "I do not know."
        else:
            answer = "It is in Oslo."
        return completion(model, {"role": "assistant", "content": answer})

    chat = SimpleNamespace(completions=SimpleNamespace(create=create))
    return SimpleNamespace(OpenAI=lambda: SimpleNamespace(chat=chat))


def test_each_cell_says_what_the_notebook_shows(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", openai())
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names = {"__name__": "__main__"}
    try:
        for number, cell in enumerate(cells, 1):
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
            shown = [line for output in cell["outputs"] for line in output["text"]]
            assert said.getvalue() == "".join(shown), f"cell {number} is stale"
            assert cell["execution_count"] == number
    finally:
        names["running"].close()
