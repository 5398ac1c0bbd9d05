"""LangGraph's tests of stores on memoird's store. Each store has its own namespace."""

from __future__ import annotations

import uuid
from typing import Any

import langgraph.store.memory

from memoird.langgraph import MemoirdStore


class InMemoryStore(MemoirdStore):
    """A store with the constructor of LangGraph's."""

    def __init__(self, *, index: Any = None) -> None:
        super().__init__(index=index, namespace=("suite", uuid.uuid4().hex))


langgraph.store.memory.InMemoryStore = InMemoryStore
