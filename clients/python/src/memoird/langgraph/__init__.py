"""LangGraph on memoird: a checkpointer and a store.

    pip install "memoird[langgraph]"

    graph = builder.compile(checkpointer=MemoirdSaver(), store=MemoirdStore())
"""

from .._extras import needs

needs("langgraph")

from .._history import Window
from ._index import MemoirdIndex
from .checkpoint import MemoirdSaver
from .store import MemoirdStore
from .window import window

__all__ = ["MemoirdIndex", "MemoirdSaver", "MemoirdStore", "Window", "window"]
