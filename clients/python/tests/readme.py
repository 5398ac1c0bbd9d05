"""Runs the examples of the README."""

import pathlib
import re

README = pathlib.Path(__file__).parent.parent / "README.md"
LINES_MAX = 20


def example(section, names, instead={}):
    """Runs the first example of a section and returns its variables. `instead` replaces pieces of it."""
    text = README.read_text().split(f"### `{section}`", 1)[1]
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    assert code.count("\n") < LINES_MAX
    for piece, other in instead.items():
        assert piece in code
        code = code.replace(piece, other)
    names = dict(names)
    exec(compile(code, "README.md", "exec"), names)
    return names
